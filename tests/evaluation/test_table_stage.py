"""The stage evaluate on tables: each problem has its metrics, its predictions and its report page."""

from pathlib import Path

import numpy as np
import pytest
import torch

from ratchet import files
from ratchet.data.ingest import IngestTask, ingest
from ratchet.data.manifest import Manifest
from ratchet.evaluation.metrics import Metrics
from ratchet.evaluation.predictions import read_predictions
from ratchet.evaluation.problems import read_metrics
from ratchet.kinds import ModelSpec
from ratchet.settings.model import DataSettings, EvaluationSettings, Params
from ratchet.training import build, save_model
from ratchet.workspace import Workspace
from tasks.baseline import Baseline
from tasks.evaluate import Evaluation, evaluate
from tasks.progress import Terminal

ROWS = 600
SETTINGS = EvaluationSettings(resamples=100, slice_rows=10)


def evaluated(root: Path, labels: str, problem: str) -> tuple[Workspace, Metrics]:
    """Ingest a table with these label columns, and evaluate an untrained model."""
    drawn = np.random.default_rng(0)
    area, town = drawn.gamma(3, 20, ROWS), drawn.integers(3, size=ROWS)
    price = 3 * area + 40 * town + drawn.normal(0, 10, ROWS)
    lines = ["area,town,price,sold,garden"]
    for at in range(ROWS):
        sold, garden = price[at] > 200, area[at] > 60
        lines.append(f"{area[at]:.3f},{'abc'[town[at]]},{price[at]:.3f},{int(sold)},{int(garden)}")
    (root / "houses.csv").write_text("\n".join(lines))
    workspace = Workspace(root)
    ingest(
        IngestTask(
            DataSettings(kind="table", path="houses.csv", label_column=labels, problem=problem),
            packed=workspace.packed,
            quarantine=workspace.quarantine,
            root=root,
        )
    )
    manifest = Manifest.read(workspace.packed)
    spec = ModelSpec("mlp", manifest.input, manifest.target)
    training = {"steps": 1, "best_epoch": 1, "best_metric": "validation/loss", "best_value": 1.0, "key": "none"}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        save_model(workspace.model, build(spec).state_dict(), spec, about={"training": training})
        Baseline("another start", spec, build(spec).eval()).write(workspace)
    evaluate(Params(evaluation=SETTINGS), workspace, progress=Terminal("evaluate", unit="rows"))
    return workspace, read_metrics(workspace.reports)


@pytest.mark.parametrize(
    ("labels", "problem", "name"), [("price", "regression", "MAE"), ("sold", "classification", "accuracy")]
)
def test_stage_measures_tables(tmp_path: Path, labels: str, problem: str, name: str) -> None:
    workspace, metrics = evaluated(tmp_path, labels, problem)
    assert metrics.problem == problem
    assert metrics.headline.name == name
    numbers = files.read_json(workspace.reports / "metrics.json")
    assert {key: numbers[key] for key in metrics.numbers()} == metrics.numbers()
    assert metrics.baseline is not None
    assert metrics.baseline.name == "another start"
    predictions = read_predictions(workspace.reports / "predictions.parquet")
    assert predictions.target == Manifest.read(workspace.packed).target
    assert len(predictions.ids) == metrics.rows
    assert {part.column for part in metrics.slices} >= {"area", "town"}
    assert Evaluation.load(workspace).summary.startswith(f"test {name} ")
    for file in ("confusion.csv", "reliability.csv", "explanations.safetensors"):
        assert (workspace.reports / file).stat().st_size > 0
