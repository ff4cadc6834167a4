"""evaluate: measure data/model on the test samples and write the metrics to data/reports."""

from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from functools import cached_property, partial
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
from tasks.metric_functions import OwnMetrics
from tasks.progress import StageProgress
from tasks.trained_model import TrainedModel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ratchet.evaluation.answers import Columns
    from ratchet.evaluation.coverage import CoverageMetrics
    from ratchet.evaluation.explanations import Explanations
    from ratchet.evaluation.predictions import Predictions
    from ratchet.evaluation.robustness import NotMeasured, Robustness
    from ratchet.evaluation.selective import AbstentionMetrics
    from ratchet.kinds import Input, ModelSpec
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
        from ratchet.evaluation.wording import baseline_text, counted, metric_text, trivial_text

        metrics = read_metrics(workspace.reports)
        headline, level = metrics.headline, 100 * metrics.confidence
        low, value, high = (f"{bound:.4f}" for bound in astuple(headline.interval))
        kind = Manifest.read(workspace.packed).input.kind
        summary = f"test {headline.name} {value} ({level:.0f} % CI {low} to {high}, {counted(metrics.rows, kind)})"
        if named := metrics.named().get("balanced_accuracy"):
            balanced = named.interval.value
            summary += f", balanced {balanced:.4f}" if f"{balanced:.2f}" != f"{headline.interval.value:.2f}" else ""
        summary += "".join(f", {metric_text(metric, metrics.confidence)}" for metric in metrics.own)
        constant = f"; {trivial_text(metrics.constant)}" if metrics.constant else ""
        baseline = f"; {baseline_text(metrics.baseline, metrics.confidence, kind)}" if metrics.baseline else ""
        return cls(metrics.rows, summary + constant + baseline)


def evaluate(params: Params, workspace: Workspace, *, progress: StageProgress) -> Evaluation:
    """Predict every test sample, measure the predictions, and write the metrics and plots.

    Raises:
        DataError: a packed file is damaged.
    """
    from ratchet.evaluation import plots
    from ratchet.evaluation.details import write_details
    from ratchet.evaluation.explanations import write_explanations
    from ratchet.evaluation.predictions import write_predictions
    from ratchet.evaluation.slices import slice_columns
    from ratchet.training import load_model, open_split

    remove_recorded(workspace)  # the training that DVC recorded before this stage
    files.clear_drafts(workspace.reports)
    Manifest.read(workspace.packed).check_files(workspace.packed, "validation", "test")
    own = OwnMetrics.load(params, workspace)
    settings, (model, spec) = params.evaluation, load_model(workspace.model)
    model.flip_average = settings.flip_average and kind_of(spec.input).mirrors
    opened = partial(
        open_split, workspace.packed, workers=params.training.workers, sample_timeout=params.training.sample_timeout
    )
    test = _Test(workspace, settings, progress, opened, model, spec, opened("test", spec.input))
    predictions, temperature = test.predict()
    columns = slice_columns(workspace.packed, settings)
    metrics = predictions.checked().measure(settings, columns)
    metrics = test.calibrated(metrics, predictions, temperature, columns, ordered_by=params.data.order_by)
    if isinstance(metrics, ClassificationMetrics):
        metrics = replace(metrics, robustness=test.robustness(predictions))
    metrics = test.against_baseline(test.against_constant(metrics, predictions), predictions)
    metrics = replace(metrics, own=own.measure(predictions.answers, metrics, report=progress.update))

    write_explanations(workspace.reports / "explanations.safetensors", test.explanations(predictions))
    write_details(workspace.reports, explain_samples(model, spec, test.split, predictions, settings))
    write_predictions(workspace.reports / "predictions.parquet", predictions)
    calibration = {"temperature": temperature, "flip_average": int(model.flip_average)}
    files.write_json(workspace.reports / "metrics.json", {**metrics.numbers(), **calibration})
    files.write_json(workspace.reports / "evaluation.json", to_plain(metrics))
    plots.write_plots(workspace.reports, predictions, metrics)
    return Evaluation.load(workspace)


