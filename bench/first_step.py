"""Time from the command to the first optimizer step, and its parts (B5).

    python -m bench.first_step [--rounds 5]

`python -m tasks.train` on the digits as shipped, on images of CIFAR-10's shape, and on those with `training.compile`,
with an empty compiler cache and with a full one. The stage's own journal has the time stamps: its first entry (the
interpreter, imports, settings and keys come before it), the start of training (the run's record, opening the data,
building the model), and the first step. One more run under `python -X importtime` shows the slowest imports.
bench/first_model.py measures the first step of `ratchet train`.
"""

import os
import re
import statistics
from collections import Counter

from bench.project import Project, StageRun, pack, scratch
from bench.report import Row, alone, options, spread
from bench.throughput import STAGE

__all__ = ["measure"]

_FIRST: dict[str, object] = {"training.log_every": 1, "training.max_steps": 2}
_LISTED = 8


def measure(rounds: int, *, quick: bool) -> list[Row]:
    """The table's rows."""
    rounds = 1 if quick else rounds
    cases: dict[str, list[StageRun]] = {}
    with scratch() as folder:
        pack(folder / "packed", rows=2_560)
        digits = Project(folder / "digits", _FIRST)
        digits.stage("ingest")
        images = Project(folder / "images", {**STAGE, **_FIRST}, packed=folder / "packed")
        compiled = Project(
            folder / "compiled", {**STAGE, **_FIRST, "training.compile": "default"}, packed=folder / "packed"
        )
        projects = {"digits": digits, "32x32x3, batch 256": images, "the same, compiled": compiled}
        for project in (digits, images):
            project.train(seed=0)  # makes MLflow's database, and everything that is made but once
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "compiler")
        cases["the same, compiled, no cache"] = [compiled.train(seed=0)]
        for number in range(rounds):
            for name, project in projects.items():
                cases.setdefault(name, []).append(project.train(seed=number + 1))
        del os.environ["TORCHINDUCTOR_CACHE_DIR"]
        imports = _imports(digits)
    rows = [row for name, runs in cases.items() for row in _rows(name, runs)]
    dearest = ", ".join(f"{name} {microseconds / 1e6:.2f}" for name, microseconds in imports.most_common(_LISTED))
    return [*rows, Row("imports of tasks.train, s", "-X importtime, which slows them, by package", dearest)]


def _rows(name: str, runs: list[StageRun]) -> list[Row]:
    first = [run.when("metrics", "step/loss") for run in runs]
    reported = [run.when("params", "seed") for run in runs]
    began = [run.when("tags", "ratchet.device") for run in runs]
    where = {
        "imports, settings": statistics.median(reported),
        "record, data, model": statistics.median(b - a for a, b in zip(reported, began, strict=True)),
        "first step": statistics.median(b - a for a, b in zip(began, first, strict=True)),
    }
    told_where = ", ".join(f"{part} {seconds:.2f}" for part, seconds in where.items())
    return [Row("s to the first step", f"{name} ({told_where})", spread(first, form=".2f"))]


def _imports(project: Project) -> Counter[str]:
    """Microseconds that each package's modules took to import, without what they import of other packages."""
    message = project.stage("train", python=("-X", "importtime"))
    microseconds: Counter[str] = Counter()
    for own, module in re.findall(r"import time:\s+(\d+) \|\s+\d+ \|\s+([\w.]+)", message):
        microseconds[module.split(".")[0]] += int(own)
    return microseconds


if __name__ == "__main__":
    alone(options(__doc__), lambda requested: measure(requested.rounds, quick=requested.quick))
