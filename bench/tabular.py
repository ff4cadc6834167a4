"""The shipped recipes for tables beside gradient-boosted trees (C4): adult and elec (classes), bike-sharing (numbers).

    RATCHET_DATASETS=FOLDER python -m bench.tabular [--only adult bike elec far] [--rounds 3]

FOLDER holds tabular/adult.data, tabular/bike-sharing/hour.csv and tabular/elec.csv. Each round ingests and trains with
its own seed, by the shipped stages and the settings in examples/; the split is the same in all rounds. The trees are
the baseline of the same training: scikit-learn's HistGradientBoosting with its default settings and native categories.
The blend is the mean of both predictions, as `model.name: blend` has it. "constant" predicts the most frequent class or
the mean of the training rows. All predict the same test rows.

Bike-sharing and elec are in the order of time: the test rows are the latest. The columns casual, registered and instant
of bike-sharing are left out. elec has no column to sort by, so a copy of it with row numbers is ingested. "as the row
before" predicts the class of the row before, which no model gets as an input.

`far` is a made-up table of 1,500 rows and four numbers, with a noise whose MAE is .8: as it is, with a fill value in 25
cells, and with two labels of 1e12 among the training rows. "trees on the raw file" are scikit-learn's, fitted outside.

Figures are medians over the rounds, and 95 % t intervals of means. Claims: accuracy on adult on average at most .002
below the trees, the blend above both, and a train stage of at most 180 s on two idle cores, which includes the fit of
the trees. The CPU seconds show the cost on a busy machine.
"""

import itertools
import os
import resource
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from bench.project import ROOT, Project, scratch
from bench.report import Row, alone, options
from ratchet import files
from ratchet.settings import example_files
from ratchet.training import load_model, open_split, predict_outputs

__all__ = ["measure", "prepared"]

_GAP = 0.002  # of accuracy
_SECONDS = 180.0
_SETS: Mapping[str, tuple[str, Mapping[str, object]]] = {  # example, and what differs from it
    "adult": ("tabular-classification", {"data.path": "adult.data", "data.label_column": "column_15"}),
    "bike": ("tabular-regression", {
        "data.path": "bike-sharing/hour.csv", "data.label_column": "cnt", "data.order_by": "dteday",
        "data.drop": ["casual", "registered", "instant"],
    }),
    "elec": ("tabular-classification", {"data.path": "elec.csv", "data.label_column": "class", "data.order_by": "row"}),
}  # fmt: skip
NAMES = (*_SETS, "far")
_UNITS = {"adult": ("accuracy",), "bike": ("MAE", "R2"), "elec": ("accuracy",)}
_ROWS, _FILLED, _LABELLED = 1_500, "25 cells of 9.96921e+36", "two training labels of 1e12"


@dataclass(frozen=True)
class Round:
    """Figures of one round by predictor, in the order of `_UNITS`, and the costs of the train stage."""

    figures: Mapping[str, tuple[float, ...]]
    seconds: float
    cpu_seconds: float


def measure(rounds: int, *, quick: bool, names: Sequence[str] = NAMES) -> list[Row]:
    """Return the table's rows for these sets."""
    rows = [row for name in names if name in _SETS for row in _compare(name, rounds, quick=quick)]
    return rows + (_far(rounds, quick=quick) if "far" in names else [])


