"""Precision of `ratchet data labels`: the wrong labels among those ranked first, and its own estimate of them.

    RATCHET_DATASETS=FOLDER python -m bench.wrong_labels [--images 10000] [--quick]

Images of FOLDER/cifar-10-batches-py are saved as JPEG (quality 95); 5.5 % of them go to the folder of another class,
drawn uniformly. They are ingested and checked with the shipped settings. Claim: of the first 200, at least 60 % are
wrong.
"""

import argparse
import os
import pickle
import time
from pathlib import Path

import numpy as np
from PIL import Image

from bench.project import ROOT, scratch
from bench.report import Row, alone, options
from commands.labels import check_labels
from ratchet import settings
from ratchet.data.ingest import IngestTask, ingest
from ratchet.settings.model import DataSettings
from ratchet.workspace import Workspace

__all__ = ["measure"]

_DATASETS, _CIFAR = Path(os.environ.get("RATCHET_DATASETS", "")), "cifar-10-batches-py"
_WRONG, _CLAIM, _FIRST = 0.055, 0.6, (50, 100, 200)


def measure(images: int, *, quick: bool) -> list[Row]:
    """Return the rows of the table."""
    count = 600 if quick else images
    if not (_DATASETS / _CIFAR).is_dir():
        return [
            Row("wrong labels", f"no {_CIFAR} in the folder RATCHET_DATASETS names", "not measured", f">= {_CLAIM}")
        ]
    with scratch() as folder:
        wrong = _write(folder / "photos", count)
        workspace = Workspace(folder)
        workspace.params.write_bytes((ROOT / "params.yaml").read_bytes())
        params = settings.load(workspace.params)
        ingest(
            IngestTask(
                DataSettings(source="image-folder", path=str(folder / "photos")),
                packed=workspace.packed,
                quarantine=workspace.quarantine,
                root=folder,
            )
        )
        began = time.perf_counter()
        result = check_labels(params, workspace, folds=2 if quick else 4, epochs=1 if quick else 0, progress=_Quiet())
        taken = time.perf_counter() - began
    judged = result.judgement
    first = [Path(name).name in wrong for name in result.samples["id"].to_list()]
    what = f"{len(first):,} training labels, {sum(first)} wrong"
    rows = [Row("seconds", what, f"{taken:,.0f}"), Row("accuracy, held out", what, f"{judged.accuracy:.3f}")]
    for number in _FIRST:
        share = float(np.mean(first[:number]))
        claimed = number == _FIRST[-1]
        claim, met = (f">= {_CLAIM}", share >= _CLAIM) if claimed else ("", None)
        rows.append(Row(f"wrong, of the first {number}", what, f"{share:.3f}", claim, met))
    true = f"{np.mean(first[: judged.flagged]):.2f}" if judged.flagged else "-"
    rows.append(Row("called likely wrong", what, f"{judged.flagged:,}"))
    rows.append(Row("of these wrong: expected, true", what, f"{judged.precision:.2f}, {true}"))
    return rows


class _Quiet:
    def update(self, done: int, total: int, note: str = "") -> None:
        pass

    def say(self, text: str) -> None:
        pass


def _write(folder: Path, count: int) -> set[str]:
    """Write the images into one folder per class. Return the names of those in a wrong one."""
    source = _DATASETS / _CIFAR
    batches = [
        pickle.loads((source / f"data_batch_{number + 1}").read_bytes(), encoding="bytes")
        for number in range(-(-count // 10_000))
    ]
    pixels = np.concatenate([batch[b"data"] for batch in batches])[:count].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    labels = np.concatenate([batch[b"labels"] for batch in batches])[:count]
    drawn = np.random.default_rng(0)
    chosen = drawn.random(count) < _WRONG
    given = np.where(chosen, (labels + drawn.integers(1, 10, count)) % 10, labels)
    for label in range(10):
        (folder / str(label)).mkdir(parents=True)
    for number in range(count):
        path = folder / str(given[number]) / f"{number:05d}.jpg"
        Image.fromarray(np.ascontiguousarray(pixels[number])).save(path, quality=95)
    return {f"{number:05d}.jpg" for number in np.flatnonzero(chosen)}


def main() -> None:
    """Measure and print."""
    parser = options(__doc__)
    parser.add_argument("--images", type=int, default=10_000, help="5,000 to 50,000 (default: 10,000)")

    def checked(arguments: argparse.Namespace) -> list[Row]:
        return measure(arguments.images, quick=arguments.quick)

    alone(parser, checked)


if __name__ == "__main__":
    main()
