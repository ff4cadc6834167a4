"""evaluate: data/model and the test split -> the figures in data/reports. Only here are the test rows touched."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ratchet import files
from ratchet.data.manifest import Manifest
from ratchet.errors import SettingsError
from ratchet.settings.model import EvaluationSettings, Params
from ratchet.workspace import Workspace
from tasks.progress import Watch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ratchet.evaluation.explanations import Explanations
    from ratchet.evaluation.figures import Figures
    from ratchet.evaluation.predictions import Predictions
    from ratchet.evaluation.robustness import NotMeasured, Robustness
    from ratchet.training import Classifier, ModelSpec, Split

__all__ = ["Evaluation", "evaluate", "read_figures", "slice_columns", "split_ids"]

_BUILT_IN = ("brightness", "contrast", "side", "format")


@dataclass(frozen=True)
class Evaluation:
    """What evaluate found, in small."""

    accuracy: float
    low: float
    high: float
    confidence: float
    rows: int

    @classmethod
    def load(cls, workspace: Workspace) -> "Evaluation":
        """What stands in data/reports."""
        figures = read_figures(workspace)
        accuracy = figures.accuracy
        return cls(accuracy.value, accuracy.low, accuracy.high, figures.confidence, figures.rows)

    @property
    def words(self) -> str:
        return (
            f"test accuracy {self.accuracy:.4f} ({self.confidence:.0%} interval {self.low:.4f} to {self.high:.4f}, "
            f"{self.rows:,} rows)"
        )


def evaluate(params: Params, workspace: Workspace, *, watch: Watch) -> Evaluation:
    """Answer every test row and measure the answers."""
    from ratchet.evaluation import plots
    from ratchet.evaluation.calibration import fit_temperature
    from ratchet.evaluation.explanations import write_explanations
    from ratchet.evaluation.metrics import measure
    from ratchet.evaluation.predictions import Predictions, write_predictions
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
    predictions = Predictions(split_ids(workspace, "test"), test.labels, logits, spec.classes)
    columns = slice_columns(workspace, params.evaluation)
    figures = measure(logits, test.labels, classes=spec.classes, settings=params.evaluation, columns=columns)
    figures = replace(figures, robustness=_robustness(model, spec, test, predictions, params.evaluation, watch))
    explanations = _explanations(workspace, test, predictions, params.evaluation)

    write_explanations(workspace.reports / "explanations.safetensors", explanations)
    write_predictions(workspace.reports / "predictions.parquet", predictions)
    how = {"temperature": temperature, "flip_average": int(model.flip_average)}
    files.write_json(workspace.reports / "metrics.json", {**figures.numbers(), **how})
    files.write_json(workspace.reports / "figures.json", figures.to_json())
    plots.write_confusion(workspace.reports / "confusion.csv", predictions)
    plots.write_reliability(workspace.reports / "reliability.csv", figures.reliability)
    files.write_bytes(workspace.reports / "confusion.png", plots.draw_confusion(figures))
    return Evaluation.load(workspace)


def read_figures(workspace: Workspace) -> "Figures":
    """The figures of the last evaluation."""
    from ratchet.evaluation.figures import Figures

    return Figures.from_json(files.read_json(workspace.reports / "figures.json"))


def _robustness(
    model: "Classifier",
    spec: "ModelSpec",
    test: "Split",
    predictions: "Predictions",
    settings: EvaluationSettings,
    watch: Watch,
) -> "Robustness | NotMeasured":
    """Answer some test rows again, spoilt."""
    import numpy as np
    import torch

    from ratchet.evaluation.corruptions import KINDS, STRENGTHS
    from ratchet.evaluation.robustness import NotMeasured, enough, measure_robustness, spread
    from ratchet.training import Split, predict_logits

    if not settings.robustness_rows:
        return NotMeasured("evaluation.robustness_rows is 0")
    if spec.dtype != "uint8" or spec.channels not in (1, 3):
        return NotMeasured(
            f"these are {spec.dtype} pictures of {spec.channels} channels, and only uint8 pictures of 1 or 3 channels "
            "have noise, light and compression as they are defined here"
        )
    wanted = enough(spec.height, spec.width) if settings.robustness_rows == "auto" else settings.robustness_rows
    rows = spread(len(test), wanted)
    labels, keys = np.asarray(test.labels)[rows], np.asarray(test.keys)[rows]
    images, _ = test.batch(rows, torch.device("cpu"))

    def answer(pictures: "NDArray[np.uint8]") -> "NDArray[np.int64]":
        spoilt = Split("test", [pictures], np.zeros(1, np.int64), labels, keys)
        answers: NDArray[np.int64] = predict_logits(model, spoilt).argmax(1)
        return answers

    whole = len(test) + len(KINDS) * len(STRENGTHS) * len(rows)
    return measure_robustness(
        answer,
        images.permute(0, 2, 3, 1).numpy(),
        labels,
        clean=predictions.predicted[rows],
        confidence=settings.confidence,
        report=lambda done: watch.progress(len(test) + done, whole, "spoilt"),
    )


def _explanations(
    workspace: Workspace, test: "Split", predictions: "Predictions", settings: EvaluationSettings
) -> "Explanations":
    """What the worst errors went by."""
    import torch

    from ratchet.evaluation.explanations import Explanations, explain
    from ratchet.training import load_model

    if not settings.explained_errors:
        return Explanations.none("evaluation.explained_errors is 0")
    rows = predictions.worst_errors(settings.explained_errors)
    model, _ = load_model(workspace.model)  # a fresh one: see `explain`
    model.flip_average = settings.flip_average
    images, _ = test.batch(rows, torch.device("cpu"))
    answers, truths = predictions.predicted[rows].tolist(), predictions.labels[rows].tolist()
    return explain(model, images, rows=rows, answers=answers, truths=truths)


def slice_columns(workspace: Workspace, settings: EvaluationSettings) -> "dict[str, list[str | None]]":
    """What the test rows are sliced by: for each column a value per row, numbers in thirds of the training rows.

    Raises:
        SettingsError: a column that evaluation.slices names is not in the index.
    """
    import polars

    from ratchet.data.pack import extra_columns
    from ratchet.evaluation.slices import cut

    index = polars.read_parquet(workspace.packed / "index.parquet").with_columns(
        side=polars.min_horizontal("width", "height").cast(polars.Float64)
    )
    own = extra_columns(index.drop("side"))
    allowed = [*_BUILT_IN, *own]
    wanted = allowed if settings.slices == "auto" else settings.slices
    unknown = [name for name in wanted if name not in allowed]
    if unknown:
        raise SettingsError(
            f"params.yaml: evaluation.slices: found {unknown[0]}; allowed: auto, or columns of the data: "
            f"{', '.join(allowed)}"
        )
    test, train = (index.filter(polars.col("split") == name).sort("row") for name in ("test", "train"))
    columns: dict[str, list[str | None]] = {}
    for name in wanted:
        if index[name].dtype.is_numeric():
            numbers, like = (rows[name].cast(polars.Float64).to_numpy() for rows in (test, train))
            parts = cut(numbers, like=like)
            if parts is not None:
                columns[name] = parts
        else:
            columns[name] = test[name].cast(polars.String).to_list()
    return columns


def split_ids(workspace: Workspace, split: str) -> tuple[str, ...]:
    """The ids of a split's rows, in their order."""
    import polars

    Manifest.read(workspace.packed)  # a set that is not whole is refused with its own words
    index = polars.read_parquet(workspace.packed / "index.parquet", columns=["split", "row", "id"])
    return tuple(index.filter(polars.col("split") == split).sort("row")["id"].to_list())


if __name__ == "__main__":
    from tasks.stage_runner import run

    run(evaluate, unit="rows")
