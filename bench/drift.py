"""False alarms and delay of the rule of `ratchet monitor`. `python -m bench.drift [RUNS]`; needs RATCHET_DATASETS.

adult: windows of 100 rows that are drawn at random, so that nothing drifts; 1,000 windows after the reference.
bike-sharing: windows are days in random order. Their rows depend on each other.
Delay: one numeric column of adult is moved by .2 standard deviations after 100 windows.
"""

import csv
import os
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from ratchet.monitoring.rule import DriftRule, judge
from ratchet.monitoring.sketch import WindowSketch, layout_of

RULE = DriftRule(3600, "none", 0.05, 30)
WINDOWS, ROWS, REFERENCE, CHANGE = 1000, 100, 100, 100
Columns = dict[str, NDArray[np.generic]]
TABULAR = Path(os.environ["RATCHET_DATASETS"]) / "tabular"


def column(values: list[str]) -> NDArray[np.generic]:
    """Return numbers, or texts as objects."""
    try:
        return np.array(values, np.float64)
    except ValueError:
        return np.array(values, object)


def adult() -> Columns:
    """Return the columns of adult but its target."""
    lines = [line.strip().split(", ") for line in (TABULAR / "adult.data").read_text().splitlines() if line.strip()]
    return {f"column {place}": column(list(cells)) for place, cells in enumerate(list(zip(*lines, strict=True))[:14])}


def bike_days() -> list[Columns]:
    """Return the whole days of bike-sharing."""
    names = ["temp", "atemp", "hum", "windspeed", "casual", "registered", "weathersit"]
    days: dict[str, list[dict[str, str]]] = {}
    with (TABULAR / "bike-sharing" / "hour.csv").open() as file:
        for row in csv.DictReader(file):
            days.setdefault(row["dteday"], []).append(row)
    return [{name: column([row[name] for row in day]) for name in names} for day in days.values() if len(day) == 24]


def alarm(windows: list[Columns], *, reference: int, seed: int) -> int | None:
    """Return the number of windows after the reference up to the alarm; None: there is none."""
    first = windows[:reference]
    layouts = [layout_of(name, np.concatenate([window[name] for window in first])) for name in first[0]]
    sketches = [
        WindowSketch(place * RULE.window, 1, {layout.name: layout.count(window[layout.name]) for layout in layouts})
        for place, window in enumerate(windows)
    ]
    first_alarm = judge(f"run/{seed}", layouts, sketches, RULE, reference).alarm
    return first_alarm and first_alarm.window // RULE.window - reference + 1


def drawn(columns: Columns, seed: int, number: int, *, shift: float = 0.0) -> list[Columns]:
    """Return windows of random rows; the first column is moved after CHANGE windows that follow the reference."""
    random, total = np.random.default_rng(seed), len(columns["column 0"])
    width = float(np.std(columns["column 0"].astype(np.float64)))
    windows = []
    for place in range(REFERENCE + number):
        rows = random.integers(0, total, ROWS)
        window = {name: values[rows] for name, values in columns.items()}
        if shift and place >= REFERENCE + CHANGE:
            window["column 0"] = window["column 0"].astype(np.float64) + shift * width
        windows.append(window)
    return windows


def report(name: str, alarms: list[int | None]) -> None:
    """Print the share of runs with an alarm, and its upper bound (Clopper-Pearson, 95 % one-sided)."""
    false, runs = sum(each is not None for each in alarms), len(alarms)
    bound = stats.beta.ppf(0.95, false + 1, runs - false)
    print(f"{name}: {false} of {runs} runs ever alarm ({false / runs:.3f}, upper bound {bound:.3f})", flush=True)


def main() -> None:
    """Print the table."""
    runs, columns, days = int(sys.argv[1]) if len(sys.argv) > 1 else 20, adult(), bike_days()
    orders = [np.random.default_rng(seed).permutation(len(days)) for seed in range(runs)]
    shuffled = [alarm([days[day] for day in order], reference=200, seed=seed) for seed, order in enumerate(orders)]
    report(f"bike-sharing, {len(days) - 200} days in random order", shuffled)
    moved = [
        alarm(drawn(columns, seed, CHANGE + 60, shift=0.2), reference=REFERENCE, seed=seed) for seed in range(runs)
    ]
    delays = [each - CHANGE for each in moved if each is not None and each > CHANGE]
    seen, median = f"{len(delays)} of {runs} runs", np.median(delays) if delays else float("nan")
    print(f"adult, .2 sd in one of 14 columns: {seen} within 60 windows, median delay {median:g} windows", flush=True)
    still = [alarm(drawn(columns, seed, WINDOWS), reference=REFERENCE, seed=seed) for seed in range(runs)]
    report(f"adult, {WINDOWS} windows of {ROWS} rows", still)


if __name__ == "__main__":
    main()
