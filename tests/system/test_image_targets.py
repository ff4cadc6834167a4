"""Images with numbers or several labels as targets, from a table beside them to a registered model that answers.

The images are scikit-learn's digits, turned by a known angle. The targets are the angle, and three facts of the digit.
"""

import csv
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from ratchet.data.manifest import Manifest
from ratchet.evaluation.problems import read_metrics

pytestmark = pytest.mark.slow

ROWS, SIDE, STEEPEST = 600, 12, 60.0
LABELS = ("even", "greater than 4", "round")
RULES = ("gate.minimum_metric=none", "training.epochs=4", "registry.export=onnx", "training.flip=none")
SERVE = """
import sys
import mlflow, numpy as np

mlflow.set_tracking_uri(sys.argv[1])
np.save(sys.argv[4], mlflow.pyfunc.load_model(sys.argv[2]).predict(np.load(sys.argv[3])))
"""
BAD = {3: "label-not-a-number", 4: "no-label", 5: "infinite-label"}  # of the angle, by row


def write_images(folder: Path) -> None:
    digits, angles = load_digits(), np.random.default_rng(0).uniform(-STEEPEST, STEEPEST, ROWS)
    folder.mkdir()
    wrong = {3: "steep", 4: "", 5: "inf"}
    rows = []
    for number, angle in enumerate(angles.tolist()):
        pixels, digit = (digits.images[number] * 255 / 16).round().astype(np.uint8), int(digits.target[number])
        turned = Image.fromarray(pixels).resize((SIDE, SIDE)).rotate(angle, Image.Resampling.BILINEAR)
        turned.save(folder / f"{number:04d}.png")
        even = "maybe" if number == 6 else int(digit % 2 == 0)
        facts = (even, int(digit > 4), int(digit in (0, 6, 8, 9)))
        rows.append([f"{number:04d}.png", wrong.get(number, f"{angle:.4f}"), *facts, f"hand {number % 3}"])
    with (folder / "list.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["path", "angle", *LABELS, "hand"], *rows])


def trained(project: Any, label_column: str, *drop: str) -> dict[str, Any]:
    """Run all stages; the registration."""
    write_images(project.root / "data" / "raw" / "turned")
    source = ("data.source=image-manifest", "data.path=data/raw/turned", "data.manifest=list.csv")
    columns = (f"data.label_column={label_column}", f"data.drop=[{','.join(drop)}]")
    project.good("ratchet", "set", *source, *columns, *RULES)
    for stage in ("ingest", "train", "evaluate", "export", "register"):
        project.good(*project.stage(stage))
    content: dict[str, Any] = json.loads(project.workspace.registration.read_text())
    return content


def served(project: Any, registration: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return what the registered model answers to the packed test images, and their targets."""
    packed, images, answers = project.workspace.packed, project.root / "images.npy", project.root / "answers.npy"
    shards = Manifest.read(packed).splits["test"].arrays["images"]
    np.save(images, np.concatenate([np.load(packed / shard.file) for shard in shards]))
    model = f"models:/{registration['model']}/{registration['version']}"
    uri = f"sqlite:///{project.root}/mlruns/mlflow.db"
    project.good(sys.executable, "-c", SERVE, uri, model, str(images), str(answers))
    return np.load(answers), np.load(packed / "test" / "targets.npy")


def test_angles_of_images_are_predicted(project) -> None:
    registration = trained(project, "angle", *LABELS)
    assert registration["passed"], registration["summary"]
    table = project.good("ratchet", "data", "quarantine")
    for row, rule in BAD.items():
        assert re.search(rf"{row:04d}\.png.*{rule}", table), table
    manifest = Manifest.read(project.workspace.packed)
    assert manifest.target.description == "number angle"
    assert manifest.quarantined == len(BAD)

    answers, targets = served(project, registration)
    errors = np.abs(answers - targets)
    assert errors.mean() < 0.6 * np.abs(targets - targets.mean()).mean()
    metrics = read_metrics(project.workspace.reports)
    assert metrics.named()["mae"].interval.value == pytest.approx(errors.mean(), rel=1e-4)
    assert "hand" in {part.column for part in metrics.slices}
    report, card = (path.read_text() for path in (project.workspace.report, project.workspace.card))
    assert "MAE" in report
    assert "Target angle" in card
    assert "The model beats mean" in report


def test_several_labels_of_images_are_predicted(project) -> None:
    registration = trained(project, json.dumps(list(LABELS)), "angle")
    assert registration["passed"], registration["summary"]
    assert "0006.png" in project.good("ratchet", "data", "quarantine")
    manifest = Manifest.read(project.workspace.packed)
    assert (manifest.target.problem, manifest.target.names, manifest.quarantined) == ("multi-label", LABELS, 1)
    answers, targets = served(project, registration)
    assert answers.shape == targets.shape == (manifest.splits["test"].rows, len(LABELS))
    assert 0.0 <= answers.min() <= answers.max() <= 1.0
    assert ((answers > 0.5) == (targets > 0.5)).mean() > 0.7
    report, card = (path.read_text() for path in (project.workspace.report, project.workspace.card))
    assert all(f"{label}" in report and f"Target {label}" in card for label in LABELS)


def test_classes_stay_classes_unless_numbers_have_fractions(project) -> None:
    """100 whole numbers are classes, as they always were; the problem can be set."""
    folder = project.root / "data" / "raw" / "turned"
    write_images(folder)
    lines = (folder / "list.csv").read_text().splitlines()
    kept = [line.rsplit(",", 1)[0] for line in lines]
    rows = [f"{line},{number % 100}" for number, line in enumerate(kept[1:])]
    (folder / "list.csv").write_text("\n".join([f"{kept[0]},hundred", *rows]))
    source = ("data.source=image-manifest", "data.path=data/raw/turned", "data.manifest=list.csv")
    project.good("ratchet", "set", *source, "data.label_column=hundred", "data.min_per_class=1")
    project.good(*project.stage("ingest"))
    assert Manifest.read(project.workspace.packed).target.description == "100 classes"
    project.good("ratchet", "set", "data.problem=regression")
    project.good(*project.stage("ingest"))
    assert Manifest.read(project.workspace.packed).target.description == "number hundred"
    refused = project.refused("ratchet", "set", "data.source=digits")
    assert "data.problem: found regression. Allowed with images: only with data.source image-manifest" in refused
