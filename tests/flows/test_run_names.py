"""Names of flow runs: those that Prefect makes up are replaced, chosen ones are kept."""

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from prefect.runtime import flow_run
from prefect.utilities.names import generate_slug

from flows.run_names import is_made_up, run_name, time_text


@pytest.fixture
def made_up() -> Iterator[list[str]]:
    """Names as Prefect makes them up, with Python's own random numbers."""
    before = random.getstate()
    yield [generate_slug(2) for _ in range(2_000)]
    random.setstate(before)


def test_every_name_that_prefect_makes_up_is_known(made_up: list[str]) -> None:
    assert [name for name in made_up if not is_made_up(name)] == []


def test_runs_of_the_same_minute_have_different_names() -> None:
    times = [datetime(2026, 11, 25, 2, 0, second, tzinfo=UTC) for second in (0, 7)]
    assert [time_text(at) for at in times] == ["2026-11-25 02:00", "2026-11-25 02:00:07"]


@pytest.mark.parametrize("name", ["nightly-retrain", "baseline-large", "new-labels", "digits 2026-11-25", "otter", ""])
def test_name_that_somebody_chose_is_kept(name: str) -> None:
    assert not is_made_up(name)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("happy-otter", "digits 2026-11-25 02:00:07 nightly"),
        ("before-the-sale", "before-the-sale"),
        ("", "digits 2026-11-25 02:00:07 nightly"),
    ],
)
def test_a_run_is_named_by_data_time_and_deployment(
    project: Any, monkeypatch: pytest.MonkeyPatch, name: str, shown: str
) -> None:
    monkeypatch.setenv("RATCHET_ROOT", str(project.root))
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__NAME", name)
    monkeypatch.setitem(vars(flow_run), "scheduled_start_time", datetime(2026, 11, 25, 2, 0, 7, tzinfo=UTC))
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__NAME", "nightly")
    assert run_name() == shown
