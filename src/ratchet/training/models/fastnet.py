"""A convolutional net for short trainings on small images, its first layer computed from the data."""

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

__all__ = ["FastNet"]

_PATCH = 2  # pixels a side of what the first layer sees
_WIDTHS = (64, 256, 256)
_DAMPING = 5e-4  # added to the variance along a direction: what hardly varies is noise, not to be blown up to one


class FastNet(nn.Module):
    """Frozen patch whitening, three groups of two convolutions, global maximum, linear: for any image size.

    The plan (whitened 2x2 patches, six convolutions, pooling before the first norm of a group, norms without a scale,
    small logits) is that of Jordan 2024, arXiv:2404.00498; ReLU stands for its GELU. At 3x32x32 and 10 classes it has
    1,971,352 trainable parameters and 236 million multiplications and additions a forward pass.

    Measured on CIFAR-10 with examples/cifar10-fast.yaml, three seeds, PyTorch 2.15, bf16: 93.5 +- .14 % of the test
    images right, answers averaged with the mirrored image's, after eighteen epochs over 49,000 images, thirteen at 24
    pixels a side and five at 32, in 1,233 s on two cores of an EPYC with AVX-512 bf16. In the measured runs Muon
    stepped the head too, which the recipe now leaves to AdamW. Short of the 94 % that Jordan reports for eight epochs
    over 50,000 images at 32 pixels, answers averaged over shifts too.
    """

    whitening: torch.Tensor

    def __init__(self, *, classes: int, channels: int, height: int, width: int) -> None:
        super().__init__()
        filters = 2 * channels * _PATCH**2
        # A buffer and not a parameter: no optimizer, weight decay or thawing ever touches it.
        self.register_buffer("whitening", nn.init.orthogonal_(torch.empty(filters, channels, _PATCH, _PATCH)))
        self.whitening_bias = nn.Parameter(torch.zeros(filters))
        sides = pairwise((filters, *_WIDTHS))
        self.groups = nn.Sequential(*(_Group(inside, outside) for inside, outside in sides))
        self.head = nn.Linear(_WIDTHS[-1], classes, bias=False)
        nn.init.normal_(self.head.weight, std=self.head.in_features**-0.5)

    @torch.no_grad()
    def initialise(self, images: torch.Tensor) -> None:
        """Set the first layer so that its responses to the patches of `images` are uncorrelated, each of variance one.

        Eigenvectors of the patches' second moments over the root of their eigenvalues, and the same negated, so that
        ReLU loses nothing. A few thousand normalised images (n, channels, height, width) are plenty.
        """
        filters = len(self.whitening) // 2
        patches = images.float().unfold(2, _PATCH, 1).unfold(3, _PATCH, 1)
        patches = patches.permute(0, 2, 3, 1, 4, 5).reshape(-1, filters)
        variances, directions = torch.linalg.eigh(patches.T @ patches / len(patches))
        whitening = (directions / (variances.clamp_min(0) + _DAMPING).sqrt()).T
        self.whitening.copy_(torch.cat([whitening, -whitening]).view_as(self.whitening))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Normalised images (n, channels, height, width), 2x2 or larger -> logits (n, classes)."""
        responses = functional.conv2d(images, self.whitening)
        # The bias by an addition: as the convolution's own, its gradient alone, without one for the weights,
        # leaves oneDNN and takes longer than the rest of the step (PyTorch 2.15 on a CPU).
        responses = responses + self.whitening_bias.to(responses.dtype).view(1, -1, 1, 1)
        features = self.groups(torch.relu(responses)).amax(dim=(2, 3))
        # Muon's steps are as large as the weights' shape allows; the root keeps what they do to a logit below one
        logits: torch.Tensor = self.head(features) / self.head.in_features**0.5
        return logits


class _Group(nn.Module):
    """Convolution, halving of the size, convolution; a map of one pixel a side is not halved."""

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
    """Batch norm with a bias and no scale; its statistics forget in a few steps, as so short a training asks."""

    def __init__(self, width: int) -> None:
        super().__init__(width, momentum=0.4)
        self.register_parameter("weight", None)


def _convolution(inside: int, outside: int) -> nn.Conv2d:
    """3x3; as many of its filters as there are inputs begin by handing them on; the filters' norms are about 1.

    That is about where Muon's steps and the weight decay balance. The batch norm behind makes the norm immaterial to
    what the net computes, but not to how far a step turns the filters.
    """
    layer = nn.Conv2d(inside, outside, 3, padding=1, bias=False)
    with torch.no_grad():
        nn.init.dirac_(layer.weight[:inside])
        layer.weight.mul_(outside**0.5 / layer.weight.norm())
    return layer