def _far(rounds: int, *, quick: bool) -> list[Row]:
    """Measure the table with and without far values. The labels of test rows are never far."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    shipped = next(each for each in example_files.listed(ROOT) if each.name == "tabular-regression").settings
    cases: dict[str, list[dict[str, float]]] = {"no far value": [], _FILLED: [], _LABELLED: []}
    for seed, case in itertools.product(range(1 if quick else rounds), cases):
        generator = np.random.default_rng(seed)
        numbers = generator.normal(size=(_ROWS, 4))
        label = 5 * numbers[:, 0] + 5 * np.sin(2 * numbers[:, 1]) + numbers[:, 2] * numbers[:, 3]
        label += generator.normal(size=_ROWS)
        split = np.where(np.arange(_ROWS) % 5 < 3, "train", np.where(np.arange(_ROWS) % 5 == 3, "validation", "test"))
        if case == _FILLED:
            numbers[generator.choice(_ROWS, 25, replace=False), 0] = 9.96921e36
        if case == _LABELLED:
            label[generator.choice(np.flatnonzero(split == "train"), 2, replace=False)] = 1e12
        with scratch() as folder:
            columns = zip(*numbers.T.tolist(), label.tolist(), split, strict=True)
            rows = [",".join(map(str, values)) for values in columns]
            files.write_text(folder / "far.csv", "\n".join(["a,b,c,d,y,split", *rows]) + "\n")
            settings = {
                "data.path": str(folder / "far.csv"),
                "data.label_column": "y",
                "data.order_by": "none",
                "seed": seed,
            }
            project = Project(
                folder / "project", {**shipped, **settings, **({"training.max_steps": 5} if quick else {})}
            )
            project.stage("ingest")
            figures = {who: each[0] for who, each in _round("far", project).figures.items()}
        learns, tested = split == "train", split == "test"
        raw = HistGradientBoostingRegressor(random_state=seed).fit(numbers[learns], label[learns])
        figures["trees on the raw file"] = float(np.abs(raw.predict(numbers[tested]) - label[tested]).mean())
        cases[case].append(figures)
        print(f"{case}, seed {seed}: {figures}", flush=True)
    return [
        Row(f"far values: {who}, MAE", case, f"{statistics.median(each[who] for each in measured):.4g}")
        for case, measured in cases.items()
        for who in measured[0]
    ]


def _compare(name: str, rounds: int, *, quick: bool) -> list[Row]:
    results = []
    for seed in range(1 if quick else rounds):
        with scratch() as folder:
            project = prepared(name, folder, {"seed": seed, **({"training.max_steps": 5} if quick else {})})
            if project is None:
                return [Row(f"network and trees: {name}", "no such file in RATCHET_DATASETS", "not measured")]
            results.append(_round(name, project))
        print(f"{name}, seed {seed}: {results[-1]}", flush=True)
    return _rows(name, results)


def prepared(name: str, folder: Path, changes: Mapping[str, object]) -> Project | None:
    """Return a project in `folder` with the ingested set `name`, or None if its file is absent."""
    example, differs = _SETS[name]
    path = Path(os.environ.get("RATCHET_DATASETS", "")).absolute() / "tabular" / str(differs["data.path"])
    if "RATCHET_DATASETS" not in os.environ or not path.is_file():
        return None
    if name == "elec":
        header, *lines = path.read_text().splitlines()
        numbered = [f"row,{header}", *(f"{number},{line}" for number, line in enumerate(lines))]
        path = folder / path.name
        files.write_text(path, "\n".join(numbered) + "\n")
    shipped = next(each for each in example_files.listed(ROOT) if each.name == example)
    project = Project(folder / "project", {**shipped.settings, **differs, "data.path": str(path), **changes})
    project.stage("ingest")
    return project


def _round(name: str, project: Project) -> Round:
    """Train, and measure every predictor on the test rows."""
    began, spent = time.perf_counter(), _cpu()
    project.stage("train")
    seconds, cpu_seconds = time.perf_counter() - began, _cpu() - spent
    data = project.folder / "data"
    train, validation, test = (open_split(data / "packed", split) for split in ("train", "validation", "test"))
    (network, spec), (trees, _) = load_model(data / "model"), load_model(data / "baseline")
    ours, theirs = (spec.target.predictions(predict_outputs(model, test)) for model in (network, trees))
    targets, learned = np.asarray(test.targets), np.asarray(train.targets)
    constant = np.eye(ours.shape[1])[[np.bincount(learned).argmax()]] if targets.ndim == 1 else learned.mean(0)
    predicted = {"network": ours, "trees": theirs, "blend": (ours + theirs) / 2}
    predicted["constant"] = np.broadcast_to(constant, ours.shape)
    if name == "elec":  # the test rows are the latest, in their order
        before = np.concatenate([np.asarray(validation.targets)[-1:], targets[:-1]])
        predicted["as the row before"] = np.eye(ours.shape[1])[before]
    return Round({who: _figures(values, targets) for who, values in predicted.items()}, seconds, cpu_seconds)


def _cpu() -> float:
    """Return the CPU seconds of all ended child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _figures(predicted: NDArray[np.float64], targets: NDArray[np.generic]) -> tuple[float, ...]:
    """Return the accuracy for class indices (n,), or MAE and R2 for one number a row (n, 1)."""
    if targets.ndim == 1:
        return (float(np.mean(predicted.argmax(1) == targets)),)
    errors = predicted - targets.astype(np.float64)
    return float(np.abs(errors).mean()), float(1.0 - np.square(errors).mean() / targets.astype(np.float64).var())


def _rows(name: str, results: Sequence[Round]) -> list[Row]:
    condition, rows = f"{len(results)} seeds", []
    for place, unit in enumerate(_UNITS[name]):
        values = {who: [each.figures[who][place] for each in results] for who in results[0].figures}
        for who, figures in values.items():
            rows.append(Row(f"{unit} of {name}: {who}", f"median of {condition}", f"{statistics.median(figures):.4f}"))
        ours, theirs, both = (values[who] for who in ("network", "trees", "blend"))
        better = min if unit == "MAE" else max
        behind = [mine - other for mine, other in zip(ours, theirs, strict=True)]
        gained = [mine - better(others) for mine, *others in zip(both, ours, theirs, strict=True)]
        claims: list[tuple[str, bool | None]] = [("", None), ("", None)]
        if name == "adult":
            means = [statistics.mean(figures) for figures in (ours, theirs, both)]
            claims = [(f">= -{_GAP}", statistics.mean(behind) >= -_GAP), ("> both means", means[2] > max(means[:2]))]
        for title, figures, claim in zip(("network - trees", "blend - better"), (behind, gained), claims, strict=True):
            rows.append(Row(f"{unit} of {name}: {title}", f"mean of {condition}", _with_interval(figures), *claim))
    seconds = statistics.median(each.seconds for each in results)
    limit, met = (f"<= {_SECONDS:.0f}", seconds <= _SECONDS) if name == "adult" else ("", None)
    rows.append(Row(f"s: train stage of {name}", f"median of {condition}", f"{seconds:.0f}", limit, met))
    cpu_seconds = statistics.median(each.cpu_seconds for each in results)
    return [*rows, Row(f"CPU-s: train stage of {name}", f"median of {condition}", f"{cpu_seconds:.0f}")]


def _with_interval(values: Sequence[float]) -> str:
    mean = statistics.mean(values)
    if len(values) < 2:
        return f"{mean:+.4f}"
    reach = float(student.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / len(values) ** 0.5
    return f"{mean:+.4f} (95 % CI {mean - reach:+.4f} to {mean + reach:+.4f})"


def main() -> None:
    """Measure and print."""
    parser = options(__doc__, rounds=3)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="SET")
    alone(parser, lambda requested: measure(requested.rounds, quick=requested.quick, names=requested.only))


if __name__ == "__main__":
    main()
