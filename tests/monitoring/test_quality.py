"""Quality from late labels: coverage of its intervals over all times, and what confidence alone hides on real data."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn.linear_model import LogisticRegression

from ratchet.evaluation.intervals import Interval
from ratchet.kinds import ModelSpec
from ratchet.kinds.inputs import Array, ArraysInput
from ratchet.monitoring import to_label
from ratchet.monitoring.quality import (
    ConfidenceSums,
    accuracy_sequence,
    error_sequence,
    prediction_powered,
    qualities,
    quality_lines,
)
from ratchet.monitoring.to_label import rows_to_label, write_rows_to_label
from ratchet.problems.classes import Classes
from ratchet.traffic.label_store import LabelStore
from ratchet.traffic.request_log import RequestLog
from ratchet.traffic.schema import Logged, target_id

BEGIN = 1_760_000_400
TIMES = [10, 20, 50, 100, 200, 500, 1000]


def share_of_misses(sequence: Callable[..., Interval], runs: Any, truth: float, times: list[int]) -> float:
    """Return the share of runs whose interval misses the truth at any time."""
    intervals = [[sequence(run[:time]) for time in times] for run in runs]
    return float(np.mean([any(not each.low <= truth <= each.high for each in run) for run in intervals]))


@pytest.mark.parametrize("share", [0.5, 0.8, 0.98])
def test_accuracy_interval_holds_at_all_times(share: float) -> None:
    random = np.random.default_rng(0)
    runs = (random.random((300, TIMES[-1])) < share).astype(float)
    missed = [
        any(not (each := accuracy_sequence(run[:time])).low <= share <= each.high for time in TIMES) for run in runs
    ]
    assert np.mean(missed) <= 0.05
    last = accuracy_sequence(runs[0])
    assert last.high - last.low < 0.14


def test_error_interval_holds_at_all_times() -> None:
    random = np.random.default_rng(0)
    runs = random.exponential(3.0, (300, TIMES[-1]))
    missed = [
        any(not (each := error_sequence(run[:time])).low <= 3.0 <= each.high for time in TIMES[2:]) for run in runs
    ]
    assert np.mean(missed) <= 0.08


def test_confidence_of_other_rows_narrows_the_interval() -> None:
    random, covered, widths = np.random.default_rng(0), [], []
    for _ in range(300):
        confidence = random.beta(1, 1, 3000) / 2 + 0.5
        right = (random.random(3000) < confidence).astype(float)
        others = ConfidenceSums()
        others.add(confidence[100:])
        powered = prediction_powered(right[:100], confidence[:100], others)
        covered.append(powered.low <= 0.75 <= powered.high)
        widths.append((powered.high - powered.low) / (2 * 1.96 * right[:100].std() / 10))
    assert np.mean(covered) >= 0.92
    assert np.mean(widths) < 0.98


def elec() -> np.ndarray[Any, np.dtype[np.float64]]:
    if not (root := os.environ.get("RATCHET_DATASETS")):
        pytest.skip("RATCHET_DATASETS is not set")
    return np.loadtxt(Path(root) / "tabular" / "elec.csv", delimiter=",", skiprows=1)


def test_confidence_alone_is_wrong_under_concept_drift(tmp_path: Path) -> None:
    """On elec: a model of the first 5,000 rows, whose confidence is right there, and rows from a later year."""
    rows = elec()
    model = LogisticRegression(max_iter=1000).fit(rows[:5000, :-1], rows[:5000, -1])
    later = rows[30000:31000]
    predictions = model.predict_proba(later[:, :-1]).astype(np.float32)
    log = RequestLog(tmp_path / "requests", share=1.0, inputs="none", days=1e6, mib=64.0, clock=lambda: BEGIN)
    for place in range(0, 1000, 100):
        values, target = {"numbers": later[place : place + 100, :-1]}, "classification 0"
        part = predictions[place : place + 100]
        logged = Logged(f"{place:032x}", BEGIN, 0.0, "own", "elec", "1", "p", "k", values, part, target)
        log.add(logged.answer, partial(lambda each: each, logged))
    log.close()
    store = LabelStore(tmp_path / "requests", clock=lambda: BEGIN)
    labels = {(f"{row // 100 * 100:032x}", row % 100): [later[row, -1]] for row in range(0, 1000, 2)}
    store.add(labels, problem="classification", days=1e6)
    quality = qualities(tmp_path / "requests")["elec/1"]
    right = float((predictions.argmax(1) == later[:, -1]).mean())
    assert (quality.labels, quality.rows, quality.metric) == (500, 1000, "accuracy")
    assert quality.labelled is not None
    assert quality.powered is not None
    assert quality.expected is not None
    assert quality.labelled.low <= right <= quality.labelled.high
    assert quality.powered.low <= right <= quality.powered.high
    assert abs(quality.expected.value - right) > 0.03
    [line] = quality_lines(tmp_path / "requests", {"elec/1"})
    assert line.startswith(f"elec/1: accuracy {100 * quality.labelled.value:.1f} % (95 % CI ")
    assert line.endswith("of the rows without a label if their confidence is right")


def test_rows_chosen_by_entropy_do_not_bias_the_accuracy(tmp_path: Path) -> None:
    """The least certain tenth of the answers is wrong. The next 45 % are right, of the last half is."""
    confidence = np.repeat([0.51, 0.75, 0.99], [100, 450, 450]).astype(np.float32)
    random = np.random.default_rng(0).permutation(1000)
    predictions = np.stack([confidence, 1 - confidence], 1)[random]
    target = Classes(("yes", "no"))
    log = RequestLog(tmp_path / "requests", share=1.0, inputs="keep", days=1e6, mib=64.0, clock=lambda: BEGIN)
    values = {"numbers": np.arange(1000, dtype=np.float32)[:, None]}
    logged = Logged("0" * 32, BEGIN, 0.0, "own", "m", "1", "p", "k", values, predictions, target_id(target))
    log.add(logged.answer, partial(lambda each: each, logged))
    log.close()
    spec = ModelSpec("tabm", ArraysInput((Array("numbers", "float32", (1,)),), "own:Numbers", "own.py", "0"), target)
    rows = write_rows_to_label(tmp_path / "label-these.parquet", tmp_path / "requests", lambda name: spec, seed=1)
    labels = {
        ("0" * 32, row): [float(random[row] < 100 or (random[row] >= 550 and random[row] % 2))] for row in rows["row"]
    }
    LabelStore(tmp_path / "requests", clock=lambda: BEGIN).add(labels, problem="classification", days=1e6)
    quality = qualities(tmp_path / "requests")["m/1"]
    assert (quality.labels, quality.labelled is not None and quality.labelled.high < 0.675) == (200, True)
    assert quality.powered is not None
    assert quality.powered.low <= 0.675 <= quality.powered.high
    (tmp_path / "chosen-by-entropy.parquet").unlink()
    assert (with_them := qualities(tmp_path / "requests")["m/1"].powered) is not None
    assert with_them.high < 0.675


def uncertain(requests: Path, versions: int, rows: int) -> ModelSpec:
    """Log so many rows of each version of a model; return its specification."""
    log = RequestLog(requests, share=1.0, inputs="keep", days=1e6, mib=64.0, clock=lambda: BEGIN)
    target = Classes(("yes", "no"))
    confidence = np.linspace(0.5, 0.99, rows, dtype=np.float32)
    for version in range(versions):
        values = {"numbers": np.arange(rows * version, rows * (version + 1), dtype=np.float32)[:, None]}
        predictions = np.stack([confidence, 1 - confidence], 1)
        answer, about = f"{version:032x}", ("own", "m", str(version), "p", "k")
        logged = Logged(answer, BEGIN, 0.0, *about, values, predictions, target_id(target))
        log.add(answer, partial(lambda each: each, logged))
    log.close()
    return ModelSpec("tabm", ArraysInput((Array("numbers", "float32", (1,)),), "own:Numbers", "own.py", "0"), target)


def test_rows_that_are_chosen_at_once_are_all_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of eight commands chooses rows of one version."""
    versions, requests = 8, tmp_path / "requests"
    spec = uncertain(requests, versions, 130)

    def spec_of(version: int, name: str) -> ModelSpec | None:
        return spec if name == f"m/{version}" else None

    specs = [partial(spec_of, version) for version in range(versions)]
    chosen = {of: rows_to_label(requests, of, seed=1) for of in specs}
    monkeypatch.setattr(to_label, "rows_to_label", lambda _, of, **__: chosen[of])
    with ThreadPoolExecutor(versions) as pool:
        written = pool.map(lambda of: write_rows_to_label(tmp_path / str(id(of)), requests, of, seed=1), specs)
        files = pl.concat(written, how="diagonal_relaxed")
    expected = files.filter(pl.col("chosen") == "entropy").select("answer", "row").sort("answer", "row")
    assert len(expected) == 30 * versions
    assert to_label.chosen_by_entropy(requests).sort("answer", "row").equals(expected)


