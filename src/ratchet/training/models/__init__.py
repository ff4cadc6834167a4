"""The models that params.yaml can name, built and rebuilt only from this list: no pickle, no code from a file."""

import difflib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import nn

from ratchet import files
from ratchet.errors import TrainingError
from ratchet.training.models.convnet import ConvNet
from ratchet.training.models.pretrained import torchvision_model, torchvision_names
from ratchet.training.models.resnet import ResidualNet

__all__ = ["Classifier", "ModelSpec", "build", "load_model", "require", "save_model"]

_OWN: dict[str, Callable[..., nn.Module]] = {"convnet": ConvNet, "resnet": ResidualNet}


@dataclass(frozen=True)
class ModelSpec:
    """All that is needed to build a model again: its name, its input and its answers."""

    name: str
    classes: tuple[str, ...]
    channels: int
    height: int
    width: int
    mean: tuple[float, ...]  # per channel, of pixels 0..255
    std: tuple[float, ...]


class Classifier(nn.Module):
    """A network with its input's scaling: raw pixels in, logits out, so that nobody can forget to normalise."""

    mean: torch.Tensor
    std: torch.Tensor
    temperature: torch.Tensor  # 1 unless evaluation fitted one (Guo et al. 2017)

    def __init__(self, network: nn.Module, spec: ModelSpec) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor(spec.mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(spec.std).view(1, -1, 1, 1))
        self.register_buffer("temperature", torch.ones(()))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Pixels 0..255, uint8 or float (n, channels, height, width) -> logits (n, classes)."""
        logits: torch.Tensor = self.network((images.float() - self.mean) / self.std)
        return logits if self.training else logits / self.temperature


def build(spec: ModelSpec) -> Classifier:
    """A freshly initialised model; the global torch seed decides its weights.

    Raises:
        TrainingError: no such model, or it cannot take images of this size.
    """
    shape = {"channels": spec.channels, "height": spec.height, "width": spec.width}
    if spec.name in _OWN:
        network = _OWN[spec.name](classes=len(spec.classes), **shape)
    else:
        require(spec.name)
        network = torchvision_model(spec.name, classes=len(spec.classes), channels=spec.channels)
    model = Classifier(network, spec)
    _try(model, spec)
    return model


def require(name: str) -> None:
    """Refuse a name that no model has, before anything is begun.

    Raises:
        TrainingError: naming the nearest.
    """
    if name in _OWN or name in (known := torchvision_names()):
        return
    near = difflib.get_close_matches(name, [*_OWN, *known], n=3, cutoff=0.4) or list(_OWN)
    raise TrainingError(
        f"model.name: no model is called {name!r}; there are {', '.join(_OWN)} and every classifier of "
        f"torchvision.models; nearest: {', '.join(near)}"
    )


def _try(model: Classifier, spec: ModelSpec) -> None:
    """One forward pass, so that a model too deep for small images is refused before training, not in it."""
    training = model.training
    try:
        with torch.no_grad():
            logits = model.eval()(torch.zeros(1, spec.channels, spec.height, spec.width))
    except RuntimeError as error:
        raise TrainingError(
            f"model.name: {spec.name} cannot take images of {spec.height}x{spec.width} pixels ({error}): "
            "set a larger data.image_size, or take convnet or resnet"
        ) from error
    finally:
        model.train(training)
    if logits.shape != (1, len(spec.classes)):
        raise TrainingError(
            f"model.name: {spec.name} answers with shape {tuple(logits.shape)}, not (1, {len(spec.classes)})"
        )


def save_model(folder: Path, weights: dict[str, torch.Tensor], spec: ModelSpec, *, about: dict[str, object]) -> None:
    """Write model.safetensors and model.json into `folder`; `about` stands in the JSON beside the spec."""
    content = save({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()})
    files.write_bytes(folder / "model.safetensors", content)
    files.write_json(folder / "model.json", {"format": 1, "spec": asdict(spec), **about})


def load_model(folder: Path) -> tuple[Classifier, ModelSpec]:
    """Rebuild a model that `save_model` wrote, on the CPU and in eval mode.

    Raises:
        TrainingError: files missing, damaged or not fitting each other.
    """
    try:
        described: dict[str, Any] = files.read_json(folder / "model.json")["spec"]
        listed: dict[str, Any] = {key: tuple(one) if isinstance(one, list) else one for key, one in described.items()}
        spec = ModelSpec(**listed)
        weights = load_file(folder / "model.safetensors")
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise TrainingError(f"{folder}: not a model that can be read ({error})") from error
    random_state = torch.get_rng_state()  # building draws initial weights that are thrown away
    model = build(spec)
    torch.set_rng_state(random_state)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise TrainingError(f"{folder}: the weights do not fit the model they are said to be of ({error})") from error
    return model.eval(), spec
