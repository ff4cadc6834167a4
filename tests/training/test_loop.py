"""Whole trainings: when they stop, what they keep and report. Metrics come from real runs or are set by the test."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ratchet.errors import NotFinite, TrainingError
from ratchet.training import Checkpointed, Epoch, Finished, Notice, Points, Started
from ratchet.training.loop import _Training
from ratchet.training.validation import overfitting_notice


@pytest.fixture
def scripted(lab, monkeypatch: pytest.MonkeyPatch):
    """Trainings whose validation says given metrics, (accuracy, loss) per epoch; all the rest is real."""

    def run(metrics: list[tuple[float, float]], **changes):
        answers = iter(metrics)

        def validate(_self: _Training) -> dict[str, float]:
            accuracy, loss = next(answers)
            names = ("accuracy", "balanced_accuracy", "f1")
            return {"validation/loss": loss, **{f"validation/{name}": accuracy for name in names}}

        monkeypatch.setattr(_Training, "_validate", validate)
        plan = lab.plan(epochs=len(metrics), **changes)
        return list(lab.events(plan))

    return run


def test_a_separable_set_is_learnt(lab) -> None:
    finished = lab.run(lab.plan(epochs=30, learning_rate=0.02, crop_padding=0))
    assert finished.history[-1]["validation/loss"] < 0.5 * finished.history[0]["validation/loss"]
    assert finished.best_value >= 0.9


def test_events_report_the_whole_training_in_order(lab) -> None:
    events = list(lab.events(lab.plan(checkpoint_steps=3)))
    started, finished = events[0], events[-1]
    assert isinstance(started, Started)
    assert (started.step, started.total_steps, started.steps_per_epoch, started.resumed_from) == (0, 12, 4, None)
    assert started.device == "cpu"
    assert "CPU" in started.device_name
    assert [point.step for point in lab.every(events, Points)] == list(range(1, 13))
    assert [(epoch.epoch, epoch.step) for epoch in lab.every(events, Epoch)] == [(1, 4), (2, 8), (3, 12)]
    assert [event.step for event in lab.every(events, Checkpointed)] == [3, 4, 6, 8, 9, 12, 12]
    assert isinstance(finished, Finished)
    assert [row["epoch"] for row in finished.history] == [1, 2, 3]
    assert all(point.rates["step/samples_per_second"] > 0 for point in lab.every(events, Points))


def test_points_are_reported_every_log_every_steps(lab) -> None:
    assert [point.step for point in lab.every(lab.events(lab.plan(log_every=5)), Points)] == [5, 10]


@pytest.mark.parametrize(("steps", "epochs"), [(1, 1), (4, 1), (6, 2), (11, 3), (50, 3)])
def test_max_steps_ends_the_run_there_with_a_last_validation(lab, steps: int, epochs: int) -> None:
    finished = lab.run(lab.plan(max_steps=steps))
    assert finished.step == min(steps, 12)
    assert len(finished.history) == epochs


def test_a_rate_far_too_high_is_an_error(lab) -> None:
    """The message has the step and the rate."""
    plan = lab.plan(optimizer="sgd", learning_rate=1e30, clip_norm=0.0, schedule="constant", max_rollbacks=0)
    with pytest.raises(TrainingError, match=r"is (nan|inf) at step \d+ \(epoch 1, learning rate 1e\+30\)"):
        list(lab.events(plan))


def test_validation_that_is_not_finite_is_refused(scripted) -> None:
    with pytest.raises(NotFinite, match=r"validation/loss is inf at step 8 \(epoch 2"):
        scripted([(0.5, 1.0), (0.5, float("inf"))], max_rollbacks=0)


@pytest.mark.parametrize(
    ("metrics", "best", "expected"),
    [
        ([(0.5, 1.0), (0.7, 2.0), (0.6, 0.5)], "validation/accuracy", 2),
        ([(0.5, 1.0), (0.7, 2.0), (0.6, 0.5)], "validation/loss", 3),
        ([(0.5, 1.0), (0.5, 0.9), (0.5, 0.95)], "validation/accuracy", 2),  # a tie: the lower loss
        ([(0.5, 1.0), (0.5, 1.0), (0.4, 0.1)], "validation/accuracy", 1),  # a tie all through: the earlier
        ([(0.5, 1.0), (0.9, 1.0), (0.9, 1.0)], "validation/loss", 1),
    ],
)
def test_the_best_epoch_is_kept(lab, scripted, metrics, best, expected) -> None:
    """Its weights and its checkpoint are kept."""
    events = scripted(metrics, best=best, keep_last=1, keep_best=1, checkpoint_steps=0)
    finished = events[-1]
    assert finished.best_epoch == expected
    assert finished.best_value == metrics[expected - 1][0 if best.endswith("accuracy") else 1]
    assert [epoch.epoch for epoch in lab.every(events, Epoch) if epoch.best][-1] == expected
    paths = lab.store(lab.plan()).paths()
    assert [int(path.stem.removeprefix("step-")) // 4 for path in paths] == sorted({expected, 3})
    kept = lab.store(lab.plan()).folder / f"step-{4 * expected:012d}.safetensors"
    from ratchet.training.checkpoint import read_checkpoint

    tensors = read_checkpoint(kept).tensors
    lab.assert_same(
        finished.weights, {name.removeprefix("model/"): t for name, t in tensors.items() if name.startswith("model/")}
    )


@pytest.mark.parametrize(
    ("accuracies", "min_delta", "epochs"),
    [
        ([0.5, 0.6, 0.6, 0.6, 0.6], 0.0, 4),
        ([0.5, 0.51, 0.52, 0.9, 0.9], 0.05, 3),
        ([0.5, 0.53, 0.56, 0.59, 0.62], 0.05, 5),  # small gains that add up count
        ([0.5, 0.4, 0.6, 0.5, 0.7], 0.0, 5),  # patience starts again
    ],
)
def test_patience_of_two_stops_after_two_stale_epochs(lab, scripted, accuracies, min_delta, epochs) -> None:
    events = scripted([(accuracy, 1.0) for accuracy in accuracies], patience=2, min_delta=min_delta)
    assert len(events[-1].history) == epochs
    assert events[-1].best_value == max(accuracies[:epochs])
    notices = [notice.text for notice in lab.every(events, Notice)]
    stopped = [f"stopped after epoch {epochs}: no better validation/accuracy for 2 epochs"]
    assert notices == (stopped if events[-1].history[-1]["epoch"] < len(accuracies) or epochs == 4 else [])


def test_patience_survives_a_resume(lab, scripted) -> None:
    plan = lab.plan(epochs=5, patience=2)
    events = scripted([(0.5, 1.0), (0.9, 1.0), (0.5, 1.0), (0.5, 1.0), (0.5, 1.0)], patience=2)
    assert len(events[-1].history) == 4
    for path in lab.store(plan).paths()[-1:]:
        path.unlink()
    again = list(lab.events(plan))  # the metrics go on where they stood: one more epoch of .5
    assert len(again[-1].history) == 4


def test_over_fitting_is_reported_once(lab, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = lab.plan(overfit_gap=-1.0)  # any gap is above it
    notices = lab.every(lab.events(plan), Notice)
    assert len(notices) == 1
    assert "over-fitting at epoch 1" in notices[0].text
    lab.stop_at(6, plan, name="resumed")  # and not again by the one who continues
    assert not lab.every(lab.events(plan, name="resumed"), Notice)


def test_over_fitting_of_balanced_samples_is_seen_in_balanced_accuracy(lab) -> None:
    """A rare class that is known by heart hardly changes the accuracy."""
    measured = {"train/accuracy": 0.99, "validation/accuracy": 0.97, "validation/balanced_accuracy": 0.6}
    expected = "training accuracy 0.990, validation balanced accuracy 0.600"
    for sampling, is_seen in (("balanced", True), ("as-is", False)):
        state, plan = SimpleNamespace(overfit_noticed=False, epoch=0), lab.plan(sampling=sampling, overfit_gap=0.1)
        assert (expected in (overfitting_notice(state, plan, measured) or "")) == is_seen


def test_a_small_gap_is_not_called_over_fitting(lab) -> None:
    assert not lab.every(lab.events(lab.plan(overfit_gap=1.0)), Notice)


@pytest.mark.parametrize("native", [True, False])
def test_bf16_is_used_where_the_device_has_it(lab, monkeypatch: pytest.MonkeyPatch, native: bool) -> None:
    """Otherwise a message reports it."""
    monkeypatch.setattr("ratchet.training.precision._has", lambda name, _device: native or name == "fp32")
    events = list(lab.events(lab.plan(precision="bf16")))
    assert lab.every(events, Started)[0].precision == ("bf16" if native else "fp32")
    message = [notice.text for notice in lab.every(events, Notice)]
    assert ["no bf16 arithmetic: training in fp32 instead" in text for text in message] == [True] * (not native)
    assert {tensor.dtype for tensor in events[-1].weights.values()} <= {torch.float32, torch.int64}


def test_an_absent_device_is_refused(lab) -> None:
    """The message lists the devices of this machine."""
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(TrainingError, match=r"cuda:1 is not on this machine, which has .*cpu"):
        list(lab.events(lab.plan(device="cuda:1")))


def test_an_empty_split_is_refused_by_name(lab) -> None:
    lab.validation = lab.split("validation", 0)
    with pytest.raises(TrainingError, match=r"split validation has no samples.*data\.validation_fraction"):
        list(lab.events(lab.plan()))


def test_training_changes_neither_labels_nor_images(lab) -> None:
    before = [array.copy() for array in (*lab.train.arrays[0].shards, lab.train.targets, lab.train.keys)]
    lab.run(lab.plan())
    for array, copy in zip((*lab.train.arrays[0].shards, lab.train.targets, lab.train.keys), before, strict=True):
        assert np.array_equal(array, copy)
