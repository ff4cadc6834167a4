"""Built-in, torchvision and custom models. They are rebuilt from names and code files, never from a pickle."""

import difflib
import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from ratchet import files
from ratchet.checksums import verify
from ratchet.errors import TrainingError
from ratchet.kinds import ModelSpec
from ratchet.kinds.registry import kind_named, kind_of
from ratchet.training.checkpoint_shards import TYPES, write_tensors
from ratchet.training.custom_code import CustomCode
from ratchet.training.device import any_implementation
from ratchet.training.models.arrays import ArraysMLP
from ratchet.training.models.baseline_nets import BASELINES, blended
from ratchet.training.models.convnet import ConvNet
from ratchet.training.models.decoder import Decoder
from ratchet.training.models.fastnet import FastNet
from ratchet.training.models.model import ArraysModel, ImageModel, Model, TableModel, example_inputs
from ratchet.training.models.narrow import narrow
from ratchet.training.models.pretrained import LoadReport, find_pretrained, load_pretrained
from ratchet.training.models.resnet import ResidualNet
from ratchet.training.models.tabular import TableMLP, TabM
from ratchet.training.models.text import Bag, Transformer
from ratchet.training.models.vision import TIMM, timm_model, torchvision_model, torchvision_names

__all__ = [
    "ImageModel",
    "LoadReport",
    "Model",
    "build",
    "code_digests",
    "code_files",
    "default_name",
    "example_inputs",
    "find_pretrained",
    "keep_code",
    "load_model",
    "load_pretrained",
    "require",
    "save_model",
]

_MODELS = {model.__name__: model for model in (ImageModel, TableModel, ArraysModel, Model)}
_NETWORKS: dict[str, Callable[..., nn.Module]] = {  # kinds have their names in the settings
    network.__name__: network
    for network in (ConvNet, ResidualNet, FastNet, TabM, TableMLP, Bag, Transformer, Decoder, ArraysMLP)
}
_CODE = "code"  # copy of the user's code in the folder of a saved model


def build(spec: ModelSpec) -> Model:
    """Build a model with initial weights from the global torch random state.

    Raises:
        TrainingError: there is no such model, it cannot take inputs of this size, or the user's factory fails.
    """
    with any_implementation():  # a network may try a forward pass to learn a size
        network = _network(spec)
        narrow(network, spec.widths)
        model = _MODELS[kind_of(spec.input).model](network, spec)
        _check_forward(model, spec)
    _check_types(model, spec)
    return model


@functools.cache
def _networks(kind: str) -> dict[str, Callable[..., nn.Module]]:
    return {name: _NETWORKS[network] for name, network in kind_named(kind).networks.items()}


def default_name(kind: str) -> str:
    """Return the model that `model.name: auto` means for a kind of input: the first of its own networks."""
    return next(iter(_networks(kind)))


def require(name: str, *, kind: str = "image", factory: str = "none", code: str = "none", root: str = ".") -> None:
    """Check that the model or its factory exists.

    Raises:
        TrainingError: it does not; the message names the nearest models, or the problem of the factory.
    """
    if factory != "none":
        CustomCode(Path(root), code).load(factory)
        return
    own = _networks(kind)
    if name in own:
        return
    others = torchvision_names() if kind_named(kind).has_torchvision else []
    if name in others or (others and name.startswith(TIMM)):
        return
    near = difflib.get_close_matches(name, [*own, *others], n=3, cutoff=0.4)
    more = ", every classifier of torchvision.models, and timm/NAME" if others else ""
    raise TrainingError(
        f"model.name: no model for the data's kind, {kind}, is called {name!r}. Allowed: auto, {', '.join(own)}{more}. "
        f"Nearest: {', '.join(near or own)}"
    )


def code_files(spec: ModelSpec) -> dict[Path, Path]:
    """Return the files of the user's own model, loss and kind of data, by their paths from the project folder."""
    codes = [CustomCode(Path(spec.root), spec.code)] if spec.code != "none" else []
    if place := spec.input.user_code:
        codes.append(CustomCode(Path(place[0]), place[1], "data.kind"))
    return {path: code.root / path for code in codes for path in code.files()}


def code_digests(spec: ModelSpec) -> dict[str, str]:
    """Return the SHA-256 (hex) of each of `code_files`, by its path."""
    return {path.as_posix(): files.digest_file(place) for path, place in code_files(spec).items()}


def keep_code(spec: ModelSpec, folder: Path) -> ModelSpec:
    """Copy the user's own code into `folder`, and return a spec that points to the copy."""
    for path, place in code_files(spec).items():
        files.write_bytes(folder / _CODE / path, place.read_bytes())
    return _with_code_in(spec, folder / _CODE)


