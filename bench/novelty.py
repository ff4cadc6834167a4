"""How well `options.novelty` separates rows of other data from test rows: the area under the ROC curve (AUROC).

    RATCHET_DATASETS=FOLDER python -m bench.novelty [--only fashion adult reviews] [--rounds 1]

A model is trained by the shipped settings on Fashion-MNIST (300 steps), adult (1,500 steps) or rt-polarity. Each set of
other rows has as many as its source, up to 2,000. Fashion-MNIST: scikit-learn's digits and grey CIFAR-10 at 28 x 28,
the test images upside down and inverted, and noise. adult: the columns of the test rows, each permuted for itself.
rt-polarity: lines of Shakespeare. AUROC is .5 by chance.

Claim: above .7 on Fashion-MNIST. Two classes have no claim: there the score ranks rows as the confidence does, and a
model may be sure of anything.
"""

import os
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.intervals import prepared_project
from bench.project import ROOT, Project, scratch
from bench.report import Row, alone, options
from ratchet.data.manifest import Manifest
from ratchet.kinds.protocol import Arrays
from ratchet.kinds.registry import kind_of
from ratchet.problems.novelty import Novelty
from ratchet.registry.pyfunc import ServedModel
from ratchet.settings import example_files
from ratchet.training import load_model, open_split

__all__ = ["measure"]

_STEPS = {"fashion": 300, "adult": 1_500, "reviews": 0}
_GOAL, _MOST = 0.7, 2_000
_SIDE = 28  # pixels of Fashion-MNIST

Images = NDArray[np.uint8]


def measure(rounds: int, *, quick: bool, names: Sequence[str] = tuple(_STEPS)) -> list[Row]:
    """Return the table's rows for these sets."""
    return [row for name in names for seed in range(1 if quick else rounds) for row in _measured(name, seed, quick)]


def _measured(name: str, seed: int, quick: bool) -> list[Row]:
    steps = 5 if quick else _STEPS[name]
    with scratch() as folder:
        changes: dict[str, object] = {"seed": seed, **({"training.max_steps": steps} if steps else {})}
        project = _reviews(folder, changes) if name == "reviews" else prepared_project(name, folder, changes)
        if project is None:
            return [Row(f"AUROC of novelty: {name}", "no such file in RATCHET_DATASETS", "not measured")]
        project.stage("train")
        data = project.folder / "data"
        served, test = ServedModel(*load_model(data / "model")), _test_rows(data)
        usual = served.answers_to_arrays(test)
        novelty = Novelty.of(usual[::2])
        rows = []
        for other, arrays in _others(name, served, test).items():
            shares = novelty.shares(usual[1::2]), novelty.shares(served.answers_to_arrays(arrays))
            area = _auroc(*shares)
            claim = (f">= {_GOAL}", area >= _GOAL) if name == "fashion" else ("", None)
            rows.append(Row(f"AUROC of novelty: {name}, {other}", f"seed {seed}", f"{area:.3f}", *claim))
            print(f"{name}, {other}, seed {seed}: {area:.3f}", flush=True)
        return rows


def _reviews(folder: Path, changes: Mapping[str, object]) -> Project | None:
    path = Path(os.environ.get("RATCHET_DATASETS", "")).absolute() / "text" / "rt-polarity"
    if not path.is_dir():
        return None
    shipped = next(each for each in example_files.listed(ROOT) if each.name == "text-sentiment")
    project = Project(folder / "project", {**shipped.settings, "data.path": str(path), **changes})
    project.stage("ingest")
    return project


def _test_rows(data: Path) -> Arrays:
    """Return the arrays of up to 4,000 test rows, in an order by chance."""
    spec = load_model(data / "model")[1].input
    split, kind = open_split(data / "packed", "test", spec), kind_of(spec)
    rows = np.random.default_rng(0).permutation(len(split))[: 2 * _MOST]
    arrays: Arrays = kind.decode(kind.samples(split, rows, Manifest.read(data / "packed").input), spec)
    return arrays


def _others(name: str, served: ServedModel, test: Arrays) -> dict[str, Arrays]:
    """Return the arrays of other rows by the names of their sets."""
    random, folder = np.random.default_rng(0), Path(os.environ["RATCHET_DATASETS"])
    if name == "adult":
        permuted = (np.stack([random.permutation(column) for column in array.T], axis=1) for array in test)
        return {"permuted columns": tuple(permuted)}
    if name == "reviews":
        lines = [line.strip() for line in (folder / "tinyshakespeare.txt").read_text(encoding="utf-8").split("\n")]
        lines = [line for line in lines if len(line) > 30][:_MOST]
        spec = served.spec.input
        arrays: Arrays = kind_of(spec).decode(lines, spec)
        return {"lines of Shakespeare": arrays}
    return {other: (images,) for other, images in _images(folder, test[0][:_MOST], random).items()}


def _images(folder: Path, test: Images, random: np.random.Generator) -> dict[str, Images]:
    from sklearn.datasets import load_digits

    content = pickle.loads((folder / "cifar-10-batches-py" / "test_batch").read_bytes(), encoding="bytes")
    grey = content[b"data"][:_MOST].reshape(-1, 3, 32, 32).mean(axis=1)
    return {
        "digits": _resized(load_digits().images * 15.9),
        "grey CIFAR-10": _resized(grey),
        "upside down": np.ascontiguousarray(test[:, ::-1]),
        "inverted": 255 - test,
        "noise": random.integers(0, 256, test.shape, dtype=np.uint8),
    }


def _resized(images: NDArray[Any]) -> Images:
    """Return grey images (n, height, width) as (n, 28, 28, 1)."""
    from PIL import Image

    pixels = (Image.fromarray(image.astype(np.uint8)).resize((_SIDE, _SIDE)) for image in images)
    return np.stack([np.asarray(image) for image in pixels])[..., None]


def _auroc(usual: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    from sklearn.metrics import roc_auc_score

    truth = np.repeat([0, 1], [len(usual), len(other)])
    return float(roc_auc_score(truth, np.concatenate([usual, other])))


def main() -> None:
    """Measure and print."""
    parser = options(__doc__, rounds=1)
    parser.add_argument("--only", nargs="+", choices=_STEPS, default=tuple(_STEPS), metavar="SET")
    alone(parser, lambda requested: measure(requested.rounds, quick=requested.quick, names=requested.only))


if __name__ == "__main__":
    main()
