"""Explanations: contributions add up to the margin, as integrated gradients require."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from ratchet.evaluation.explanations import Explanations, explain, read_explanations, write_explanations
from ratchet.kinds import image_spec
from ratchet.training import ImageModel, Model, build

SPEC = image_spec(
    name="convnet", classes=tuple("0123456789"), channels=1, height=8, width=8, mean=(73.0,), std=(90.0,)
)  # fmt: skip


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.from_numpy(load_digits().images[:, None] * 15.9375).to(torch.uint8)


@pytest.fixture(scope="module")
def labels() -> torch.Tensor:
    return torch.from_numpy(load_digits().target).long()


@pytest.fixture(scope="module")
def model(images: torch.Tensor, labels: torch.Tensor) -> Model:
    """The pipeline's own network, trained for 20 steps."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build(SPEC).train()
        optimizer = torch.optim.Adam(model.parameters(), 2e-3)
        for start in range(0, 1280, 64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[start : start + 64]), labels[start : start + 64]).backward()
            optimizer.step()
    return model.eval()


def explained(model: Model, images: torch.Tensor, labels: torch.Tensor, rows: range) -> Explanations:
    """Explain the class after each row's own label."""
    truths = [int(labels[row]) for row in rows]
    answers = [(truth + 1) % 10 for truth in truths]
    return explain(model, images[list(rows)], rows=np.array(rows), answers=answers, truths=truths)


def test_contributions_add_up_to_the_margin(model: Model, images: torch.Tensor, labels: torch.Tensor) -> None:
    rows = range(1500, 1524)
    explanations = explained(model, images, labels, rows)
    assert explanations.contributions.shape == (24, 8, 8)
    with torch.no_grad():
        plain = model(model.mean.expand(1, 1, 8, 8))[0]
        for place, row in enumerate(rows):
            beyond = model(images[[row]])[0] - plain
            truth = int(labels[row])
            assert explanations.margins[place] == pytest.approx(
                float(beyond[(truth + 1) % 10] - beyond[truth]), abs=1e-4
            )
    assert np.abs(explanations.contributions).max() > 0
    assert explanations.gap < 0.03
    worst = np.abs(explanations.contributions.sum(axis=(1, 2)) - explanations.margins).max()
    assert worst < 0.1 * np.abs(explanations.margins).mean()


def test_contributions_of_a_linear_model_have_a_closed_form() -> None:
    """Each is the pixel's weight times its distance from the mean."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = nn.Linear(64, 10)
    model = ImageModel(nn.Sequential(nn.Flatten(), layer), SPEC).eval()
    image = torch.arange(64, dtype=torch.uint8).reshape(1, 1, 8, 8) * 3
    explanations = explain(model, image, rows=np.array([5]), answers=[2], truths=[7])
    weights = (layer.weight[2] - layer.weight[7]).detach().reshape(8, 8)
    expected = weights * (image[0, 0].float() - 73) / 90
    np.testing.assert_allclose(explanations.contributions[0], expected.numpy(), rtol=1e-4, atol=1e-6)
    assert explanations.gap < 1e-5
    assert explanations.of(5) is not None
    assert explanations.of(6) is None


def test_averaging_over_flips_is_explained_too(model: Model, images: torch.Tensor, labels: torch.Tensor) -> None:
    """An image and its mirror image have the same prediction, so their contributions are mirrored."""
    model.flip_average = True
    try:
        straight = explained(model, images, labels, range(1500, 1504))
        mirrored = explained(model, images.flip(3), labels, range(1500, 1504))
    finally:
        model.flip_average = False
    np.testing.assert_allclose(straight.contributions, mirrored.contributions[:, :, ::-1], atol=1e-4)


def test_explaining_twice_gives_the_same_bytes(
    model: Model, images: torch.Tensor, labels: torch.Tensor, tmp_path: Path
) -> None:
    for name in ("first", "second"):
        write_explanations(tmp_path / name, explained(model, images, labels, range(1500, 1506)))
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


def test_explanations_survive_the_file(
    model: Model, images: torch.Tensor, labels: torch.Tensor, tmp_path: Path
) -> None:
    explanations = explained(model, images, labels, range(1500, 1503))
    write_explanations(tmp_path / "kept", explanations)
    read = read_explanations(tmp_path / "kept")
    for name in ("rows", "contributions", "margins"):
        np.testing.assert_array_equal(getattr(read, name), getattr(explanations, name))
    assert read.reason == ""
    write_explanations(tmp_path / "none", Explanations.none("it is switched off"))
    assert read_explanations(tmp_path / "none").reason == "it is switched off"
    assert read_explanations(tmp_path / "none").of(0) is None


class Opaque(nn.Module):
    """A user's model that cannot be differentiated."""

    def __init__(self, hide: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.hide, self.layer = hide, nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layer(self.hide(images.flatten(1)))


@pytest.mark.parametrize(
    ("hide", "reason"),
    [
        (lambda seen: seen.detach(), "cannot be differentiated"),
        (lambda seen: torch.from_numpy(seen.numpy()), "cannot be differentiated"),
        (torch.round, "gradient is zero everywhere"),
        (lambda seen: seen + 50 * torch.sign(seen), "differ from the required sum"),
        (lambda seen: seen.clamp(min=0).sqrt() * 0 + seen.abs().sub(seen.abs()).sqrt(), "not finite"),
    ],
)
def test_model_that_cannot_be_differentiated_has_a_reason(
    hide: Callable[[torch.Tensor], torch.Tensor], reason: str
) -> None:
    with torch.random.fork_rng():
        model = ImageModel(Opaque(hide), SPEC)
    explanations = explain(
        model, torch.full((1, 1, 8, 8), 9, dtype=torch.uint8), rows=np.array([0]), answers=[1], truths=[2]
    )
    assert reason in explanations.reason
    assert explanations.of(0) is None


def test_no_errors_need_no_explanation(model: Model, images: torch.Tensor) -> None:
    explanations = explain(model, images[:0], rows=np.zeros(0, np.int64), answers=[], truths=[])
    assert (explanations.contributions.shape, explanations.reason) == ((0, 8, 8), "")
