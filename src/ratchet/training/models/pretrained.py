"""Weights to begin with, from a file: whatever fits is loaded, whatever does not is said."""

import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from ratchet.errors import TrainingError
from ratchet.training.models.classifier import Classifier

__all__ = ["LoadReport", "find_pretrained", "load_pretrained"]

_NAMED = 4  # names that a sentence lists


@dataclass(frozen=True)
class LoadReport:
    """What became of every tensor: names as the network has them, unexpected ones as the file has them."""

    file: str
    loaded: tuple[str, ...]
    missing: tuple[str, ...]  # the file has none: initial weights stay
    misshaped: tuple[str, ...]  # the file's has another shape, as a head for other classes has: initial weights stay
    unexpected: tuple[str, ...]  # the network has none: left aside

    @property
    def words(self) -> str:
        """The whole report in a sentence or two."""
        wanted = len(self.loaded) + len(self.missing) + len(self.misshaped)
        told = [f"pretrained weights of {self.file}: {len(self.loaded)} of the network's {wanted} tensors loaded"]
        if self.misshaped:
            told.append(f"of another shape, begun afresh: {_listed(self.misshaped)}")
        if self.missing:
            told.append(f"missing in the file, begun afresh: {_listed(self.missing)}")
        if self.unexpected:
            told.append(f"unexpected in the file, left aside: {_listed(self.unexpected)}")
        return "; ".join(told)


def find_pretrained(folder: Path, name: str) -> Path | None:
    """The file `name` in `folder`; None when the name is "none".

    Raises:
        TrainingError: it is not there; names those that are.
    """
    if name == "none":
        return None
    path = folder / name
    if path.is_file() and folder.resolve() in path.resolve().parents:
        return path
    there = sorted(one.relative_to(folder).as_posix() for one in _weight_files(folder))
    raise TrainingError(
        f"model.pretrained: there is no file {name} in {folder} (there are: {', '.join(there) or 'none'}): put a state "
        "dict there (.safetensors, .pt or .pth), name one that is there, or set model.pretrained to none"
    )


def load_pretrained(model: Classifier, path: Path) -> LoadReport:
    """Copy into the model's network every tensor of a state dict that has its name and its shape.

    The names need not begin alike: a file's may stand below "module." or "state_dict.", the network's below the name of
    a part. Of all beginnings the pair is taken by which most tensors agree. The input's scaling is never loaded: it
    belongs to the data.

    Args:
        path: .safetensors, or what torch.save wrote of tensors in dicts: it is read without running any code in it.

    Raises:
        TrainingError: it cannot be read, or no tensor of it fits.
    """
    offered = _read(path)
    wanted = model.network.state_dict()
    theirs, ours = _beginnings(offered, wanted)
    within = {name.removeprefix(theirs): tensor for name, tensor in offered.items() if name.startswith(theirs)}
    names = [name for name in wanted if name.startswith(ours)]
    found = [name for name in names if name.removeprefix(ours) in within]
    loaded = [name for name in found if wanted[name].shape == within[name.removeprefix(ours)].shape]
    if not loaded:
        raise TrainingError(
            f"model.pretrained: no tensor of {path} fits the model: the file has {_listed(tuple(offered))}, the model "
            f"{_listed(tuple(wanted))}: take the file of this model, or set model.pretrained to none"
        )
    with torch.no_grad():
        for name in loaded:
            wanted[name].copy_(within[name.removeprefix(ours)])
    # Old files have no such counters, and only a momentum of None, which nothing here uses, would read them.
    missing = [name for name in names if name not in found and not name.endswith(".num_batches_tracked")]
    return LoadReport(
        file=path.name,
        loaded=tuple(loaded),
        missing=tuple(name.removeprefix(ours) for name in missing),
        misshaped=tuple(name.removeprefix(ours) for name in found if name not in loaded),
        unexpected=tuple(theirs + name for name in within if ours + name not in wanted),
    )


def _weight_files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.suffix in (".safetensors", ".pt", ".pth"))


def _read(path: Path) -> dict[str, torch.Tensor]:
    """Every tensor of the file, by its name; in nested dicts the names are joined by dots."""
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, ValueError, EOFError, KeyError, RuntimeError, SafetensorError, pickle.UnpicklingError) as error:
        reason = str(error).partition("\n")[0]
        raise TrainingError(
            f"model.pretrained: {path} is not a state dict that can be read safely ({reason}): save one with "
            "safetensors.torch.save_file(model.state_dict(), FILE) or torch.save(model.state_dict(), FILE)"
        ) from error
    return dict(_flat(content, ""))


def _flat(content: object, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(content, torch.Tensor):
        yield name, content
    elif isinstance(content, Mapping):
        for key, value in content.items():
            yield from _flat(value, f"{name}.{key}" if name else str(key))


def _beginnings(offered: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> tuple[str, str]:
    """What the file's names and the network's begin with before they agree; the shortest where several do as well."""

    def agreeing(theirs: str, ours: str) -> tuple[int, int, int]:
        pairs = [
            (tensor.shape, wanted[ours + name.removeprefix(theirs)].shape)
            for name, tensor in offered.items()
            if name.startswith(theirs) and ours + name.removeprefix(theirs) in wanted
        ]
        return sum(one == other for one, other in pairs), len(pairs), -len(theirs) - len(ours)

    pairs = ((theirs, ours) for theirs in _prefixes(offered) for ours in _prefixes(wanted))
    return max(pairs, key=lambda pair: agreeing(*pair))


def _prefixes(names: Mapping[str, torch.Tensor]) -> list[str]:
    """Every dotted beginning that a tenth of the names share: a file may hold an optimizer's state and averages too."""
    counts: dict[str, int] = {"": len(names)}
    for name in names:
        parts = name.split(".")
        for length in range(1, len(parts)):
            prefix = ".".join(parts[:length]) + "."
            counts[prefix] = counts.get(prefix, 0) + 1
    return [prefix for prefix, count in counts.items() if 10 * count >= len(names)]


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more if names else "nothing"
