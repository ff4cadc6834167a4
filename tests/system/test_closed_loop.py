"""The closed loop with real servers: drift, missing labels, labels, a training with them, a server that follows."""

import json
import os
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from served import HOST, Served, servers_up
from waiting import until

from ratchet import files

pytestmark = pytest.mark.slow

NUMBERS = ("age", "fnlwgt", "years", "gain", "loss", "hours")
COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "years", "marital", "occupation", "relationship", "race", "sex", "gain",
    "loss", "hours", "country", "income",
)  # fmt: skip
OLD, NEW = 1000, 300
Row = dict[str, Any]


@pytest.fixture(scope="module")
def adult() -> list[Row]:
    if not (root := os.environ.get("RATCHET_DATASETS")):
        pytest.skip("RATCHET_DATASETS is not set")
    lines = (Path(root) / "tabular" / "adult.data").read_text().splitlines()[: OLD + NEW]
    rows = [dict(zip(COLUMNS, line.split(", "), strict=True)) for line in lines]
    return [{name: float(cell) if name in NUMBERS else cell for name, cell in row.items()} for row in rows]


@pytest.fixture(scope="module")
def served(new_project: Callable[[str], Any], adult: list[Row]) -> Iterator[Served]:
    """A project with a champion that answers, and whose inputs are logged."""
    project = new_project("loop")
    (project.root / "data" / "raw").mkdir(exist_ok=True)
    pl.DataFrame(adult[:OLD]).write_csv(project.root / "data" / "raw" / "adult.csv")
    project.good("ratchet", "use", "tabular-classification")
    gate = ("gate.champion=not-worse", "gate.tolerance=0.99", "gate.slice_tolerance=0.99", "gate.latency_factor=0")
    others = ("gate.calibration_error=1.0", "gate.constant=report", "training.epochs=20", "monitoring.min_labels=200")
    data = ("data.path=data/raw/adult.csv", "data.label_column=income", "serving.log_inputs=keep")
    project.good("ratchet", "set", *data, *gate, *others)
    project.good("dvc", "add", "data/raw/adult.csv")
    with servers_up(project) as served:
        run = served.run("train-flow/local")
        assert served.aliases("adult") == {"champion": "1"}, served.log(run)
        project.good("git", "add", "--all")
        project.good("git", "commit", "--quiet", "--message=trained")
        until(lambda: served.answering()["version"] == "adult version 1")
        yield served


def post(served: Served, path: str, body: object) -> Any:
    url, kind = f"http://{HOST}:{served.serving_port}{path}", {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), kind)) as answer:
        return json.load(answer)


def test_drift_without_labels_then_labels_then_a_new_champion(served: Served, adult: list[Row]) -> None:
    later = [{name: cell for name, cell in row.items() if name != "income"} for row in adult[OLD:]]
    ids = [post(served, "/v1/predict", {"input": [row]})["id"] for row in later]
    logged = served.root / ".ratchet" / "requests"
    until(lambda: sum(len(pl.read_parquet(path)) for path in logged.rglob("[!.]*.parquet")) == NEW)

    event = ("event", "emit", "ratchet.drift.detected", "--resource-id", "ratchet.model.adult")
    served.shell(*event)
    [run] = until(lambda: served.begun("train-flow/on-drift"), pause=1.0)
    run = served.ended(run)
    assert run["state"]["name"] == "LabelsNeeded", served.log(run)
    message = run["state"]["message"]
    assert message.startswith(
        "not trained: 0 new labelled requests, monitoring.min_labels is 200. Fix: send the labels"
    )
    wanted = pl.read_parquet(served.root / ".ratchet" / "monitoring" / "label-these.parquet")
    assert dict(wanted["chosen"].value_counts().rows()) == {"entropy": 100, "random": 100}
    assert served.run("monitor-flow/hourly")["state"]["type"] == "COMPLETED"
    assert len(served.runs_of("train-flow/on-drift")) == 1  # no labels, no run

    labels = [{"id": answer, "label": row["income"]} for answer, row in zip(ids, adult[OLD:], strict=True)]
    assert post(served, "/v1/labels", {"labels": labels})["new"] == NEW
    for _ in range(2):
        assert served.run("monitor-flow/hourly")["state"]["type"] == "COMPLETED"
    run, _ = until(lambda: (runs := served.runs_of("train-flow/on-drift"))[1:] and runs)
    run = served.ended(run)
    assert run["state"]["type"] == "COMPLETED", served.log(run)
    assert len(served.runs_of("train-flow/on-drift")) == 2
    assert any(line.startswith("labelled requests: ") for line in served.log(run))

    production = served.root / ".ratchet" / "production"
    rows = pl.read_parquet(served.root / "data" / "labelled" / "on-drift" / "rows.parquet")
    manifest = files.read_json(production / "data" / "packed" / "manifest.json")
    assert sum(split["rows"] for split in manifest["splits"].values()) == OLD + len(rows)
    assert len(rows) > 0.9 * NEW
    trained = pl.read_parquet(served.root / ".ratchet" / "monitoring" / "trained.parquet")
    assert len(trained) > 0.9 * NEW  # recorded, so that the same labels never train twice
    registration = files.read_json(production / "data" / "registration.json")
    assert registration["passed"], registration
    assert served.aliases("adult")["champion"] == "2"
    until(lambda: served.answering()["version"] == "adult version 2")
