"""Messages of an ingest on the terminal: the fixes that they name are tried."""

import shlex

import numpy as np
import pandera.polars  # noqa: F401  # sets variables of the environment as it is imported
import pytest

from ratchet import settings
from ratchet.workspace import Workspace
from tasks.ingest import ingest
from tasks.progress import Terminal
from tests.conftest import REPOSITORY

ROWS = 300


def test_one_command_leaves_out_all_leaks_and_keeps_others(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    chance = np.random.default_rng(0)
    label, size = chance.random(ROWS) < 0.4, chance.normal(0, 1, ROWS)
    lines = [
        f"{number:.3f},{-code},{code * 7 + 1},{code + number:.2f},{'ab'[code]}"
        for number, code in zip(size, label.astype(int), strict=True)
    ]
    (tmp_path / "rows.csv").write_text('size,"bob\'s, copy",scaled,old,label\n' + "\n".join(lines) + "\n")
    workspace = Workspace(tmp_path)
    workspace.params.write_bytes((REPOSITORY / "params.yaml").read_bytes())
    changes = {"data.kind": "table", "data.path": "rows.csv", "data.drop": ["old"]}

    def lines_of_ingest() -> list[str]:
        params = settings.override(workspace.params, changes)
        with Terminal("ingest", unit="samples") as progress:
            ingest(params, workspace, progress=progress)
        return [line for line in capsys.readouterr().err.splitlines() if "leak" in line or "data.drop" in line]

    *leaks, fix = lines_of_ingest()
    assert len(leaks) == 2
    changes |= settings.parse_assignments(shlex.split(fix.partition("ratchet set ")[2]))
    assert changes["data.drop"] == ["old", "bob's, copy", "scaled"]
    assert lines_of_ingest() == []
