"""`ratchet data labels`: find labels that are likely wrong, by cross-validation."""

import math
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ratchet import files, settings
from ratchet.augmentations import entries
from ratchet.counts import count_of
from ratchet.data.checks.label_errors import Judgement, fold_of, judge
from ratchet.data.manifest import Manifest
from ratchet.errors import DataError
from ratchet.kinds import ModelSpec
from ratchet.kinds.registry import kind_of
from ratchet.registry.parents import parent_of
from ratchet.settings.model import Params, TrainingSettings
from ratchet.terminal_lines import echo
from ratchet.workspace import Workspace
from tasks.progress import StageProgress, Terminal

if TYPE_CHECKING:
    import torch

    from ratchet import training

__all__ = ["Checked", "check_labels", "print_suspicious_labels", "summary_lines"]

_SHOWN = 20
_CLASSES_SHOWN = 20
_MAX_SIDE = 32  # pixels: input size of the check's own model
_BATCH = 512
# In one process, which has all weights, to the last epoch.
_QUICK: Any = {
    "checkpoint_steps": 0, "doctor": "never", "profile": 0, "patience": 0, "shard": "none", "reduction": "exact",
}  # fmt: skip


@dataclass(frozen=True)
class Checked:
    """Result of a label check."""

    judgement: Judgement
    samples: pl.DataFrame  # all training samples, most suspicious first: id, class, likely, given, doubt, flagged
    method: str  # sentence about the models that were trained


def print_suspicious_labels(workspace: Workspace, *, folds: int, epochs: int) -> None:
    """Check the labels, write the ranking to data/reports/labels.csv and print its beginning."""
    workspace.restore_if_idle()
    params = settings.load(workspace.params)
    with workspace.hold("ratchet data labels"), Terminal("labels", unit="steps") as progress:
        checked = check_labels(params, workspace, folds=folds, epochs=epochs, progress=progress)
        path = workspace.reports / "labels.csv"
        files.write_text(path, checked.samples.write_csv(float_precision=4))
    echo("\n".join(summary_lines(checked, path)))


def check_labels(params: Params, workspace: Workspace, *, folds: int, epochs: int, progress: StageProgress) -> Checked:
    """Rank the training samples by how likely their labels are wrong.

    `folds` models are trained, each on all folds of the training split but one, whose labels it then predicts. Copies
    of a sample and samples of a group are in the same fold. The models of other kinds are their baselines.

    `epochs` is for images: 0 for a number chosen by the samples, or `training.epochs` for the project's model.
    """
    from ratchet import training

    manifest = Manifest.read(workspace.packed)
    if not manifest.target.classes:
        raise DataError(
            f"the problem of the data is {manifest.target.problem}. Allowed for this check: classification, because it "
            "compares each sample's class with the class that other samples suggest"
        )
    classes = manifest.target.names
    split = training.open_split(workspace.packed, "train")
    index = pl.read_parquet(workspace.packed / "index.parquet").filter(pl.col("split") == "train")
    fold, smallest = _folds(index, folds)
    if not kind_of(manifest.input).baseline:
        recipes = _recipes(params, workspace, manifest, rows=len(split) - smallest, epochs=epochs)
        validation = _CrossValidation(split, fold, progress, runs=folds + len(recipes) - 1)
        probabilities, recipe = validation.predict(recipes, folds=folds, classes=len(classes))
        method = recipe.summary(folds)
    else:
        probabilities, name = _by_baselines(params, workspace, manifest, fold, progress)
        method = (
            f"{folds} models ({name}), each fitted to samples of the other folds. A label that they contradict can be "
            "right where the values of a sample leave the class to chance"
        )
    judgement = judge(probabilities, np.asarray(split.targets), classes=classes)
    return Checked(judgement, _named(judgement, index["id"], classes), method)


def _by_baselines(
    params: Params, workspace: Workspace, manifest: Manifest, fold: NDArray[np.int64], progress: StageProgress
) -> tuple[NDArray[np.float32], str]:
    """Return the probabilities of all samples by baselines that were not fitted to them, and the baseline's name."""
    from ratchet import training
    from tasks.baseline import Baseline
    from tasks.training_job import TrainingJob

    job = TrainingJob.of(params, workspace, manifest)
    split = training.open_split(workspace.packed, "train", job.spec.input)
    probabilities = np.zeros((len(fold), manifest.target.outputs), np.float32)
    folds = int(fold.max()) + 1
    for number in range(folds):
        progress.update(number, folds, f"model {number + 1} of {folds}")
        baseline = Baseline.fit(job, split.only(np.flatnonzero(fold != number)))
        if baseline.spec.name == "constant":
            raise DataError(
                "the baseline of these data is the most frequent class, which says nothing of single labels. Allowed "
                "for this check: own kinds with up to 1,000 values per sample"
            )
        held_out = np.flatnonzero(fold == number)
        tested = training.open_split(workspace.packed, "train", baseline.spec.input).only(held_out)
        outputs = training.predict_outputs(baseline.model, tested)
        probabilities[held_out] = manifest.target.predictions(outputs)
    progress.update(folds, folds)
    return probabilities, baseline.name


