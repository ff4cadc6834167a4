"""Likely wrong labels: planted ones are ranked first, and weak models call no label wrong."""

import numpy as np
import pytest

from ratchet.data.checks.label_errors import fold_of, judge

CLASSES = [f"class {number}" for number in range(10)]


def predicted(rows: int, *, strength: float, wrong: float = 0.0, confidence: float = 1.0, seed: int = 0):
    """Return probabilities of a model, labels, and which labels were replaced by another class.

    Args:
        rows: number of samples.
        strength: of the model; 1 is hardly better than chance, 8 is mostly right.
        wrong: share of labels that are replaced.
        confidence: above 1 the model is overconfident.
        seed: for all random numbers.
    """
    drawn = np.random.default_rng(seed)
    logits = strength * drawn.gumbel(size=(rows, 10))
    true = (logits + drawn.gumbel(size=logits.shape)).argmax(axis=1)  # a draw from the softmax
    flipped = drawn.random(rows) < wrong
    labels = np.where(flipped, (true + drawn.integers(1, 10, rows)) % 10, true)
    shown = np.exp(confidence * (logits - logits.max(axis=1, keepdims=True)))
    return (shown / shown.sum(axis=1, keepdims=True)).astype(np.float32), labels, flipped


@pytest.mark.parametrize("confidence", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("strength", [3.0, 8.0])
def test_the_expected_precision_is_close_to_the_true_one(strength: float, confidence: float) -> None:
    probabilities, labels, flipped = predicted(6000, strength=strength, wrong=0.055, confidence=confidence)
    judgement = judge(probabilities, labels, classes=CLASSES)
    assert judgement.flagged > 30
    rows = judgement.samples.filter("flagged")["row"].to_numpy()
    assert flipped[rows].mean() == pytest.approx(judgement.precision, abs=0.12)
    assert judgement.wrong == pytest.approx(0.055, abs=0.02)


@pytest.mark.parametrize("strength", [0.3, 0.7, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("confidence", [0.5, 1.0, 3.0])
def test_correct_labels_are_not_called_wrong(strength: float, confidence: float) -> None:
    """Not even by a weak model that contradicts many of them."""
    for seed in range(3):
        probabilities, labels, _ = predicted(3000, strength=strength, confidence=confidence, seed=seed)
        assert judge(probabilities, labels, classes=CLASSES).flagged <= 3


def test_a_model_at_chance_level_calls_nothing_wrong() -> None:
    probabilities, labels, _ = predicted(2000, strength=8.0, wrong=0.1)
    judgement = judge(probabilities[::-1].copy(), labels, classes=CLASSES)
    assert (judgement.useful, judgement.flagged, judgement.precision, judgement.wrong) == (False, 0, 0.0, 0.0)
    assert judgement.accuracy == pytest.approx(0.1, abs=0.03)
    assert judgement.samples.height == 2000


def test_all_samples_are_ranked_by_doubt() -> None:
    probabilities, labels, flipped = predicted(4000, strength=8.0, wrong=0.05)
    samples = judge(probabilities, labels, classes=CLASSES).samples
    assert sorted(samples["row"].to_list()) == list(range(4000))
    assert (samples["doubt"].diff().drop_nulls() <= 1e-12).all()
    assert (samples["likely"] != samples["label"]).all()
    assert flipped[samples["row"].head(100).to_numpy()].mean() > 0.8


def test_accuracy_is_given_per_class() -> None:
    probabilities = np.array([[0.9, 0.1, 0.0], [0.2, 0.8, 0.0], [0.3, 0.7, 0.0]], np.float32)
    judgement = judge(probabilities, np.array([0, 0, 1]), classes=["a", "b", "c"])
    assert judgement.classes.rows() == [("a", 2, 0.5), ("b", 1, 1.0), ("c", 0, None)]
    assert (judgement.accuracy, judgement.chance) == (pytest.approx(2 / 3), pytest.approx(2 / 3))


def test_samples_of_one_key_are_held_out_together() -> None:
    keys = [f"{number:064x}" for number in range(100)]
    folds = fold_of([*keys, *keys], 4)
    assert (folds[:100] == folds[100:]).all()
    assert set(folds) == set(range(4))
