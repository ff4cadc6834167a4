"""Make the recorded table of bench/search.py: every setting of a grid of the digits network, trained once.

    python -m bench.search_table [--epochs 27] [--workers 2] [--folder FOLDER]

`ratchet search` itself trains the 216 settings, with sampler grid, without pruner, and with one seed. The table,
bench/search_table.parquet, has a row for each epoch of each setting: accuracy and loss (cross-entropy without label
smoothing) on the validation samples. Its metadata name the machine and the versions. It takes about half an hour on two
cores. A folder that is given is kept, and the same command continues the search there.
"""

import argparse
import json
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.project import ROOT, Project, scratch
from bench.report import machine
from bench.search_runs import curves, digits, search
from ratchet.search.records import Study

__all__ = ["SPACE", "TABLE", "Table", "make"]

TABLE = ROOT / "bench" / "search_table.parquet"
SPACE: dict[str, list[Any]] = {
    "training.learning_rate": [5.0e-4, 2.0e-3, 8.0e-3, 3.2e-2, 0.1, 0.3],
    "training.weight_decay": [0.0, 1.0e-4, 1.0e-2],
    "training.batch_size": [32, 64, 128],
    "training.optimizer": ["adamw", "sgd"],
    "training.label_smoothing": ["auto", 0.0],
}
"""Each dimension contains the value of the default params.yaml."""


@dataclass(frozen=True)
class Table:
    """The recorded trainings. `settings` has the point of each; `loss` and `accuracy` have shape (settings, epochs)."""

    settings: list[dict[str, Any]]
    loss: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    about: str

    @classmethod
    def read(cls, path: Path = TABLE) -> "Table":
        """Read the table."""
        import polars

        frame = polars.read_parquet(path).sort("setting", "epoch")
        about = polars.read_parquet_metadata(path)["about"]
        settings = [json.loads(text) for text in frame.unique("setting", maintain_order=True)["values"]]
        shape = (len(settings), len(frame) // len(settings))
        return cls(
            settings, frame["loss"].to_numpy().reshape(shape), frame["accuracy"].to_numpy().reshape(shape), about
        )

    @property
    def epochs(self) -> int:
        """Epochs of a whole training."""
        return self.loss.shape[1]

    @cached_property
    def best_so_far(self) -> NDArray[np.float64]:
        """Loss of the best epoch so far, the objective of the search."""
        return np.minimum.accumulate(self.loss, axis=1)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Row of each setting, by its JSON."""
        return {json.dumps(values, sort_keys=True): number for number, values in enumerate(self.settings)}

    def number(self, values: dict[str, Any]) -> int:
        """Return the row of a setting."""
        return self.numbers[json.dumps(values, sort_keys=True)]


def make(project: Project, *, epochs: int, workers: int, described: str, path: Path = TABLE) -> None:
    """Train every setting, and write the table."""
    project.set({
        "search.space": {key: {"choice": choices} for key, choices in SPACE.items()},
        "search.sampler": "grid", "search.pruner": "none", "search.seeds": 1, "search.trials": 1000,
        "search.workers": workers, "search.objective": "validation/loss", "training.best": "validation/loss",
        "training.epochs": epochs,
    })  # fmt: skip
    _write(project, search(project), described=described, path=path)


def _write(project: Project, study: Study, *, described: str, path: Path) -> None:
    import polars

    rows = []
    trials = sorted(study.searched, key=lambda trial: json.dumps(dict(trial.values), sort_keys=True))
    for number, trial in enumerate(trials):
        for epoch, values in enumerate(curves(project, trial), start=1):
            rows.append({
                "setting": number, "values": json.dumps(dict(trial.values), sort_keys=True), "epoch": epoch,
                "loss": values["validation/loss"], "accuracy": values["validation/accuracy"],
            })  # fmt: skip
    frame = polars.DataFrame(rows, schema_overrides={"setting": polars.Int16, "epoch": polars.Int16})
    steps, cpu = sum(trial.steps for trial in trials), study.cpu_hours
    about = f"{len(trials)} settings, {steps:,} steps, {cpu:.2f} CPU-hours, on {described}"
    frame.write_parquet(path, compression="zstd", metadata={"about": about})
    print(f"{path.name}: {len(frame):,} rows, {path.stat().st_size:,} bytes; {about}")


def main() -> None:
    """Make the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=27, help="of each training (default: 27)")
    parser.add_argument("--workers", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--folder", type=Path, help="project folder that is kept")
    arguments = parser.parse_args()
    described = machine()
    with ExitStack() as stack:
        folder = arguments.folder or stack.enter_context(scratch())
        is_new = not (folder / "params.yaml").exists()
        project = digits(folder, {}) if is_new else Project.open(folder)
        make(project, epochs=arguments.epochs, workers=arguments.workers, described=described)


if __name__ == "__main__":
    main()
