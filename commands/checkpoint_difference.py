"""Where two trainings differ, to the bit: weights, checkpoints, history and logged points."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from commands.resume_trial import Trial
from ratchet import files
from ratchet.errors import CheckpointError

if TYPE_CHECKING:
    import torch

__all__ = ["bits", "differences"]

# Figures of the machine and not of the training: how fast, how long, how much memory.
_RATES = ("samples_per_second", "data_wait", "memory", "system/", "cost/")


def differences(one: Trial, other: Trial) -> list[str]:
    """One sentence for each kind of thing that differs, naming the first of it; none: they are the same to the bit.

    Raises:
        CheckpointError: one of them left no checkpoint to compare.
    """
    found = [
        next(_checkpoint(one, other), None),
        next(_weights(one.workspace.model, other.workspace.model), None),
        _history(one.workspace.model, other.workspace.model),
        next(_points(one, other), None),
    ]
    return [sentence for sentence in found if sentence]


def _checkpoint(one: Trial, other: Trial) -> Iterator[str]:
    """Of the last checkpoints: the tensors (weights, optimizer, averages), then the rest of the state."""
    from ratchet.training import CheckpointStore

    snapshots = []
    for trial in (one, other):
        newest = CheckpointStore(trial.workspace.checkpoints).newest()
        if newest is None:
            raise CheckpointError(f"{trial.workspace.checkpoints}: no checkpoint was left: there is nothing to compare")
        snapshots.append(newest[1])
    first, second = snapshots
    if first.step != second.step:
        yield f"last checkpoint: of step {first.step}, then of step {second.step}"
    yield from (f"last checkpoint: {told}" for told in _tensors(first.tensors, second.tensors))
    for name in sorted(first.state.keys() | second.state.keys()):
        if first.state.get(name) != second.state.get(name):
            yield f"last checkpoint: {name} is {first.state.get(name)!r:.200}, then {second.state.get(name)!r:.200}"


def _weights(one: Path, other: Path) -> Iterator[str]:
    from safetensors.torch import load_file

    loaded = [load_file(folder / "model.safetensors") for folder in (one, other)]
    return (f"best weights: {told}" for told in _tensors(*loaded))


def _tensors(one: "Mapping[str, torch.Tensor]", other: "Mapping[str, torch.Tensor]") -> Iterator[str]:
    """Every tensor that differs, in the order of their names."""
    for name in sorted(one.keys() | other.keys()):
        if name not in one or name not in other:
            yield f"tensor {name} is in one only"
            continue
        a, b = one[name], other[name]
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            yield f"tensor {name} is {a.dtype} {tuple(a.shape)}, then {b.dtype} {tuple(b.shape)}"
        elif others := int((bits(a) != bits(b)).any(1).sum()):
            largest = float((a.double() - b.double()).abs().max())
            yield f"tensor {name}: {others} of {a.numel()} elements, by up to {largest:.3g}"


def bits(tensor: "torch.Tensor") -> "torch.Tensor":
    """The bytes of each element, uint8 (elements, bytes): bits decide, not values (0 is not -0, NaN is itself)."""
    import torch

    return tensor.contiguous().reshape(-1, 1).view(torch.uint8)


def _history(one: Path, other: Path) -> str | None:
    rows = [files.read_json(folder / "history.json") for folder in (one, other)]
    if rows[0] == rows[1]:
        return None
    epoch = next(
        (i for i, pair in enumerate(zip(*rows, strict=False), 1) if pair[0] != pair[1]), min(map(len, rows)) + 1
    )
    return f"history: first in epoch {epoch}"


def _points(one: Trial, other: Trial) -> Iterator[str]:
    """Logged points that are missing, there too often or of another value, by step."""
    first, second = (_told(trial) for trial in (one, other))
    for step, name in sorted(first.keys() | second.keys()):
        values = [told.get((step, name), Counter()) for told in (first, second)]
        if values[0] != values[1]:
            shown = [", ".join(map(str, some.elements())) or "nothing" for some in values]
            yield f"logged points: {name} at {step} is {shown[0]}, then {shown[1]}"


def _told(trial: Trial) -> "dict[tuple[int, str], Counter[float]]":
    points: dict[tuple[int, str], Counter[float]] = {}
    for content in trial.told("metrics"):
        for name, value in content["values"].items():
            if not any(rate in name for rate in _RATES):
                points.setdefault((content["step"], name), Counter())[value] += 1
    return points
