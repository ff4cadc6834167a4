"""One optimizer step: against torch.optim used by hand, and against the same batch in other pieces."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from ratchet.errors import TrainingError
from ratchet.training import Checkpointed, Notice, Points, Split, TrainingInputs, build, models
from ratchet.training.augment import epoch_order
from ratchet.training.loop import _Training
from ratchet.training.optim import clip_gradients
from ratchet.training.ranks import Ranks
from ratchet.training.sample_timeout import never
from ratchet.training.step import StepMetrics, micro_batches
from tests.training.conftest import Lab, Operations


def start(lab, plan, *, spec=None) -> _Training:
    """A training before its first step; the same seed gives the same weights."""
    torch.manual_seed(1)
    spec = spec or lab.spec
    inputs = TrainingInputs(lab.train, lab.validation, spec, plan)
    return _Training(inputs, lab.store(plan), None, never, None, Ranks(), never)


def take(training: _Training, rows: np.ndarray) -> StepMetrics:
    """One step on `rows`, at the rate that is due."""
    batches = training.train.feed([rows], torch.device("cpu"), plan=training.plan)
    return training.stepper.step(rows, batches, rate=training._learning_rate(training.state.step))


def weights(training: _Training) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in training.state.model.parameters()])


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("pieces", [2, 3, 8])
def test_accumulated_micro_batches_equal_the_large_batch(lab, optimizer: str, pieces: int) -> None:
    """Over two epochs, whose last batches have 6 rows of 8: groups of unequal size, and fewer rows than pieces."""
    lab.spec = lab.make_spec("linear64")
    whole, split = (
        lab.run(lab.plan(epochs=2, optimizer=optimizer, accumulation=count), name=str(count)) for count in (1, pieces)
    )
    assert any(tensor.dtype == torch.float64 for tensor in whole.weights.values())
    for name, tensor in whole.weights.items():
        torch.testing.assert_close(split.weights[name], tensor, rtol=1e-9, atol=1e-10, msg=name)
    for each, other in zip(split.history, whole.history, strict=True):
        assert each == pytest.approx(other, rel=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(
    ("changes", "make"),
    [
        (
            {"optimizer": "sgd", "nesterov": True},
            lambda own: torch.optim.SGD(own, lr=0, momentum=0.9, nesterov=True, weight_decay=0.01),
        ),
        (
            {"optimizer": "sgd", "momentum": 0.0},
            lambda own: torch.optim.SGD(own, lr=0, weight_decay=0.01),
        ),
        ({"optimizer": "adamw"}, lambda own: torch.optim.AdamW(own, lr=0, weight_decay=0.01)),
        (
            {"optimizer": "adamw", "betas": (0.8, 0.95), "epsilon": 1e-3},
            lambda own: torch.optim.AdamW(own, lr=0, weight_decay=0.01, betas=(0.8, 0.95), eps=1e-3),
        ),
        ({"optimizer": "adam"}, lambda own: torch.optim.Adam(own, lr=0, weight_decay=0.01)),
    ],
    ids=["nesterov", "plain", "adamw", "adamw other betas", "adam"],
)
def test_steps_equal_torch_optim_by_hand(lab, changes, make, smoothing: float) -> None:
    plan = lab.plan(
        **changes, weight_decay=0.01, label_smoothing=smoothing, clip_norm=0.0, crop_padding=0, flip="none",
        schedule="constant", learning_rate=0.05,
    )  # fmt: skip
    training = start(lab, plan, spec=lab.make_spec("linear64"))
    by_hand = copy.deepcopy(training.state.model).train()
    optimizer = make(by_hand.parameters())
    training.state.model.train()
    for first in range(0, 24, 8):
        rows = np.arange(first, first + 8)
        take(training, rows)
        optimizer.param_groups[0]["lr"] = 0.05
        optimizer.zero_grad()
        (images,), labels = lab.train.batch(rows, torch.device("cpu"))
        cross_entropy(by_hand(images), labels, label_smoothing=smoothing).backward()
        optimizer.step()
    expected = torch.cat([parameter.detach().flatten() for parameter in by_hand.parameters()])
    torch.testing.assert_close(weights(training), expected, rtol=1e-7, atol=1e-9)


def test_every_parameter_is_trained(lab) -> None:
    lab.spec = lab.make_spec("convnet")
    training = start(lab, lab.plan())
    held = sum(len(group["params"]) for group in training.state.optimizer.param_groups)
    assert held == len(list(training.state.model.parameters()))


def gradients(values: list[list[float]]) -> torch.nn.Module:
    model = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(len(some))) for some in values)
    for parameter, some in zip(model, values, strict=True):
        parameter.grad = torch.tensor(some)
    return model


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"clip_norm": 2.6}, [[0.6, 0.8], [2.4]]),  # half: the norm is that of all gradients together
        ({"clip_norm": 20.0}, [[3.0, 4.0], [12.0]]),
        ({"clip_norm": 0.0, "clip_value": 3.5}, [[3.0, 3.5], [3.5]]),
        ({"clip_norm": 0.0}, [[3.0, 4.0], [12.0]]),
    ],
)
def test_gradients_are_clipped_after_their_norm_is_measured(lab, changes, expected) -> None:
    scale = 5.2 / 13.0 if changes["clip_norm"] == 2.6 else 1.0
    given = [[3.0 * scale, 4.0 * scale], [12.0 * scale]]
    model = gradients(given)
    norm = clip_gradients(dict(model.named_parameters()), lab.plan(**changes))
    assert norm.item() == pytest.approx(13.0 * scale)
    for parameter, values in zip(model, expected, strict=True):
        assert parameter.grad.tolist() == pytest.approx(values, rel=1e-5)


def test_reported_norms_are_those_of_the_gradients(lab) -> None:
    plan = lab.plan(clip_norm=0.01, crop_padding=0, flip="none", label_smoothing=0.0)
    lab.spec = lab.make_spec("linear64")
    reported = lab.every(lab.events(plan), Points)[0].values
    torch.manual_seed(plan.seed)  # as fit does before it builds the model
    model = build(lab.spec).train()
    order = epoch_order(len(lab.train), seed=plan.seed, epoch=0)
    (images,), labels = lab.train.batch(order[:8], torch.device("cpu"))
    loss = cross_entropy(model(images).float(), labels)
    loss.backward()
    norm = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).norm()
    assert reported["step/loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert reported["step/gradient_norm"] == pytest.approx(norm.item(), rel=1e-5)


def test_metrics_of_an_epoch_are_means_over_its_samples(lab) -> None:
    """With a rate too small to move a weight, an epoch's loss is the loss of the weights it began with."""
    unmoved = {"learning_rate": 1e-30, "optimizer": "sgd", "label_smoothing": 0.0}
    plan = lab.plan(epochs=1, crop_padding=0, flip="none", **unmoved)
    lab.spec = lab.make_spec("linear64")
    (history,) = lab.run(plan).history
    torch.manual_seed(plan.seed)
    model = build(lab.spec).eval()

    def measured(split: Split) -> tuple[float, float]:
        (images,), labels = split.batch(np.arange(len(split)), torch.device("cpu"))
        logits = model(images).float()
        return cross_entropy(logits, labels).item(), (logits.argmax(1) == labels).float().mean().item()

    for name, split in (("train", lab.train), ("validation", lab.validation)):
        loss, accuracy = measured(split)
        assert history[f"{name}/loss"] == pytest.approx(loss, rel=1e-5)
        assert history[f"{name}/accuracy"] == pytest.approx(accuracy)


