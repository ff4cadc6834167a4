"""The advice at the end of a run follows its result."""

from dataclasses import replace

import numpy as np
import pytest
from measured import measure

from ratchet.evaluation.measure import against_constant
from ratchet.evaluation.metrics import BaselineResult, Metrics
from ratchet.evaluation.predictions import Predictions
from ratchet.gate.verdict import Verdict
from ratchet.problems import Classes
from ratchet.settings.model import EvaluationSettings, Params, TrainingSettings
from tasks.advice import next_steps

LEVEL = [{"validation/loss": 0.5, "train/accuracy": 0.9, "validation/accuracy": 0.9}] * 6


def metrics(*, skill: float, rows: int = 400) -> Metrics:
    labels = np.arange(rows) % 2
    predicted = np.where(np.random.default_rng(0).random(rows) < skill, labels, 0)
    outputs, settings = np.eye(2, dtype=np.float32)[predicted], EvaluationSettings(resamples=100)
    predictions = Predictions(outputs, labels, tuple(map(str, range(rows))), Classes(("ants", "bees")))
    return against_constant(measure(predictions, settings=settings), predictions, settings=settings)


def advised(measured: Metrics, history: list[dict[str, float]], *, passed: bool = True) -> str:
    return "\n".join(": ".join(step) for step in next_steps(Params(), Verdict(passed, ()), measured, history))


def rising(*losses: float) -> list[dict[str, float]]:
    return [{**LEVEL[0], "validation/loss": loss} for loss in losses]


def test_good_run_is_followed_by_errors_search_and_serving() -> None:
    text = advised(metrics(skill=1.0), LEVEL)
    assert [line.split(":")[0] for line in text.splitlines()] == ["ratchet data labels", "ratchet search", "ratchet up"]


@pytest.mark.parametrize(
    ("history", "expected", "other"),
    [
        (rising(0.9, 0.5, 0.6, 0.8, 1.0, 1.2), "training.epochs=2: over-fitting", "under-fitting"),
        (
            [*LEVEL[:5], {**LEVEL[0], "train/accuracy": 1.0, "validation/accuracy": 0.6}],
            "weight_decay",
            "under-fitting",
        ),
        (rising(0.9, 0.8, 0.7, 0.6, 0.5, 0.4), "under-fitting", "over-fitting"),
    ],
)
def test_advice_names_over_fitting_and_under_fitting(
    history: list[dict[str, float]], expected: str, other: str
) -> None:
    text = advised(metrics(skill=1.0), history)
    assert expected in text
    assert other not in text


def test_balanced_samples_are_compared_with_the_balanced_accuracy() -> None:
    params = Params(training=TrainingSettings(sampling="balanced"))
    verdict, measured = Verdict(True, ()), metrics(skill=1.0)
    for accuracy, balanced, overfits in ((0.97, 0.6, True), (0.8, 0.95, False)):
        last = {"train/accuracy": 0.99, "validation/accuracy": accuracy, "validation/balanced_accuracy": balanced}
        steps = next_steps(params, verdict, measured, [*LEVEL, {**LEVEL[0], **last}])
        assert any("validation balanced accuracy 0.600" in purpose for _, purpose in steps) == overfits
        assert any("over-fitting" in purpose for _, purpose in steps) == overfits


@pytest.mark.parametrize("last", [0.4995, 0.492])
def test_converged_run_is_not_advised_to_train_longer(last: float) -> None:
    text = advised(metrics(skill=1.0), rising(0.9, 0.7, 0.6, 0.55, 0.5, last))
    assert "under-fitting" not in text
    assert "training.epochs=60" in advised(metrics(skill=1.0), rising(0.9, 0.7, 0.6, 0.55, 0.5, 0.48))


def test_worse_slices_are_named() -> None:
    labels, cameras = np.arange(400) % 2, ["old" if row < 80 else "new" for row in range(400)]
    predicted = np.where((np.arange(400) < 80) & (np.arange(400) % 4 < 2), 1 - labels, labels)
    outputs = np.eye(2, dtype=np.float32)[predicted]
    predictions = Predictions(outputs, labels, tuple(map(str, range(400))), Classes(("ants", "bees")))
    worse = measure(predictions, settings=EvaluationSettings(resamples=100), columns={"camera": cameras})
    assert "see the slices in the report: significantly worse: camera: old" in advised(worse, LEVEL)
    assert "slices" not in advised(replace(worse, slices=worse.slices[:1]), LEVEL)


def test_useless_model_is_not_advised_to_be_served() -> None:
    text = advised(metrics(skill=0.0), LEVEL, passed=False)
    assert "not better than always answering 'ants'" in text
    assert "ratchet up" not in text


def test_small_tests_are_advised_to_grow() -> None:
    assert "30 test samples can show only differences of" in advised(metrics(skill=1.0, rows=30), LEVEL)


def test_baseline_that_was_not_beaten_is_advised() -> None:
    good = metrics(skill=1.0)
    assert good.constant is not None
    result = BaselineResult("trees", good.headline, good.headline, good.headline.interval, False)
    lost = replace(result, difference=replace(good.headline.interval, low=-0.1))
    assert "model.name=baseline: trees may be as good" in advised(replace(good, baseline=lost), LEVEL)
