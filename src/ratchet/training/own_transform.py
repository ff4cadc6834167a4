"""A user's own augmentation of images, `package.module:Class` in the list `training.augment`."""

import random
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ratchet.errors import TrainingError, first_line
from ratchet.training.augment import Randomness
from ratchet.training.custom_code import CustomCode
from ratchet.training.device import ran_out_of_memory
from ratchet.training.plan import Plan

__all__ = ["OwnTransform"]

CHOSEN_BY = {"kind": ("image",)}

_ROWS = 4  # images of the trial


class OwnTransform:
    """An object of the user's class, which is made without arguments and called with a batch.

    It takes uint8 images (n, height, width, channels) and int64 random numbers (n,), both on the training's device, and
    returns images of the same shape and type.
    """

    count = 1

    def __init__(self, name: str, plan: Plan) -> None:
        self.name, (root, place) = name, plan.own_code
        self.code = Path(root, place).resolve()
        self.make = CustomCode(Path(root), place, "training.augment").load(name)
        try:
            self.function = self.make()
        except Exception as error:  # the user's code may raise anything
            raise self._fault(error) from error

    def draws(self, random: Randomness, size: tuple[int, int]) -> list[Any]:
        return [random.bits().view(np.int64)]

    def apply(self, images: torch.Tensor, drawn: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the changed images.

        Raises:
            TrainingError: the class raises an error, or returns something else than images of this shape.
            MemoryError, torch.OutOfMemoryError: it needs too much memory; smaller micro-batches need less.
        """
        try:
            changed = self.function(images.clone(), *drawn)
        except Exception as error:  # the user's code may raise anything
            if ran_out_of_memory(error):
                raise
            raise self._fault(error) from error
        shape, kind = tuple(getattr(changed, "shape", ())), getattr(changed, "dtype", type(changed).__name__)
        place, wanted = getattr(changed, "device", "none"), (tuple(images.shape), torch.uint8, images.device)
        if not isinstance(changed, torch.Tensor) or (shape, kind, place) != wanted:
            raise TrainingError(
                f"training.augment: {self.name} returned {kind} {list(shape)} on {place}. Allowed: a tensor, "
                f"torch.uint8 {list(images.shape)} on {images.device}, as it was given. Fix: correct it"
            )
        return changed

    def check(self, shape: tuple[int, int, int]) -> None:
        """Call it with a few images of this height, width and number of channels, on the CPU.

        Raises:
            TrainingError: it fails, or an image depends on others of its batch or on other random numbers.
        """
        generator = np.random.default_rng(0)
        images = torch.from_numpy(generator.integers(0, 256, (_ROWS, *shape), np.uint8))
        numbers = torch.from_numpy(generator.integers(-(2**63), 2**63 - 1, _ROWS))
        before = _random_states()
        together = self.apply(images, [numbers])
        alone = torch.cat([self.apply(images[row : row + 1], [numbers[row : row + 1]]) for row in range(_ROWS)])
        fault = ""
        if _random_states() != before and self._draws(images, numbers):
            fault = "draws random numbers, and a resumed training would draw others"
        elif (together.int() - alone.int()).abs().max() > 1:  # less may be rounding
            fault = "gives an image another result in a batch than alone, or at the next call"
        if fault:
            raise TrainingError(
                f"training.augment: {self.name} {fault}. Allowed: a result of image and number. Fix: derive all "
                "chance from the numbers, as numbers % 2 == 0, or by a torch.Generator that they seed"
            )

    def _draws(self, images: torch.Tensor, numbers: torch.Tensor) -> bool:
        """Return whether a new object draws random numbers. Before, a thread may have, such as one of Prefect."""
        self.function = self.make()
        before = _random_states()
        self.apply(images, [numbers])
        return _random_states() != before

    def _fault(self, error: Exception) -> TrainingError:
        lines = [
            f" ({path.name}, line {frame.lineno})"
            for frame in traceback.extract_tb(error.__traceback__)
            if self.code in (path := Path(frame.filename).resolve(), *path.parents)
        ]
        return TrainingError(
            f"training.augment: {self.name} raised {type(error).__name__}: {first_line(error)}"
            f"{lines[-1] if lines else ''}. Fix: correct it"
        )


def _random_states() -> tuple[object, ...]:
    """Return the states of the generators that are used by default."""
    _, keys, place, *_ = np.random.get_state()
    return random.getstate(), torch.get_rng_state().numpy().tobytes(), np.asarray(keys).tobytes(), place
