"""`ratchet lr-find` in a project: it ingests, prints and writes a page, and leaves settings, DVC and MLflow alone."""

import re
from typing import Any

import pytest

pytestmark = pytest.mark.system


def state(project: Any) -> dict[str, Any]:
    lock = project.root / "dvc.lock"
    data = project.root / "data"
    return {
        "params": (project.root / "params.yaml").read_bytes(),
        "lock": lock.read_bytes(),
        "files": {path for path in data.rglob("*") if path.name != "lr-find.html"},
        "records": sorted((project.root / "mlruns").iterdir()),
    }


def test_lr_find_prints_a_rate_and_leaves_no_other_trace(project: Any) -> None:
    first = project.good("ratchet", "lr-find", "--steps", "40")
    assert "ingest" in first, "there were no data"
    before = state(project)
    text = project.good("ratchet", "lr-find", "--steps", "40", "--to", "100")
    assert state(project) == before
    [assignment] = re.findall(r"`ratchet set (training.learning_rate=\S+)`", text)
    assert "Smith (2017)" in text
    assert not (project.root / "data/model").exists()
    page = (project.root / "data/reports/lr-find.html").read_text(encoding="utf-8")
    assert "Range test" in page
    assert "<svg" in page
    project.good("ratchet", "set", assignment)

    refused = project.refused("ratchet", "lr-find", "--from", "1", "--to", "0.1")
    assert "--from: found 1. Allowed: below --to, which is 0.1" in refused
    project.good("ratchet", "set", "model.name=baseline")
    assert "model.name: found baseline, which has no learning rate" in project.refused("ratchet", "lr-find")
