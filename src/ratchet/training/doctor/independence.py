"""Check that the outputs of a sample depend on that sample alone, and on all that it consists of."""

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

from ratchet.kinds import ImageInput, Input, TableInput, TextInput, TokensInput
from ratchet.training.batches import Inputs
from ratchet.training.device import seed_step
from ratchet.training.doctor.layers import batch_norms, tracks
from ratchet.training.doctor.passes import Steady, largest_difference, nearly_equal
from ratchet.training.doctor.rules import Finding
from ratchet.training.models import Model

__all__ = ["check_independence"]

_SAMPLES, _SAMPLES_LARGE = 8, 6  # the second where all images together have more values than
_LARGE = 1 << 20
_GRADIENT_SAMPLES = 4  # for the check for unused input
_MIXED = 1e-4  # share of the largest logit above which a change is more than rounding
_OTHER = 0.05  # share of the outputs by which those of training mode may differ from those of eval mode
_DIFFERS = 1e-2  # share of the largest logit by which a sample alone may differ from the same sample in a batch
_NOISE = 0.1  # added to weights, as a share of their standard deviation
_NOISE_FROM_ZERO = 0.02  # added to weights that are all equal
_UNUSED = 0.5  # share of pixels
_PADDING = 0  # id of a text's padding


def check_independence(model: Model, inputs: Inputs, described: Input, seed: int) -> Iterator[Finding]:
    """Replace every other sample, run one sample alone, and look for parts of a sample that change no output.

    In training mode batch norms use their running statistics for it, and dropouts are off.
    """
    _add_noise(model)
    count = _SAMPLES if sum(values.numel() for values in inputs) <= _LARGE else _SAMPLES_LARGE
    inputs = tuple((values.float() if values.dtype == torch.uint8 else values)[:count] for values in inputs)
    model.eval()
    untracked = not all(map(tracks, batch_norms(model).values()))  # has its own finding
    with torch.no_grad():
        with Steady() if untracked else contextlib.nullcontext():
            logits, mixed = _mixing(model, inputs, seed)
        if mixed:
            yield Finding.of("mixed-samples", mode="eval", share=mixed)
        else:
            if not untracked:
                yield from _alone(model, inputs, logits)
            model.train()
            with Steady():
                trained, mixed = _mixing(model, inputs, seed)
                yield from _other_function(model, inputs, trained, seed)
            if mixed:
                yield Finding.of("mixed-samples", mode="training", share=mixed, running_statistics=True)
    model.eval()
    match described:
        case ImageInput():
            yield from _unused_pixels(model, inputs[0][:_GRADIENT_SAMPLES])
        case TableInput():
            yield from _unused_columns(model, inputs, described)
        case TextInput():
            yield from _padding(model, inputs[0])
        case TokensInput():
            yield from _later_tokens(model, inputs[0])


def _add_noise(model: Model) -> None:
    """Add noise to weights, so that layers that start from zeros let signal and gradient through."""
    generator = torch.Generator().manual_seed(0)
    padded = {id(module.weight): module.padding_idx for module in model.modules() if isinstance(module, nn.Embedding)}
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2 and parameter.is_floating_point():
                spread = float(parameter.std()) if parameter.numel() > 1 else 0.0
                noise = torch.randn(parameter.shape, generator=generator).to(parameter)
                if (padding := padded.get(id(parameter))) is not None:
                    noise[padding] = 0.0  # no training changes it either
                parameter.add_(noise, alpha=_NOISE * spread or _NOISE_FROM_ZERO)


def _mixing(model: Model, inputs: Inputs, seed: int) -> tuple[torch.Tensor, float]:
    """Return logits, and the change of those of unchanged samples when every other sample is replaced.

    The change is a share of the largest logit; 0 where it is rounding, or where there is one sample only.
    """
    others = tuple(map(_replaced, inputs))
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    logits = []
    for batch in (inputs, others, inputs):
        seed_step(seed, 0, inputs[0].device)
        logits.append(model(*batch))
        for buffer, before in buffers:
            buffer.copy_(before)  # a spectral norm changes its estimate in every pass
    count = len(inputs[0])
    if count < 2 or len(logits[0]) != count:
        return logits[0], 0.0
    largest = float(logits[0].abs().max())
    share = largest_difference(logits[0][1::2], logits[1][1::2]) / largest if largest else 0.0
    is_random = not nearly_equal(logits[2], logits[0], _MIXED)  # has its own finding, and says nothing of other samples
    return logits[0], share if share > _MIXED and not is_random else 0.0


