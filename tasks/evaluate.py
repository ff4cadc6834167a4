"""evaluate: measure data/model on the test samples and write the metrics to data/reports."""

from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, Any

from ratchet import files
from ratchet.data.manifest import Manifest, split_ids
from ratchet.evaluation.classification import ClassificationMetrics
from ratchet.evaluation.metrics import Metrics
from ratchet.evaluation.problems import read_metrics
from ratchet.kinds.registry import kind_of
from ratchet.settings.model import EvaluationSettings, Params
from ratchet.typed_json import to_plain
from ratchet.workspace import Workspace
from tasks.explain import explain_samples
from tasks.finished import remove_recorded
from tasks.progress import StageProgress
from tasks.trained_model import TrainedModel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ratchet.evaluation.explanations import Explanations
    from ratchet.evaluation.predictions import Predictions
    from ratchet.evaluation.robustness import NotMeasured, Robustness
    from ratchet.kinds import ModelSpec
    from ratchet.training import Model, Split

__all__ = ["Evaluation", "evaluate"]


@dataclass(frozen=True)
class Evaluation:
    """Result of the stage."""

    rows: int  # test samples
    summary: str  # one line: the headline metric, its confidence interval and the number of test samples

    @classmethod
    def load(cls, workspace: Workspace) -> "Evaluation":
        """Read it from data/reports."""
        from ratchet.evaluation.wording import baseline_text, counted, trivial_text

        metrics = read_metrics(workspace.reports)
        headline, level = metrics.headline, 100 * metrics.confidence
        low, value, high = (f"{bound:.4f}" for bound in astuple(headline.interval))
        kind = Manifest.read(workspace.packed).input.kind
        summary = f"test {headline.name} {value} ({level:.0f} % CI {low} to {high}, {counted(metrics.rows, kind)})"
        if named := metrics.named().get("balanced_accuracy"):
            balanced = named.interval.value
            summary += f", balanced {balanced:.4f}" if f"{balanced:.2f}" != f"{headline.interval.value:.2f}" else ""
        constant = f"; {trivial_text(metrics.constant)}" if metrics.constant else ""
        baseline = f"; {baseline_text(metrics.baseline, metrics.confidence, kind)}" if metrics.baseline else ""
        return cls(metrics.rows, summary + constant + baseline)


def evaluate(params: Params, workspace: Workspace, *, progress: StageProgress) -> Evaluation:
    """Predict every test sample, measure the predictions, and write the metrics and plots."""
    from ratchet.evaluation import plots
    from ratchet.evaluation.calibration import fit_temperature
    from ratchet.evaluation.details import write_details
    from ratchet.evaluation.explanations import write_explanations
    from ratchet.evaluation.predictions import Predictions, write_predictions
    from ratchet.evaluation.problems import thresholds_for
    from ratchet.evaluation.slices import slice_columns
    from ratchet.training import answers, load_model, open_split

    remove_recorded(workspace)  # the training that DVC recorded before this stage
    files.clear_drafts(workspace.reports)
    model, spec = load_model(workspace.model)
    model.flip_average = params.evaluation.flip_average and kind_of(spec.input).mirrors
    workers, timeout = params.training.workers, params.training.sample_timeout
    test = open_split(workspace.packed, "test", spec.input, workers=workers, sample_timeout=timeout)
    outputs, targets = answers(model, test, report=lambda done: progress.update(done, len(test)))

    def validation() -> "tuple[NDArray[np.float32], NDArray[Any]]":
        held_out = open_split(workspace.packed, "validation", spec.input, workers=workers, sample_timeout=timeout)
        return answers(model, held_out)

    is_scaled = params.evaluation.temperature_scaling and spec.target.classes
    temperature = fit_temperature(*validation()) if is_scaled else 1.0
    outputs = outputs / temperature if is_scaled else outputs
    thresholds = thresholds_for(spec.target, params.evaluation, validation)
    predictions = Predictions(outputs, targets, split_ids(workspace.packed, "test"), spec.target, thresholds)
    columns = slice_columns(workspace.packed, params.evaluation)
    metrics = predictions.checked().measure(params.evaluation, columns)
    if isinstance(metrics, ClassificationMetrics):
        metrics = replace(metrics, robustness=_robustness(model, spec, test, predictions, params.evaluation, progress))
    metrics = _against_constant(metrics, predictions, test, params.evaluation)
    metrics = _against_baseline(metrics, predictions, test, workspace, params.evaluation)
    explanations = _explanations(workspace, test, predictions, params.evaluation)

    write_explanations(workspace.reports / "explanations.safetensors", explanations)
    write_details(workspace.reports, explain_samples(model, spec, test, predictions, params.evaluation))
    write_predictions(workspace.reports / "predictions.parquet", predictions)
    settings = {"temperature": temperature, "flip_average": int(model.flip_average)}
    files.write_json(workspace.reports / "metrics.json", {**metrics.numbers(), **settings})
    files.write_json(workspace.reports / "evaluation.json", to_plain(metrics))
    plots.write_plots(workspace.reports, predictions, metrics)
    return Evaluation.load(workspace)


