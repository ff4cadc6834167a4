"""Explanations keep integrated gradients' promise: contributions add up to what is explained."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from ratchet.evaluation.explanations import Explanations, explain, read_explanations, write_explanations
from ratchet.training import Classifier, ModelSpec, build

SPEC = ModelSpec(
    name="convnet", classes=tuple("0123456789"), channels=1, height=8, width=8, mean=(73.0,), std=(90.0,)
)  # fmt: skip


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.from_numpy(load_digits().images[:, None] * 15.9375).to(torch.uint8)


@pytest.fixture(scope="module")
def labels() -> torch.Tensor:
    return torch.from_numpy(load_digits().target).long()


@pytest.fixture(scope="module")
def model(images: torch.Tensor, labels: torch.Tensor) -> Classifier:
    """The pipeline's own network, trained for a moment."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build(SPEC).train()
        optimizer = torch.optim.Adam(model.parameters(), 2e-3)
        for start in range(0, 1280, 64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[start : start + 64]), labels[start : start + 64]).backward()
            optimizer.step()
    return model.eval()


def explained(model: Classifier, images: torch.Tensor, labels: torch.Tensor, rows: range) -> Explanations:
    """Each row's own label against the class after it."""
    truths = [int(labels[row]) for row in rows]
    answers = [(truth + 1) % 10 for truth in truths]
    return explain(model, images[list(rows)], rows=np.array(rows), answers=answers, truths=truths)


def test_contributions_add_up_to_the_margin(model: Classifier, images: torch.Tensor, labels: torch.Tensor) -> None:
    rows = range(1500, 1524)
    found = explained(model, images, labels, rows)
    assert found.contributions.shape == (24, 8, 8)
    with torch.no_grad():
        plain = model(model.mean.expand(1, 1, 8, 8))[0]
        for place, row in enumerate(rows):
            beyond = model(images[[row]])[0] - plain
            truth = int(labels[row])
            assert found.margins[place] == pytest.approx(float(beyond[(truth + 1) % 10] - beyond[truth]), abs=1e-4)
    assert np.abs(found.contributions).max() > 0
    assert found.gap < 0.03
    worst = np.abs(found.contributions.sum(axis=(1, 2)) - found.margins).max()
    assert worst < 0.1 * np.abs(found.margins).mean()


def test_of_a_linear_model_each_pixel_s_contribution_is_its_weight_times_its_distance_from_the_mean() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = nn.Linear(64, 10)
    model = Classifier(nn.Sequential(nn.Flatten(), layer), SPEC).eval()
    image = torch.arange(64, dtype=torch.uint8).reshape(1, 1, 8, 8) * 3
    found = explain(model, image, rows=np.array([5]), answers=[2], truths=[7])
    weights = (layer.weight[2] - layer.weight[7]).detach().reshape(8, 8)
    expected = weights * (image[0, 0].float() - 73) / 90
    np.testing.assert_allclose(found.contributions[0], expected.numpy(), rtol=1e-4, atol=1e-6)
    assert found.gap < 1e-5
    assert found.of(5) is not None
    assert found.of(6) is None


def test_the_answer_s_own_averaging_is_explained_too(
    model: Classifier, images: torch.Tensor, labels: torch.Tensor
) -> None:
    """A picture and its mirror image are answered alike, so their contributions are mirrored."""
    model.flip_average = True
    try:
        one = explained(model, images, labels, range(1500, 1504))
        other = explained(model, images.flip(3), labels, range(1500, 1504))
    finally:
        model.flip_average = False
    np.testing.assert_allclose(one.contributions, other.contributions[:, :, ::-1], atol=1e-4)


def test_explaining_twice_gives_the_same_bytes(
    model: Classifier, images: torch.Tensor, labels: torch.Tensor, tmp_path: Path
) -> None:
    for name in ("one", "other"):
        write_explanations(tmp_path / name, explained(model, images, labels, range(1500, 1506)))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


def test_what_was_written_is_read(
    model: Classifier, images: torch.Tensor, labels: torch.Tensor, tmp_path: Path
) -> None:
    found = explained(model, images, labels, range(1500, 1503))
    write_explanations(tmp_path / "kept", found)
    read = read_explanations(tmp_path / "kept")
    for name in ("rows", "contributions", "margins"):
        np.testing.assert_array_equal(getattr(read, name), getattr(found, name))
    assert read.why == ""
    write_explanations(tmp_path / "none", Explanations.none("it was Sunday"))
    assert read_explanations(tmp_path / "none").why == "it was Sunday"
    assert read_explanations(tmp_path / "none").of(0) is None
    assert "run evaluate again" in read_explanations(tmp_path / "nothing").why


class Stubborn(nn.Module):
    """A user's model that answers and cannot be differentiated."""

    def __init__(self, hide: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.hide, self.layer = hide, nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layer(self.hide(images.flatten(1)))


@pytest.mark.parametrize(
    ("hide", "words"),
    [
        (lambda seen: seen.detach(), "cannot be differentiated"),
        (lambda seen: torch.from_numpy(seen.numpy()), "cannot be differentiated"),
        (torch.round, "gradient is zero everywhere"),
        (lambda seen: seen + 50 * torch.sign(seen), "miss what they should add up to"),
        (lambda seen: seen.clamp(min=0).sqrt() * 0 + seen.abs().sub(seen.abs()).sqrt(), "not finite"),
    ],
)
def test_a_model_that_cannot_be_differentiated_is_told(
    hide: Callable[[torch.Tensor], torch.Tensor], words: str
) -> None:
    with torch.random.fork_rng():
        model = Classifier(Stubborn(hide), SPEC)
    found = explain(model, torch.full((1, 1, 8, 8), 9, dtype=torch.uint8), rows=np.array([0]), answers=[1], truths=[2])
    assert words in found.why
    assert found.of(0) is None


def test_no_errors_are_no_trouble(model: Classifier, images: torch.Tensor) -> None:
    found = explain(model, images[:0], rows=np.zeros(0, np.int64), answers=[], truths=[])
    assert (found.contributions.shape, found.why) == ((0, 8, 8), "")
