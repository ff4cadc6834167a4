"""Check the code of a custom Dataset (data.factory): randomness, buffers, in-place changes, order of axes."""

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ratchet.training.batches import Split
from ratchet.training.custom_dataset import DatasetSplit
from ratchet.training.doctor.compare import same_tensor, seeded_generators
from ratchet.training.doctor.findings import Finding
from ratchet.training.doctor.read_samples import Reading, balanced_rows, read_sample
from ratchet.training.plan import Plan

__all__ = ["check_dataset"]

_READ_TWICE = 8  # samples
_OWN_BYTES = 64 << 20  # of a Dataset's array that are compared before and after reading a sample
_DEEPEST = 3  # Datasets inside a Dataset
_LAST_AXIS, _FEWEST_ROWS = 4, 5  # channels last: at most so many columns, and at least so many channels and rows


def check_dataset(train: DatasetSplit, validation: Split, plan: Plan) -> Iterator[Finding]:
    """Read samples of both splits several times. The same rule is reported for one split only."""
    findings = list(_check_readings(train, plan))
    yield from findings
    if isinstance(validation, DatasetSplit):
        reported = {finding.rule for finding in findings}
        in_validation = _check_readings(validation, plan, held_out=True)
        yield from (finding for finding in in_validation if finding.rule not in reported)
    yield from _channels_last(train)


def _channels_last(split: DatasetSplit) -> Iterator[Finding]:
    """Look for images whose last axis is as short as channels and whose first is as long as rows."""
    image = read_sample(split.reader.open(split.name), int(split.places[0]), 0).image
    channels, rows, columns = image.shape
    if columns <= _LAST_AXIS and columns != 2 and min(channels, rows) >= _FEWEST_ROWS and channels > columns:
        values = {"channels": channels, "rows": rows, "columns": columns}
        yield Finding("channels-last", (), values, "error" if columns == 3 or channels == rows else "warning")


def _check_readings(split: DatasetSplit, plan: Plan, *, held_out: bool = False) -> Iterator[Finding]:
    """Read samples with one seed, the same seed again, and another seed."""
    dataset = split.reader.open(split.name)
    unseeded, varied, reused = list[str](), list[str](), list[str]()
    seeded, altered = set[str](), set[str]()
    last: tuple[int, Reading] | None = None
    for place in split.places[balanced_rows(split, _READ_TWICE, plan)].tolist():
        first = read_sample(dataset, place, 0)
        if last is not None and not same_tensor(last[1].image, last[1].returned):
            reused.append(str(last[0]))
        before = _own_arrays(dataset, place)
        again = read_sample(dataset, place, 0)
        after = _own_arrays(dataset, place)
        altered |= {name for name, digest in after.items() if before.get(name, digest) != digest}
        other = read_sample(dataset, place, 1)
        if not same_tensor(first.image, again.image):
            unseeded.append(str(place))
        elif not same_tensor(first.image, other.image):
            varied.append(str(place))
        seeded |= {*seeded_generators(first.states, other.states)}
        last = place, other

    def samples(rule: str, places: list[str]) -> Finding:
        return Finding(rule, tuple(places), {"count": len(places), "of": _READ_TWICE, "split": split.name})

    if altered:
        yield Finding("in-place-change", tuple(sorted(altered)), {"split": split.name})
    elif unseeded:
        yield samples("unseeded-dataset", unseeded)
    if reused:
        yield samples("reused-buffer", reused)
    if varied and held_out:
        yield samples("augmented-validation", varied)
    if seeded:
        yield Finding("seeding-in-dataset", tuple(sorted(seeded)))


def _own_arrays(dataset: Any, place: int) -> dict[str, bytes]:
    """Return a digest of each array that a Dataset holds with an entry for every sample; of large ones, of one entry.

    Shorter arrays may be working buffers.
    """
    digests: dict[str, bytes] = {}
    length = len(dataset)
    for name, array in _arrays(dataset, "", 0):
        if len(array) < length:
            continue
        compared = array if array.nbytes <= _OWN_BYTES else array[place : place + 1]
        digests[name] = hashlib.blake2b(np.ascontiguousarray(compared).tobytes(), digest_size=8).digest()
    return digests


def _arrays(value: Any, path: str, depth: int) -> Iterator[tuple[str, NDArray[Any]]]:
    if isinstance(value, torch.Tensor) and value.dim() and value.device.type == "cpu":
        with contextlib.suppress(TypeError, RuntimeError):  # bfloat16 and sparse tensors have no array: left out
            yield path, value.detach().numpy()
    elif isinstance(value, np.ndarray) and value.ndim and value.dtype != object:
        yield path, value
    elif depth < _DEEPEST and hasattr(value, "__getitem__") and hasattr(value, "__dict__"):
        for name, member in vars(value).items():
            yield from _arrays(member, f"{path}.{name}".lstrip("."), depth + 1)
    elif depth < _DEEPEST and isinstance(value, Mapping):
        for name, member in value.items():
            yield from _arrays(member, f"{path}[{name!r}]", depth + 1)
