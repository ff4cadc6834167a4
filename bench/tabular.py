"""The default recipe for tables beside gradient-boosted trees (C4): adult (classes) and bike-sharing (numbers).

    RATCHET_DATASETS=FOLDER python -m bench.tabular [--only adult bike] [--rounds 3]

FOLDER holds tabular/adult.data and tabular/bike-sharing/hour.csv. Each round ingests (adult: with another split) and
trains with its own seed, by the shipped stages. The trees are the baseline of the same training: scikit-learn's
HistGradientBoosting with its default settings and native categories. The blend is the mean of both predictions. All
three predict the same test rows. Bike-sharing is in time order: the test rows are the latest.

Figures are means over the rounds. An interval of a difference is a 95 % t interval over the rounds. Claims: accuracy
on adult at most .002 below the trees, the blend above both, and a train stage of at most 180 s on two idle cores,
which includes the fit of the trees. The CPU seconds show the cost on a busy machine.
"""

import argparse
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

from bench.project import Project, scratch
from bench.report import Row, alone, options
from ratchet.training import load_model, open_split, predict_outputs

__all__ = ["compare"]

_GAP = 0.002  # of accuracy
_SECONDS = 180.0
_RECIPE: Mapping[str, object] = {
    "data.kind": "table", "training.epochs": 12, "training.batch_size": 256, "training.optimizer": "adamw",
    "training.learning_rate": 2.0e-3, "training.weight_decay": 3.0e-4, "training.clip_norm": 1.0,
    "training.label_smoothing": 0.0, "training.schedule": "cosine", "training.ema_decay": 0.0,
    "training.doctor": "never",
}  # fmt: skip
_SETS: Mapping[str, Mapping[str, object]] = {
    "adult": {"data.path": "tabular/adult.data", "data.label_column": "column_15"},
    "bike": {
        "data.path": "tabular/bike-sharing/hour.csv", "data.label_column": "cnt", "data.order_by": "instant",
        "data.problem": "regression", "data.drop": ["casual", "registered"],
    },
}  # fmt: skip
_UNITS = {"adult": ("accuracy",), "bike": ("MAE", "R2")}


@dataclass(frozen=True)
class Round:
    """Figures of one round, in the order of `_UNITS`, and its costs."""

    network: tuple[float, ...]
    trees: tuple[float, ...]
    blend: tuple[float, ...]
    seconds: float  # of the train stage
    cpu_seconds: float


def compare(name: str, rounds: int, *, quick: bool) -> list[Row]:
    """Return the table's rows for the set `name`."""
    source = Path(os.environ.get("RATCHET_DATASETS", "")).absolute()
    settings = {**_RECIPE, **_SETS[name]}
    path = source / str(settings["data.path"])
    if "RATCHET_DATASETS" not in os.environ or not path.is_file():
        return [
            Row(f"network and trees: {name}", f"no {path.name} in the folder RATCHET_DATASETS names", "not measured")
        ]
    settings |= {"data.path": str(path), **({"training.max_steps": 5} if quick else {})}
    results = []
    for seed in range(1 if quick else rounds):
        with scratch() as folder:
            results.append(_round(Project(folder / "project", {**settings, "seed": seed})))
        print(f"{name}, seed {seed}: {results[-1]}", flush=True)
    return _rows(name, results)


def _round(project: Project) -> Round:
    """Ingest, train, and measure network, trees and blend on the test rows."""
    project.stage("ingest")
    began, spent = time.perf_counter(), _cpu()
    project.stage("train")
    seconds, cpu_seconds = time.perf_counter() - began, _cpu() - spent
    data = project.folder / "data"
    test = open_split(data / "packed", "test")
    (network, spec), (trees, _) = load_model(data / "model"), load_model(data / "baseline")
    predictions = [spec.target.predictions(predict_outputs(model, test)) for model in (network, trees)]
    targets = np.asarray(test.targets)
    figures = [_figures(predicted, targets) for predicted in (*predictions, (predictions[0] + predictions[1]) / 2)]
    return Round(*figures, seconds, cpu_seconds)


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
    condition = f"mean of {len(results)} seeds"
    rows = []
    for place, unit in enumerate(_UNITS[name]):
        parts = {"network": [each.network[place] for each in results], "trees": [each.trees[place] for each in results]}
        parts["blend"] = [each.blend[place] for each in results]
        means = {part: statistics.mean(values) for part, values in parts.items()}
        rows += [Row(f"{unit} of {name}: {part}", condition, f"{mean:.4f}") for part, mean in means.items()]
        differences = [ours - theirs for ours, theirs in zip(parts["network"], parts["trees"], strict=True)]
        claim, met = (f">= -{_GAP}", statistics.mean(differences) >= -_GAP) if name == "adult" else ("", None)
        rows.append(Row(f"{unit} of {name}: network - trees", condition, _with_interval(differences), claim, met))
        if name == "adult":
            gained = [
                mine - max(one_of) for mine, *one_of in zip(parts["blend"], *list(parts.values())[:2], strict=True)
            ]
            above = means["blend"] > max(means["network"], means["trees"])
            rows.append(
                Row(f"{unit} of {name}: blend - better", condition, _with_interval(gained), "> both means", above)
            )
    seconds = statistics.median(each.seconds for each in results)
    limit, met = (f"<= {_SECONDS:.0f}", seconds <= _SECONDS) if name == "adult" else ("", None)
    rows.append(Row(f"s: train stage of {name}", f"median of {len(results)}", f"{seconds:.0f}", limit, met))
    cpu_seconds = statistics.median(each.cpu_seconds for each in results)
    rows.append(Row(f"CPU-s: train stage of {name}", f"median of {len(results)}", f"{cpu_seconds:.0f}"))
    return rows


def _with_interval(values: Sequence[float]) -> str:
    mean = statistics.mean(values)
    if len(values) < 2:
        return f"{mean:+.4f}"
    reach = float(student.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / len(values) ** 0.5
    return f"{mean:+.4f} (95 % CI {mean - reach:+.4f} to {mean + reach:+.4f})"


def main() -> None:
    """Measure and print."""
    parser = options(__doc__, rounds=3)
    parser.add_argument("--only", nargs="+", choices=tuple(_SETS), default=tuple(_SETS), metavar="SET")

    def measured(arguments: argparse.Namespace) -> list[Row]:
        return [row for name in arguments.only for row in compare(name, arguments.rounds, quick=arguments.quick)]

    alone(parser, measured)


if __name__ == "__main__":
    main()
