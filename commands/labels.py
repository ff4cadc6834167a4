"""`ratchet data labels`: which labels are likely wrong, by models that never saw the samples they judge."""

import math
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet import files, settings
from ratchet.data.checks.label_errors import Judgement, fold_of, judge
from ratchet.data.manifest import Manifest
from ratchet.errors import DataError, RatchetError
from ratchet.settings.model import Params, TrainingSettings
from ratchet.workspace import Workspace, disk_errors
from tasks.progress import Terminal, Watch
from tasks.stage_runner import INTERRUPTED

if TYPE_CHECKING:
    import torch

    from ratchet import training

__all__ = ["Checked", "check_labels"]

_SHOWN = 20
_CLASSES_SHOWN = 20
_LARGEST = 32  # pixels a side that the check's own model sees
_BATCH = 512


@dataclass(frozen=True)
class Checked:
    """Result of a label check.

    Attributes:
        judgement: how good the models were, and what they say of the labels.
        samples: all training samples, the most suspicious first: id, class, likely, given, doubt, flagged.
        method: what was trained, in one sentence.
    """

    judgement: Judgement
    samples: pl.DataFrame
    method: str


def check_labels(params: Params, workspace: Workspace, *, folds: int, epochs: int, watch: Watch) -> Checked:
    """Rank the training samples by how likely their labels are wrong.

    `folds` models are trained, each on all parts of the training split but one, which it then judges. A project with
    pretrained weights or a model of its own has these trained by its settings. Else the model is a small net with its
    own recipe, which learns more from few samples than a long training does; whether mirrored images help is tried on
    the first part. Probabilities are averaged over the second half of the epochs (Laine and Aila 2017). Copies of an
    image and samples of a group are held out together.

    Args:
        params: the project's settings.
        workspace: has the packed data.
        folds: parts.
        epochs: of each model; 0: chosen by the number of samples, or `training.epochs` for a model of the project.
        watch: is shown the progress.

    Raises:
        DataError: the data are a Dataset of the user's own, or so few that a part holds no sample.
    """
    from ratchet import training

    manifest = Manifest.read(workspace.packed)
    if manifest.factory is not None:
        raise DataError("data.source is factory: labels are checked where images are packed, and these are not")
    split = training.open_split(workspace.packed, "train")
    index = pl.read_parquet(workspace.packed / "index.parquet").filter(pl.col("split") == "train")
    keys = "group " + index["group"] if "group" in index.columns else index["pixels"]
    fold = fold_of(pl.select(pl.coalesce(keys, index["pixels"])).to_series().to_list(), folds)
    sizes = np.bincount(fold, minlength=folds)
    if sizes.min() == 0 or sizes.max() == len(split):
        raise DataError(f"--folds {folds}: a part of {len(split)} training samples is empty: take fewer")
    recipes = _recipes(params, workspace, manifest, rows=len(split) - int(sizes.min()), epochs=epochs)
    work = _Work(split, fold, watch, runs=folds + len(recipes) - 1)
    labels = np.asarray(split.labels)
    tried = [work.answers(recipe, 0) for recipe in recipes]
    right = [(answers.argmax(axis=1) == labels[fold == 0]).mean() for answers in tried]
    best = int(np.argmax(right))
    probabilities = np.zeros((len(split), len(manifest.classes)), np.float32)
    probabilities[fold == 0] = tried[best]
    for number in range(1, folds):
        probabilities[fold == number] = work.answers(recipes[best], number)
    judgement = judge(probabilities, labels, classes=manifest.classes)
    return Checked(judgement, _named(judgement, index["id"], manifest.classes), recipes[best].described(folds))


@dataclass(frozen=True)
class _Recipe:
    """How one model is trained."""

    spec: "training.ModelSpec"
    plan: "training.Plan"
    pretrained: Path | None = None

    def described(self, folds: int) -> str:
        plan = self.plan
        mirrored = "with" if plan.flip != "none" else "without"
        return f"{folds} models ({self.spec.called}), {plan.epochs} epochs each, {mirrored} mirrored images"


