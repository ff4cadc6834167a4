"""Metrics of the user's own functions: values, intervals, and errors that name the function and the fix."""

import os
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from measured import class_answers
from sklearn.metrics import log_loss, roc_auc_score

from ratchet import files
from ratchet.data.ingest import IngestTask, ingest
from ratchet.data.manifest import Manifest
from ratchet.errors import TrainingError
from ratchet.evaluation.answers import Answers
from ratchet.evaluation.classification import ClassAnswers
from ratchet.evaluation.intervals import mean_of, share_interval
from ratchet.evaluation.language import PieceAnswers
from ratchet.evaluation.metrics import NamedMetric
from ratchet.evaluation.multi_label import LabelAnswers
from ratchet.evaluation.own_metrics import own_metrics
from ratchet.evaluation.problems import read_metrics
from ratchet.evaluation.regression import NumberAnswers
from ratchet.evaluation.wording import metric_text
from ratchet.kinds import ModelSpec
from ratchet.problems import Labels, NextToken, Numbers
from ratchet.settings.model import DataSettings, EvaluationSettings, ModelSettings, Params
from ratchet.training import build, save_model
from ratchet.workspace import Workspace
from tasks.evaluate import evaluate
from tasks.metric_functions import OwnMetrics
from tasks.progress import Terminal


def answers(rows: int = 300) -> ClassAnswers:
    drawn = np.random.default_rng(3)
    labels = drawn.integers(3, size=rows)
    logits = drawn.normal(size=(rows, 3)).astype(np.float32)
    logits[np.arange(rows), labels] += 1.5
    return class_answers(logits, labels)


def measured(function: Callable[..., Any], tested: Answers, *, taken: tuple[str, ...] = ()) -> NamedMetric:
    functions = {f"own.metrics:{function.__name__}": function}
    [metric] = own_metrics(functions, tested, confidence=0.95, taken=taken, line_of=lambda error: "")
    return metric


def cost(predictions: np.ndarray, targets: np.ndarray) -> float:
    """Mean cost of the answers: to take class 2 for another costs five times as much."""
    costs = np.array([[0, 1, 1], [1, 0, 1], [5, 5, 0]])
    return float(costs[targets, predictions.argmax(1)].mean())


cost.lower_is_better = True  # type: ignore[attr-defined]


def test_a_mean_over_rows_has_the_interval_of_means() -> None:
    """With up to 500 rows each row is left out once, so the influence of a row is its own cost."""
    tested, metric = answers(), measured(cost, answers())
    each = np.array([[0, 1, 1], [1, 0, 1], [5, 5, 0]])[tested.labels, tested.probabilities.argmax(1)]
    expected = mean_of(each.astype(float), confidence=0.95)
    assert not metric.larger_is_better
    assert (metric.key, metric.name) == ("cost", "cost")
    bounds, others = ((each.low, each.value, each.high) for each in (metric.interval, expected))
    assert bounds == pytest.approx(others, abs=1e-9)


def test_groups_of_rows_give_nearly_the_same_interval() -> None:
    tested = answers(2_003)  # groups of four and of five
    each = np.array([[0, 1, 1], [1, 0, 1], [5, 5, 0]])[tested.labels, tested.probabilities.argmax(1)]
    expected, interval = mean_of(each.astype(float), confidence=0.95), measured(cost, tested).interval
    assert interval.high - interval.low == pytest.approx(expected.high - expected.low, rel=0.1)
    assert interval == measured(cost, tested).interval


def test_functions_of_scikit_learn_can_be_used() -> None:
    def area(predictions: np.ndarray, targets: np.ndarray) -> float:
        return roc_auc_score(targets, predictions, multi_class="ovr")

    def surprise(predictions: np.ndarray, targets: np.ndarray) -> float:
        return log_loss(targets, predictions)

    area.share = True  # type: ignore[attr-defined]
    tested = answers()
    metrics = tested.measure(EvaluationSettings())
    shown = measured(area, tested)
    assert shown.share
    assert shown.interval.value == pytest.approx(metrics.roc_auc)
    assert metrics.roc_auc_interval is not None
    assert shown.interval.low == pytest.approx(metrics.roc_auc_interval.low, abs=0.01)
    built_in = metrics.log_loss
    assert measured(surprise, tested).interval.high == pytest.approx(built_in.high, abs=0.02)


