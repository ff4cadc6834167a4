"""Mixed samples: by hand from the two images and targets, and the loss as the mean of two losses."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import beta, kstest
from torch.nn import functional

from ratchet.augmentations import class_faults
from ratchet.errors import TrainingError
from ratchet.problems import Labels, Numbers
from ratchet.settings.model import TrainingSettings
from ratchet.training import ImageSplit, Plan
from ratchet.training.augment import Randomness
from ratchet.training.losses import Objective
from ratchet.training.mixing import Mixing
from tasks import training_job
from tests.training.conftest import TARGET

CPU = torch.device("cpu")
BOTH = {"mixup": 0.4, "cutmix": 1.0}


def plan(*, target: Any = TARGET, seed: int = 3, **entries: float) -> Plan:
    listed = [{name: value} for name, value in entries.items()]
    settings = TrainingSettings(augment=listed, label_smoothing=0.0)
    return training_job.make_plan(settings, target, seed=seed)


def split(labels: np.ndarray | None = None) -> ImageSplit:
    """Return 40 images, each of one value."""
    labels = np.arange(40) % 3 if labels is None else labels
    images = np.broadcast_to(np.arange(40, dtype=np.uint8)[:, None, None, None] * 6, (40, 8, 8, 1)).copy()
    return ImageSplit.of("train", [images], labels, np.arange(40, dtype=np.uint64) * np.uint64(7919))


def partners(rows: np.ndarray, mixing_plan: Plan, *, epoch: int) -> np.ndarray:
    keys = np.asarray(split().keys)[rows]
    return Mixing({}, mixing_plan).partners(Randomness(keys, mixing_plan.seed, epoch), 40)


class ReadKeys(np.ndarray):
    """Keys that count how often rows of them are read."""

    reads = 0

    def __getitem__(self, rows: Any) -> Any:
        ReadKeys.reads += 1
        return super().__getitem__(rows)


def test_keys_are_read_once_for_a_batch_without_mixing() -> None:
    counting = replace(split(), keys=np.asarray(split().keys).view(ReadKeys))
    counting.batch(np.arange(8), CPU, plan=plan(), epoch=0)
    assert ReadKeys.reads == 1


@pytest.mark.parametrize("entries", [{"mixup": 0.4}, {"cutmix": 1.0}, BOTH])
def test_a_sample_and_its_target_have_equal_shares(entries: dict[str, float]) -> None:
    """Each image has one value, so its mean says how much of the partner is in it."""
    mixing_plan, rows = plan(**entries), np.arange(40)
    (images,), targets = split().batch(rows, CPU, plan=mixing_plan, epoch=2)
    others = partners(rows, mixing_plan, epoch=2)
    assert targets.shape == (40, 3)
    torch.testing.assert_close(targets.sum(1), torch.ones(40))
    mixed = 0
    for row, image, target in zip(rows, images, targets, strict=True):
        own, other = 6.0 * row, 6.0 * others[row]
        if own == other:
            continue
        share = (image.float().mean().item() - other) / (own - other)
        expected = torch.zeros(3)
        expected[row % 3] += share
        expected[others[row] % 3] += 1 - share
        torch.testing.assert_close(target, expected, atol=1e-4, rtol=0)
        mixed += 0.01 < share < 0.99
    assert mixed > 20


def test_mixed_samples_do_not_depend_on_their_batch() -> None:
    mixing_plan, rows, data = plan(rotate=20, **BOTH), np.random.default_rng(0).permutation(40), split()
    (whole,), targets = data.batch(rows, CPU, plan=mixing_plan, epoch=1)
    for size in (1, 7):
        batches = list(data.feed(np.split(rows, range(size, 40, size)), CPU, plan=mixing_plan, epoch=1))
        assert torch.equal(torch.cat([inputs[0] for inputs, _ in batches]), whole)
        assert torch.equal(torch.cat([target for _, target in batches]), targets)
    (later,), _ = data.batch(rows, CPU, plan=mixing_plan, epoch=2)
    assert not torch.equal(later, whole)


def test_batches_of_a_resident_split_are_mixed_alike() -> None:
    mixing_plan, data = plan(**BOTH), split()
    pieces = [np.array([number % 40, 3]) for number in range(70)]
    resident = data._resident_batches(data._whole(CPU), pieces, CPU, mixing_plan, 1)
    for rows, ((images,), targets) in zip(pieces, resident, strict=True):
        (expected,), expected_targets = data.batch(rows, CPU, plan=mixing_plan, epoch=1)
        assert torch.equal(images, expected)
        assert torch.equal(targets, expected_targets)


def test_samples_without_a_label_are_not_mixed() -> None:
    labels = np.where(np.arange(40) < 20, -100, np.arange(40) % 3)
    mixing_plan, rows = plan(mixup=1.0), np.arange(40)
    (images,), targets = split(labels).batch(rows, CPU, plan=mixing_plan, epoch=0)
    others = partners(rows, mixing_plan, epoch=0)
    is_whole = (labels == -100) | (labels[others] == -100)
    assert (images[is_whole].float().mean((1, 2, 3)) == torch.from_numpy(6.0 * rows[is_whole])).all()
    assert targets.sum(1).round().tolist() == (labels != -100).tolist()


@pytest.mark.parametrize("loss", ["cross-entropy", "binary-cross-entropy", "mse"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_of_mixed_samples_has_both_targets(loss: str, smoothing: float) -> None:
    settings = TrainingSettings(loss=loss, label_smoothing=smoothing)
    objective = Objective(training_job.make_plan(settings, TARGET, seed=0), TARGET, CPU)
    outputs, own, other = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2]), torch.tensor([1, 1, 0, 2, 0, 1])
    share = torch.tensor([1.0, 0.3, 0.0, 0.5, 0.9, 0.2])
    soft = share[:, None] * functional.one_hot(own, 3) + (1 - share[:, None]) * functional.one_hot(other, 3)
    each = [[objective(outputs[row : row + 1], labels[row : row + 1]) for row in range(6)] for labels in (own, other)]
    if loss == "mse":  # not linear in the target: only pure samples are equal
        share, soft, outputs = share[[0, 2]], soft[[0, 2]], outputs[[0, 2]]
        each = [[row[0], row[2]] for row in each]
    expected = (share * torch.stack(each[0]) + (1 - share) * torch.stack(each[1])).sum()
    torch.testing.assert_close(objective(outputs, soft), expected)


def test_accuracy_counts_the_class_with_the_largest_share() -> None:
    objective = Objective(plan(), TARGET, CPU)
    outputs = torch.tensor([[3.0, 0, 0], [0, 3.0, 0], [0, 3.0, 0]])
    soft = torch.tensor([[0.7, 0.3, 0], [0.7, 0.3, 0], [0.0, 0, 0]])  # the last does not count
    assert objective.num_correct(outputs, soft).item() == 1
    assert objective.sample_weights(soft).tolist() == [1, 1, 0]


@pytest.mark.parametrize("alpha", [0.2, 0.5, 1.0])
def test_shares_have_the_beta_distribution(alpha: float) -> None:
    drawn = Randomness(np.arange(5000, dtype=np.uint64), 0, 0, "mixing").beta(2, alpha)
    assert kstest(drawn, beta(alpha, alpha).cdf).pvalue > 1e-4


def test_numbers_are_not_mixed() -> None:
    target = Numbers(("age",), (30.0,), (10.0,))
    with pytest.raises(TrainingError, match="found mixup, and the problem of the data is regression"):
        plan(target=target, rotate=5, mixup=0.2)
    settings = TrainingSettings(augment=[{"rotate": 5}, {"mixup": 0.2}])
    (message,) = class_faults(settings, target)
    assert message.endswith("Fix: `ratchet set 'training.augment=[{rotate: 5}]'`")


@pytest.mark.parametrize(
    ("settings", "kind", "message"),
    [
        ({"augment": [{"mixup": 0.2}], "class_weights": "balanced"}, "image", "training.class_weights: found balanced"),
        ({"augment": [{"rotate": 5}], "flip": "random"}, "image", "training.flip: found random, and training.augment"),
        ({"augment": [{"rotate": 5}]}, "table", "a list only with data.kind image, and it is table"),
        ({"augment": [{}]}, "image", "training.augment: entry 1 is {}. Allowed: one {NAME: VALUE} for each entry"),
    ],
)
def test_a_training_refuses_combinations_that_no_file_had(settings: dict[str, Any], kind: str, message: str) -> None:
    """A trial of a search combines values that are allowed one by one."""
    with pytest.raises(TrainingError, match=message):
        training_job.make_plan(TrainingSettings(**settings), TARGET, seed=0, kind=kind)


def test_shares_of_labels_are_mixed() -> None:
    labels = np.random.default_rng(0).integers(0, 2, (40, 4)).astype(np.float32)
    mixing_plan = plan(target=Labels(tuple("abcd")), mixup=1.0)
    _, targets = split(labels).batch(np.arange(40), CPU, plan=mixing_plan, epoch=0)
    assert targets.shape == (40, 4)
    assert ((targets > 0) & (targets < 1)).any()
    assert ((targets >= 0) & (targets <= 1)).all()