@pytest.mark.parametrize(("clip_norm", "clip_value"), [(1.0, 0.5), (3.0, 3.5), (100.0, 3.5), (0.2, 0.001)])
def test_the_norm_is_clipped_after_the_elements(lab, clip_norm: float, clip_value: float) -> None:
    """Against both by hand: the norm that is left is the one that was asked for, unless the elements have less."""
    given = [[3.0, -4.0], [12.0]]
    model = gradients(given)
    norm = clip_gradients(dict(model.named_parameters()), lab.plan(clip_norm=clip_norm, clip_value=clip_value))
    assert norm.item() == pytest.approx(13.0)
    cut = np.clip(np.concatenate(given), -clip_value, clip_value)
    left = np.linalg.norm(cut)
    result = torch.cat([parameter.grad for parameter in model]).numpy()
    np.testing.assert_allclose(result, cut * min(1.0, clip_norm / left), rtol=1e-4)
    assert np.linalg.norm(result) == pytest.approx(min(clip_norm, left), rel=1e-4)


@pytest.mark.parametrize("count", range(1, 12))
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("smallest", [1, 2])
def test_micro_batches_have_the_smallest_allowed_size(rows: int, count: int, smallest: int) -> None:
    parts = micro_batches(np.arange(rows), count, smallest=smallest)
    sizes = [len(part) for part in parts]
    assert np.concatenate(parts).tolist() == list(range(rows))
    assert min(sizes) >= min(smallest, rows)
    assert max(sizes) - min(sizes) <= 1
    assert len(parts) <= count
    assert len(parts) == count or len(parts) == max(1, rows // smallest)


class Normed(nn.Module):
    """Ends in a batch norm of one value for each channel and sample."""

    def __init__(self, *, classes: int, channels: int, height: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 4, 3), nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(4), nn.Flatten(), nn.BatchNorm1d(4),
            nn.Linear(4, classes),
        )  # fmt: skip

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images)