@dataclass(frozen=True)
class _Test:
    """The model and its test samples. `open` opens a split by its name and the input of the model that reads it."""

    workspace: Workspace
    settings: EvaluationSettings
    progress: StageProgress
    open: "Callable[[str, Input], Split]"
    model: "Model"
    spec: "ModelSpec"
    split: "Split"

    def predict(self) -> "tuple[Predictions, float]":
        """Return the predictions of all test samples, and the temperature by which their logits were divided."""
        from ratchet.evaluation.calibration import fit_temperature
        from ratchet.evaluation.predictions import Predictions
        from ratchet.evaluation.problems import thresholds_for
        from ratchet.training import answers

        model, target, rows = self.model, self.spec.target, len(self.split)
        outputs, targets = answers(model, self.split, report=lambda done: self.progress.update(done, rows))

        is_scaled = self.settings.temperature_scaling and target.classes
        temperature = fit_temperature(*self.validation) if is_scaled else 1.0
        outputs = outputs / temperature if is_scaled else outputs
        thresholds = thresholds_for(target, self.settings, lambda: self.validation)
        return Predictions(outputs, targets, split_ids(self.workspace.packed, "test"), target, thresholds), temperature

    @cached_property
    def validation(self) -> "tuple[NDArray[np.float32], NDArray[Any]]":
        """Outputs and targets of the validation samples."""
        from ratchet.training import answers

        split, before = self.open("validation", self.spec.input), len(self.split)
        total = before + len(split)
        return answers(self.model, split, report=lambda done: self.progress.update(before + done, total, "validation"))

    def calibrated(
        self, metrics: "Metrics", predictions: "Predictions", temperature: float, columns: "Columns", *, ordered_by: str
    ) -> "Metrics":
        """Return the metrics with those of intervals, sets and thresholds that the validation samples calibrate."""
        return replace(
            metrics,
            coverage=self.coverage(predictions, temperature, columns, ordered_by),
            abstention=self.abstention(predictions, temperature, ordered_by),
        )

    def coverage(
        self, predictions: "Predictions", temperature: float, columns: "Columns", ordered_by: str
    ) -> "CoverageMetrics | None":
        """Calibrate prediction intervals or sets on the validation samples, and measure them; None: there are none."""
        from ratchet.evaluation.coverage import measure_coverage
        from ratchet.problems.regions import REGIONS

        if self.spec.target.problem not in REGIONS:
            return None
        validation = self._scaled_validation(temperature)
        return measure_coverage(predictions, validation, columns, self.settings, ordered_by=ordered_by)

    def abstention(self, predictions: "Predictions", temperature: float, ordered_by: str) -> "AbstentionMetrics | None":
        """Choose thresholds of confidence by the validation samples, and measure them; None: there is no confidence."""
        from ratchet.evaluation.coverage import served
        from ratchet.evaluation.selective import measure_abstention
        from ratchet.problems.named_answers import named_answers

        target = self.spec.target
        if not named_answers(target).has_confidence:
            return None
        outputs, targets = self._scaled_validation(temperature)
        validation = served(target, outputs), targets
        test = served(target, predictions.outputs), predictions.targets
        confidence = self.settings.confidence
        metrics = measure_abstention(target, validation, test, confidence=confidence, ordered_by=ordered_by)
        return replace(metrics, groups=self._count_groups("validation"))

    def _count_groups(self, split: str) -> int:
        """Return the number of groups of the samples of a split; 0: no two samples share one."""
        import polars

        index = polars.read_parquet(self.workspace.packed / "index.parquet").filter(polars.col("split") == split)
        if "group" not in index.columns:
            return 0
        groups = index["group"]
        count = groups.drop_nulls().n_unique() + groups.null_count()
        return count if count < len(groups) else 0

    def _scaled_validation(self, temperature: float) -> "tuple[NDArray[np.float32], NDArray[Any]]":
        outputs, targets = self.validation
        return outputs / temperature if temperature != 1.0 else outputs, targets

    def against_constant(self, metrics: Metrics, predictions: "Predictions") -> Metrics:
        """Return the metrics with the comparison of the model and the best constant answer."""
        from ratchet.evaluation.measure import against_constant
        from ratchet.training import token_shares
        from ratchet.training.streams import StreamSplit

        test = self.split
        shares = replace(predictions, outputs=token_shares(test)[0]) if isinstance(test, StreamSplit) else None
        return against_constant(metrics, predictions, settings=self.settings, shares=shares)

    def against_baseline(self, metrics: Metrics, predictions: "Predictions") -> Metrics:
        """Return the metrics with the comparison of the model and its baseline, unless the model is the baseline."""
        from ratchet.evaluation.measure import compare_with_baseline
        from ratchet.evaluation.problems import thresholds_for
        from ratchet.training import answers
        from tasks.baseline import Baseline

        if not self.workspace.baseline.exists():  # a model that was trained before there were baselines
            return metrics
        baseline = Baseline.load(self.workspace)
        if TrainedModel.load(self.workspace).name == f"baseline {baseline.name}":
            return metrics
        own_input = baseline.spec.input
        split = self.open("test", own_input) if kind_of(own_input).tokenizes else self.split  # a tokenizer of its own
        outputs, _ = answers(baseline.model, split)
        thresholds = predictions.thresholds
        if predictions.answers.own_thresholds:
            thresholds = thresholds_for(
                predictions.target, self.settings, lambda: answers(baseline.model, self.open("validation", own_input))
            )
        theirs = replace(predictions, outputs=outputs, thresholds=thresholds)
        return compare_with_baseline(metrics, predictions, theirs, name=baseline.name, settings=self.settings)

    def robustness(self, predictions: "Predictions") -> "Robustness | NotMeasured":
        """Measure accuracy on some corrupted test images."""
        import numpy as np
        import torch

        from ratchet.evaluation import robustness
        from ratchet.training import ImageSplit, predict_outputs

        test, wanted = self.split, self.settings.robustness_rows
        if reason := _not_corruptible(self.spec, wanted):
            return robustness.NotMeasured(reason)
        image = self.spec.image
        count = robustness.automatic_rows(image.height, image.width) if wanted == "auto" else wanted
        rows = robustness.evenly_spaced(len(test), count)
        labels, keys = np.asarray(test.targets)[rows], np.asarray(test.keys)[rows]
        (images,), _ = test.batch(rows, torch.device("cpu"))

        def predict(corrupted: "NDArray[np.uint8]") -> "NDArray[np.int64]":
            split = ImageSplit.of("test", [corrupted], labels, keys)
            predicted: NDArray[np.int64] = predict_outputs(self.model, split).argmax(1)
            return predicted

        total = len(test) + len(robustness.KINDS) * len(robustness.STRENGTHS) * len(rows)
        return robustness.measure_robustness(
            predict,
            images.permute(0, 2, 3, 1).numpy(),
            labels,
            clean=predictions.outputs[rows].argmax(1),
            confidence=self.settings.confidence,
            report=lambda done: self.progress.update(len(test) + done, total, "corrupted"),
        )

    def explanations(self, predictions: "Predictions") -> "Explanations":
        """Explain the most confident wrong predictions."""
        import torch

        from ratchet.evaluation.explanations import Explanations, explain
        from ratchet.training import ImageModel, ImageSplit, load_model

        if not self.settings.explained_errors:
            return Explanations.none("evaluation.explained_errors is 0")
        if not isinstance(self.split, ImageSplit) or not predictions.target.classes:
            return Explanations.none("only classes of images are explained by pixels")
        rows = predictions.worst_errors(self.settings.explained_errors)
        model, _ = load_model(self.workspace.model)  # a new one, see `explain`
        assert isinstance(model, ImageModel), "only images are explained by pixels"
        model.flip_average = self.settings.flip_average
        (images,), _ = self.split.batch(rows, torch.device("cpu"))
        answers, truths = predictions.answers.predicted[rows].tolist(), predictions.targets[rows].tolist()
        return explain(model, images, rows=rows, answers=answers, truths=truths)


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


if __name__ == "__main__":
    from tasks.stage_runner import run

    run(evaluate, unit="rows")
