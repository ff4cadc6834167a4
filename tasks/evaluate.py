"""evaluate: measure data/model on the test images and write the metrics to data/reports."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ratchet import files
from ratchet.data.manifest import split_ids
from ratchet.evaluation.metrics import read_metrics
from ratchet.settings.model import EvaluationSettings, Params
from ratchet.typed_json import to_plain
from ratchet.workspace import Workspace
from tasks.progress import Watch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ratchet.evaluation.explanations import Explanations
    from ratchet.evaluation.predictions import Predictions
    from ratchet.evaluation.robustness import NotMeasured, Robustness
    from ratchet.training import Classifier, ModelSpec, Split

__all__ = ["Evaluation", "evaluate"]


@dataclass(frozen=True)
class Evaluation:
    """Result of the stage."""

    rows: int  # test images
    summary: str  # one line: test accuracy, its confidence interval and the number of test images

    @classmethod
    def load(cls, workspace: Workspace) -> "Evaluation":
        """Read it from data/reports."""
        metrics = read_metrics(workspace.reports)
        accuracy = metrics.accuracy
        interval = f"{100 * metrics.confidence:.0f} % CI {accuracy.low:.4f} to {accuracy.high:.4f}"
        return cls(metrics.rows, f"test accuracy {accuracy.value:.4f} ({interval}, {metrics.rows:,} images)")


def evaluate(params: Params, workspace: Workspace, *, watch: Watch) -> Evaluation:
    """Predict every test image, measure the predictions, and write the metrics and plots."""
    from ratchet.evaluation import plots
    from ratchet.evaluation.calibration import fit_temperature
    from ratchet.evaluation.explanations import write_explanations
    from ratchet.evaluation.measure import measure
    from ratchet.evaluation.predictions import Predictions, write_predictions
    from ratchet.evaluation.slices import slice_columns
    from ratchet.training import load_model, open_split, predict_logits

    model, spec = load_model(workspace.model)
    model.flip_average = params.evaluation.flip_average
    workers, timeout = params.training.workers, params.training.sample_timeout
    test = open_split(workspace.packed, "test", workers=workers, sample_timeout=timeout)
    logits = predict_logits(model, test, report=lambda done: watch.progress(done, len(test)))
    temperature = 1.0
    if params.evaluation.temperature_scaling:
        held_out = open_split(workspace.packed, "validation", workers=workers, sample_timeout=timeout)
        temperature = fit_temperature(predict_logits(model, held_out), held_out.labels)
        logits = logits / temperature
    predictions = Predictions(logits, test.labels, split_ids(workspace.packed, "test"), spec.classes)
    columns = slice_columns(workspace.packed, params.evaluation)
    metrics = measure(logits, test.labels, classes=spec.classes, settings=params.evaluation, columns=columns)
    metrics = replace(metrics, robustness=_robustness(model, spec, test, predictions, params.evaluation, watch))
    explanations = _explanations(workspace, test, predictions, params.evaluation)

    write_explanations(workspace.reports / "explanations.safetensors", explanations)
    write_predictions(workspace.reports / "predictions.parquet", predictions)
    settings = {"temperature": temperature, "flip_average": int(model.flip_average)}
    files.write_json(workspace.reports / "metrics.json", {**metrics.numbers(), **settings})
    files.write_json(workspace.reports / "evaluation.json", to_plain(metrics))
    plots.write_confusion(workspace.reports / "confusion.csv", predictions)
    plots.write_reliability(workspace.reports / "reliability.csv", metrics.reliability)
    files.write_bytes(workspace.reports / "confusion.png", plots.draw_confusion(metrics))
    return Evaluation.load(workspace)


def _robustness(
    model: "Classifier",
    spec: "ModelSpec",
    test: "Split",
    predictions: "Predictions",
    settings: EvaluationSettings,
    watch: Watch,
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
    from ratchet.training import Split, predict_logits

    wanted, kind = settings.robustness_rows, f"{spec.dtype} with {spec.channels} channels"
    if not wanted:
        return NotMeasured("evaluation.robustness_rows is 0")
    if kind not in ("uint8 with 1 channels", "uint8 with 3 channels"):
        only = "corruptions are defined only for uint8 images with 1 or 3 channels"
        return NotMeasured(f"the images are {kind}, and {only}")
    rows = evenly_spaced(len(test), automatic_rows(spec.height, spec.width) if wanted == "auto" else wanted)
    labels, keys = np.asarray(test.labels)[rows], np.asarray(test.keys)[rows]
    images, _ = test.batch(rows, torch.device("cpu"))

    def predict(corrupted: "NDArray[np.uint8]") -> "NDArray[np.int64]":
        split = Split("test", [corrupted], np.zeros(1, np.int64), labels, keys)
        predicted: NDArray[np.int64] = predict_logits(model, split).argmax(1)
        return predicted

    total = len(test) + len(KINDS) * len(STRENGTHS) * len(rows)
    return measure_robustness(
        predict,
        images.permute(0, 2, 3, 1).numpy(),
        labels,
        clean=predictions.predicted[rows],
        confidence=settings.confidence,
        report=lambda done: watch.progress(len(test) + done, total, "corrupted"),
    )


def _explanations(
    workspace: Workspace, test: "Split", predictions: "Predictions", settings: EvaluationSettings
) -> "Explanations":
    """Explain the most confident wrong predictions."""
    import torch

    from ratchet.evaluation.explanations import Explanations, explain
    from ratchet.training import load_model

    if not settings.explained_errors:
        return Explanations.none("evaluation.explained_errors is 0")
    rows = predictions.worst_errors(settings.explained_errors)
    model, _ = load_model(workspace.model)  # a new one, see `explain`
    model.flip_average = settings.flip_average
    images, _ = test.batch(rows, torch.device("cpu"))
    answers, truths = predictions.predicted[rows].tolist(), predictions.labels[rows].tolist()
    return explain(model, images, rows=rows, answers=answers, truths=truths)


if __name__ == "__main__":
    from tasks.stage_runner import run

    run(evaluate, unit="rows")
