"""The metrics of an epoch against scikit-learn's, on the same answers."""

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score
from torch import nn

from ratchet.problems import Classes
from ratchet.training import Epoch, ImageSplit
from ratchet.training.losses import Objective
from ratchet.training.precision import Precision
from ratchet.training.validation import validate
from tests.training.conftest import make_plan

METRICS = ("accuracy", "balanced_accuracy", "f1", "loss")


class Reads(nn.Module):
    """Answers with the class that each image's first pixel names."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return 5.0 * nn.functional.one_hot(images[:, 0, 0, 0].long(), 4).float()


def metrics(labels: list[int], answers: list[int], *, ignored: int = -100, batch_size: int = 3) -> dict[str, float]:
    images = np.zeros((len(labels), 2, 2, 1), np.uint8)
    images[:, 0, 0, 0] = answers
    split = ImageSplit.of("validation", [images], np.array(labels), np.arange(len(labels)))
    plan, cpu = make_plan(ignore_index=ignored), torch.device("cpu")
    objective = Objective.measuring(plan, Classes(("a", "b", "c", "d")), cpu)
    precision = Precision("fp32", False, "")
    return validate(Reads(), split, objective=objective, precision=precision, device=cpu, batch_size=batch_size)


@pytest.mark.parametrize(
    ("labels", "answers"),
    [
        ([0, 0, 0, 1, 1, 2, 3], [0, 0, 1, 1, 3, 2, 0]),
        ([0, 0, 0, 0], [0, 0, 0, 0]),
        ([0, 1, 2, 0], [1, 2, 0, 3]),
    ],
)
def test_metrics_are_scikit_learns(labels: list[int], answers: list[int]) -> None:
    result = metrics(labels, answers)
    assert set(result) == {f"validation/{name}" for name in METRICS}
    assert result["validation/accuracy"] == pytest.approx(accuracy_score(labels, answers))
    recalls = [np.mean(np.array(answers)[np.array(labels) == item] == item) for item in sorted(set(labels))]
    assert result["validation/balanced_accuracy"] == pytest.approx(np.mean(recalls))
    if set(answers) <= set(labels) and len(set(labels)) > 1:
        assert result["validation/balanced_accuracy"] == pytest.approx(balanced_accuracy_score(labels, answers))
    expected = f1_score(labels, answers, average="macro", zero_division=0.0)
    assert result["validation/f1"] == pytest.approx(expected)


def test_ignored_rows_do_not_count() -> None:
    kept = metrics([0, 1, 2, 0], [0, 1, 0, 0])
    assert metrics([0, 1, 3, 2, 0, 3], [0, 1, 1, 0, 0, 3], ignored=3) == pytest.approx(kept)


@pytest.mark.parametrize("best", [f"validation/{name}" for name in METRICS])
def test_the_best_can_be_judged_by_each(lab, best: str) -> None:
    finished = lab.run(lab.plan(best=best, epochs=4))
    values = [epoch[best] for epoch in finished.history]
    assert finished.best_value == (min(values) if best.endswith("loss") else max(values))
    assert lab.every([finished], Epoch) == []
