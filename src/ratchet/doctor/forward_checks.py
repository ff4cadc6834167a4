"""Checks of forward() on a few passes: modes, randomness, state, scale of the input, and samples that mix."""

import contextlib
import copy
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from ratchet.doctor.findings import RULES, Finding
from ratchet.doctor.layers import layer_name, layer_names, weighted_layers
from ratchet.training.batches import Inputs
from ratchet.training.device import seed_step
from ratchet.training.models import Model

__all__ = ["check_independence", "check_passes"]

_NUDGE = 1e-3  # noise added to weights before the passes
_SCALES = 0.7, 1.4  # factors between the normalised images and the input of the first layer
_STRAIGHT = 1e-2  # share of the standard deviation that a linear function may leave unexplained
_SAMPLES, _SAMPLES_LARGE = 8, 6  # the second where all images together have more values than
_LARGE = 1 << 20
_NOISE = 0.1  # added to weights, as a share of their standard deviation
_NOISE_FROM_ZERO = 0.02  # added to weights that are all equal
_DROPPING = re.compile("Drop|StochasticDepth")  # classes of layers, also those of torchvision and timm
_NORMS = nn.LayerNorm | nn.GroupNorm | _BatchNorm


def check_passes(model: Model, inputs: Inputs, seed: int, *, pretrained: bool) -> Iterator[Finding]:
    """Compare two passes in training mode from one seed, and two in eval mode from different seeds.

    Weights are changed a little first, so that a constant that forward() writes into them is noticed. Frozen batch
    norms of pretrained weights are usual and give no finding.
    """
    changed: dict[str, tuple[str, ...]] = {}
    wrong: dict[str, tuple[str, ...]] = {}
    scaled: dict[str, tuple[float, float]] = {}
    layers_before: dict[str, set[str]] = {}
    outputs = []
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.add_(_NUDGE * torch.randn_like(parameter))
        start = copy.deepcopy(model.state_dict())  # a plain dict would lack the versions of modules
        for mode, offset in (("training", 0), ("training", 0), ("eval", 0), ("eval", 1)):
            model.load_state_dict(start, strict=False)
            model.train(mode == "training")
            watched = [*model.named_parameters(), *(model.named_buffers() if mode == "eval" else ())]
            before = {path: tensor.clone() for path, tensor in watched}
            seed_step(seed + offset, 0, inputs[0].device)
            with _first_input(model) as first, _layers_noted(model, layers_before):
                outputs.append(model(*inputs))
            after = {**dict(model.named_parameters()), **dict(model.named_buffers())}
            changed[mode] = layer_names(p for p, old in before.items() if p in after and not _same(old, after[p]))
            wrong[mode] = _wrong_mode(model, mode) if mode == "eval" or not pretrained else ()
            if first and (scaling := _scaling(model.prepared(*inputs)[0], first[0])) is not None:
                scaled.setdefault(mode, scaling)
    if not _nearly_equal(outputs[1], outputs[0], RULES["unseeded-forward"].limit):
        yield Finding.of("unseeded-forward", difference=_difference(outputs[1], outputs[0]))
    if not _nearly_equal(outputs[3], outputs[2], RULES["random-in-eval"].limit):
        yield Finding.of("random-in-eval")
    for rule, places in (("wrong-mode", wrong), ("changed-in-forward", changed)):
        if mode := next((mode for mode, names in places.items() if names), ""):
            yield Finding.of(rule, *places[mode], mode=mode)
    if shared := [name for name, layers in layers_before.items() if len(layers) > 1]:
        yield Finding.of("shared-batch-norm", *shared)
    for mode, (scale, shift) in list(scaled.items())[:1]:
        yield Finding.of("input-scaled-again", mode=mode, scale=scale, shift=shift)


