"""`ratchet data labels` on small data: planted wrong labels rank first; random labels are not flagged."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from commands.labels import _recipes, check_labels, summary_lines
from ratchet import settings
from ratchet.data.ingest import IngestTask, ingest
from ratchet.data.manifest import Manifest
from ratchet.errors import DataError
from ratchet.settings.model import Params
from ratchet.workspace import Workspace

REPOSITORY = Path(__file__).parents[2]


class Quiet:
    """Show nothing, and record the progress."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []
        self.notes: list[str] = []

    def update(self, done: int, total: int, note: str = "") -> None:
        self.calls.append((done, total))
        self.notes.append(note)

    def say(self, text: str) -> None:
        raise AssertionError(text)


@pytest.fixture
def digits(tmp_path: Path) -> Workspace:
    """Workspace with the packed digits and the shipped settings."""
    workspace = Workspace(tmp_path)
    workspace.params.write_bytes((REPOSITORY / "params.yaml").read_bytes())
    ingest(
        IngestTask(
            settings.load(workspace.params).data,
            packed=workspace.packed,
            quarantine=workspace.quarantine,
            root=tmp_path,
        )
    )
    return workspace


def change_labels(workspace: Workspace, change) -> tuple[np.ndarray, pl.DataFrame]:
    """Replace the training labels. Return the old ones and the index of the training samples."""
    path = workspace.packed / "train" / "targets.npy"
    labels = np.load(path)
    np.save(path, change(labels))
    index = pl.read_parquet(workspace.packed / "index.parquet").filter(pl.col("split") == "train")
    return labels, index


@pytest.mark.slow
def test_planted_wrong_labels_rank_first(digits) -> None:
    chosen = np.random.default_rng(0).choice(1257, 60, replace=False)

    def change(labels: np.ndarray) -> np.ndarray:
        labels = labels.copy()
        labels[chosen] = (labels[chosen] + 1 + np.arange(60) % 9) % 10
        return labels

    _, index = change_labels(digits, change)
    progress = Quiet()
    checked = check_labels(settings.load(digits.params), digits, folds=2, epochs=5, progress=progress)
    planted = {index["id"][int(row)] for row in chosen}
    assert checked.samples.columns == ["id", "class", "likely", "given", "doubt", "flagged"]
    assert checked.samples.height == 1257
    assert len(planted & set(checked.samples["id"].head(60))) >= 45
    flagged = set(checked.samples.filter("flagged")["id"])
    assert len(flagged) >= 30
    assert len(planted & flagged) >= 0.8 * len(flagged)
    assert "without mirrored images" in checked.method
    assert "expected precision" in "\n".join(summary_lines(checked, Path("labels.csv")))
    assert progress.calls == sorted(progress.calls)


def test_random_labels_are_not_flagged(digits) -> None:
    change_labels(digits, lambda labels: np.random.default_rng(1).permutation(labels))
    progress = Quiet()
    checked = check_labels(settings.load(digits.params), digits, folds=2, epochs=1, progress=progress)
    first, second, third = dict.fromkeys(progress.notes)
    assert first == "model 1 of 3: fold 1, without mirrored images"
    assert second == "model 2 of 3: fold 1, with mirrored images"
    assert third.startswith("model 3 of 3: fold 2, with")
    assert checked.judgement.flagged == 0
    assert any("not better than chance" in line for line in summary_lines(checked, Path("labels.csv")))


def test_own_model_with_shards_judges_every_label(digits) -> None:
    (digits.root / "flat.py").write_text(
        "from torch import nn\n"
        "def flat(*, classes, channels, height, width):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, classes))\n"
    )
    changes = {"model.factory": "flat:flat", "model.code": "flat.py", "training.shard": "fsdp"}
    params = settings.override(digits.params, changes | {"training.learning_rate": 0.01})
    checked = check_labels(params, digits, folds=2, epochs=6, progress=Quiet())
    assert checked.judgement.accuracy > 0.5


def test_an_own_loss_leaves_the_choice_of_the_network(digits) -> None:
    (digits.root / "square.py").write_text("def square(logits, labels):\n    return logits.square().mean(1)\n")
    params = settings.override(digits.params, {"training.loss": "square:square", "model.code": "square.py"})
    recipes = _recipes(params, digits, Manifest.read(digits.packed), rows=900, epochs=1)
    assert {(recipe.spec.name, recipe.plan.loss) for recipe in recipes} == {("fastnet", "cross-entropy")}


def test_more_folds_than_samples_are_refused(digits) -> None:
    with pytest.raises(DataError, match="fewer folds"):
        check_labels(settings.load(digits.params), digits, folds=5000, epochs=1, progress=Quiet())


def other_kind(root: Path, kind: str, **changes: object) -> tuple[Workspace, Params]:
    """Return a workspace with 600 rows or texts of three classes, and its settings."""
    chance = np.random.default_rng(0)
    classes = chance.integers(0, 3, 600)
    typical = np.array(["dark grim bleak", "calm soft mild", "bright gay sunny"])
    lines = []
    for number, label in enumerate(classes):
        text = " ".join(chance.permutation([*typical[label].split(), *chance.choice(["film", "plot", "scene"], 5)]))
        lines.append(f"{text} {number},{label + 0.15 * chance.normal():.3f},{'abc'[label]}")
    (root / "rows.csv").write_text("text,size,label\n" + "\n".join(lines) + "\n")
    workspace = Workspace(root)
    workspace.params.write_bytes((REPOSITORY / "params.yaml").read_bytes())
    given = {"data.kind": kind, "data.path": "rows.csv", "data.drop": ["size" if kind == "text" else "text"], **changes}
    return workspace, settings.override(workspace.params, given)


@pytest.mark.parametrize("kind", ["table", "text"])
def test_wrong_labels_of_rows_and_texts_rank_first(tmp_path, kind: str) -> None:
    workspace, params = other_kind(tmp_path, kind)
    ingest(IngestTask(params.data, packed=workspace.packed, quarantine=workspace.quarantine, root=tmp_path))

    def change(labels: np.ndarray) -> np.ndarray:
        return np.concatenate([(labels[:30] + 1) % 3, labels[30:]])

    _, index = change_labels(workspace, change)
    checked = check_labels(params, workspace, folds=3, epochs=0, progress=Quiet())
    planted = set(index["id"][:30])
    assert len(planted & set(checked.samples["id"].head(30))) >= 25
    flagged = set(checked.samples.filter("flagged")["id"])
    assert len(planted & flagged) >= 0.8 * len(flagged)
    assert kind == "text" or len(flagged) >= 12  # a linear model of few texts is too uncertain to call any label wrong
    assert ("HistGradientBoosting" if kind == "table" else "TF-IDF") in checked.method


def test_labels_that_are_no_classes_are_refused_in_one_sentence(tmp_path) -> None:
    workspace, params = other_kind(tmp_path, "table", **{"data.label_column": ["size"], "data.drop": ["text"]})
    ingest(IngestTask(params.data, packed=workspace.packed, quarantine=workspace.quarantine, root=tmp_path))
    with pytest.raises(DataError, match=r"problem of the data is regression\. Allowed for this check: classification"):
        check_labels(params, workspace, folds=3, epochs=0, progress=Quiet())
