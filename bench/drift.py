"""False alarms and delay of the rule of `ratchet monitor`: `python -m bench.drift [RUNS] [ROW ...]`.

It needs RATCHET_DATASETS. Rows that never drift:
    adult-100, adult-1000: windows of random rows of adult, 1,000 windows after the reference
    bike-days: the days of bike-sharing in random order, whose rows depend on each other
    bike-6h: its windows of 6 hours, days in random order, with season: day
    cifar10-softmax, fashion-halves: softmax of a linear model that learned from one half, of windows of the other half
Rows with a change after 100 windows: shift-0.1, shift-0.5 (1,000 rows), shift-0.2-of-100 rows; one column of adult.
Each run is written to .ratchet/bench-drift.json, so that a killed bench goes on.
"""

import csv
import functools
import json
import os
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from bench.report import Row, alone, options
from ratchet import files
from ratchet.monitoring.rule import DriftRule, judge
from ratchet.monitoring.sketch import FeatureBins, WindowSketch, layout_of

WINDOWS, REFERENCE, CHANGE, SIX_HOURS = 1000, 100, 100, 21_600
RESULTS = Path(".ratchet/bench-drift.json")
_LIMIT = 0.05
_CLAIM = f"not significantly above {_LIMIT}"
_BOUNDS = ((0.05, 0), (0.95, 1))  # quantile of the beta distribution, and what is added to its first parameter


class Column(NamedTuple):
    """The different values of a column in their order, and the place of each row's value among them."""

    values: NDArray[Any]
    places: NDArray[np.int64]


Columns = dict[str, Column]
DATASETS = Path(os.environ.get("RATCHET_DATASETS", ""))


def distinct(values: NDArray[Any]) -> Column:
    """Return numbers or objects as a column."""
    return Column(*np.unique(values, return_inverse=True))


def column(values: list[str]) -> Column:
    """Return numbers, or texts as objects."""
    try:
        return distinct(np.array(values, np.float64))
    except ValueError:
        return distinct(np.array(values, object))


@functools.cache
def adult() -> Columns:
    """Return the columns of adult but its target."""
    lines = (DATASETS / "tabular" / "adult.data").read_text().splitlines()
    cells = zip(*[line.strip().split(", ") for line in lines if line.strip()], strict=True)
    return {f"column {place}": column(list(each)) for place, each in enumerate(list(cells)[:14])}


@functools.cache
def bike_days() -> Columns:
    """Return the whole days of bike-sharing, 24 rows each."""
    names = ["temp", "atemp", "hum", "windspeed", "casual", "registered", "weathersit"]
    days: dict[str, list[dict[str, str]]] = {}
    with (DATASETS / "tabular" / "bike-sharing" / "hour.csv").open() as file:
        for row in csv.DictReader(file):
            days.setdefault(row["dteday"], []).append(row)
    rows = [row for day in days.values() if len(day) == 24 for row in day]
    return {name: column([row[name] for row in rows]) for name in names}


@functools.cache
def softmax(name: str) -> Columns:
    """Return the answers of a least-squares classifier of images, which learned from the other half of them."""
    if name == "cifar10":
        batch = pickle.loads((DATASETS / "cifar-10-batches-py" / "test_batch").read_bytes(), encoding="bytes")
        images, labels = np.array(batch[b"data"], np.float32), np.array(batch[b"labels"])
    else:
        raw = DATASETS / "FashionMNIST" / "raw"
        images = np.frombuffer((raw / "t10k-images-idx3-ubyte").read_bytes(), np.uint8, offset=16).reshape(10_000, -1)
        images, labels = (
            images.astype(np.float32),
            np.frombuffer((raw / "t10k-labels-idx1-ubyte").read_bytes()[8:], np.uint8),
        )
    images, half = (images / 255 - 0.5)[:, ::4], len(images) // 2
    weights = np.linalg.lstsq(
        images[:half].T @ images[:half] + np.eye(images.shape[1]), images[:half].T @ np.eye(10)[labels[:half]]
    )[0]
    raised = np.exp(5 * images[half:] @ weights)
    answers = raised / raised.sum(1, keepdims=True)
    return {f"answer {place}": distinct(answers[:, place]) for place in range(10)} | {
        "confidence": distinct(answers.max(1))
    }


def alarm(
    columns: Columns, windows: list[NDArray[np.int64]], *, reference: int, seed: int, rule: DriftRule
) -> int | None:
    """Return the number of windows after the reference up to the alarm; None: there is none.

    `windows`: rows of each. Bins are looked up once for each value, so that many runs are possible.
    """
    first, layouts, counts = np.concatenate(windows[:reference]), list[FeatureBins](), list[NDArray[np.int64]]()
    for name, (values, places) in columns.items():
        layouts.append(layout := layout_of(name, values[places[first]]))
        each = [values] if layout.is_number else [values[at : at + 1] for at in range(len(values))]
        bins = np.concatenate([np.repeat(np.arange(layout.bins), layout.count(part)) for part in each])[places]
        counts.append(np.array([np.bincount(bins[rows], minlength=layouts[-1].bins) for rows in windows]))
    sketches = [
        WindowSketch(
            "run/1", at * rule.window, 1, {name: each[at].tolist() for name, each in zip(columns, counts, strict=True)}
        )
        for at in range(len(windows))
    ]
    first_alarm = judge(f"run/{seed}", layouts, sketches, rule, reference).alarm
    return first_alarm and first_alarm.window // rule.window - reference + 1


