"""The net of the fast recipe: what its first layer promises, and that it takes any size."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from ratchet.training.models.fastnet import FastNet


def net(*, channels: int = 3, size: int = 32, classes: int = 10) -> FastNet:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return FastNet(classes=classes, channels=channels, height=size, width=size)


def photos(count: int, *, channels: int = 3, size: int = 16) -> torch.Tensor:
    """Images whose neighbouring pixels and channels are correlated, as in photographs."""
    noise = torch.randn(count, channels, size + 2, size + 2, generator=torch.Generator().manual_seed(3))
    smooth = functional.avg_pool2d(noise, 3, stride=1) * 3
    return smooth + smooth.mean(dim=1, keepdim=True)


def second_moments(responses: torch.Tensor) -> torch.Tensor:
    rows = responses.transpose(0, 1).flatten(1)
    return rows @ rows.T / rows.shape[1]


def test_it_has_the_parameters_of_its_description() -> None:
    convolutions = 9 * (24 * 64 + 64 * 64 + 64 * 256 + 3 * 256 * 256)
    biases = 24 + 2 * (64 + 256 + 256)
    assert sum(parameter.numel() for parameter in net().parameters()) == convolutions + biases + 256 * 10 == 1_971_352


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [2, 8, 17, 28, 64])
def test_it_takes_any_size_and_learns_in_every_parameter(size: int, channels: int) -> None:
    model = net(channels=channels, size=size, classes=7)
    logits = model(photos(4, channels=channels, size=size))
    assert logits.shape == (4, 7)
    logits.square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_it_takes_other_sizes_than_it_was_built_for() -> None:
    assert net(size=32)(photos(2, size=17)).shape == (2, 10)


@pytest.mark.parametrize("channels", [1, 3])
def test_first_layer_whitens_the_patches_it_was_computed_from(channels: int) -> None:
    images = photos(300, channels=channels)
    model = net(channels=channels)
    filters = 4 * channels
    before = second_moments(functional.conv2d(images, model.whitening))[:filters, :filters]
    assert not torch.allclose(before, torch.eye(filters), atol=0.5)
    model.initialise(images)
    after = second_moments(functional.conv2d(images, model.whitening))
    each = torch.eye(filters)
    torch.testing.assert_close(
        after, torch.cat([torch.cat([each, -each]), torch.cat([-each, each])], dim=1), atol=0.02, rtol=0
    )


def test_a_direction_without_variance_is_not_blown_up() -> None:
    """For grey images in three channels most directions of a patch stay nearly empty."""
    images = photos(100)[:, :1].expand(-1, 3, -1, -1)
    model = net()
    model.initialise(images)
    assert model.whitening.isfinite().all()
    assert second_moments(functional.conv2d(images, model.whitening)).diagonal().max() < 1.01


def test_initialising_again_from_the_same_images_gives_the_same_weights() -> None:
    first, second = net(), net()
    images = photos(50)
    first.initialise(images)
    second.initialise(images.clone())
    second.initialise(images)
    assert all(torch.equal(value, second.state_dict()[name]) for name, value in first.state_dict().items())


def test_whitening_is_saved_but_never_optimized() -> None:
    model = net()
    assert "whitening" not in dict(model.named_parameters())
    assert "whitening" in model.state_dict()


def test_norms_have_a_bias_and_no_scale() -> None:
    norms = [module for module in net().modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(norms) == 6
    assert all(norm.weight is None and norm.bias is not None for norm in norms)


def test_initial_convolutions_pass_their_inputs_through() -> None:
    """Their filters have norm one."""
    images = torch.rand(2, 24, 9, 9)
    convolution = net().groups[0].first
    handed_on = convolution(images)[:, :24]
    torch.testing.assert_close(handed_on, images * (handed_on.norm() / images.norm()))
    assert convolution.weight.flatten(1).norm(dim=1).square().mean().item() == pytest.approx(1, abs=1e-5)
