"""`ratchet data labels`: which labels are likely wrong, by models that never saw the samples they speak of."""

import math
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet import files, settings
from ratchet.data.manifest import Manifest
from ratchet.data.trouble.labels import fold_of, suspects
from ratchet.errors import DataError, RatchetError
from ratchet.params import Params
from ratchet.workspace import Workspace, disk_errors
from tasks.command import INTERRUPTED
from tasks.watch import Terminal, Watch

__all__ = ["check_labels"]

_SHOWN = 20


def check_labels(params: Params, workspace: Workspace, *, folds: int, epochs: int, watch: Watch) -> pl.DataFrame:
    """The training samples whose labels are likely wrong, the likeliest first: id, class, likely, given, doubt.

    `folds` models are trained by the settings in params.yaml, for `epochs` epochs each, every one on all parts of the
    training split but one, which it then speaks of.

    Raises:
        DataError: the data are a Dataset of the user's own, or so few that a part holds no sample.
    """
    from ratchet import training
    from ratchet.evaluation.calibration import log_softmax
    from tasks.course import Course

    manifest = Manifest.read(workspace.packed)
    if manifest.factory is not None:
        raise DataError("data.source is factory: labels are checked where pictures are packed, and these are not")
    course = Course.of(params, workspace, manifest)
    plan = replace(course.plan, epochs=epochs, max_steps=0, checkpoint_steps=0, doctor="never", profile=0)
    split = training.open_split(workspace.packed, "train")
    index = pl.read_parquet(workspace.packed / "index.parquet").filter(pl.col("split") == "train")
    fold = fold_of(index["content"].to_list(), folds)
    per_fold = math.ceil(len(split) * (folds - 1) / folds / plan.batch_size) * epochs
    probabilities = np.zeros((len(split), len(manifest.classes)), np.float32)
    for number in range(folds):
        held_out, rest = np.flatnonzero(fold == number), np.flatnonzero(fold != number)
        if not len(held_out) or not len(rest):
            raise DataError(f"--folds {folds}: a part of {len(split)} training samples is empty: take fewer")
        with tempfile.TemporaryDirectory() as folder:
            store = training.CheckpointStore(Path(folder))
            mine, others = split.only(held_out), split.only(rest)
            # Judged by its loss on its own samples alone: the part held out must not choose the epoch.
            events = training.fit(others, others.only(_some(len(rest))), course.spec, plan, store=store, identity={})
            for event in events:
                if isinstance(event, training.Points | training.Epoch):
                    watch.progress(number * per_fold + event.step, folds * per_fold, f"part {number + 1} of {folds}")
                if isinstance(event, training.Finished):
                    model = training.build(course.spec)
                    model.load_state_dict(event.weights)
                    probabilities[held_out] = np.exp(log_softmax(training.predict_logits(model, mine)))
    found = suspects(probabilities, np.asarray(split.labels))
    names = pl.Series(manifest.classes)
    return found.select(
        pl.Series("id", index["id"].gather(found["row"])),
        pl.Series("class", names.gather(found["label"])),
        pl.Series("likely", names.gather(found["likely"])),
        "given",
        "doubt",
    )


def _some(rows: int) -> NDArray[np.int64]:
    return np.arange(0, rows, max(1, rows // 500))


def main(folds: int, epochs: int) -> None:
    """Check, write the table and print its beginning."""
    try:
        workspace = Workspace.find()
        params = settings.load(workspace.params)
        with (
            disk_errors(workspace.root),
            workspace.hold("ratchet data labels"),
            Terminal("labels", unit="steps") as watch,
        ):
            found = check_labels(params, workspace, folds=folds, epochs=epochs or params.training.epochs, watch=watch)
            place = workspace.reports / "labels.csv"
            files.write_text(place, found.write_csv(float_precision=4))
    except RatchetError as error:
        sys.exit(f"labels: {error}")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    for row in found.head(_SHOWN).iter_rows(named=True):
        print(f"{row['id']}: labelled {row['class']}, looks like {row['likely']} (doubt {row['doubt']:.2f})")
    print(f"{found.height:,} training labels are likely wrong; all are listed in {place}. Nothing was changed")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