def test_no_rows_are_to_be_labelled_that_are_not_recorded(tmp_path: Path) -> None:
    spec, path = uncertain(tmp_path / "requests", 1, 130), tmp_path / "label-these.parquet"
    record = tmp_path / "chosen-by-entropy.parquet"
    record.write_bytes(b"PAR1")
    with pytest.raises((pl.exceptions.PolarsError, OSError)):
        write_rows_to_label(path, tmp_path / "requests", lambda name: spec, seed=1)
    assert not path.exists()
    record.unlink()
    rows = write_rows_to_label(path, tmp_path / "requests", lambda name: spec, seed=1)
    assert len(to_label.chosen_by_entropy(tmp_path / "requests")) == (rows["chosen"] == "entropy").sum() == 30


def test_worse_slices_and_labels_that_contradict_are_named(tmp_path: Path) -> None:
    """Rows of elec: a model of the first 5,000, which is wrong in a third of the rows of one region."""
    rows = elec()[:6000]
    model = LogisticRegression(max_iter=1000).fit(rows[:5000, :-1], rows[:5000, -1])
    later, regions = rows[5000:], np.resize(["north", "south", None], 1000)
    predictions = model.predict_proba(later[:, :-1]).astype(np.float32)
    right = predictions.argmax(1) == later[:, -1]
    flipped = right & (regions == "south") & (np.arange(1000) % 9 < 3)
    columns = {"region": regions.tolist(), "demand": later[:, 2].tolist()}
    values = {"numbers": later[:, :-1]}
    logged = Logged(
        "0" * 32, BEGIN, 0.0, "own", "elec", "1", "p", "k", values, predictions, "classification 0", lambda: columns
    )
    columns["rare"] = ["common"] * 999 + ["rare"]  # one other row is no comparison
    other = logged._replace(answer="1" * 32, columns=dict)  # of a server without log_columns
    for each in (logged, other):
        log = RequestLog(tmp_path / "requests", share=1.0, inputs="none", days=1e6, mib=64.0, clock=lambda: BEGIN)
        log.add(each.answer, partial(lambda each: each, each))
        log.close()
    store = LabelStore(tmp_path / "requests", clock=lambda: BEGIN)
    truth = np.where(flipped, 1 - later[:, -1], later[:, -1])
    store.add({("0" * 32, row): [1 - truth[row]] for row in range(7)}, problem="classification", days=1e6)
    store.add({("0" * 32, row): [truth[row]] for row in range(1000)}, problem="classification", days=1e6)
    store.add({("f" * 32, row): [1.0] for row in range(3)}, problem="classification", days=1e6)
    quality = qualities(tmp_path / "requests")["elec/1"]
    slices = {(each.column, each.value): each for each in quality.slices}
    assert {name: each.is_worse for name, each in slices.items() if name[0] == "region"} == {
        ("region", "north"): False, ("region", "south"): True,
    }  # fmt: skip
    south = slices["region", "south"]
    assert south.mean.value == pytest.approx((right & ~flipped)[regions == "south"].mean())
    assert {value for column, value in slices if column == "demand"} == {"low", "middle", "high"}
    assert not [value for column, value in slices if column == "rare"]
    assert quality.corrected == 7
    worse = sum(each.is_worse for each in quality.slices)
    line, lost = quality_lines(tmp_path / "requests", {"elec/1"})
    assert "; 7 labels contradict an earlier one of their row: the newest counts; " in line
    assert f"; {worse} of 5 slices significantly worse: " in line
    assert f"region=south (accuracy {100 * south.mean.value:.1f} % (95 % CI " in line
    assert lost == "not used: 3 labels of rows that the log does not have"
