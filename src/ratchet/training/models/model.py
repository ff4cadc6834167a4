"""The model that is trained, saved and served: a network with the preparation of its input."""

import torch
from torch import nn

from ratchet.kinds import Input, ModelSpec
from ratchet.kinds.registry import kind_of
from ratchet.training.models.arrays import ArraysFront
from ratchet.training.models.tabular import TableFront

__all__ = ["ArraysModel", "ImageModel", "Model", "TableModel", "example_inputs"]


class Model(nn.Module):
    """A network with the preparation of its input. It takes the arrays of a packed set and returns outputs."""

    temperature: torch.Tensor  # 1 unless evaluation fitted one (Guo et al. 2017)

    def __init__(self, network: nn.Module, spec: ModelSpec) -> None:
        super().__init__()
        self.network = network
        self.flip_average = spec.flip_average  # only images have mirror images
        self.outputs = spec.target.outputs  # width of the outputs

        self.register_buffer("temperature", torch.ones(()))

        # Used by `transfer`
        self.order: tuple[str, ...] = ()  # names of the modules in the order they run; empty if unknown
        self.fixed = frozenset(name for name, weight in self.named_parameters() if not weight.requires_grad)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return the outputs for a batch; see `ratchet.problems` for their shapes.

        In training mode an ensemble may return one more axis, (n, members, outputs).
        """
        outputs: torch.Tensor = self.network(*self.prepared(*inputs))
        return outputs if self.training else outputs / self.temperature

    def prepared(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the inputs as the network takes them."""
        return inputs


class ImageModel(Model):
    """A network for images with the scaling of their pixels."""

    mean: torch.Tensor
    std: torch.Tensor
    _mean_map: torch.Tensor
    _std_map: torch.Tensor

    def __init__(self, network: nn.Module, spec: ModelSpec) -> None:
        super().__init__(network, spec)
        images = spec.image
        self.limits = images.limits
        self.register_buffer("mean", torch.tensor(images.mean, dtype=torch.float32).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(images.std, dtype=torch.float32).view(1, -1, 1, 1))
        # One value per pixel, in the memory order of packed images. Scaling by one value per channel takes four times
        # as long (6 against 1.6 us for an image of 32x32 on one core).
        for name, per_channel in (("_mean_map", self.mean), ("_std_map", self.std)):
            whole = per_channel.expand(-1, -1, images.height, images.width)
            whole = whole.contiguous(memory_format=torch.channels_last)
            self.register_buffer(name, whole, persistent=False)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return the outputs for pixels 0..255, uint8 or float (n, channels, height, width)."""
        (images,) = inputs
        outputs: torch.Tensor = self.network(self.normalised(images))
        if self.training:
            return outputs
        if self.flip_average:
            outputs = (outputs + self.network(self.normalised(images.flip(3)))) / 2
        return outputs / self.temperature

    def prepared(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (self.normalised(inputs[0]),)

    def normalised(self, images: torch.Tensor) -> torch.Tensor:
        """Return pixels 0..255, uint8 or float (n, channels, height, width), scaled for the network, as float."""
        if self.limits:
            images = images.clamp(*self.limits)
        if images.shape[1:] != self._mean_map.shape[1:]:
            return (images - self.mean).div_(self.std)
        return (images - self._mean_map).div_(self._std_map)


class _FrontModel(Model):
    """A network with the scaling of its numbers in front."""

    front: nn.Module

    def prepared(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        prepared: tuple[torch.Tensor, ...] = self.front(*inputs)
        return prepared


class TableModel(_FrontModel):
    """A network for rows of a table."""

    def __init__(self, network: nn.Module, spec: ModelSpec) -> None:
        super().__init__(network, spec)
        self.front = TableFront(spec.table)


class ArraysModel(_FrontModel):
    """A network for arrays of a user's own kind."""

    def __init__(self, network: nn.Module, spec: ModelSpec) -> None:
        super().__init__(network, spec)
        self.front = ArraysFront(spec.arrays)


def example_inputs(input_spec: Input, rows: int = 1) -> tuple[torch.Tensor, ...]:
    """Return inputs of `rows` samples whose values are all 0."""
    kind = kind_of(input_spec)
    return kind.to_tensors(kind.packed(kind.zeros(input_spec, rows), input_spec))