def _folds(index: pl.DataFrame, folds: int) -> tuple[NDArray[np.int64], int]:
    """Return the fold of each training sample, int64 (rows,), and the size of the smallest fold."""
    keys = "group " + index["group"] if "group" in index.columns else index["pixels"]
    fold = fold_of(pl.select(pl.coalesce(keys, index["pixels"])).to_series().to_list(), folds)
    sizes = np.bincount(fold, minlength=folds)
    if sizes.min() == 0 or sizes.max() == index.height:
        raise DataError(f"--folds {folds}: a fold of the {index.height} training samples is empty. Fix: fewer folds")
    return fold, int(sizes.min())


@dataclass(frozen=True)
class _Recipe:
    spec: "ModelSpec"
    plan: "training.Plan"
    pretrained: Path | None = None

    def summary(self, folds: int) -> str:
        epochs = count_of(self.plan.epochs, "epoch")
        return f"{folds} models ({self.spec.called}), {epochs} each, {self.mirrored} mirrored images"

    @property
    def mirrored(self) -> str:
        return "with" if _mirrors(self.plan) else "without"


def _recipes(params: Params, workspace: Workspace, manifest: Manifest, *, rows: int, epochs: int) -> list[_Recipe]:
    """Return the recipes for images to choose from; `rows` is the number of samples that a model is trained on.

    A project with pretrained weights of other data or its own model uses that model and its settings. Otherwise the
    model is a small network with its own recipe, which learns more from few samples than a long training does; whether
    mirrored images help is tried on the first fold. Probabilities are averaged over the second half of the epochs
    (Laine and Aila 2017).
    """
    from tasks.training_job import TrainingJob, make_plan

    job = TrainingJob.of(params, workspace, manifest)
    pretrained = None if parent_of(workspace, params) else job.pretrained  # a parent has learned the labels
    if job.spec.factory != "none" or pretrained is not None:
        plan = replace(job.plan, epochs=epochs or params.training.epochs, max_steps=0, **_QUICK)
        return [_Recipe(job.spec, plan, pretrained)]
    side = min(_MAX_SIDE, job.spec.image.height)
    batch = min(500, max(32, rows // 8))
    epochs = epochs or max(6, min(14, round(14 * (10_000 / rows) ** 0.5)))
    first = (3 * side // 4,) * (epochs // 3) if side >= 24 else ()
    settings = params.training
    plan = replace(
        make_plan(TrainingSettings(), job.spec.target, seed=params.seed),
        epochs=epochs, batch_size=batch, label_smoothing=0.2, optimizer="muon", learning_rate=0.04,
        momentum=0.6, betas=(0.9, 0.95), weight_decay=0.5, decay_all=False, clip_norm=0.0, schedule="warmup-linear",
        warmup_epochs=0.0, ema_decay=1 - 1 / max(20, math.ceil(rows / batch)), crop_padding=max(1, side // 16),
        crop_fill="reflect", progressive_sizes=(*first, side), **_QUICK,
        device=settings.device, precision=settings.precision, deterministic=settings.deterministic,
    )  # fmt: skip
    spec = replace(job.spec, name="fastnet", widths=())
    mirrored = _Recipe(replace(spec, flip_average=True), replace(plan, flip="alternating"))
    return [mirrored] if _mirrors(settings) else [_Recipe(spec, plan), mirrored]


def _mirrors(training: Any) -> bool:
    return any(name == "flip" for name, _ in entries(training))


class _CrossValidation:
    """The trainings of one check."""

    def __init__(self, split: "training.Split", fold: NDArray[np.int64], progress: StageProgress, *, runs: int) -> None:
        self._split, self._fold, self._progress, self._runs = split, fold, progress, runs
        self._done = 0

    def predict(self, recipes: list[_Recipe], *, folds: int, classes: int) -> tuple[NDArray[np.float32], _Recipe]:
        """Choose the recipe with the best accuracy on the first fold, and use it for the other folds.

        Returns:
            Probabilities of all samples, float32 (rows, classes), each by a model that was not trained on the sample;
            and the recipe.
        """
        first, labels = self._fold == 0, np.asarray(self._split.targets)
        candidates = [self._predict_fold(recipe, 0) for recipe in recipes]
        accuracies = [(predicted.argmax(axis=1) == labels[first]).mean() for predicted in candidates]
        best = int(np.argmax(accuracies))
        probabilities = np.zeros((len(self._split), classes), np.float32)
        probabilities[first] = candidates[best]
        for number in range(1, folds):
            probabilities[self._fold == number] = self._predict_fold(recipes[best], number)
        return probabilities, recipes[best]

    def _predict_fold(self, recipe: _Recipe, number: int) -> NDArray[np.float32]:
        """Return the probabilities of the samples of one fold by a model that is trained on the others."""
        import torch

        from ratchet import training
        from ratchet.evaluation.calibration import log_softmax

        plan = recipe.plan
        held_out, rest = (np.flatnonzero(chosen) for chosen in (self._fold == number, self._fold != number))
        tested, others = self._split.only(held_out), self._split.only(rest)
        per_run = math.ceil(len(rest) / plan.batch_size) * plan.epochs
        with torch.random.fork_rng(devices=()):
            model = training.build(recipe.spec)  # its weights are replaced
        total, counted = np.zeros((len(held_out), len(recipe.spec.classes)), np.float32), 0
        with tempfile.TemporaryDirectory() as folder:
            store = _store(Path(folder))
            # Validate on some of the training samples: the fold that is held out must not influence the model.
            validation = others.only(np.arange(0, len(rest), max(1, len(rest) // 200)))
            inputs = training.TrainingInputs(others, validation, recipe.spec, plan, recipe.pretrained)
            for event in training.fit(inputs, store=store):
                if isinstance(event, training.Points | training.Epoch):
                    note = (
                        f"model {self._done + 1} of {self._runs}: fold {number + 1}, {recipe.mirrored} mirrored images"
                    )
                    self._progress.update(self._done * per_run + event.step, self._runs * per_run, note)
                while store.ended:
                    epoch, weights = store.ended.popitem()
                    if epoch >= plan.epochs // 2:
                        model.load_state_dict(weights)
                        total += np.exp(log_softmax(_logits(model, tested, plan)))
                        counted += 1
        self._done += 1
        assert counted, "the second half of the epochs has weights"
        return (total / counted).astype(np.float32)


def _store(folder: Path) -> Any:
    """Return a checkpoint store that also keeps the weights at the end of each epoch, in `ended` by epoch."""
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


def _logits(model: "training.Model", split: "training.Split", plan: "training.Plan") -> NDArray[np.float32]:
    """Return the logits of all rows at the image size of the last epochs: float32 (rows, classes)."""
    import torch

    from ratchet.training.augment import resized

    model.eval()
    parts = []
    with torch.inference_mode():
        for rows in split.in_order(_BATCH):
            (images,), _ = split.batch(rows, torch.device("cpu"))
            parts.append(model(resized(images, plan, epoch=plan.epochs)).float())
    logits: NDArray[np.float32] = torch.cat(parts).numpy()
    return logits


def _named(judgement: Judgement, ids: pl.Series, classes: tuple[str, ...]) -> pl.DataFrame:
    """Return the judged samples with ids and class names instead of numbers."""
    samples, names = judgement.samples, pl.Series(classes)
    return samples.select(
        pl.Series("id", ids.gather(samples["row"])),
        pl.Series("class", names.gather(samples["label"])),
        pl.Series("likely", names.gather(samples["likely"])),
        "given",
        "doubt",
        "flagged",
    )


def summary_lines(checked: Checked, path: Path) -> list[str]:
    """Return the lines that the command prints; `path` is where the whole ranking is."""
    judgement, samples = checked.judgement, checked.samples
    total = f"{samples.height:,}"
    lines = [
        checked.method,
        f"accuracy on samples held out: {judgement.accuracy:.1%} of {total} labels "
        f"(always the most frequent class: {judgement.chance:.1%})",
    ]
    classes = judgement.classes.drop_nulls().sort("accuracy").head(_CLASSES_SHOWN)
    accuracies = [f"{name} {accuracy:.0%}" for name, accuracy in classes.select("class", "accuracy").rows()]
    lines.append(f"by class, lowest first: {', '.join(accuracies)}")
    shown = samples.head(_SHOWN)
    if not judgement.useful:
        shown = shown.clear()
        lines.append(
            "No label is called likely wrong: the models are not better than chance. Fix: add samples, columns of a "
            "table, or for images model.pretrained"
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
    return [*lines, f"All labels are ranked in {path}, the most suspicious first. Nothing was changed"]