def _recipes(params: Params, workspace: Workspace, manifest: Manifest, *, rows: int, epochs: int) -> list[_Recipe]:
    """The recipes to choose from; `rows` is how many samples a model is trained on."""
    from tasks.training_job import TrainingJob, make_plan

    course = TrainingJob.of(params, workspace, manifest)
    if params.model.factory != "none" or course.pretrained is not None:
        plan = replace(
            course.plan, epochs=epochs or params.training.epochs, max_steps=0, checkpoint_steps=0, doctor="never",
            profile=0,
        )  # fmt: skip
        return [_Recipe(course.spec, plan, course.pretrained)]
    side = min(_LARGEST, manifest.height)
    batch = min(500, max(32, rows // 8))
    epochs = epochs or max(6, min(14, round(14 * (10_000 / rows) ** 0.5)))
    first = (3 * side // 4,) * (epochs // 3) if side >= 24 else ()
    given = params.training
    plan = replace(
        make_plan(TrainingSettings(), seed=params.seed),
        epochs=epochs, batch_size=batch, label_smoothing=0.2, optimizer="muon", learning_rate=0.04,
        momentum=0.6, betas=(0.9, 0.95), weight_decay=0.5, decay_all=False, clip_norm=0.0, schedule="warmup-linear",
        warmup_epochs=0.0, ema_decay=1 - 1 / max(20, math.ceil(rows / batch)), crop_padding=max(1, side // 16),
        crop_fill="reflect", progressive_sizes=(*first, side), checkpoint_steps=0, doctor="never",
        device=given.device, precision=given.precision, deterministic=given.deterministic,
    )  # fmt: skip
    spec = replace(course.spec, name="fastnet")
    mirrored = _Recipe(replace(spec, flip_average=True), replace(plan, flip="alternating"))
    return [mirrored] if given.flip != "none" else [_Recipe(spec, plan), mirrored]


class _Work:
    """The trainings of one check."""

    def __init__(self, split: "training.Split", fold: NDArray[np.int64], watch: Watch, *, runs: int) -> None:
        self._split, self._fold, self._watch, self._runs = split, fold, watch, runs
        self._done = 0

    def answers(self, recipe: _Recipe, number: int) -> NDArray[np.float32]:
        """Probabilities of the samples of part `number` by a model that is trained on the others."""
        from ratchet import training
        from ratchet.evaluation.calibration import log_softmax

        plan = recipe.plan
        held_out, rest = (np.flatnonzero(chosen) for chosen in (self._fold == number, self._fold != number))
        mine, others = self._split.only(held_out), self._split.only(rest)
        per_run = math.ceil(len(rest) / plan.batch_size) * plan.epochs
        model = _built(recipe.spec)
        total, counted = np.zeros((len(held_out), len(recipe.spec.classes)), np.float32), 0
        with tempfile.TemporaryDirectory() as folder:
            store = _store(Path(folder))
            # Its validation samples are some of its own: the part held out must not choose anything.
            chosen_by = others.only(_some(len(rest)))
            inputs = training.TrainingInputs(others, chosen_by, recipe.spec, plan, recipe.pretrained)
            for event in training.fit(inputs, store=store):
                if isinstance(event, training.Points | training.Epoch):
                    note = f"model {self._done + 1} of {self._runs}"
                    self._watch.progress(self._done * per_run + event.step, self._runs * per_run, note)
                for epoch, weights in _taken(store):
                    if epoch >= plan.epochs // 2:
                        model.load_state_dict(weights)
                        total += np.exp(log_softmax(_logits(model, mine, plan)))
                        counted += 1
        self._done += 1
        return (total / max(1, counted)).astype(np.float32)


def _built(spec: "training.ModelSpec") -> "training.Classifier":
    """A model whose weights will be replaced: the random numbers that it draws are put back."""
    import torch

    from ratchet import training

    random_state = torch.get_rng_state()
    model = training.build(spec)
    torch.set_rng_state(random_state)
    return model


def _store(folder: Path) -> Any:
    """A checkpoint store that also keeps the weights at the end of each epoch, in `ended` by epoch."""
    from ratchet import training
    from ratchet.training.checkpoint import Snapshot

    class Epochs(training.CheckpointStore):
        def __post_init__(self) -> None:
            super().__post_init__()
            self.ended: dict[int, dict[str, torch.Tensor]] = {}

        def put(self, snapshot: Snapshot) -> None:
            if snapshot.score is not None:  # the end of an epoch
                groups: dict[str, dict[str, torch.Tensor]] = {"averaged": {}, "model": {}}
                for name, tensor in snapshot.tensors.items():
                    group, _, key = name.partition("/")
                    groups.setdefault(group, {})[key] = tensor
                self.ended[int(snapshot.state["epoch"])] = groups["averaged"] or groups["model"]
            super().put(snapshot)

    return Epochs(folder)


def _taken(store: Any) -> Iterator[tuple[int, dict[str, "torch.Tensor"]]]:
    while store.ended:
        yield store.ended.popitem()


def _logits(model: "training.Classifier", split: "training.Split", plan: "training.Plan") -> NDArray[np.float32]:
    """Logits of all rows at the size that the last epochs are trained at: float32 (rows, classes)."""
    import torch

    from ratchet.training.augment import resized

    model.eval()
    parts = []
    with torch.inference_mode():
        for rows in split.in_order(_BATCH):
            images, _ = split.batch(rows, torch.device("cpu"))
            parts.append(model(resized(images, plan, epoch=plan.epochs)).float())
    logits: NDArray[np.float32] = torch.cat(parts).numpy()
    return logits


def _some(rows: int) -> NDArray[np.int64]:
    return np.arange(0, rows, max(1, rows // 200))


def _named(judgement: Judgement, ids: pl.Series, classes: tuple[str, ...]) -> pl.DataFrame:
    """The judged samples by their ids and the classes' names."""
    samples, names = judgement.samples, pl.Series(classes)
    return samples.select(
        pl.Series("id", ids.gather(samples["row"])),
        pl.Series("class", names.gather(samples["label"])),
        pl.Series("likely", names.gather(samples["likely"])),
        "given",
        "doubt",
        "flagged",
    )


def _summary(checked: Checked, place: Path) -> list[str]:
    """What the command prints."""
    judgement, samples = checked.judgement, checked.samples
    total = f"{samples.height:,}"
    lines = [
        f"{checked.method}",
        f"accuracy on samples held out: {judgement.accuracy:.1%} of {total} labels "
        f"(always the commonest class: {judgement.chance:.1%})",
    ]
    classes = judgement.classes.drop_nulls().sort("accuracy").head(_CLASSES_SHOWN)
    each = [f"{name} {share:.0%}" for name, share in classes.select("class", "accuracy").rows()]
    lines.append(f"by class, lowest first: {', '.join(each)}")
    shown = samples.head(_SHOWN)
    if not judgement.useful:
        shown = shown.clear()
        lines.append(
            "No label is called likely wrong: the models are not better than chance. Fix: add samples, or set "
            "model.pretrained"
        )
    elif not judgement.flagged:
        lines.append(
            "No label is called likely wrong: with models of this accuracy, their own errors explain all labels that "
            "they contradict. The most suspicious labels:"
        )
    else:
        shown = shown.filter("flagged")
        lines.append(
            f"{judgement.flagged:,} of {total} training labels are likely wrong; expected precision "
            f"{judgement.precision:.0%}. Estimated share of wrong labels in all: {judgement.wrong:.1%}"
        )
    lines += [
        f"{row['id']}: labelled {row['class']}, looks like {row['likely']} (probability of a wrong label "
        f"{row['doubt']:.2f})"
        for row in shown.iter_rows(named=True)
    ]
    return [*lines, f"All labels are ranked in {place}, the most suspicious first. Nothing was changed"]


def main(folds: int, epochs: int) -> None:
    """Check, write the table and print its beginning."""
    try:
        workspace = Workspace.find()
        workspace.restore_if_idle()
        params = settings.load(workspace.params)
        with (
            disk_errors(workspace.root),
            workspace.hold("ratchet data labels"),
            Terminal("labels", unit="steps") as watch,
        ):
            checked = check_labels(params, workspace, folds=folds, epochs=epochs, watch=watch)
            place = workspace.reports / "labels.csv"
            files.write_text(place, checked.samples.write_csv(float_precision=4))
    except RatchetError as error:
        sys.exit(f"labels: {error}")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    print("\n".join(_summary(checked, place)))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