def _other_function(model: Model, inputs: Inputs, trained: torch.Tensor, seed: int) -> Iterator[Finding]:
    """Compare the function of training mode with that of eval mode, where neither is random.

    Batch norms use their running statistics in both, and dropouts are off: a sound model is the same function.
    """
    seed_step(seed + 1, 0, inputs[0].device)
    other = model(*inputs)
    model.eval()
    evaluated = model(*inputs)
    model.train()
    if evaluated.shape != trained.shape or not nearly_equal(other, trained, _MIXED):
        return  # such as stochastic depth, whose two passes differ
    size = max(float(trained.norm()), float(evaluated.norm()))
    share = float((trained - evaluated).norm()) / size if size else 0.0
    if share > _OTHER:
        yield Finding.of("other-function-in-eval", share=share)


def _replaced(values: torch.Tensor) -> torch.Tensor:
    """Replace every other sample: images by new ones, others by a neighbour."""
    others = values.clone()
    images = values.dim() == 4
    others[::2] = 2.0 * values.amax() - 1.5 * values[::2].flip(2, 3) if images else values.roll(1, 0)[::2]
    return others


def _alone(model: Model, inputs: Inputs, logits: torch.Tensor) -> Iterator[Finding]:
    alone, expected, batch = model(*(values[:1] for values in inputs)), logits[:1], len(inputs[0])
    if alone.shape != expected.shape:
        yield Finding.of("batch-axis-lost", shape=str(tuple(alone.shape)), expected=str(tuple(expected.shape)))
        return
    if nearly_equal(alone, expected, _DIFFERS):
        return
    ratio = alone / expected
    if batch > 1 and torch.allclose(ratio, torch.full_like(ratio, batch), rtol=0.05):
        yield Finding.of("divided-by-batch-size", batch=batch)
    else:
        yield Finding.of("batch-size-dependence", batch=batch, difference=largest_difference(alone, expected))


def _unused_pixels(model: Model, images: torch.Tensor) -> Iterator[Finding]:
    images = images.clone().requires_grad_()
    logits = model(images)
    if not logits.requires_grad:
        return
    weights = torch.linspace(1.0, 2.0, logits[0].numel(), device=logits.device, dtype=logits.dtype).view_as(logits[0])
    (gradient,) = torch.autograd.grad((logits * weights).sum(), images, allow_unused=True)
    if gradient is None or not gradient.count_nonzero():
        return
    used = gradient != 0
    channels = tuple(str(number) for number, is_used in enumerate(used.any(3).any(2).any(0).tolist()) if not is_used)
    unused = 1.0 - float(used.any(1).any(0).float().mean())
    if channels:
        yield Finding.of("unused-channels", *channels)
    elif unused >= _UNUSED:
        yield Finding.of("unused-pixels", share=unused)


def _unused_columns(model: Model, inputs: Inputs, table: TableInput) -> Iterator[Finding]:
    """Exchange the values of one column between the rows. A column with equal values is not tested."""
    with torch.no_grad():
        outputs, unused = model(*inputs), list[str]()
        for place, columns in enumerate((table.numeric, table.categorical)):
            for number, column in enumerate(columns):
                others = [values.clone() for values in inputs]
                others[place][:, number] = inputs[place][:, number].roll(1)
                changed = not torch.equal(others[place].nan_to_num(), inputs[place].nan_to_num())
                if changed and torch.equal(model(*others), outputs):
                    unused.append(column.name)
    if unused:
        yield Finding.of("unused-columns", *unused)


def _padding(model: Model, ids: torch.Tensor) -> Iterator[Finding]:
    """Compare the shortest text with and without the padding that the longest text of the batch makes necessary."""
    lengths = (ids != _PADDING).sum(1)
    shortest = int(lengths.argmin())
    length = int(lengths[shortest])
    if not 0 < length < ids.shape[1]:
        return
    with torch.no_grad():
        padded, alone = model(ids[shortest : shortest + 1]), model(ids[shortest : shortest + 1, :length])
    if alone.shape == padded.shape and not nearly_equal(alone, padded, _DIFFERS):
        yield Finding.of("padding-dependence", difference=largest_difference(alone, padded))


def _later_tokens(model: Model, ids: torch.Tensor) -> Iterator[Finding]:
    """Replace the second half of each piece, and compare the outputs of the first half."""
    half = ids.shape[1] // 2
    others = torch.cat([ids[:, :half], ids.roll(1, 0)[:, half:].flip(1)], 1)
    with torch.no_grad():
        outputs, changed = model(ids)[:, :half], model(others)[:, :half]
    if half and not nearly_equal(changed, outputs, _MIXED):
        yield Finding.of("later-tokens", difference=largest_difference(changed, outputs))
