"""Accuracy and time of examples/cifar10-fast.yaml on CIFAR-10, compared with the tutorials' loop (B4).

    RATCHET_DATASETS=FOLDER python -m bench.recipe [--rounds 3]

Each round trains and evaluates with its own seed, by the shipped stages with everything on. FOLDER holds
cifar-10-batches-py. The results are the accuracy on the 10,000 test images, measured once at the end, and the seconds
of the whole train stage. Before each round the textbook loop of bench/contenders.py is timed over 100 steps, to
estimate its time for 20 epochs of 50,000 images under the same load of the machine.
"""

import json
import os
import statistics
import sys
import time
from pathlib import Path

from bench.project import ROOT, Project, pack, scratch
from bench.report import Row, alone, options, ratio, spread
from bench.throughput import best_workers, rate_of
from ratchet.settings.example_files import Example

__all__ = ["measure"]

_GOAL = 0.94
_TEXTBOOK = 20 * 50_000  # images


def measure(rounds: int, *, quick: bool) -> list[Row]:
    """The table's rows."""
    example = Example(ROOT / "examples" / "cifar10-fast.yaml")
    name = f"accuracy: {example.path.stem}"
    data = Path(os.environ.get("RATCHET_DATASETS", "")).absolute()
    if not (data / "cifar-10-batches-py").is_dir():
        return [Row(name, "no cifar-10-batches-py in the folder RATCHET_DATASETS names", "not measured", f">= {_GOAL}")]
    short = {"training.max_steps": 2, "training.progressive_sizes": [8]} if quick else {}
    accuracies, seconds, textbook = [], [], []
    with scratch() as folder:
        pack(folder / "packed", rows=25_000)
        project = Project(
            folder / "project", {**example.settings, "data.path": str(data), "data.download": False, **short}
        )
        project.stage("ingest")
        warm, steps = (2, 5) if quick else (20, 100)
        workers = best_workers(sys.executable, "textbook", folder / "packed", warm, steps)
        for seed in range(rounds):
            rate = rate_of(sys.executable, "textbook", folder / "packed", warm, steps, workers)
            textbook.append(_TEXTBOOK / rate)
            project.set({"seed": seed})
            began = time.perf_counter()
            project.stage("train")
            seconds.append(time.perf_counter() - began)
            project.stage("evaluate")
            metrics = json.loads((project.folder / "data" / "reports" / "metrics.json").read_text())
            accuracies.append(float(metrics["accuracy"]))
            print(
                f"seed {seed}: accuracy {accuracies[-1]:.4f}, {seconds[-1]:,.0f} s; textbook {textbook[-1]:,.0f} s",
                flush=True,
            )
    mean, share = statistics.mean(accuracies), ratio(seconds, textbook)
    deviation = statistics.stdev(accuracies) if rounds > 1 else 0.0
    condition = f"{rounds} seeds, mean and standard deviation (least to greatest)"
    reached = f"{mean:.4f} +- {deviation:.4f} ({min(accuracies):.4f} to {max(accuracies):.4f})"
    return [
        Row(name, condition, reached, f">= {_GOAL}", mean >= _GOAL),
        Row("s: its train stage", f"median of {rounds}", spread(seconds)),
        Row("s: textbook loop, 20 epochs", "from its rate over 100 steps", spread(textbook)),
        Row("its train stage / textbook loop", f"median of {rounds} rounds", f"{share:.2f}", "<= 1.00", share <= 1.0),
    ]


if __name__ == "__main__":
    alone(options(__doc__, rounds=3), lambda requested: measure(requested.rounds, quick=requested.quick))
