"""Confident learning by hand, and on digits some of whose labels were changed on purpose."""

import numpy as np
import pytest

from ratchet.data.trouble.labels import fold_of, suspects


def test_the_published_rule_by_hand() -> None:
    """Thresholds: the mean probability of a class among the samples labelled so, here .7 and .65."""
    probabilities = np.array([[0.9, 0.1], [0.5, 0.5], [0.3, 0.7], [0.1, 0.9], [0.75, 0.25], [0.2, 0.8]], np.float32)
    labels = np.array([0, 0, 1, 1, 1, 1])
    probabilities[1] = [0.2, 0.8]
    found = suspects(probabilities, labels)
    # class 0: (.9 + .2) / 2 = .55; class 1: (.7 + .9 + .25 + .8) / 4 = .6625
    assert found.select("row", "label", "likely").rows() == [(1, 0, 1), (4, 1, 0)]
    assert found["doubt"].to_list() == pytest.approx([0.6, 0.5])
    assert found["given"].to_list() == pytest.approx([0.2, 0.25])


def test_an_unsure_answer_is_no_suspicion() -> None:
    probabilities = np.array([[0.4, 0.6], [0.95, 0.05], [0.05, 0.95], [0.1, 0.9]], np.float32)
    assert suspects(probabilities, np.array([0, 0, 1, 1])).is_empty()


def test_a_class_without_samples_is_never_meant() -> None:
    probabilities = np.array([[0.1, 0.1, 0.8], [0.2, 0.7, 0.1]], np.float32)
    assert suspects(probabilities, np.array([0, 1])).is_empty()


def test_copies_are_held_out_together() -> None:
    contents = [f"{number:064x}" for number in range(100)]
    folds = fold_of([*contents, *contents], 4)
    assert (folds[:100] == folds[100:]).all()
    assert set(folds) <= set(range(4))
