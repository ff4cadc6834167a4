"""A training that was cut off ends as one that never was: the truth is the undisturbed run beside it, bit for bit."""

import json
import random
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from ratchet.errors import CheckpointError
from ratchet.kinds import ModelSpec
from ratchet.problems import Classes
from ratchet.tokens.tokenizers import encode, fit_tokenizer
from ratchet.training import Checkpointed, Epoch, Finished, Notice, Points, Started, Trouble
from ratchet.training.texts import TextSplit

PLANS = {
    "adamw": {},
    "sgd": {"optimizer": "sgd", "learning_rate": 0.05},
    "accumulation": {"accumulation": 3},
    "bf16": {"precision": "bf16"},
    "contiguous sgd bf16": {"channels_last": False, "optimizer": "sgd", "precision": "bf16", "accumulation": 2},
    "cut short": {"max_steps": 7},
    "average bf16 accumulation": {"ema_decay": 0.9, "precision": "bf16", "accumulation": 2},
    "muon": {"optimizer": "muon", "decay_all": False},
    "one-cycle": {"schedule": "one-cycle", "optimizer": "adam", "betas": (0.8, 0.9)},
    "plateau": {"schedule": "plateau", "plateau_patience": 0, "learning_rate": 0.1, "rate_factor": 0.5},
    "early stopping": {"epochs": 6, "patience": 1, "min_delta": 0.2},
    "thawing": {"frozen_epochs": 1, "unfreeze_epochs": 1, "layer_decay": 0.5},
    "gradient checkpointing": {"gradient_checkpointing": True},
    "weights and cutout": {"class_weights": "balanced", "cutout": 3, "flip": "alternating", "crop_fill": "reflect"},
    "list of augmentations": {
        "flip": "none",
        "augment": ({"random-resized-crop": [0.5, 1]}, {"rotate": 20}, {"color-jitter": 0.3}, {"erase": 0.5}),
        "accumulation": 2,
    },
    "mixed samples": {
        "flip": "none",
        "augment": ({"rand-augment": 9}, {"mixup": 0.5}, {"cutmix": 1.0}),
        "pieces": 2,
        "mixed_classes": 3,
    },
}


