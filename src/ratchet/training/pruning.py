"""Channel pruning: a model with the most important channels of a larger one (Li et al. 2017, Fang et al. 2023).

The importance of a channel is the L2 norm of all weights that make or read it, in any layer. Each layer loses the same
share of its channels, so the shape of the smaller model follows from the network's code, not from its weights.
"""

from dataclasses import replace

import torch
from torch import nn

from ratchet.errors import TrainingError
from ratchet.kinds import ModelSpec, Width
from ratchet.training.coupling import ChannelGroups, channel_groups
from ratchet.training.models import Model, build, example_inputs
from ratchet.training.models.narrow import NARROWED

__all__ = ["pruned", "pruned_spec"]

_MULTIPLE = 8  # channels that processors compute at once; narrow layers keep any number
_TOLERANCE = 1e-3  # of the outputs' size
_NOISE = 0.01
_NETWORK = "network."

Channels = dict[tuple[str, int], torch.Tensor]  # positions that stay, by tensor name and axis


def pruned_spec(spec: ModelSpec, share: float) -> ModelSpec:
    """Return the spec of the model without `share` of its channels. The random state does not change.

    Raises:
        TrainingError: no layer can lose channels, the network cannot be read, or it needs its full width.
    """
    if not share:
        return spec
    random_state = torch.get_rng_state()
    try:
        torch.manual_seed(0)
        full = build(spec).eval()
        for weight in full.parameters():
            weight.data.add_(torch.randn_like(weight), alpha=_NOISE)  # layers that begin with zeros would hide faults
        channels = _channels(full, spec, share)
        smaller = replace(spec, widths=_widths(full.network, channels))
        _require_equal(full, _smaller(full, smaller, channels).eval(), channels, spec)
    finally:
        torch.set_rng_state(random_state)
    return smaller


def pruned(full: Model, spec: ModelSpec, share: float) -> Model:
    """Return the model of `spec`, which `pruned_spec` returned for `share`, with the best channels of `full`."""
    training = full.training
    smaller = _smaller(full, spec, _channels(full.eval(), spec, share))
    full.train(training)
    return smaller.train(training)


def _channels(full: Model, spec: ModelSpec, share: float) -> Channels:
    """Return the channels that stay, of each tensor that loses some."""
    try:
        inputs = full.prepared(*example_inputs(spec.input))
        with torch.no_grad():
            slots, layers = channel_groups(full.network, inputs)
    except Exception as error:  # torch.export may raise anything
        raise TrainingError(
            f"training.prune_channels: the graph of {spec.called} cannot be read ({str(error).partition(chr(10))[0]}). "
            "Fix: `ratchet set training.prune_channels=0`, or write forward without branches that depend on values"
        ) from error
    importance = _importance(full.network, slots)
    staying: set[int] = {0}
    for group in _groups(layers):
        ranked = sorted(group, key=lambda label: (-importance[label], label))
        staying.update(ranked[: _number(len(group), share)])
    channels = {}
    for slot, labels in slots.items():
        positions = [position for position, label in enumerate(labels.tolist()) if label in staying]
        if len(positions) < len(labels):
            channels[slot] = torch.tensor(positions)
    if not channels:
        raise TrainingError(
            f"training.prune_channels: no layer of {spec.called} can lose channels. Allowed: networks with hidden "
            "layers of convolutions or linear layers. Fix: `ratchet set training.prune_channels=0`, or a larger share"
        )
    return channels


def _number(channels: int, share: float) -> int:
    number = max(1, round(channels * (1 - share)))
    if channels >= 2 * _MULTIPLE:
        number = max(1, round(number / _MULTIPLE)) * _MULTIPLE
    return min(number, channels)


def _groups(layers: list[torch.Tensor]) -> list[set[int]]:
    """Return the channels that compete: those of one layer, and of layers that share channels with it."""
    groups: list[set[int]] = []
    for layer in layers:
        group = set(layer.tolist()) - {0}
        for other in [other for other in groups if other & group]:
            groups.remove(other)
            group |= other
        if group:
            groups.append(group)
    return groups


def _importance(network: nn.Module, slots: ChannelGroups) -> dict[int, float]:
    """Return the L2 norm of the weights of layers that make or read each channel, squared, in float64."""
    weights = {name: weight.detach() for name, weight in network.named_parameters() if weight.dim() > 1}
    importance: dict[int, float] = {}
    for (name, axis), labels in slots.items():
        if name not in weights:
            continue
        squares = weights[name].double().movedim(axis, 0).flatten(1).square().sum(1)
        for label, value in zip(labels.tolist(), squares.tolist(), strict=True):
            importance[label] = importance.get(label, 0.0) + value
    return importance


def _widths(network: nn.Module, channels: Channels) -> tuple[Width, ...]:
    """Return the new numbers of inputs and outputs of each layer that changes."""
    changed = {name.rpartition(".")[0] for name, _ in channels}
    tensors = network.state_dict()
    widths = []
    for layer, module in network.named_modules():
        if layer not in changed:
            continue
        assert isinstance(module, NARROWED), "only tensors of these have groups of channels"
        own = {name.rpartition(".")[2]: tensor for name, tensor in tensors.items() if name.rpartition(".")[0] == layer}
        main = "weight" if "weight" in own else "running_mean"
        inputs = outputs = len(channels.get((f"{layer}.{main}", 0), own[main]))
        if getattr(module, "groups", 1) > 1:  # depthwise
            inputs = outputs * int(module.in_channels) // int(module.out_channels)  # type: ignore[arg-type]
        elif own[main].dim() > 1:
            read = channels.get((f"{layer}.{main}", 1))
            inputs = own[main].shape[1] if read is None else read.numel()
        widths.append(Width(layer, outputs, inputs))
    return tuple(widths)


def _smaller(full: Model, spec: ModelSpec, channels: Channels) -> Model:
    """Return the model of `spec` with the kept channels of `full`."""
    try:
        smaller = build(spec)
    except TrainingError as error:
        raise TrainingError(
            f"training.prune_channels: {spec.called} does not work with fewer channels: {error}. Fix: take the sizes "
            "in its forward from the shapes of tensors, or `ratchet set training.prune_channels=0`"
        ) from error
    tensors = full.state_dict()
    for (name, axis), positions in channels.items():
        tensors[_NETWORK + name] = tensors[_NETWORK + name].index_select(axis, positions)
    smaller.load_state_dict(tensors)
    return smaller


def _require_equal(full: Model, smaller: Model, channels: Channels, spec: ModelSpec) -> None:
    """Check that the smaller model answers as the full one does without the removed channels.

    A constant factor is allowed: some networks scale their outputs by a width.
    """
    tensors = dict(full.network.named_parameters())
    with torch.no_grad():
        for (name, axis), positions in channels.items():
            if axis == 1:
                removed = torch.ones(tensors[name].shape[1], dtype=torch.bool)
                removed[positions] = False
                tensors[name][:, removed] = 0.0
        inputs = tuple(
            torch.rand_like(values) if values.is_floating_point() else values
            for values in full.prepared(*example_inputs(spec.input, 2))
        )
        expected, answers = (model.network(*inputs).flatten().double() for model in (full, smaller))
    factor = (answers @ expected) / (expected @ expected)
    if not bool((answers - factor * expected).abs().max() <= _TOLERANCE * answers.abs().max()):
        raise TrainingError(
            f"training.prune_channels: {spec.called} mixes its channels in a way that cannot be pruned. Fix: "
            "`ratchet set training.prune_channels=0`"
        )
