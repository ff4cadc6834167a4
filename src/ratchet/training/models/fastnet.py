"""A convolutional net for short trainings on small images. Its first layer is computed from the data."""

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

__all__ = ["FastNet"]

CHOSEN_BY = {"model": ("fastnet",)}

_PATCH = 2  # side of the patches of the first layer, pixels
_WIDTHS = (64, 256, 256)
_DAMPING = (
    5e-4  # added to the variance along a direction, so that directions of noise are not scaled up to variance one
)


class FastNet(nn.Module):
    """Frozen patch whitening, three groups of two convolutions, global maximum and a linear layer. Any image size.

    The architecture (whitened 2x2 patches, six convolutions, pooling before the first norm of a group, norms without a
    scale, small logits) is that of Jordan 2024, arXiv:2404.00498, with ReLU instead of GELU. For 3x32x32 images and 10
    classes it has 1,971,352 trainable parameters, and 236 million multiplications and additions in a forward pass.

    Measured on CIFAR-10 with examples/cifar10-fast.yaml, three seeds, PyTorch 2.15, bf16: test accuracy 93.5 +- .14 %,
    averaged over mirror images. It took eighteen epochs over 49,000 images (thirteen at 24 pixels, five at 32) and
    1,233 s on two cores of an EPYC with AVX-512 bf16. In these runs Muon updated the head too, which the recipe now
    leaves to AdamW. Jordan reports 94 % for eight epochs over 50,000 images at 32 pixels, averaged over shifts too.
    """

    whitening: torch.Tensor

    def __init__(self, *, classes: int, channels: int, height: int, width: int) -> None:
        super().__init__()
        filters = 2 * channels * _PATCH**2
        # A buffer, not a parameter: no optimizer, weight decay or unfreezing changes it.
        self.register_buffer("whitening", nn.init.orthogonal_(torch.empty(filters, channels, _PATCH, _PATCH)))
        self.whitening_bias = nn.Parameter(torch.zeros(filters))
        sides = pairwise((filters, *_WIDTHS))
        self.groups = nn.Sequential(*(_Group(inside, outside) for inside, outside in sides))
        self.head = nn.Linear(_WIDTHS[-1], classes, bias=False)
        nn.init.normal_(self.head.weight, std=self.head.in_features**-0.5)

    @torch.no_grad()
    def initialise(self, images: torch.Tensor) -> None:
        """Set the first layer so that its responses to the patches of `images` are uncorrelated, with variance one.

        The filters are the eigenvectors of the second moments of the patches, divided by the root of their eigenvalues,
        and the same negated, so that ReLU loses nothing. A few thousand normalised images (n, channels, height, width)
        are enough.
        """
        filters = len(self.whitening) // 2
        patches = images.float().unfold(2, _PATCH, 1).unfold(3, _PATCH, 1)
        patches = patches.permute(0, 2, 3, 1, 4, 5).reshape(-1, filters)
        variances, directions = torch.linalg.eigh(patches.T @ patches / len(patches))
        whitening = (directions / (variances.clamp_min(0) + _DAMPING).sqrt()).T
        self.whitening.copy_(torch.cat([whitening, -whitening]).view_as(self.whitening))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        responses = functional.conv2d(images, self.whitening)
        # The bias is added separately. As the bias of the convolution, its gradient (without one for the weights)
        # would not use oneDNN, and take longer than the rest of the step (PyTorch 2.15 on a CPU).
        responses = responses + self.whitening_bias.to(responses.dtype).view(1, -1, 1, 1)
        features = self.groups(torch.relu(responses)).amax(dim=(2, 3))
        # The size of Muon's steps grows with the shape of the weights; the root keeps their effect on logits small.
        logits: torch.Tensor = self.head(features) / self.head.in_features**0.5
        return logits


class _Group(nn.Module):
    """Convolution, pooling to half the size, convolution. A map of one pixel is not pooled."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.first = _convolution(inside, outside)
        self.first_norm = _Norm(outside)
        self.second = _convolution(outside, outside)
        self.second_norm = _Norm(outside)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        if min(x.shape[2:]) > 1:
            x = functional.max_pool2d(x, 2)
        x = torch.relu(self.first_norm(x))
        return torch.relu(self.second_norm(self.second(x)))


class _Norm(nn.BatchNorm2d):
    """Batch norm with a bias and no scale. Its statistics cover only a few steps, which suits a short training."""

    def __init__(self, width: int) -> None:
        super().__init__(width, momentum=0.4)
        self.register_parameter("weight", None)


def _convolution(inside: int, outside: int) -> nn.Conv2d:
    """Return a 3x3 convolution. Its first filters pass the inputs through, and the norm of each filter is about 1.

    At that norm Muon's steps and the weight decay balance. Because of the batch norm behind it, the norm does not
    change the output, but it decides how far a step turns the filters.
    """
    layer = nn.Conv2d(inside, outside, 3, padding=1, bias=False)
    with torch.no_grad():
        nn.init.dirac_(layer.weight[:inside])
        layer.weight.mul_(outside**0.5 / layer.weight.norm())
    return layer
