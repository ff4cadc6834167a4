"""Verdicts of a simulation: they are stored, however many trainings came before."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from commands.models import models
from ratchet import files
from ratchet.settings.model import Params
from ratchet.workspace import Workspace
from tasks.simulate import _Quiet, _Simulated

PERIODS, REFUSED = 120, 7


def champions(folder: Path) -> list[int]:
    """Champion after each period, with a training at the end of all of them. Nothing is trained: all is stored."""
    no_table: Any = None
    history = _Simulated(Workspace(folder), Params(), no_table, folder, PERIODS, 9, _Quiet())
    return [history.champion_after("always", 0, period) for period in range(1, PERIODS + 1)]


def test_verdicts_of_120_trainings_are_stored_and_read_again(tmp_path: Path) -> None:
    for number in range(PERIODS + 1):
        files.write_json(tmp_path / "registrations" / f"always-{number:02}.json", {"passed": number != REFUSED})
    expected = [0 if period == REFUSED else period for period in range(1, PERIODS + 1)]
    assert champions(tmp_path) == expected
    shutil.rmtree(tmp_path / "registrations")  # so only the verdicts are left
    assert champions(tmp_path) == expected
    assert len({files.digest_file(path) for path in (tmp_path / "verdicts").iterdir()}) == PERIODS


@pytest.mark.parametrize("price", ["inf", "nan", "-1"])
@pytest.mark.parametrize("command", [("simulate", "--time", "date"), ("backtest-triggers",)])
def test_a_price_that_is_no_amount_is_refused_at_once(command: tuple[str, ...], price: str) -> None:
    result = CliRunner().invoke(models, [*command, "--price", price])
    assert result.exit_code == 2, result.output
    assert "--price" in result.stderr