@pytest.fixture
def normed(lab, monkeypatch: pytest.MonkeyPatch):
    """The lab with a net whose batch norms cannot learn from one sample."""
    monkeypatch.setitem(models._networks("image"), "normed", Normed)
    lab.spec = lab.make_spec("normed")
    return lab


@pytest.mark.parametrize("accumulation", [1, 3])
def test_a_step_adds_no_operations_for_its_sums(lab, accumulation: int) -> None:
    """Nothing is filled with zeros, and which labels are ignored is not looked up."""
    training = start(lab, lab.plan(accumulation=accumulation), spec=lab.make_spec("linear64"))
    rows = np.arange(9)
    feed = training.train.feed(np.array_split(rows, accumulation) * 2, torch.device("cpu"))
    training.stepper.step(rows, feed, rate=0.1)
    with Operations() as operations:
        training.stepper.step(rows, feed, rate=0.1)
    assert operations.count("argmax") == accumulation
    assert operations.count("zeros", "ne", "bitwise_and") == 0


@pytest.mark.parametrize("pieces", [1, 2])
def test_metrics_of_a_step_keep_no_larger_tensor(lab, pieces: int) -> None:
    """They stay on the device until they are fetched: as views they would keep a vector of all gradients."""
    training = start(lab, lab.plan(pieces=pieces))
    feed = training.train.feed(np.array_split(np.arange(8), pieces), torch.device("cpu"))
    metrics = training.stepper.step(np.arange(8), feed, rate=0.1)
    for each in (metrics.loss, metrics.correct, metrics.norm):
        assert each.untyped_storage().nbytes() == each.element_size()