@pytest.mark.parametrize("changes", PLANS.values(), ids=PLANS.keys())
def test_a_run_resumed_at_any_step_equals_the_undisturbed_run(lab, changes) -> None:
    """The plan without changes is stopped at every step, the others at the ends and inside of epochs."""
    plan = lab.plan(**changes)
    undisturbed = list(lab.events(plan, name="undisturbed"))
    _, end = lab.store(plan, "undisturbed").newest()
    finished = undisturbed[-1]
    end_step = finished.step
    for step in sorted({1, end_step // 2, end_step - 1}) if changes else range(end_step):
        name = f"stopped at {step}"
        reported = lab.stop_at(step, plan, name=name)
        after = list(lab.events(plan, name=name))
        assert after[-1].history == finished.history
        assert (after[-1].best_epoch, after[-1].best_value) == (finished.best_epoch, finished.best_value)
        lab.assert_same(after[-1].weights, finished.weights)
        _, resumed_end = lab.store(plan, name).newest()
        lab.assert_same(resumed_end.tensors, end.tensors)  # model, optimizer, best, sums
        assert resumed_end.state == end.state
        points = [(point.step, point.values) for point in lab.every(reported + after, Points)]
        assert points == [(point.step, point.values) for point in lab.every(undisturbed, Points)]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_reference_net_resumes_exactly(lab, precision: str) -> None:
    """It is resumed inside an epoch."""
    lab.spec = lab.make_spec("convnet")
    plan = lab.plan(epochs=2, precision=precision)
    finished = lab.run(plan, name="undisturbed")
    _, end = lab.store(plan, "undisturbed").newest()
    lab.stop_at(5, plan)
    resumed = lab.run(plan)
    assert resumed.history == finished.history
    lab.assert_same(resumed.weights, finished.weights)
    lab.assert_same(lab.store(plan).newest()[1].tensors, end.tensors)


def test_points_after_the_checkpoint_repeat_their_values(lab) -> None:
    plan = lab.plan(checkpoint_steps=3)
    undisturbed = {point.step: point.values for point in lab.every(lab.events(plan, name="undisturbed"), Points)}
    cut_off = lab.events(plan)
    reported = {}
    for event in cut_off:  # a kill loses what no checkpoint has: leave the generator in the middle
        if isinstance(event, Points):
            reported[event.step] = event.values
        if len(reported) == 8:
            break
    cut_off.close()
    again = list(lab.events(plan))
    repeated = {point.step: point.values for point in lab.every(again, Points)}
    assert set(reported) & set(repeated)
    assert lab.every(again, Started)[0].step < 8
    assert all(undisturbed[step] == values for step, values in [*reported.items(), *repeated.items()])
    assert set(reported) | set(repeated) == set(undisturbed)


def test_a_run_resumes_exactly_from_any_checkpoint(lab) -> None:
    """Also between an epoch's last step and its end, where a checkpoint of the step stands and none of the epoch."""
    plan = lab.plan(checkpoint_steps=1)
    finished = lab.run(plan, name="undisturbed")
    last = lab.store(plan, "undisturbed").paths()[-1].read_bytes()
    for cut_at in (1, 4, 5, 9, 10, 14):
        name = f"cut off at {cut_at}"
        cut_off = lab.events(plan, name=name)
        for _ in range(cut_at):
            next(event for event in cut_off if isinstance(event, Checkpointed))
        cut_off.close()
        resumed = lab.run(plan, name=name)
        assert json.dumps(resumed.history) == json.dumps(finished.history)  # the order of the columns too
        lab.assert_same(resumed.weights, finished.weights)
        assert lab.store(plan, name).paths()[-1].read_bytes() == last


def test_a_finished_training_is_not_trained_again(lab) -> None:
    plan = lab.plan()
    finished = lab.run(plan)
    again = list(lab.events(plan))
    assert not lab.every(again, Points)
    assert lab.every(again, Started)[0].step == 12
    assert again[-1].history == finished.history
    lab.assert_same(again[-1].weights, finished.weights)


def test_a_checkpoint_of_another_run_is_refused_by_name(lab) -> None:
    plan = lab.plan(max_steps=3)
    lab.run(plan)
    other = {"data": "other", "settings": "s", "code": "c"}
    with pytest.raises(CheckpointError, match=r"step-0+3\.safetensors is of other data, settings or code"):
        list(lab.events(plan, identity=other))
    assert lab.store(plan).newest() is not None  # and left as it was


def test_a_run_resumes_exactly_before_a_damaged_checkpoint(lab) -> None:
    """The damaged checkpoint is reported."""
    plan = lab.plan(checkpoint_steps=2)
    finished = lab.run(plan, name="undisturbed")
    lab.stop_at(7, plan)
    newest = lab.store(plan).paths()[-1]
    newest.write_bytes(newest.read_bytes()[:-1000])
    events = list(lab.events(plan))
    (notice,) = lab.every(events, Notice)
    assert str(newest) in notice.text
    assert "damaged" in notice.text
    assert lab.every(events, Started)[0].step == 6
    assert newest.with_suffix(".damaged").exists()
    lab.assert_same(events[-1].weights, finished.weights)
    assert events[-1].history == finished.history


def test_runs_with_equal_seeds_are_bit_identical(lab) -> None:
    """Another seed gives other weights."""
    each, same, other = (
        lab.run(lab.plan(seed=seed), name=name) for name, seed in (("one", 5), ("same", 5), ("other", 6))
    )
    lab.assert_same(each.weights, same.weights)
    assert each.history == same.history
    assert each.history != other.history


def test_the_largest_seed_trains_and_resumes(lab) -> None:
    plan = lab.plan(seed=2**64 - 1, cutout=3)
    finished = lab.run(plan, name="undisturbed")
    lab.stop_at(5, plan)
    lab.assert_same(lab.run(plan).weights, finished.weights)


def test_how_many_shards_hold_the_rows_changes_nothing(lab) -> None:
    each = lab.run(lab.plan(), name="one")
    lab.train = lab.split("train", 30, shards=3)
    three = lab.run(lab.plan(), name="three")
    lab.assert_same(each.weights, three.weights)


def test_every_event_of_a_step_comes_before_its_checkpoint(lab) -> None:
    plan = lab.plan(checkpoint_steps=1)
    reported: set[int] = set()
    for event in lab.events(plan):
        if isinstance(event, Points | Epoch):
            reported.add(event.step)
        if isinstance(event, Checkpointed):
            assert event.step in reported


def test_fit_restores_the_global_random_state(lab) -> None:
    """And the deterministic flag."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        random.seed(1), np.random.seed(2), torch.manual_seed(3)
        expected = [random.random(), np.random.rand(), torch.rand(()).item()]
        for plan in (lab.plan(), lab.plan(deterministic=False)):
            random.seed(1), np.random.seed(2), torch.manual_seed(3)
            lab.run(plan, name=f"deterministic {plan.deterministic}")
            assert [random.random(), np.random.rand(), torch.rand(()).item()] == expected
            assert torch.are_deterministic_algorithms_enabled()
            assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert not torch.backends.cudnn.benchmark
    finally:
        torch.use_deterministic_algorithms(False)


def test_an_abandoned_training_restores_the_random_state(lab) -> None:
    torch.manual_seed(3)
    expected = torch.get_rng_state()
    events = lab.events(lab.plan())
    next(event for event in events if isinstance(event, Points))
    events.close()
    assert torch.equal(torch.get_rng_state(), expected)
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.system
def test_a_compiled_training_resumes_exactly(lab) -> None:
    """Each batch size is compiled for itself, so that which one comes first in a process makes no difference."""
    if not any(map(shutil.which, ("g++", "clang++", "c++"))):
        pytest.skip("torch.compile needs a C++ compiler, and there is none on this machine")
    plan = lab.plan(epochs=2, compile="default", deterministic=False)
    events = list(lab.events(plan, name="undisturbed"))
    assert any("compiled by torch.compile" in notice.text for notice in lab.every(events, Notice))
    lab.stop_at(3, plan)  # the next batch is the short one
    torch.compiler.reset()
    lab.assert_same(lab.run(plan).weights, events[-1].weights)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("parts", [{"accumulation": 4}, {"pieces": 4, "reduction": "fast"}])
@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_micro_batches_of_replayed_graphs_add_up(lab, mode: str, parts: dict[str, object]) -> None:
    """CUDA graphs give each backward pass the same memory for its gradients. Eager steps learn the same.

    Compiled dropout draws other random numbers, so the net has none.
    """
    lab.spec = lab.make_spec("linear64")
    plan = lab.plan(epochs=2, deterministic=False, device="cuda", **parts)
    eager, replayed = lab.run(plan, name="eager"), lab.run(replace(plan, compile=mode), name="replayed")
    for name, weights in eager.weights.items():
        torch.testing.assert_close(replayed.weights[name], weights, rtol=1e-9, atol=1e-9)


@pytest.mark.system
def test_a_compiled_training_of_texts_resumes_exactly(lab) -> None:
    """Batches of texts have many widths. They are filled up to a few, and each of these is compiled for itself."""
    if not any(map(shutil.which, ("g++", "clang++", "c++"))):
        pytest.skip("torch.compile needs a C++ compiler, and there is none on this machine")
    texts = [" ".join("ab"[number % 3 == 0] for number in range(3 * length)) for length in range(1, 12)]
    described, target = fit_tokenizer(texts, "words"), Classes(("even", "odd"))
    labels = np.arange(len(texts)) % 2
    split = TextSplit(
        "train", (encode(texts, described),), labels, np.arange(len(texts), dtype=np.uint64),
        content=np.zeros(0, np.uint8), starts=np.zeros(1, np.int64), rows=np.arange(len(texts)),
    )  # fmt: skip
    lab = replace(lab, train=split, validation=split, spec=ModelSpec("bag", described, target))
    plan = lab.plan(
        target=target, epochs=1, batch_size=1, compile="default", flip="none", channels_last=False, checkpoint_steps=1
    )
    undisturbed = lab.run(plan, name="undisturbed")
    lab.stop_at(4, plan)
    torch.compiler.reset()
    lab.assert_same(lab.run(plan).weights, undisturbed.weights)
    widths = {split.batch(np.array([row]), torch.device("cpu"), plan=plan)[0][0].shape[1] for row in range(len(texts))}
    assert widths == {16, 32, 64}


def test_without_a_compiler_training_goes_on_and_says_so(lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _name: None)
    message = [notice.text for notice in lab.every(lab.events(lab.plan(compile="default")), Notice)]
    assert message == ["training.compile: this machine has no C++ compiler, so the model is not compiled"]


def test_a_resume_keeps_the_number_of_threads(lab) -> None:
    """Threads decide how sums are rounded. The number of this process is in force again afterwards."""
    plan, set_to, numbers = lab.plan(), torch.set_num_threads, []
    lab.stop_at(5, plan)
    text = "continues with 1 thread, as it began, where this process has 3"
    set_to(3)
    try:
        events = list(lab.events(plan, stop=lambda: bool(numbers.append(torch.get_num_threads()))))
        assert torch.get_num_threads() == 3
    finally:
        set_to(1)
    assert {*numbers} == {1}
    assert [notice.text[: len(text)] for notice in lab.every(events, Notice)] == [text]
    lab.assert_same(lab.every(events, Finished)[0].weights, lab.run(plan, name="undisturbed").weights)


def test_a_resume_on_other_instructions_is_reported(lab, monkeypatch) -> None:
    plan = lab.plan()
    lab.stop_at(5, plan)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "OTHER")
    (trouble,) = lab.every(lab.events(plan), Trouble)
    assert (trouble.step, trouble.kind) == (5, "other arithmetic")
    assert "is now OTHER: the weights will not be bit for bit those of an uninterrupted run" in trouble.text