def random_rows(columns: Columns, rows: int, seed: int, *, number: int = WINDOWS, shift: float = 0.0) -> int | None:
    """Judge windows of random rows; the first column is moved after CHANGE windows that follow the reference."""
    random, total = np.random.default_rng(seed), len(next(iter(columns.values())).places)
    windows = [random.integers(0, total, rows) for _ in range(REFERENCE + number)]
    if shift:
        columns, name = dict(columns), next(iter(columns))
        values = columns[name].values[columns[name].places]
        columns = {each: Column(column.values, np.tile(column.places, 2)) for each, column in columns.items()}
        columns[name] = distinct(np.concatenate([values, values + shift * values.std()]))
        windows = [rows + total * (place >= REFERENCE + CHANGE) for place, rows in enumerate(windows)]
    return alarm(columns, windows, reference=REFERENCE, seed=seed, rule=DriftRule(3600, "none", 0.05, 30))


def bike(seed: int, *, parts: int) -> int | None:
    """Judge the days of bike-sharing in random order, each as a number of windows."""
    columns, size = bike_days(), 24 // parts
    days = len(columns["temp"].places) // 24
    windows = [
        np.arange(day * 24 + part * size, day * 24 + (part + 1) * size)
        for day in np.random.default_rng(seed).permutation(days)
        for part in range(parts)
    ]
    rule = DriftRule(SIX_HOURS, "day", 0.05, 30) if parts > 1 else DriftRule(86_400, "none", 0.05, 30)
    return alarm(columns, windows, reference=200 * parts, seed=seed, rule=rule)


def moved(shift: float, rows: int) -> Callable[[int], int | None]:
    """Return the row of a moved column."""
    return lambda seed: random_rows(adult(), rows, seed, number=CHANGE + 60, shift=shift)


ROWS: dict[str, Callable[[int], int | None]] = {
    "bike-days": lambda seed: bike(seed, parts=1),
    "bike-6h": lambda seed: bike(seed, parts=4),
    "shift-0.1": moved(0.1, 1000),
    "shift-0.5": moved(0.5, 1000),
    "shift-0.2-of-100": moved(0.2, 100),
    "adult-100": lambda seed: random_rows(adult(), 100, seed),
    "cifar10-softmax": lambda seed: random_rows(softmax("cifar10"), 100, seed),
    "fashion-halves": lambda seed: random_rows(softmax("fashion"), 100, seed),
    "adult-1000": lambda seed: random_rows(adult(), 1000, seed),
}


def row(name: str, alarms: list[int | None]) -> Row:
    """Return the share of runs with an alarm and its upper bound (Clopper-Pearson, 95 % one-sided), or the delay."""
    runs = f"{len(alarms)} runs"
    if name.startswith("shift"):
        delays = [each - CHANGE for each in alarms if each is not None and each > CHANGE]
        median = np.median(delays) if delays else float("nan")
        return Row(f"{name}: detected", runs, f"{len(delays)}, median delay {median:g} windows")
    false = sum(each is not None for each in alarms)
    low, high = (float(stats.beta.ppf(level, false + at, len(alarms) - false + 1 - at)) for level, at in _BOUNDS)
    share = f"{false / len(alarms):.3f}, upper bound {high:.3f}"
    return Row(f"{name}: false alarms", runs, share, _CLAIM, not low > _LIMIT)


def measure(runs: int, names: Sequence[str] = tuple(ROWS), *, quick: bool) -> list[Row]:
    """Return the rows of the table, after the runs that are not in RESULTS yet."""
    if not (DATASETS / "tabular").is_dir():
        return [Row("drift", "no tabular in the folder RATCHET_DATASETS names", "not measured", _CLAIM)]
    results: dict[str, Any] = files.read_json(RESULTS) if RESULTS.exists() else {}
    runs = 1 if quick else runs
    for name in names[:1] if quick else names:
        alarms = results.setdefault(name, [])
        while len(alarms) < runs:
            alarms.append(ROWS[name](len(alarms)))
            files.write_text(RESULTS, json.dumps(results))
    return [row(name, results[name][:runs]) for name in names if name in results]


def main() -> None:
    """Measure, and print the table."""
    parser = options(__doc__)
    parser.add_argument("runs", nargs="?", type=int, default=20, metavar="RUNS")
    parser.add_argument("names", nargs="*", metavar="ROW", help=", ".join(ROWS))
    alone(parser, lambda given: measure(given.runs, given.names or tuple(ROWS), quick=given.quick))


if __name__ == "__main__":
    main()
