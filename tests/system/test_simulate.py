"""A simulation of real rows in the order of time: stopped and continued, it ends as one that ran through."""

import os
import shutil
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from ratchet import settings
from ratchet.errors import DataError
from ratchet.workspace import Workspace
from tasks.simulate import Simulation, simulate

pytestmark = pytest.mark.system

ROWS, FIRST = 1_512, datetime(1996, 5, 7)  # 31 days of half hours
CHANGES = {
    "data.kind": "table", "data.path": "elec.csv", "data.label_column": "class", "data.drop": ["period", "note"],
    "model.name": "baseline", "gate.minimum_rows": 20, "gate.champion": "not-worse", "gate.tolerance": 0.2,
    "monitoring.window": 720, "monitoring.good_windows": 5,
    "training.hooks": ["absent:hook"],  # a simulation calls none
}  # fmt: skip


class Progress:
    """Progress that stops the simulation after so many models."""

    def __init__(self, models: int = 100) -> None:
        self.models, self.messages = models, list[str]()

    def update(self, done: int, total: int, note: str = "") -> None:
        self.models -= 1
        if not self.models:
            raise KeyboardInterrupt

    def say(self, text: str) -> None:
        self.messages.append(text)


@pytest.fixture
def elec(project) -> Workspace:
    """A project with the first month of elec, and the dates of its rows."""
    if not (root := os.environ.get("RATCHET_DATASETS")):
        pytest.skip("RATCHET_DATASETS is not set")
    header, *lines = Path(root, "tabular", "elec.csv").read_text(encoding="utf-8").splitlines()[: ROWS + 1]
    rows = [f"{FIRST + timedelta(minutes=30 * place)},no date,{line}" for place, line in enumerate(lines)]
    (project.root / "elec.csv").write_text("\n".join([f"date,note,{header}", *rows]), encoding="utf-8")
    settings.override(project.workspace.params, CHANGES)
    return project.workspace


def run(workspace: Workspace, progress: Progress, time: str = "date") -> Simulation:
    return simulate(
        settings.load(workspace.params), workspace, time, periods=2, memory=9, price=0.05, progress=progress
    )


def test_stopped_simulation_goes_on_to_the_same_result(
    elec: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("PYARROW_IGNORE_TIMEZONE", "1"), ("SPARK_LOCAL_IP", "127.0.0.1")):  # MLflow sets them
        monkeypatch.setenv(name, value)
    shutil.copytree(elec.root, tmp_path / "other", ignore=shutil.ignore_patterns(".ratchet"))
    with pytest.raises(DataError, match=r"has no column 'day'.*Allowed: date, note, period"):
        run(elec, Progress(), "day")
    with pytest.raises(DataError, match="1,512 cells that are no dates"):
        run(elec, Progress(), "note")
    with pytest.raises(KeyboardInterrupt):
        run(elec, Progress(models=1))
    [model] = (elec.state / "simulations").glob("*/models/00.json")
    before, progress = model.stat().st_mtime_ns, Progress()
    continued = run(elec, progress)
    assert model.stat().st_mtime_ns == before
    assert progress.models == 99  # only the second model was trained
    never, *_, always = continued.comparison.replays
    assert [step.rows for step in never.steps] == [528, 456]
    assert always.steps[0].champion == 1
    assert any("always, period 1: Passed" in text or "W3" in text for text in progress.messages)
    assert 0 < continued.same_as_last < 0.5
    fresh = run(Workspace(tmp_path / "other"), Progress())
    replays = [[replace(each, cpu_hours=0.0) for each in result.comparison.replays] for result in (continued, fresh)]
    assert replays[0] == replays[1]
    assert fresh.comparison.optimum == continued.comparison.optimum
