"""Balanced sampling: equal numbers of each class, the same rows after a resume, and refusals with a fix that works."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ratchet import settings
from ratchet.combinations import objective_faults, sampling_fault
from ratchet.errors import TrainingError
from ratchet.problems import Labels, NextToken, Numbers
from ratchet.settings.model import Params
from ratchet.training import resolve_auto
from ratchet.training.augment import epoch_order, epoch_rows
from tasks.training_job import deciding
from tests.training.conftest import TARGET, make_plan

BALANCED = make_plan(sampling="balanced")
LABELS = np.array([0] * 90 + [1] * 8 + [2] * 3 + [-100] * 6)


def test_classes_come_equally_often_and_rows_too() -> None:
    """Of 107 rows each class gets 35 or 36; no row of a class comes twice more than another of it."""
    for epoch in range(5):
        rows = epoch_rows(BALANCED, len(LABELS), LABELS, epoch=epoch)
        assert rows.dtype == np.int64
        assert sorted(np.bincount(LABELS[rows])) == [35, 36, 36]
        for label in range(3):
            counts = np.bincount(rows, minlength=len(LABELS))[label == LABELS]
            assert counts.max() - counts.min() <= 1
        mixed = LABELS[rows][:50]
        assert set(mixed) == {0, 1, 2}


def test_rows_follow_from_seed_and_epoch() -> None:
    first = epoch_rows(BALANCED, len(LABELS), LABELS, epoch=3)
    assert np.array_equal(first, epoch_rows(BALANCED, len(LABELS), LABELS, epoch=3))
    for other in (
        epoch_rows(BALANCED, len(LABELS), LABELS, epoch=4),
        epoch_rows(replace(BALANCED, seed=1), len(LABELS), LABELS, epoch=3),
    ):
        assert not np.array_equal(first, other)
        assert set(first[LABELS[first] == 0]) != set(other[LABELS[other] == 0]), "other rows of the large class"


@pytest.mark.parametrize("labels", [np.zeros(7, np.int64), np.array([4, 4, 1]), np.array([2])])
def test_one_class_and_missing_classes_are_sampled(labels: np.ndarray) -> None:
    rows = epoch_rows(BALANCED, len(labels), labels, epoch=0)
    assert len(rows) == len(labels)
    counts = np.bincount(labels[rows])
    assert counts[counts > 0].max() - counts[counts > 0].min() <= 1
    assert set(labels[rows]) == set(labels)


def test_samples_as_they_are_keep_their_order() -> None:
    """And the key of the training."""
    assert np.array_equal(
        epoch_rows(make_plan(seed=3), len(LABELS), LABELS, epoch=2), epoch_order(107, seed=3, epoch=2)
    )
    assert "sampling" not in deciding(make_plan())
    assert deciding(BALANCED)["sampling"] == "balanced"


def test_pieces_and_a_resume_have_equal_bits(lab) -> None:
    """Micro-batches of a balanced order: a resume in the middle of an epoch draws the same rows."""
    plan = lab.plan(sampling="balanced", pieces=2)
    expected = lab.run(plan, name="whole")
    for step in (2, 5):
        lab.stop_at(step, plan, name=f"stopped at {step}")
        lab.assert_same(lab.run(plan, name=f"stopped at {step}").weights, expected.weights)
    plain = lab.run(lab.plan(pieces=2), name="plain").weights
    assert any(not plain[name].equal(tensor) for name, tensor in expected.weights.items())


@pytest.mark.parametrize("target", [Labels(("a", "b")), Numbers(("x",), (0.0,), (1.0,)), NextToken(9)])
def test_other_problems_are_refused(target) -> None:
    plan = replace(BALANCED, loss="auto", best="auto")
    with pytest.raises(TrainingError, match=rf"training.sampling: found balanced.*{target.problem}.*sampling=as-is"):
        resolve_auto(plan, target)
    assert not list(objective_faults(replace(plan, sampling="as-is"), target))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"class_weights": "balanced"}, "training.class_weights: found balanced, and training.sampling is balanced"),
        ({"augment": ({"flip": 0.5}, {"mixup": 0.2})}, "training.augment: has mixup, which mixes"),
    ],
)
def test_settings_that_undo_it_are_refused(change: dict, message: str, tmp_path: Path) -> None:
    """Each fix of the message is tried."""
    plan = replace(BALANCED, loss="auto", best="auto", **change)
    with pytest.raises(TrainingError, match=message) as caught:
        resolve_auto(plan, TARGET)
    fixes = [part.split("`")[0] for part in str(caught.value).split("`ratchet set ")[1:]]
    assert len(fixes) == 2
    for fix in fixes:
        path = tmp_path / "params.yaml"
        path.write_text(settings.template(), encoding="utf-8")
        values = {f"training.{name}": list(value) if name == "augment" else value for name, value in change.items()}
        flat = {"training.crop_padding": 1, "training.sampling": "balanced", **values}
        changes = settings.parse_assignments([fix.strip("'")])
        params = settings.override(path, {**flat, **changes})
        assert isinstance(params, Params)
        assert sampling_fault(params.training) == ""
