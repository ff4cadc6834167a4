"""Coverage and size of prediction intervals and sets on real data, and the width beside quantile trees.

    RATCHET_DATASETS=FOLDER python -m bench.intervals [--only adult bike days fashion] [--rounds 1]

Each round ingests, trains and evaluates with its own seed, by the shipped stages and settings in examples/, with
`_STEPS` steps; the split is the same in all rounds. `bike` (tabular/bike-sharing/hour.csv) has splits by chance, `days`
the same rows in the order of time, where nothing is guaranteed. adult and fashion (Fashion-MNIST) have sets of classes.
The quantile trees are scikit-learn's HistGradientBoosting at .05 and .95, fitted on the training rows.

Claim: the exact 95 % interval of the coverage at 90 % contains .9 or is above it, except for `days`.
"""

import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.project import ROOT, Project, scratch
from bench.report import Row, alone, options
from bench.tabular import prepared
from ratchet.evaluation.coverage import MAIN_LEVEL
from ratchet.evaluation.intervals import exact_share
from ratchet.evaluation.metrics import Metrics
from ratchet.evaluation.problems import read_metrics
from ratchet.settings import example_files
from ratchet.training import open_split

__all__ = ["measure", "prepared_project"]

_STEPS = {"adult": 1_500, "bike": 1_500, "days": 1_500, "fashion": 150}
_TABLES: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "adult": ("adult", {}),
    "bike": ("bike", {"data.order_by": "none"}),
    "days": ("bike", {}),
}


def measure(rounds: int, *, quick: bool, names: Sequence[str] = tuple(_STEPS)) -> list[Row]:
    """Return the table's rows for these sets."""
    return [row for name in names for row in _measured(name, 1 if quick else rounds, 5 if quick else _STEPS[name])]


def _measured(name: str, rounds: int, steps: int) -> list[Row]:
    shares, sizes, rows = list[Row](), list[float](), list[Row]()
    for seed in range(rounds):
        with scratch() as folder:
            project = prepared_project(name, folder, {"seed": seed, "training.max_steps": steps})
            if project is None:
                return [Row(f"coverage: {name}", "no such file in RATCHET_DATASETS", "not measured")]
            for stage in ("train", "evaluate"):
                project.stage(stage)
            metrics = read_metrics(project.folder / "data" / "reports")
            shares.append(_coverage(name, seed, metrics))
            assert metrics.coverage, "numbers and classes have it"
            sizes.append(metrics.coverage.main[0].size)
            if not rows and name in ("bike", "days"):
                rows = _trees(name, project.folder / "data" / "packed")
        print(f"{name}, seed {seed}: {shares[-1].figure}, size {sizes[-1]:.4g}", flush=True)
    size = Row(
        f"size of 90 % intervals or sets: {name}", f"median of {rounds} seeds", f"{statistics.median(sizes):.4g}"
    )
    return [*shares, size, *rows]


def _coverage(name: str, seed: int, metrics: Metrics) -> Row:
    assert metrics.coverage, "numbers and classes have it"
    (main,), rows = metrics.coverage.main, metrics.coverage.calibration.rows
    figure = f"{main.share.value:.4f} ({main.share.low:.4f} to {main.share.high:.4f})"
    condition = f"seed {seed}, {rows:,} validation and {metrics.rows:,} test rows"
    claim = ("", None) if name == "days" else (">= 0.9 or within chance", main.share.high >= MAIN_LEVEL / 100)
    return Row(f"coverage of 90 % intervals or sets: {name}", condition, figure, *claim)


def prepared_project(name: str, folder: Path, changes: Mapping[str, object]) -> Project | None:
    """Return a project in `folder` with the ingested set, or None if its file is absent."""
    if name in _TABLES:
        table, differs = _TABLES[name]
        return prepared(table, folder, {**differs, **changes})
    data = Path(os.environ.get("RATCHET_DATASETS", "")).absolute()
    if not (data / "FashionMNIST").is_dir():
        return None
    shipped = next(each for each in example_files.listed(ROOT) if each.name == "fashion-mnist").settings
    small = {"data.path": str(data), "evaluation.robustness_rows": 0, "evaluation.explained_errors": 0}
    project = Project(folder / "project", {**shipped, **small, **changes})
    project.stage("ingest")
    return project


def _trees(name: str, packed: Path) -> list[Row]:
    """Return coverage and mean width of quantile trees."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    (learned, numbers), (tested, truth) = (_table(packed, split) for split in ("train", "test"))
    low, high = (
        HistGradientBoostingRegressor(loss="quantile", quantile=quantile, random_state=0).fit(learned, numbers)
        for quantile in (0.05, 0.95)
    )
    lower, upper = low.predict(tested), high.predict(tested)
    share = exact_share(int(((lower <= truth) & (truth <= upper)).sum()), len(truth), confidence=0.95)
    figure = f"{share.value:.4f} ({share.low:.4f} to {share.high:.4f})"
    return [
        Row(f"coverage of quantile trees: {name}", "0.05 to 0.95", figure),
        Row(f"mean width of quantile trees: {name}", "0.05 to 0.95", f"{(upper - lower).mean():.4g}"),
    ]


def _table(packed: Path, split: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the columns of a table, codes of categories among them, and the number to predict."""
    import torch

    opened = open_split(packed, split)
    inputs, targets = opened.batch(np.arange(len(opened)), torch.device("cpu"))
    columns = np.concatenate([np.asarray(array, np.float64) for array in inputs], axis=1)
    return columns, np.asarray(targets, np.float64)[:, 0]


def main() -> None:
    """Measure and print."""
    parser = options(__doc__, rounds=1)
    parser.add_argument("--only", nargs="+", choices=_STEPS, default=tuple(_STEPS), metavar="SET")
    alone(parser, lambda requested: measure(requested.rounds, quick=requested.quick, names=requested.only))


if __name__ == "__main__":
    main()