def _against_constant(
    metrics: Metrics, predictions: "Predictions", test: "Split", settings: EvaluationSettings
) -> Metrics:
    """Return the metrics with the comparison of the model and the best constant answer."""
    from ratchet.evaluation.measure import against_constant
    from ratchet.training import token_shares
    from ratchet.training.streams import StreamSplit

    shares = replace(predictions, outputs=token_shares(test)[0]) if isinstance(test, StreamSplit) else None
    return against_constant(metrics, predictions, settings=settings, shares=shares)


def _against_baseline(
    metrics: Metrics, predictions: "Predictions", test: "Split", workspace: Workspace, settings: EvaluationSettings
) -> Metrics:
    """Return the metrics with the comparison of the model and its baseline, unless the model is the baseline."""
    from ratchet.evaluation.measure import compare_with_baseline
    from ratchet.evaluation.problems import thresholds_for
    from ratchet.training import answers, open_split
    from tasks.baseline import Baseline

    if not workspace.baseline.exists():  # a model that was trained before there were baselines
        return metrics
    baseline = Baseline.load(workspace)
    if TrainedModel.load(workspace).name == f"baseline {baseline.name}":
        return metrics
    has_tokenizer = kind_of(baseline.spec.input).tokenizes  # of its own
    split = open_split(workspace.packed, "test", baseline.spec.input) if has_tokenizer else test
    outputs, _ = answers(baseline.model, split)
    thresholds = predictions.thresholds
    if predictions.answers.own_thresholds:
        held_out = open_split(workspace.packed, "validation", baseline.spec.input)
        thresholds = thresholds_for(predictions.target, settings, lambda: answers(baseline.model, held_out))
    theirs = replace(predictions, outputs=outputs, thresholds=thresholds)
    return compare_with_baseline(metrics, predictions, theirs, name=baseline.name, settings=settings)


def _robustness(
    model: "Model",
    spec: "ModelSpec",
    test: "Split",
    predictions: "Predictions",
    settings: EvaluationSettings,
    progress: StageProgress,
) -> "Robustness | NotMeasured":
    """Measure accuracy on some corrupted test images."""
    import numpy as np
    import torch

    from ratchet.evaluation.robustness import (
        KINDS,
        STRENGTHS,
        NotMeasured,
        automatic_rows,
        evenly_spaced,
        measure_robustness,
    )
    from ratchet.training import ImageSplit, predict_outputs

    wanted = settings.robustness_rows
    if reason := _not_corruptible(spec, wanted):
        return NotMeasured(reason)
    rows = evenly_spaced(len(test), automatic_rows(spec.image.height, spec.image.width) if wanted == "auto" else wanted)
    labels, keys = np.asarray(test.targets)[rows], np.asarray(test.keys)[rows]
    (images,), _ = test.batch(rows, torch.device("cpu"))

    def predict(corrupted: "NDArray[np.uint8]") -> "NDArray[np.int64]":
        split = ImageSplit.of("test", [corrupted], labels, keys)
        predicted: NDArray[np.int64] = predict_outputs(model, split).argmax(1)
        return predicted

    total = len(test) + len(KINDS) * len(STRENGTHS) * len(rows)
    return measure_robustness(
        predict,
        images.permute(0, 2, 3, 1).numpy(),
        labels,
        clean=predictions.outputs[rows].argmax(1),
        confidence=settings.confidence,
        report=lambda done: progress.update(len(test) + done, total, "corrupted"),
    )


def _not_corruptible(spec: "ModelSpec", wanted: int | str) -> str:
    """Return why the accuracy with corruption cannot be measured; empty: it can."""
    if not kind_of(spec.input).has_pixels:
        return "corruptions are defined only for images"
    if not wanted:
        return "evaluation.robustness_rows is 0"
    form = f"{spec.image.dtype} with {spec.image.channels} channels"
    if form not in ("uint8 with 1 channels", "uint8 with 3 channels"):
        return f"the images are {form}, and corruptions are defined only for uint8 images with 1 or 3 channels"
    return ""


def _explanations(
    workspace: Workspace, test: "Split", predictions: "Predictions", settings: EvaluationSettings
) -> "Explanations":
    """Explain the most confident wrong predictions."""
    import torch

    from ratchet.evaluation.explanations import Explanations, explain
    from ratchet.training import ImageModel, ImageSplit, load_model

    if not settings.explained_errors:
        return Explanations.none("evaluation.explained_errors is 0")
    if not isinstance(test, ImageSplit) or not predictions.target.classes:
        return Explanations.none("only classes of images are explained by pixels")
    rows = predictions.worst_errors(settings.explained_errors)
    model, _ = load_model(workspace.model)  # a new one, see `explain`
    assert isinstance(model, ImageModel), "only images are explained by pixels"
    model.flip_average = settings.flip_average
    (images,), _ = test.batch(rows, torch.device("cpu"))
    answers, truths = predictions.answers.predicted[rows].tolist(), predictions.targets[rows].tolist()
    return explain(model, images, rows=rows, answers=answers, truths=truths)


if __name__ == "__main__":
    from tasks.stage_runner import run

    run(evaluate, unit="rows")
