"""Pretrained weights from a file: tensors that fit are loaded, all others are reported."""

import pickle
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from ratchet.errors import TrainingError
from ratchet.training.models.model import Model

__all__ = ["LoadReport", "find_pretrained", "load_pretrained"]

_NAMED = 4  # names that a message lists


@dataclass(frozen=True)
class LoadReport:
    """Names of the tensors that were loaded or not: as in the network; unexpected ones as in the file."""

    file: str
    fitting: tuple[str, ...]
    missing: tuple[str, ...]  # not in the file: initial weights stay
    misshaped: tuple[str, ...]  # of another shape in the file, such as a head for other classes: initial weights stay
    unexpected: tuple[str, ...]  # not in the network: ignored
    replaced: tuple[str, ...] = ()  # of a head for other classes of the same number: initial weights stay

    @property
    def summary(self) -> str:
        differences = {
            "of another shape, initial weights kept": self.misshaped,
            "of other classes, initial weights kept": self.replaced,
            "missing in the file, initial weights kept": self.missing,
            "unexpected in the file, ignored": self.unexpected,
        }
        start = f"pretrained weights of {self.file}: {len(self.fitting)} of the network's {self._wanted} tensors loaded"
        return "; ".join([start, *(f"{text}: {_listed(names)}" for text, names in differences.items() if names)])

    @property
    def refusal(self) -> str:
        """Say how many tensors fit, which do not, and what the likely cause is."""
        is_wide = len(self.misshaped) > len(self.missing)
        cause = "the same network in another size" if is_wide else "another network, whose tensors have other names"
        return (
            f"{len(self.fitting)} of the network's {self._wanted} tensors fit. Of another shape: "
            f"{_listed(self.misshaped)}. Missing in the file: {_listed(self.missing)}. Unexpected in it: "
            f"{_listed(self.unexpected)}. Only the head is expected to differ, so the file is likely of {cause}. Fix: "
            "set model.name to the network of the file, name weights of this model, or set model.pretrained to none"
        )

    @property
    def _wanted(self) -> int:
        return sum(map(len, (self.fitting, self.missing, self.misshaped, self.replaced)))


def find_pretrained(folder: Path, name: str) -> Path | None:
    """Return the path of file `name` in `folder`, or of the weights of model `name` there; None of the name "none".

    Raises:
        TrainingError: it does not exist; the message lists the files that do.
    """
    if name == "none":
        return None
    path = folder / name
    if (path / "model.json").is_file():
        path /= "model.safetensors"
    if path.is_file() and folder.resolve() in path.resolve().parents:
        return path
    existing = sorted(weights.relative_to(folder).as_posix() for weights in _weight_files(folder))
    raise TrainingError(
        f"model.pretrained: there is no file {name} in {folder}. Existing: {', '.join(existing) or 'none'}. Fix: put a "
        "state dict there (.safetensors, .pt or .pth), name an existing file, or set model.pretrained to none"
    )


def load_pretrained(model: Model, path: Path, *, but: Collection[str] = ()) -> LoadReport:
    """Copy into the model's network every tensor of a state dict that matches in name and shape.

    Prefixes of names may differ, such as "module." or "state_dict." in the file, or the name of a part in the network.
    The pair of prefixes with the most matching tensors is used. The scaling of the input is never loaded, because it
    belongs to the data.

    Args:
        path: .safetensors, or dicts of tensors written by torch.save, which are read without running code.
        but: names in the model whose initial weights stay.

    Raises:
        TrainingError: it cannot be read, or it fits neither half of the network nor half of it fits the network.
    """
    offered, wanted = _read(path), model.network.state_dict()
    theirs, ours = _best_prefixes(offered, wanted)
    within = {name.removeprefix(theirs): tensor for name, tensor in offered.items() if name.startswith(theirs)}
    names = [name for name in wanted if name.startswith(ours)]
    matched = [name for name in names if name.removeprefix(ours) in within]
    replaced = [name for name in matched if f"network.{name}" in but]
    shaped = [name for name in matched if wanted[name].shape == within[name.removeprefix(ours)].shape]
    fitting = [name for name in shaped if name not in replaced]
    # Old files lack these counters. Only a momentum of None, which is not used here, would read them.
    missing = [name for name in names if name not in matched and not name.endswith(".num_batches_tracked")]
    report = LoadReport(
        file="/".join(path.parts[-3:-1]) if path.name == "model.safetensors" else path.name,
        fitting=tuple(fitting),
        missing=tuple(name.removeprefix(ours) for name in missing),
        misshaped=tuple(name.removeprefix(ours) for name in matched if name not in [*fitting, *replaced]),
        unexpected=tuple(theirs + name for name in within if ours + name not in wanted),
        replaced=tuple(replaced),
    )
    if not fitting or 2 * len([*fitting, *replaced]) < min(len(offered), len(wanted)):
        raise TrainingError(f"model.pretrained: {path} does not fit the model: {report.refusal}")
    with torch.no_grad():
        for name in fitting:
            wanted[name].copy_(within[name.removeprefix(ours)])
    return report


def _weight_files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.suffix in (".safetensors", ".pt", ".pth"))


def _read(path: Path) -> dict[str, torch.Tensor]:
    """Return every tensor of the file by its name. Names of nested dicts are joined by dots."""
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, ValueError, EOFError, KeyError, RuntimeError, SafetensorError, pickle.UnpicklingError) as error:
        reason = str(error).partition("\n")[0]
        raise TrainingError(
            f"model.pretrained: {path} is not a state dict that can be read safely ({reason}). Fix: save one with "
            "safetensors.torch.save_file(model.state_dict(), FILE) or torch.save(model.state_dict(), FILE)"
        ) from error
    return dict(_flat(content, ""))


def _flat(content: object, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(content, torch.Tensor):
        yield name, content
    elif isinstance(content, Mapping):
        for key, value in content.items():
            yield from _flat(value, f"{name}.{key}" if name else str(key))


def _best_prefixes(offered: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> tuple[str, str]:
    """Return the prefixes of the file and of the network with the most matching names; of equal pairs the shortest."""

    def matches(theirs: str, ours: str) -> tuple[int, int, int]:
        pairs = [
            (tensor.shape, wanted[ours + name.removeprefix(theirs)].shape)
            for name, tensor in offered.items()
            if name.startswith(theirs) and ours + name.removeprefix(theirs) in wanted
        ]
        equal = sum(offered_shape == wanted_shape for offered_shape, wanted_shape in pairs)
        return equal, len(pairs) if equal else 0, -len(theirs) - len(ours)

    pairs = ((theirs, ours) for theirs in _prefixes(offered) for ours in _prefixes(wanted))
    return max(pairs, key=lambda pair: matches(*pair))


def _prefixes(names: Mapping[str, torch.Tensor]) -> list[str]:
    """Return every dotted prefix of at least a tenth of the names. A file may also hold optimizer state."""
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
