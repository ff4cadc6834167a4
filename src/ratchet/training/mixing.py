"""Mixup and cutmix: each sample is mixed with a partner, and so are their targets.

The partner is any row of the split. It and the share depend on (seed, epoch, sample key), so the mixed sample is the
same in any batch. With both, each sample has one of the two, by chance.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ratchet.training.augment import Randomness
from ratchet.training.plan import Plan

__all__ = ["Mixing"]

CHOSEN_BY = {"kind": ("image",)}


class Mixing:
    """The entries `mixup` (Zhang et al. 2017) and `cutmix` (Yun et al. 2019) of a plan.

    Args:
        entries: parameter of the beta distribution of the sample's own share, by name.
    """

    count = 4

    def __init__(self, entries: Mapping[str, float], plan: Plan) -> None:
        self.entries, self.plan = entries, plan

    def partners(self, random: Randomness, count: int) -> NDArray[np.int64]:
        """Return the row of each sample's partner, one of `count` rows."""
        return replace(random, stream="partner").evenly(0, count)

    def draws(self, random: Randomness) -> list[NDArray[Any]]:
        """Return share of the own pixels; side of the partner's rectangle and its centre, as shares of the image."""
        random = replace(random, stream="mixing")
        blend, side = np.ones(len(random.keys)), np.zeros(len(random.keys))
        is_first = random.uniform(1) < 1 / len(self.entries)
        for name, alpha in self.entries.items():
            chosen = is_first if name == next(iter(self.entries)) else ~is_first
            share = random.beta(2, alpha)
            if name == "mixup":
                blend = np.where(chosen, share, blend)
            else:
                side = np.where(chosen, np.sqrt(1 - share), side)
        centres = (random.uniform(place) for place in (3, 4))
        return [array.astype(np.float32) for array in (blend, side, *centres)]

    def apply(
        self, images: torch.Tensor, targets: torch.Tensor, drawn: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mixed samples and their targets.

        A sample is left as it is if its label, or that of its partner, does not count in the loss.

        Args:
            images: (2n, channels, height, width): the samples, and then their partners.
            targets: int64 (2n,) of classes, or float32 (2n, labels).
            drawn: what `draws` returned, of the samples and the partners.

        Returns:
            Images (n, channels, height, width), float32 with mixup; shares of classes or labels, float32 (n, outputs).
        """
        count = len(images) // 2
        blend, side, down, across = (array[:count] for array in drawn)
        soft, counts = self._soft(targets)
        is_mixed = counts[:count] & counts[count:]
        blend = torch.where(is_mixed, blend, torch.ones_like(blend))
        side = torch.where(is_mixed, side, torch.zeros_like(side))
        (top, bottom), (left, right) = (
            _bounds(centre, side, length) for centre, length in zip((down, across), images.shape[2:], strict=True)
        )
        own, others = images[:count], images[count:]
        mixed = own
        if "mixup" in self.entries:
            weight = blend[:, None, None, None]
            mixed = weight * own.float() + (1.0 - weight) * others.float()
        if "cutmix" in self.entries:
            mixed = torch.where(_inside(images, top, bottom, left, right), others.to(mixed.dtype), mixed)
        area = (bottom - top) * (right - left) / (images.shape[2] * images.shape[3])
        share = (blend * (1.0 - area))[:, None]
        return mixed, share * soft[:count] + (1.0 - share) * soft[count:]

    def _soft(self, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the share of each class or label, float32 (n, outputs), and which samples count."""
        if not self.plan.mixed_classes:
            return targets.float(), torch.ones(len(targets), dtype=torch.bool, device=targets.device)
        counts = targets != self.plan.ignore_index
        classes = torch.arange(self.plan.mixed_classes, device=targets.device)
        return ((targets[:, None] == classes) & counts[:, None]).float(), counts


def _bounds(centre: torch.Tensor, side: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return first and last pixel (exclusive) of a side of the rectangle, int64 (n,), inside the image."""
    middle, half = (centre * length).long(), (side * length / 2).round().long()
    return (middle - half).clamp(0, length), (middle + half).clamp(0, length)


def _inside(
    images: torch.Tensor, top: torch.Tensor, bottom: torch.Tensor, left: torch.Tensor, right: torch.Tensor
) -> torch.Tensor:
    """Return which pixels are in the rectangle: bool (n, 1, height, width)."""
    rows, columns = (torch.arange(length, device=images.device) for length in images.shape[2:])
    in_rows = (rows >= top[:, None]) & (rows < bottom[:, None])
    in_columns = (columns >= left[:, None]) & (columns < right[:, None])
    return in_rows[:, None, :, None] & in_columns[:, None, None, :]
