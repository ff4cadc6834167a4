"""Built-in, torchvision and custom models. They are rebuilt from names and code files, never from a pickle."""

import difflib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import nn

from ratchet import files
from ratchet.errors import TrainingError
from ratchet.training.models.checksums import seal, verify
from ratchet.training.models.classifier import Classifier, ModelSpec
from ratchet.training.models.convnet import ConvNet
from ratchet.training.models.factory import OwnCode
from ratchet.training.models.fastnet import FastNet
from ratchet.training.models.pretrained import LoadReport, find_pretrained, load_pretrained
from ratchet.training.models.resnet import ResidualNet
from ratchet.training.models.vision import torchvision_model, torchvision_names

__all__ = [
    "Classifier",
    "LoadReport",
    "ModelSpec",
    "build",
    "code_digests",
    "code_files",
    "find_pretrained",
    "keep_code",
    "load_model",
    "load_pretrained",
    "require",
    "save_model",
    "seal",
    "verify",
]

_OWN: dict[str, Callable[..., nn.Module]] = {"convnet": ConvNet, "resnet": ResidualNet, "fastnet": FastNet}
_CODE = "code"  # copy of a factory's code in the folder of a saved model


def build(spec: ModelSpec) -> Classifier:
    """Build a model with initial weights from the global torch random state.

    Raises:
        TrainingError: there is no such model, it cannot take images of this size, or the user's factory fails.
    """
    model = Classifier(_network(spec), spec)
    _check_forward(model, spec)
    return model


def require(name: str, *, factory: str = "none", code: str = "none", root: str = ".") -> None:
    """Check that the model or its factory exists.

    Raises:
        TrainingError: it does not; the message names the nearest models, or the problem of the factory.
    """
    if factory != "none":
        OwnCode(Path(root), code).load(factory)
        return
    if name in _OWN or name in (known := torchvision_names()):
        return
    near = difflib.get_close_matches(name, [*_OWN, *known], n=3, cutoff=0.4) or list(_OWN)
    raise TrainingError(
        f"model.name: no model is called {name!r}. Allowed: {', '.join(_OWN)} and every classifier of "
        f"torchvision.models. Nearest: {', '.join(near)}"
    )


def code_files(spec: ModelSpec) -> list[Path]:
    """Return the code files of the user's own model, as paths from `spec.root`; none for built-in models."""
    return [] if spec.factory == "none" else OwnCode(Path(spec.root), spec.code).files()


def code_digests(spec: ModelSpec) -> dict[str, str]:
    """Return the SHA-256 (hex) of each of `code_files`, by its path."""
    return {} if spec.factory == "none" else OwnCode(Path(spec.root), spec.code).digests()


def keep_code(spec: ModelSpec, folder: Path) -> ModelSpec:
    """Copy the user's own code into `folder`, and return a spec that points to the copy."""
    for path in code_files(spec):
        files.write_bytes(folder / _CODE / path, (Path(spec.root) / path).read_bytes())
    return spec if spec.factory == "none" else replace(spec, root=str(folder / _CODE))


def _network(spec: ModelSpec) -> nn.Module:
    shape = {"classes": len(spec.classes), "channels": spec.channels, "height": spec.height, "width": spec.width}
    if spec.factory != "none":
        make = OwnCode(Path(spec.root), spec.code).load(spec.factory)
        try:
            network = make(**shape)
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            arguments = ", ".join(f"{name}={value}" for name, value in shape.items())
            raise TrainingError(
                f"model.factory: {spec.factory} raised {type(error).__name__}: {error}; it was called with {arguments}"
            ) from error
        if not isinstance(network, nn.Module):
            raise TrainingError(f"model.factory: {spec.factory} returned a {type(network).__name__}, not an nn.Module")
        return network
    if spec.name in _OWN:
        return _OWN[spec.name](**shape)
    require(spec.name)
    return torchvision_model(spec.name, classes=len(spec.classes), channels=spec.channels)


def _check_forward(model: Classifier, spec: ModelSpec) -> None:
    """Make one forward pass, so that a model too deep for small images fails before training, not during it.

    It also records the order in which the modules run.
    """
    training, order = model.training, dict[str, None]()
    hooks = [
        module.register_forward_pre_hook(lambda *_, name=name: order.setdefault(name))
        for name, module in model.named_modules()
    ]
    built_in = spec.factory == "none"
    key, other_fix = ("model.name", "use convnet or resnet") if built_in else ("model.factory", "correct the model")
    try:
        with torch.no_grad():
            logits = model.eval().network(torch.zeros(1, spec.channels, spec.height, spec.width))
    except Exception as error:
        if built_in and not isinstance(error, RuntimeError):
            raise
        raise TrainingError(
            f"{key}: {spec.called} cannot take images of {spec.height}x{spec.width} pixels ({error}). "
            f"Fix: set a larger data.image_size, or {other_fix}"
        ) from error
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    if not isinstance(logits, torch.Tensor) or logits.shape != (1, len(spec.classes)):
        answer = f"shape {tuple(logits.shape)}" if isinstance(logits, torch.Tensor) else f"a {type(logits).__name__}"
        raise TrainingError(
            f"{key}: {spec.called} returns {answer} for one image. Allowed: logits of shape (1, {len(spec.classes)}), "
            "one per class"
        )
    model.order = tuple(order)


def save_model(folder: Path, weights: dict[str, torch.Tensor], spec: ModelSpec, *, about: dict[str, object]) -> None:
    """Write model.safetensors and model.json into `folder`, and the code of a user's own model beside them.

    The entries of `about` are added to model.json.
    """
    keep_code(spec, folder)
    content = save({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()})
    files.write_bytes(folder / "model.safetensors", content)
    files.write_json(folder / "model.json", {"format": 1, "spec": spec.to_json(), **about})


def load_model(folder: Path) -> tuple[Classifier, ModelSpec]:
    """Load a model that `save_model` wrote, on the CPU and in eval mode. A user's own model runs the saved code.

    In a folder with checksums (see `seal`) every file is checked before any is read or run.

    Raises:
        TrainingError: files are missing or damaged, do not match each other, or differ from their checksums.
    """
    verify(folder)
    try:
        described: dict[str, Any] = files.read_json(folder / "model.json")["spec"]
        listed: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in described.items()
        }
        spec = ModelSpec(**listed)
        weights = load_file(folder / "model.safetensors")
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise TrainingError(f"{folder}: the model cannot be read ({error})") from error
    if spec.factory != "none":
        spec = replace(spec, root=str(folder / _CODE))
    random_state = torch.get_rng_state()  # building draws initial weights that are discarded
    model = build(spec)
    torch.set_rng_state(random_state)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise TrainingError(f"{folder}: the weights do not fit the model of model.json ({error})") from error
    return model.eval(), spec