class PartlyUsed(nn.Module):
    """Has a layer that no sample uses."""

    def __init__(self, *, classes: int, channels: int, height: int, width: int) -> None:
        super().__init__()
        self.used = nn.Linear(channels * height * width, classes)
        self.unused = nn.Linear(3, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.used(images.flatten(1))


def test_pieces_of_one_process_do_not_wait_for_a_gpu(lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers are neither read from the device nor copied to it from pageable memory; unused weights do not decay."""
    monkeypatch.setitem(models._networks("image"), "partly used", PartlyUsed)
    training = start(lab, lab.plan(pieces=2, weight_decay=0.5), spec=lab.make_spec("partly used"))
    network, rows, waits = training.state.model.train().network, np.arange(8), []
    before = copy.deepcopy(network.state_dict())
    feed = training.train.feed([rows[:4], rows[4:]], torch.device("cpu"))
    read, create = torch.Tensor.tolist, torch.tensor
    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "tolist", lambda self: waits.append("tolist") or read(self))
        patched.setattr(torch, "tensor", lambda *args, **more: waits.append("tensor") or create(*args, **more))
        training.stepper.step(rows, feed, rate=0.1)
    assert waits == []
    assert torch.equal(network.unused.weight, before["unused.weight"])
    assert not torch.equal(network.used.weight, before["used.weight"])


@pytest.mark.parametrize("ignored", [-100, 1])
def test_ignored_labels_are_never_right(lab, ignored: int) -> None:
    labels = torch.tensor([0, 1, 2, 1, -100])
    logits = torch.nn.functional.one_hot(labels.clamp(min=0), 3).float()
    assert lab.spec.target.num_correct(logits, labels, ignored).item() == (4 if ignored < 0 else 2)


def test_buffers_are_copied_by_type_and_restored(normed) -> None:
    """A GPU copies tensors of several types one by one."""
    training = start(normed, normed.plan(batch_size=8))
    network = training.state.model.train().network
    take(training, np.arange(8))
    before = {name: buffer.clone() for name, buffer in network.named_buffers()}
    with Operations() as operations:
        training.stepper._keep_buffers()
    assert sorted(operations.types_copied(), key=str) == [{torch.float32}, {torch.int64}]
    assert len(operations.calls) == 2
    network(torch.rand(8, 1, 8, 8))
    assert not torch.equal(network.get_buffer("layers.2.running_mean"), before["layers.2.running_mean"])
    training.stepper.undo()
    Lab.assert_same(dict(network.named_buffers()), before)


def test_no_micro_batch_has_one_sample_for_batch_norm(normed) -> None:
    """Steps of 8 and 6 rows: eight pieces of one become four pairs, as if four had been asked for; said once."""
    events = list(normed.events(normed.plan(accumulation=8)))
    (notice,) = [each.text for each in normed.every(events, Notice) if "batch norm" in each.text]
    assert notice == "a batch norm of the model cannot learn from only one sample: micro-batches have two or more"
    requested = normed.run(
        normed.plan(accumulation=4), name="four"
    )  # of the last six rows it makes 2, 2, 1 and 1: pairs
    normed.assert_same(events[-1].weights, requested.weights)


@pytest.mark.parametrize("accumulation", [3, 5])
def test_a_run_with_pairs_resumed_anywhere_equals_the_undisturbed_one(normed, accumulation: int) -> None:
    plan = normed.plan(batch_size=5, accumulation=accumulation, checkpoint_steps=1)
    expected = normed.run(plan, name="undisturbed")
    for cut in range(1, expected.step, 3):
        before = normed.events(plan, name=f"cut after {cut}")
        for _ in range(cut):
            next(event for event in before if isinstance(event, Checkpointed))
        before.close()
        normed.assert_same(normed.run(plan, name=f"cut after {cut}").weights, expected.weights)


def test_memory_for_one_sample_is_too_small_for_batch_norm(normed, monkeypatch) -> None:
    """Halved as far as pairs, and then no further: it ends."""
    forward = Normed.forward

    def scarce(self, images: torch.Tensor) -> torch.Tensor:
        if self.training and len(images) > 1:
            raise torch.OutOfMemoryError("no memory")
        return forward(self, images)

    monkeypatch.setattr(Normed, "forward", scarce)
    with pytest.raises(TrainingError, match="not enough memory for two samples, the fewest that its batch norm"):
        normed.run(normed.plan())


def test_a_batch_of_one_sample_is_refused_for_batch_norm(normed) -> None:
    with pytest.raises(TrainingError, match=r"cannot learn from one sample .*: set training.batch_size to 2 or more"):
        normed.run(normed.plan(batch_size=1))


@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_split_of_ignored_labels_is_refused(lab, split: str) -> None:
    getattr(lab, split).targets[:] = 1
    events = []
    with pytest.raises(
        TrainingError, match=rf"all \d+ samples of split {split} have label 1, which training.ignore_index"
    ):
        events.extend(lab.events(lab.plan(ignore_index=1)))
    assert events == []
