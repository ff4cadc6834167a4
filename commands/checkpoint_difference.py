"""Bitwise difference of two trainings: weights, checkpoints, history and logged points."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from commands.resume_trial import Trial
from commands.tensors import compare_tensors
from ratchet import files
from ratchet.errors import CheckpointError

__all__ = ["differences"]

# Metrics of the machine, not of the training: speed, time, memory.
_RATES = ("samples_per_second", "data_wait", "memory", "system/", "cost/")


def differences(a: Trial, b: Trial) -> list[str]:
    """Return one sentence for each kind of thing that differs, naming the first difference; [] if all bits are equal.

    Raises:
        CheckpointError: one of them left no checkpoint to compare.
    """
    sentences = [
        next(_checkpoint(a, b), None),
        next(_weights(a.workspace.model, b.workspace.model), None),
        _history(a.workspace.model, b.workspace.model),
        next(_points(a, b), None),
    ]
    return [sentence for sentence in sentences if sentence]


def _checkpoint(a: Trial, b: Trial) -> Iterator[str]:
    """Compare the last checkpoints: the tensors (weights, optimizer, averages), then the rest of the state."""
    from ratchet.training import CheckpointStore

    snapshots = []
    for trial in (a, b):
        newest = CheckpointStore(trial.workspace.checkpoints).newest()
        if newest is None:
            raise CheckpointError(f"{trial.workspace.checkpoints}: has no checkpoint, so there is nothing to compare")
        snapshots.append(newest[1])
    first, second = snapshots
    if first.step != second.step:
        yield f"last checkpoint: of step {first.step}, then of step {second.step}"
    yield from (f"last checkpoint: {difference}" for difference in compare_tensors(first.tensors, second.tensors))
    for name in sorted(first.state.keys() | second.state.keys()):
        if first.state.get(name) != second.state.get(name):
            yield f"last checkpoint: {name} is {first.state.get(name)!r:.200}, then {second.state.get(name)!r:.200}"


def _weights(a: Path, b: Path) -> Iterator[str]:
    from safetensors.torch import load_file

    first, second = (load_file(folder / "model.safetensors") for folder in (a, b))
    return (f"best weights: {difference}" for difference in compare_tensors(first, second))


def _history(a: Path, b: Path) -> str | None:
    rows = [files.read_json(folder / "history.json") for folder in (a, b)]
    if rows[0] == rows[1]:
        return None
    pairs = enumerate(zip(*rows, strict=False), 1)
    epoch = next((epoch for epoch, pair in pairs if pair[0] != pair[1]), min(map(len, rows)) + 1)
    return f"history: first in epoch {epoch}"


def _points(a: Trial, b: Trial) -> Iterator[str]:
    """Yield the logged points that are missing, duplicated or of another value, by step."""
    first, second = _logged(a), _logged(b)
    for step, name in sorted(first.keys() | second.keys()):
        values = [points.get((step, name), Counter()) for points in (first, second)]
        if values[0] != values[1]:
            shown = [", ".join(map(str, counter.elements())) or "nothing" for counter in values]
            yield f"logged points: {name} at {step} is {shown[0]}, then {shown[1]}"


def _logged(trial: Trial) -> dict[tuple[int, str], Counter[float]]:
    points: dict[tuple[int, str], Counter[float]] = {}
    for content in trial.entries("metrics"):
        for name, value in content["values"].items():
            if not any(rate in name for rate in _RATES):
                points.setdefault((content["step"], name), Counter())[value] += 1
    return points