def check_independence(model: Model, inputs: Inputs, seed: int, *, is_stream: bool) -> Iterator[Finding]:
    """Replace every other sample, run one sample alone, compare the modes, and replace the later tokens of a stream.

    In training mode batch norms use their running statistics, dropout is off, and a seed fixes all random numbers.
    """
    _add_noise(model)
    count = _SAMPLES if sum(values.numel() for values in inputs) <= _LARGE else _SAMPLES_LARGE
    inputs = tuple((values.float() if values.dtype == torch.uint8 else values)[:count] for values in inputs)
    start = copy.deepcopy(model.state_dict())

    def run(*batch: torch.Tensor) -> torch.Tensor:
        model.load_state_dict(start, strict=False)
        seed_step(seed, 0, batch[0].device)
        outputs: torch.Tensor = model(*batch)
        return outputs

    evaluated: torch.Tensor | None = None
    with torch.no_grad(), _NoDropout():
        for mode in ("eval", "training"):
            model.train(mode == "training")
            _without_noise(model)
            outputs, others, again = run(*inputs), run(*map(_replaced, inputs)), run(*inputs)
            limit = RULES["mixed-samples"].limit
            if not _nearly_equal(again, outputs, limit):  # has its own finding
                continue
            if not _nearly_equal(others[1::2], outputs[1::2], limit):
                share = _difference(others[1::2], outputs[1::2]) / max(float(outputs.abs().max()), 1e-30)
                yield Finding.of("mixed-samples", mode=mode, share=share)
                break
            if mode == "eval":
                evaluated = outputs
                yield from _alone(run(*(values[:1] for values in inputs)), outputs[:1], batch=len(inputs[0]))
            elif evaluated is not None and not _numbers_drawn(seed, inputs[0].device):  # noise is meant
                yield from _other_function(outputs, evaluated)
        model.eval()
        if is_stream:
            yield from _later_tokens(run, inputs[0])


def _without_noise(model: Model) -> None:
    """Let batch norms use their running statistics, and turn off what layers drop where _NoDropout does not see it.

    Attention and recurrent layers hand a share named dropout to a function of their own. A random ReLU is off too: what
    it draws depends on other samples.
    """
    for module in model.modules():
        if isinstance(module, _BatchNorm | nn.RReLU) or _DROPPING.search(type(module).__name__):
            module.eval()
        if isinstance(getattr(module, "dropout", None), float):
            vars(module)["dropout"] = 0.0  # the model is the doctor's copy


def _later_tokens(run: Callable[..., torch.Tensor], ids: torch.Tensor) -> Iterator[Finding]:
    if half := ids.shape[1] // 2:
        outputs = run(ids)[:, :half]
        others = run(torch.cat([ids[:, :half], ids.roll(1, 0)[:, half:].flip(1)], 1))[:, :half]
        if not _nearly_equal(others, outputs, RULES["later-tokens"].limit):
            yield Finding.of("later-tokens", difference=_difference(others, outputs))


def _alone(alone: torch.Tensor, expected: torch.Tensor, *, batch: int) -> Iterator[Finding]:
    if alone.shape != expected.shape:
        yield Finding.of("batch-axis-lost", shape=str(tuple(alone.shape)), expected=str(tuple(expected.shape)))
    elif not _nearly_equal(alone, expected, RULES["batch-size-dependence"].limit):
        yield Finding.of("batch-size-dependence", batch=batch, difference=_difference(alone, expected))


def _other_function(trained: torch.Tensor, evaluated: torch.Tensor) -> Iterator[Finding]:
    if trained.shape != evaluated.shape:
        return
    share = float((trained - evaluated).norm()) / max(float(trained.norm()), float(evaluated.norm()), 1e-30)
    if share > RULES["other-function-in-eval"].limit:
        yield Finding.of("other-function-in-eval", share=share)


def _numbers_drawn(seed: int, device: torch.device) -> bool:
    """Return whether a pass from `seed` has drawn random numbers: the next ones are not the first after the seed."""

    def following() -> tuple[float, ...]:
        return random.random(), np.random.random(), float(torch.rand(())), float(torch.rand((), device=device))

    now = following()
    seed_step(seed, 0, device)
    return now != following()


