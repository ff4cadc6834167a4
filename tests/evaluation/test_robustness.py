"""Robustness counts the predictions for exactly the images that `corrupt` returns."""

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from measured import measure_classes as measure

from ratchet.evaluation.classification import ClassificationMetrics
from ratchet.evaluation.intervals import share_interval
from ratchet.evaluation.robustness import (
    KINDS,
    STRENGTHS,
    NotMeasured,
    Robustness,
    automatic_rows,
    corrupt,
    evenly_spaced,
    measure_robustness,
)
from ratchet.settings.model import EvaluationSettings
from ratchet.typed_json import parse, to_plain

ROWS = 60
Answer = Callable[[np.ndarray], np.ndarray]


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    """Half of the images are dark, half are bright."""
    drawn = np.random.default_rng(0)
    base = np.where(np.arange(ROWS) % 2, 150, 90)[:, None, None, None]
    return (base + drawn.integers(-40, 40, (ROWS, 16, 16, 3))).astype(np.uint8)


def by_brightness(images: np.ndarray) -> np.ndarray:
    return (images.mean(axis=(1, 2, 3)) > 120).astype(np.int64)


@pytest.fixture(scope="module")
def measured(images: np.ndarray) -> Robustness:
    labels = np.arange(ROWS) % 2
    return measure_robustness(by_brightness, images, labels, clean=by_brightness(images), confidence=0.9)


@pytest.fixture(scope="module")
def metrics(measured: Robustness) -> ClassificationMetrics:
    labels = np.arange(ROWS) % 2
    logits = np.eye(2, dtype=np.float32)[labels]
    settings = EvaluationSettings(resamples=100, slice_rows=20)
    columns = {"half": ["first"] * 30 + ["second"] * 30}
    whole = measure(logits, labels, classes=("dark", "bright"), settings=settings, columns=columns)
    assert len(whole.slices) == 2
    return replace(whole, robustness=measured)


@pytest.mark.parametrize("kind", KINDS)
def test_each_share_counts_right_predictions_of_corrupted_images(
    kind: str, measured: Robustness, images: np.ndarray
) -> None:
    labels = np.arange(ROWS) % 2
    for strength, share in zip(STRENGTHS, measured.corrupted[kind], strict=True):
        right = int((by_brightness(corrupt(images, kind, strength)) == labels).sum())
        assert share == share_interval(right, ROWS, confidence=0.9)


def test_model_that_uses_brightness_fails_only_on_brightness(measured: Robustness) -> None:
    assert measured.clean.value == 1.0
    assert {kind for kind in KINDS if measured.mean(kind) < 1.0} == {"brightness"}
    assert measured.corrupted["brightness"][-1].value == 0.5
    assert measured.overall == pytest.approx((4 + measured.mean("brightness")) / 5)


def test_the_same_images_give_the_same_metrics(measured: Robustness, images: np.ndarray) -> None:
    again = measure_robustness(
        by_brightness, images.copy(), np.arange(ROWS) % 2, clean=by_brightness(images), confidence=0.9
    )
    assert again == measured


def test_progress_counts_every_kind_strength_and_image(images: np.ndarray) -> None:
    reported: list[int] = []
    labels = np.zeros(ROWS, np.int64)
    measure_robustness(by_brightness, images, labels, clean=labels, confidence=0.9, report=reported.append)
    assert reported == sorted(reported)
    assert reported[-1] == ROWS * len(KINDS) * len(STRENGTHS)


@pytest.mark.parametrize(("rows", "wanted"), [(10_000, 500), (287, 500), (7, 3), (501, 500), (1, 1)])
def test_rows_are_evenly_spaced_and_unique(rows: int, wanted: int) -> None:
    taken = evenly_spaced(rows, wanted)
    assert len(taken) == min(rows, wanted)
    steps = np.diff([*taken, rows])
    assert steps.min() >= 1
    assert steps.max() - steps.min() <= 1


def test_large_images_need_fewer_rows() -> None:
    assert [automatic_rows(side, side) for side in (8, 64, 128, 224, 1024)] == [500, 500, 125, 50, 50]


def test_metrics_include_robustness(metrics: ClassificationMetrics, measured: Robustness) -> None:
    assert parse(ClassificationMetrics, json.dumps(to_plain(metrics))) == metrics
    numbers = metrics.numbers()
    assert numbers["robustness"] == measured.overall
    assert {f"robustness_{kind}" for kind in KINDS} < numbers.keys()


def test_metrics_without_robustness_have_a_reason(metrics: ClassificationMetrics) -> None:
    without = replace(metrics, robustness=NotMeasured("it is switched off"))
    assert parse(ClassificationMetrics, json.dumps(to_plain(without))) == without
    assert not any(name.startswith("robustness") for name in without.numbers())