def _with_code_in(spec: ModelSpec, folder: Path) -> ModelSpec:
    root = str(folder)
    spec = spec if spec.code == "none" else replace(spec, root=root)
    return replace(spec, input=spec.input.with_code_in(root))


def _network(spec: ModelSpec) -> nn.Module:
    arguments = kind_of(spec.input).network_arguments(spec.input, spec.target)
    if spec.factory != "none":
        make = CustomCode(Path(spec.root), spec.code).load(spec.factory)
        try:
            network = make(**arguments)
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            listed = ", ".join(f"{name}={value}" for name, value in arguments.items())
            raise TrainingError(
                f"model.factory: {spec.factory} raised {type(error).__name__}: {error}; it was called with {listed}"
            ) from error
        if not isinstance(network, nn.Module):
            raise TrainingError(f"model.factory: {spec.factory} returned a {type(network).__name__}, not an nn.Module")
        return network
    own = _networks(spec.input.kind) | BASELINES
    if (network := own.get(spec.name) or blended(spec.name, own)) is not None:
        return network(**arguments)
    require(spec.name, kind=spec.input.kind)
    if spec.name.startswith(TIMM):
        return timm_model(spec.name.removeprefix(TIMM), **arguments)
    return torchvision_model(spec.name, classes=spec.target.outputs, channels=spec.image.channels)


def _check_forward(model: Model, spec: ModelSpec) -> None:
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
    inputs = example_inputs(spec.input)
    try:
        with torch.no_grad():
            outputs = model.eval().network(*model.prepared(*inputs))
    except Exception as error:
        if built_in and not spec.name.startswith(TIMM) and not isinstance(error, RuntimeError):
            raise
        fix = kind_of(spec.input).size_fix + other_fix
        raise TrainingError(
            f"{key}: {spec.called} cannot take {spec.input.description} ({error}). Fix: {fix}"
        ) from error
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    expected = _output_shape(spec, inputs)
    if not isinstance(outputs, torch.Tensor) or outputs.shape != expected:
        answer = f"shape {tuple(outputs.shape)}" if isinstance(outputs, torch.Tensor) else f"a {type(outputs).__name__}"
        raise TrainingError(
            f"{key}: {spec.called} returns {answer} for one sample. Allowed: outputs of shape {expected}, "
            f"{spec.target.meaning}"
        )
    model.order = tuple(order)


def _check_types(model: Model, spec: ModelSpec) -> None:
    """Refuse a user's model that its file cannot hold, or that has nothing to learn, before it is trained."""
    if spec.factory != "none" and not any(True for _ in model.network.parameters()):
        raise TrainingError(
            f"model.factory: {spec.called} has no parameters, so there is nothing to train. Fix: make its layers "
            "attributes of the module; layers in a list need nn.ModuleList, in a dictionary nn.ModuleDict"
        )
    for name, tensor in model.network.state_dict().items():
        if (kind := getattr(tensor, "dtype", type(tensor))) not in TYPES:
            allowed = ", ".join(str(each).removeprefix("torch.") for each in TYPES)
            raise TrainingError(
                f"model.factory: {spec.called} keeps {name} as {kind}. Allowed: {allowed}. Fix: keep it as one of "
                "these, or out of its state_dict"
            )


def _output_shape(spec: ModelSpec, inputs: tuple[torch.Tensor, ...]) -> tuple[int, ...]:
    return (1, *inputs[0].shape[1 : spec.target.dimensions - 1], spec.target.outputs)


def save_model(folder: Path, weights: Mapping[str, torch.Tensor], spec: ModelSpec, *, about: dict[str, object]) -> None:
    """Write model.safetensors and model.json into `folder`, and the code of a user's own model beside them.

    The entries of `about` are added to model.json.
    """
    keep_code(spec, folder)
    write_tensors(folder / "model.safetensors", weights)
    files.write_json(folder / "model.json", {"format": 2, "spec": spec.to_json(), **about})


def load_model(folder: Path) -> tuple[Model, ModelSpec]:
    """Load a model that `save_model` wrote, on the CPU and in eval mode. A user's own model runs the saved code.

    In a folder with checksums (see `seal`) every file is checked before any is read or run.

    Raises:
        TrainingError: files are missing or damaged, do not match each other, or differ from their checksums.
    """
    verify(folder)
    try:
        spec = ModelSpec.from_json(files.read_json(folder / "model.json")["spec"])
        weights = load_file(folder / "model.safetensors")
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise TrainingError(f"{folder}: the model cannot be read ({error})") from error
    spec = _with_code_in(spec, folder / _CODE)
    random_state = torch.get_rng_state()  # building draws initial weights that are discarded
    model = build(spec)
    torch.set_rng_state(random_state)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise TrainingError(f"{folder}: the weights do not fit the model of model.json ({error})") from error
    return model.eval(), spec
