"""`ratchet data labels` on small sets: planted wrong labels come first, and nothing is said that is not known."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from commands.labels import _summary, check_labels
from ratchet import settings
from ratchet.data.ingest import ingest
from ratchet.errors import DataError
from ratchet.workspace import Workspace

REPOSITORY = Path(__file__).parents[2]


class Quiet:
    """Shows nothing, and keeps how far the work was."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def progress(self, done: int, total: int, note: str = "") -> None:
        self.seen.append((done, total))

    def say(self, text: str) -> None:
        raise AssertionError(text)


@pytest.fixture
def digits(tmp_path: Path) -> Workspace:
    """A workspace with the packed digits and the shipped settings."""
    workspace = Workspace(tmp_path)
    workspace.params.write_bytes((REPOSITORY / "params.yaml").read_bytes())
    ingest(
        settings.load(workspace.params).data, packed=workspace.packed, quarantine=workspace.quarantine, root=tmp_path,
        report=lambda *_: None,
    )  # fmt: skip
    return workspace


def replaced(workspace: Workspace, change) -> tuple[np.ndarray, pl.DataFrame]:
    """Write other training labels; the old ones and the index of the training samples."""
    path = workspace.packed / "train" / "labels.npy"
    labels = np.load(path)
    np.save(path, change(labels))
    index = pl.read_parquet(workspace.packed / "index.parquet").filter(pl.col("split") == "train")
    return labels, index


@pytest.mark.slow
def test_planted_wrong_labels_come_first(digits) -> None:
    chosen = np.random.default_rng(0).choice(1251, 60, replace=False)

    def change(labels: np.ndarray) -> np.ndarray:
        labels = labels.copy()
        labels[chosen] = (labels[chosen] + 1 + np.arange(60) % 9) % 10
        return labels

    _, index = replaced(digits, change)
    watch = Quiet()
    checked = check_labels(settings.load(digits.params), digits, folds=2, epochs=5, watch=watch)
    planted = {index["id"][int(row)] for row in chosen}
    assert checked.samples.columns == ["id", "class", "likely", "given", "doubt", "flagged"]
    assert checked.samples.height == 1251
    assert len(planted & set(checked.samples["id"].head(60))) >= 45
    flagged = set(checked.samples.filter("flagged")["id"])
    assert len(flagged) >= 30
    assert len(planted & flagged) >= 0.8 * len(flagged)
    assert "without mirrored images" in checked.method
    assert "expected precision" in "\n".join(_summary(checked, Path("labels.csv")))
    assert watch.seen == sorted(watch.seen)


def test_labels_drawn_by_lot_are_not_called_wrong(digits) -> None:
    replaced(digits, lambda labels: np.random.default_rng(1).permutation(labels))
    checked = check_labels(settings.load(digits.params), digits, folds=2, epochs=1, watch=Quiet())
    assert checked.judgement.flagged == 0
    assert any("not better than chance" in line for line in _summary(checked, Path("labels.csv")))


def test_more_parts_than_samples_are_refused(digits) -> None:
    with pytest.raises(DataError, match="take fewer"):
        check_labels(settings.load(digits.params), digits, folds=5000, epochs=1, watch=Quiet())