class _NoDropout(TorchFunctionMode):
    """Let the functions of dropout keep all values, also those that layers call."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        _types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if "dropout" in getattr(function, "__name__", ""):
            return args[0] if args else kwargs["input"]
        return function(*args, **kwargs)


def _wrong_mode(model: Model, mode: str) -> tuple[str, ...]:
    """Return the layers in the other mode. In training mode, only those that differ in it and are not frozen."""
    wrong = {path: module for path, module in model.named_modules() if module.training != (mode == "training")}
    return layer_names(
        p for p, module in wrong.items() if mode == "eval" or layer_name(p) == "the model" or _depends_on_mode(module)
    )


def _depends_on_mode(module: nn.Module) -> bool:
    own = list(module.parameters(recurse=False))
    learns = not own or any(parameter.requires_grad for parameter in own)
    return (isinstance(module, _BatchNorm) and learns) or (isinstance(module, _DropoutNd) and module.p > 0)


@contextlib.contextmanager
def _first_input(model: Model) -> Iterator[list[torch.Tensor]]:
    """Record the input of the first convolution or linear layer inside; nothing where a norm comes before it."""
    first: list[torch.Tensor | None] = []
    recorded: list[torch.Tensor] = []

    def note(module: nn.Module, inputs: tuple[object, ...]) -> None:
        if not first:
            first.append(None)
            recorded.extend(each for each in inputs[:1] if isinstance(each, torch.Tensor) and id(module) in weighted)

    weighted = {id(layer) for layer in weighted_layers(model).values()}
    layers = [module for module in model.modules() if id(module) in weighted or isinstance(module, _NORMS)]
    hooks = [layer.register_forward_pre_hook(note) for layer in layers]
    try:
        yield recorded
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def _layers_noted(model: Model, before: dict[str, set[str]]) -> Iterator[None]:
    """Add, for each batch norm that learns statistics inside, the linear layers and convolutions just before it."""
    last = [""]

    def note(norm: _BatchNorm, name: str) -> None:
        if norm.training and norm.track_running_stats:
            before.setdefault(name, set()).add(last[0])

    with contextlib.ExitStack() as stack:
        for name, layer in weighted_layers(model).items():
            stack.enter_context(layer.register_forward_hook(lambda *_, name=name: last.__setitem__(0, name)))
        for path, norm in model.named_modules():
            if isinstance(norm, _BatchNorm):
                name = layer_name(path)
                stack.enter_context(norm.register_forward_pre_hook(lambda norm, _, name=name: note(norm, name)))
        yield


def _scaling(images: torch.Tensor, actual: torch.Tensor) -> tuple[float, float] | None:
    """Return scale and shift of the channel that is farthest from 1 and 0; None if near, or without such a function."""
    if images.dim() != 4 or actual.numel() != images.numel() or actual.dim() not in (2, 4):
        return None
    before, after = (each.double().reshape(images.shape).transpose(0, 1).flatten(1) for each in (images, actual))
    scale = after.std(1) / before.std(1).clamp_min(1e-12)
    shift = after.mean(1) - scale * before.mean(1)
    missed = (scale[:, None] * before + shift[:, None] - after).square().mean(1).sqrt()
    off = (scale < _SCALES[0]) | (scale > _SCALES[1]) | (shift.abs() > RULES["input-scaled-again"].limit)
    lost = after.std(1) == 0.0  # no scale is left: "no-gradient" reports it
    if not off.any() or bool((lost | (missed > _STRAIGHT * after.std(1))).any()):
        return None
    worst = int(off.double().argmax())
    return float(scale[worst]), float(shift[worst])


def _add_noise(model: Model) -> None:
    """Add noise to weights, so that layers that start from zeros let signal through."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2 and parameter.is_floating_point():
                spread = float(parameter.std()) if parameter.numel() > 1 else 0.0
                noise = torch.randn(parameter.shape, generator=generator).to(parameter)
                parameter.add_(noise, alpha=_NOISE * spread or _NOISE_FROM_ZERO)


def _replaced(values: torch.Tensor) -> torch.Tensor:
    """Replace every other sample: images by new ones, others by a neighbour."""
    others = values.clone()
    others[::2] = 2 * values.amax() - 1.5 * values[::2].flip(2, 3) if values.dim() == 4 else values.roll(1, 0)[::2]
    return others


def _same(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.shape == second.shape and torch.equal(first, second)


def _difference(first: torch.Tensor, second: torch.Tensor) -> float:
    return float((first - second).abs().max())


def _nearly_equal(first: torch.Tensor, second: torch.Tensor, share: float) -> bool:
    """Return whether no difference exceeds `share` of the largest absolute value of `second`."""
    return not len(second) or _difference(first, second) <= share * float(second.abs().max())