ONES = np.ones((5, 2), np.float32)
OTHERS = {
    "numbers": (
        NumberAnswers(ONES, ONES, Numbers(("a", "b"), (1.0, 2.0), (3.0, 4.0))),
        ((5, 2), "float64", (5, 2), "float64"),
    ),
    "labels": (
        LabelAnswers(ONES, ONES, Labels(("a", "b"))),
        ((5, 2), "float64", (5, 2), "int64"),
    ),
    "classes": (answers(5), ((5, 3), "float64", (5,), "int64")),
    "pieces": (
        PieceAnswers(np.ones((5, 1), np.float32), np.ones((5, 3), np.int64), NextToken(9)),
        ((5,), "float64", (5, 3), "int64"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("problem", OTHERS)
def test_each_problem_gives_the_documented_arrays(problem: str) -> None:
    tested, (shape, dtype, target_shape, target_dtype) = OTHERS[problem]
    seen = []

    def first(predictions: np.ndarray, targets: np.ndarray) -> np.float32:
        seen.append((predictions.shape, str(predictions.dtype), targets.shape, str(targets.dtype)))
        predictions[...] = np.nan  # a copy
        return np.float32(1)

    assert measured(first, tested).interval.value == 1.0
    assert seen[0] == (shape, dtype, target_shape, target_dtype)
    assert np.isfinite(tested.metric_inputs[0]).all()


@pytest.mark.parametrize("one_half", [torch.tensor(0.5), Decimal("0.5"), np.array(0.5), Fraction(1, 2)])
def test_numbers_of_any_type_are_taken(one_half: Any) -> None:
    def half(predictions: np.ndarray, targets: np.ndarray) -> Any:
        return one_half

    assert measured(half, answers(4)).interval.value == 0.5


def test_rows_without_which_it_is_undefined_have_no_influence() -> None:
    def last(predictions: np.ndarray, targets: np.ndarray) -> float:
        return float(targets.mean()) if len(targets) == 4 else float("nan")

    interval = measured(last, answers(4)).interval
    assert interval.low == interval.value == interval.high


WRONG: dict[str, tuple[Any, str]] = {
    "raises": (lambda p, t: p["x"], "raised IndexError: .* with predictions of shape \\(30, 3\\)"),
    "no number": (lambda p, t: None, "returned a NoneType. Allowed: one number"),
    "text": (lambda p, t: "0.5", "returned a str. Allowed: one number"),
    "array": (lambda p, t: t == 1, r"returned a ndarray of shape \(30,\). Allowed: one number"),
    "array of one": (lambda p, t: np.ones(1), r"returned a ndarray of shape \(1,\). Allowed: one number"),
    "nan": (lambda p, t: np.nan, "returned nan for 30 test rows. Allowed: a finite number"),
    "infinite": (lambda p, t: -np.inf, "returned -inf for 30 test rows. Allowed: a finite number"),
    "complex": (lambda p, t: 1j, "returned a complex. Allowed: one number"),
    "complex of NumPy": (lambda p, t: np.complex64(1), "returned a complex64. Allowed: one number"),
    "complex of torch": (lambda p, t: torch.tensor(1j), "returned a Tensor. Allowed: one number"),
    "integer above the floats": (lambda p, t: 10**400, "returned a int. Allowed: one number"),
    "one argument": (lambda p: 1.0, "raised TypeError: .*positional argument"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_function_is_named_with_the_fix(case: str) -> None:
    function, message = WRONG[case]
    function.__name__ = "f"
    with pytest.raises(TrainingError, match=f"^evaluation.metrics: own.metrics:f.*{message}") as caught:
        measured(function, answers(30))
    assert str(caught.value).endswith("Fix: correct the function")
    assert "\n" not in str(caught.value)


def test_a_share_above_one_is_refused() -> None:
    def points(predictions: np.ndarray, targets: np.ndarray) -> float:
        return 40.0

    points.share = True  # type: ignore[attr-defined]
    with pytest.raises(TrainingError, match=r"returned 40\. Allowed with share = True: 0 to 1"):
        measured(points, answers(30))


def test_a_share_of_one_has_an_interval_by_all_rows() -> None:
    def whole(predictions: np.ndarray, targets: np.ndarray) -> float:
        return 1.0

    whole.share = True  # type: ignore[attr-defined]
    interval = measured(whole, answers(2_003)).interval
    assert (interval.low, interval.high) == (share_interval(2_003, 2_003, confidence=0.95).low, 1.0)


def test_measuring_reports_progress_in_rows() -> None:
    reports: list[tuple[int, int, str]] = []
    own_metrics(
        {"own.metrics:cost": cost}, answers(2_003), confidence=0.95, taken=(), line_of=str,
        report=lambda *report: reports.append(report),
    )  # fmt: skip
    assert len(reports) == 500
    assert reports[:2] == [(0, 2_003, "interval of cost"), (4, 2_003, "interval of cost")]


def test_a_name_that_another_metric_has_is_refused() -> None:
    def accuracy(predictions: np.ndarray, targets: np.ndarray) -> float:
        return 1.0

    with pytest.raises(TrainingError, match=r"own\.metrics:accuracy: a metric of Ratchet is called accuracy, too"):
        measured(accuracy, answers(30), taken=("accuracy",))


CODE = """
import numpy as np


def mean_cost(predictions, targets):
    costs = np.array([[0, 1], [5, 0]])
    return costs[targets, predictions.argmax(1)].mean()


mean_cost.lower_is_better = True


def broken(predictions, targets):
    return costs[targets]
"""


@pytest.fixture
def titanic(tmp_path: Path) -> Workspace:
    """A project with the packed Titanic, an untrained model, and two functions in own/metrics.py."""
    source = Path(os.environ.get("RATCHET_DATASETS", "")) / "tabular" / "titanic.csv"
    if "RATCHET_DATASETS" not in os.environ or not source.exists():
        pytest.skip("RATCHET_DATASETS is not set, or has no tabular/titanic.csv")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "metrics.py").write_text(CODE)
    workspace = Workspace(tmp_path)
    data = DataSettings(kind="table", path=str(source), label_column="survived", drop=("alive",))
    ingest(IngestTask(data, packed=workspace.packed, quarantine=workspace.quarantine, root=tmp_path))
    manifest = Manifest.read(workspace.packed)
    spec = ModelSpec("mlp", manifest.input, manifest.target)
    training = {"steps": 1, "best_epoch": 1, "best_metric": "validation/loss", "best_value": 1.0, "key": "none"}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        save_model(workspace.model, build(spec).state_dict(), spec, about={"training": training})
    return workspace


def params_of(function: str) -> Params:
    return Params(evaluation=EvaluationSettings(resamples=100, metrics=(function,)), model=ModelSettings(code="own"))


def test_stage_writes_an_own_metric_of_real_passengers(titanic: Workspace) -> None:
    evaluation = evaluate(params_of("own.metrics:mean_cost"), titanic, progress=Terminal("evaluate", unit="rows"))
    metrics, numbers = read_metrics(titanic.reports), files.read_json(titanic.reports / "metrics.json")
    metric = metrics.named()["mean_cost"]
    bounds = metric.interval
    assert numbers["mean_cost_low"] < numbers["mean_cost"] == bounds.value < numbers["mean_cost_high"] == bounds.high
    confusion = np.array(metrics.confusion)  # type: ignore[attr-defined]
    assert bounds.value == pytest.approx((confusion[0, 1] + 5 * confusion[1, 0]) / metrics.rows)
    assert not metric.larger_is_better
    assert f", {metric_text(metric, 0.95)}" in evaluation.summary


def test_stage_names_the_line_of_a_failing_metric(titanic: Workspace) -> None:
    """Nothing is written."""
    with pytest.raises(TrainingError, match=r"raised NameError: .* \(own/metrics.py, line 14\); it was called with"):
        evaluate(params_of("own.metrics:broken"), titanic, progress=Terminal("evaluate", unit="rows"))
    assert not (titanic.reports / "evaluation.json").exists()


def test_a_metric_that_does_not_import_is_refused_before_training(titanic: Workspace) -> None:
    (titanic.root / "own" / "metrics.py").write_text("import gone\n" + CODE)
    with pytest.raises(TrainingError, match=r"^evaluation.metrics: own.metrics does not import .*gone.*Fix: correct"):
        OwnMetrics.load(params_of("own.metrics:mean_cost"), titanic)
    (titanic.root / "other.py").write_text(CODE)
    with pytest.raises(
        TrainingError, match=r"other \(other.py\) is outside model.code \(own\).* set model.code to oth"
    ):
        OwnMetrics.load(params_of("other:mean_cost"), titanic)
