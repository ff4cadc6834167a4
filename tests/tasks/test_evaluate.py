"""The stage evaluate: slice columns from the index, robustness, explanations, and reproducible files."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from PIL import Image

from ratchet.data.ingest import IngestTask, ingest
from ratchet.data.manifest import Manifest
from ratchet.errors import DataError, SettingsError
from ratchet.evaluation.explanations import read_explanations
from ratchet.evaluation.intervals import Interval
from ratchet.evaluation.metrics import BaselineResult
from ratchet.evaluation.predictions import read_predictions
from ratchet.evaluation.problems import read_metrics
from ratchet.evaluation.robustness import NotMeasured, Robustness, corrupt, evenly_spaced
from ratchet.evaluation.slices import slice_columns
from ratchet.gate.rules import MetricResult
from ratchet.gate.rules.better_than_baseline import BaselineRule
from ratchet.gate.verdict import Verdict
from ratchet.kinds import ModelSpec
from ratchet.settings.model import DataSettings, EvaluationSettings, Params
from ratchet.training import build, load_model, open_split, save_model
from ratchet.workspace import Workspace
from tasks.evaluate import evaluate
from tasks.register import result_tags


@pytest.fixture(scope="module")
def workspace(tmp_path_factory) -> Workspace:
    """Ingest images from a table with the columns camera, age and note."""
    root: Path = tmp_path_factory.mktemp("slices")
    (root / "pets").mkdir()
    lines = ["path,label,camera,age,note"]
    for number in range(300):
        drawn = np.random.default_rng(number)
        pixels = drawn.integers(0, 40 + number // 2, (12, 12, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / "pets" / f"{number}.png")
        age = "" if number % 10 == 0 else number % 70
        lines.append(
            f"{number}.png,{'cat' if number % 2 else 'dog'},{'canon' if number % 3 else 'nikon'},{age},n{number}"
        )
    (root / "pets" / "labels.csv").write_text("\n".join(lines))
    workspace = Workspace(root)
    ingest(
        IngestTask(
            DataSettings(source="image-manifest", path="pets", manifest="labels.csv"),
            packed=workspace.packed,
            quarantine=workspace.quarantine,
            root=root,
        )
    )
    return workspace


def test_each_image_has_its_own_values(workspace: Workspace) -> None:
    columns = slice_columns(workspace.packed, EvaluationSettings())
    assert set(columns) == {"brightness", "contrast", "format", "camera", "age", "note"}
    index = pl.read_parquet(workspace.packed / "index.parquet")
    test = index.filter(pl.col("split") == "test").sort("row")
    assert columns["camera"] == test["camera"].to_list()
    edges = index.filter(pl.col("split") == "train")["age"].drop_nulls().sort()
    third = edges[len(edges) // 3]
    for part, age in zip(columns["age"], test["age"], strict=True):
        assert (part is None) == (age is None)
        if age is not None and abs(age - third) > 2:
            assert (part == "low") == (age < third)


def test_only_named_columns_are_used(workspace: Workspace) -> None:
    assert set(slice_columns(workspace.packed, EvaluationSettings(slices=("camera", "brightness")))) == {
        "camera",
        "brightness",
    }
    with pytest.raises(SettingsError, match=r"evaluation\.slices: found lens; allowed: auto, or .*camera, age, note"):
        slice_columns(workspace.packed, EvaluationSettings(slices=("camera", "lens")))


class Silent:
    """Record the progress that the stage reports."""

    def __init__(self) -> None:
        self.reported: list[tuple[int, int]] = []

    def update(self, done: int, total: int, note: str = "") -> None:
        self.reported.append((done, total))

    def say(self, text: str) -> None:
        raise AssertionError(text)


def with_model(workspace: Workspace) -> None:
    """Put an untrained model in the workspace."""
    manifest = Manifest.read(workspace.packed)
    spec = ModelSpec("convnet", manifest.input, manifest.target)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build(spec)
    training = {"key": "k", "best_epoch": 1, "best_metric": "validation/accuracy", "best_value": 0.5, "steps": 1}
    save_model(workspace.model, model.state_dict(), spec, about={"training": training})


def run_evaluate(workspace: Workspace, **changes: object) -> Silent:
    """Evaluate with these settings, and return the progress."""
    settings = EvaluationSettings(resamples=100, **changes)  # type: ignore[arg-type]
    progress = Silent()
    evaluate(Params(evaluation=settings), workspace, progress=progress)
    assert progress.reported[-1][0] == progress.reported[-1][1]
    return progress


def test_robustness_is_measured_on_test_images_and_in_metrics(workspace: Workspace) -> None:
    with_model(workspace)
    run_evaluate(workspace, robustness_rows=16, explained_errors=0)
    robustness = read_metrics(workspace.reports).robustness
    assert isinstance(robustness, Robustness)
    test = open_split(workspace.packed, "test")
    rows = evenly_spaced(len(test), 16)
    assert robustness.rows == 16 < len(test)
    predictions = read_predictions(workspace.reports / "predictions.parquet")
    assert robustness.clean.value == predictions.score[rows].mean()
    model, _ = load_model(workspace.model)
    corrupted = torch.from_numpy(corrupt(test.images(rows), "noise", 5)).permute(0, 3, 1, 2)
    with torch.inference_mode():
        answers = model.eval()(corrupted).argmax(1).numpy()
    assert robustness.corrupted["noise"][-1].value == (answers == test.targets[rows]).mean()
    metrics = json.loads((workspace.reports / "metrics.json").read_text())
    assert metrics["robustness_noise"] == robustness.mean("noise")
    assert metrics["robustness"] == robustness.overall


def test_as_many_worst_errors_are_explained_as_set(workspace: Workspace) -> None:
    with_model(workspace)
    run_evaluate(workspace, robustness_rows=0, explained_errors=3)
    explanations = read_explanations(workspace.reports / "explanations.safetensors")
    predictions = read_predictions(workspace.reports / "predictions.parquet")
    np.testing.assert_array_equal(explanations.rows, predictions.worst_errors(3))
    assert explanations.contributions.shape == (3, 12, 12)
    assert explanations.gap < 0.05


def test_measurements_that_are_switched_off_have_a_reason(workspace: Workspace) -> None:
    with_model(workspace)
    run_evaluate(workspace, robustness_rows=0, explained_errors=0)
    assert read_metrics(workspace.reports).robustness == NotMeasured("evaluation.robustness_rows is 0")
    assert (
        read_explanations(workspace.reports / "explanations.safetensors").reason == "evaluation.explained_errors is 0"
    )
    assert not any(name.startswith("robust") for name in json.loads((workspace.reports / "metrics.json").read_text()))


def test_validation_samples_are_part_of_the_progress(workspace: Workspace) -> None:
    with_model(workspace)
    progress = run_evaluate(workspace, robustness_rows=0, explained_errors=0)
    test, validation = (len(open_split(workspace.packed, name)) for name in ("test", "validation"))
    assert progress.reported == [(test, test), (test + validation, test + validation)]


def test_damaged_validation_samples_calibrate_nothing(workspace: Workspace) -> None:
    with_model(workspace)
    targets = workspace.packed / Manifest.read(workspace.packed).splits["validation"].targets.file
    whole = targets.read_bytes()
    try:
        targets.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(DataError, match="has other bytes than were packed"):
            run_evaluate(workspace, robustness_rows=0, explained_errors=0)
    finally:
        targets.write_bytes(whole)


def test_evaluating_twice_gives_the_same_bytes(workspace: Workspace) -> None:
    with_model(workspace)
    names = ("evaluation.json", "metrics.json", "explanations.safetensors", "predictions.parquet")
    run_evaluate(workspace, robustness_rows=16, explained_errors=2)
    first = [(workspace.reports / name).read_bytes() for name in names]
    run_evaluate(workspace, robustness_rows=16, explained_errors=2)
    assert [(workspace.reports / name).read_bytes() for name in names] == first


@pytest.mark.parametrize(
    ("minimum", "baseline_is_beaten", "ending", "gate", "description"),
    [
        (0.0, True, "passed", "passed", "Passed, 2 of 2 rules"),
        (0.0, False, "passed in doubt", "passed; not shown: baseline", "Passed, 1 of 2 rules; not shown: baseline"),
        (1.1, False, "refused", "refused", "Refused, "),
    ],
)
def test_mlflow_shows_what_a_passed_gate_did_not_show(
    workspace: Workspace, minimum: float, baseline_is_beaten: bool, ending: str, gate: str, description: str
) -> None:
    """Name, columns and description of a run. A model that passes in amber is not called passed alone."""
    with_model(workspace)
    run_evaluate(workspace, robustness_rows=0, explained_errors=0)
    accuracy = read_metrics(workspace.reports).headline
    compared = BaselineResult("blend", accuracy, accuracy, Interval(-0.1, 0.02, 0.1), baseline_is_beaten, rows=40)
    rules = (
        MetricResult(accuracy.interval.value >= minimum, accuracy, "accuracy", minimum, 0.5, 40, "accuracy"),
        BaselineRule(True, compared, 0.95, False),
    )
    tags = result_tags(workspace, Verdict(rules[0].passed, rules))
    assert tags["mlflow.runName"].startswith("pets convnet ")
    assert tags["mlflow.runName"].endswith(f" % {ending}")
    assert tags["ratchet.gate"] == gate
    assert tags["mlflow.note.content"].startswith(description)
    assert ("but with 40 images that can be chance" in tags["mlflow.note.content"]) == (ending == "passed in doubt")
