"""Names of pretrained weights in model.pretrained, and the record of the file that each name means.

A name is a file in data/pretrained, hf://ORG/NAME[@REVISION][/FILE.safetensors] or torchvision://MODEL[/WEIGHTS]. The
record, data/pretrained/sources.json, belongs in git: other clones fetch the same commit, and check the same digest.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple
from urllib.parse import unquote

from ratchet import files
from ratchet.errors import TrainingError
from ratchet.typed_json import STRICT, parse, to_plain

if TYPE_CHECKING:
    from pydantic import ConfigDict

__all__ = ["HubAddress", "WeightsSource", "address_fault", "file_of", "find", "is_address", "keep"]

NO_RESULT = {
    "ingest": "of a check at the start",
    "evaluate": "of a check at the start",
    "export": "of a check at the start",
}

_RECORD = "sources.json"
_WORD = r"[A-Za-z0-9][\w.-]*"
_HUB = re.compile(rf"hf://(?P<owner>{_WORD})/(?P<name>{_WORD})(@(?P<revision>[^/@]+))?(/(?P<file>.+))?")
_TORCHVISION = re.compile(rf"torchvision://{_WORD}(/{_WORD})?")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


class HubAddress(NamedTuple):
    """Weights in a repository of Hugging Face's hub."""

    owner: str
    name: str
    revision: str | None  # branch, tag or commit
    file: str | None

    @classmethod
    def of(cls, text: str) -> "HubAddress":
        """Read hf://OWNER/NAME[@REVISION][/FILE]. `address_fault` finds faults before."""
        match = _HUB.fullmatch(text)
        assert match, "callers check the address"
        revision = match["revision"]
        return cls(match["owner"], match["name"], unquote(revision) if revision else None, match["file"])

    @property
    def repository(self) -> str:
        return f"{self.owner}/{self.name}"


@dataclass(frozen=True)
class WeightsSource:
    """Source of a file in data/pretrained, and how its weights were trained. Unknown values are None or empty."""

    __pydantic_config__: ClassVar["ConfigDict"] = STRICT

    file: str  # name in data/pretrained
    sha256: str
    source: str  # hf://ORG/NAME/FILE or torchvision://MODEL/WEIGHTS
    commit: str | None = None  # of the repository
    mean: tuple[float, ...] = ()  # per channel, of pixels from 0 to 1
    std: tuple[float, ...] = ()
    image_size: int | None = None  # pixels
    architecture: str | None = None  # name of the network in timm

    @property
    def address(self) -> str:
        """Address of exactly this file: of the hub with the commit."""
        owner, name, *path = self.source.split("/", 4)[2:]
        return f"hf://{owner}/{name}@{self.commit}/{'/'.join(path)}" if self.commit else self.source

    @property
    def description(self) -> str:
        """One line for people: where the weights are from, and the digest."""
        return f"{self.source}{f' at {self.commit}' if self.commit else ''}, SHA-256 {self.sha256}"

    @property
    def normalization(self) -> str:
        """One line for people: with which numbers images are normalized, and from where these are."""
        if not self.mean:
            return "mean and std of the training data: the source of the weights names none"
        mean, std = (" ".join(f"{value:g}" for value in values) for values in (self.mean, self.std))
        size = f", trained on images of {self.image_size} pixels" if self.image_size else ""
        return f"mean {mean}, std {std}, of the weights{size}"


def is_address(name: str) -> bool:
    """Return whether model.pretrained has an address, and not a file of data/pretrained."""
    return "://" in name


def address_fault(name: str) -> str:
    """Return why an address is refused, without asking its server; empty: it is not."""
    match = _HUB.fullmatch(name)
    file = (match["file"] or "") if match else ""
    if file.lower().endswith(_PICKLES):
        return (
            f"model.pretrained: found {name}, a pickle, which can run code. Allowed: a .safetensors file. Fix: name "
            "one of the repository; or if you trust its author, convert it by safetensors.torch.save_file"
        )
    is_inside = not {"", ".", ".."} & set(file.split("/")) and file.isprintable() if file else True
    if _TORCHVISION.fullmatch(name) or (match and is_inside and (not file or file.endswith(".safetensors"))):
        return ""
    return (
        f"model.pretrained: found {name}. Allowed: hf://ORG/NAME[@REVISION][/FILE.safetensors], "
        "torchvision://MODEL[/WEIGHTS], or a file in data/pretrained"
    )


def find(folder: Path, name: str) -> WeightsSource | None:
    """Return the source that the record in `folder` has for a value of model.pretrained: an address, or its file.

    Raises:
        TrainingError: the record is damaged.
    """
    sources = _read(folder)
    return sources.get(name) or next((source for source in sources.values() if source.file == name), None)


def file_of(folder: Path, name: str) -> str:
    """Return the name of the file in `folder` that a value of model.pretrained means.

    Raises:
        TrainingError: nothing was fetched for the address, or the file is not the recorded one.
    """
    source = find(folder, name)
    if source is None or not (folder / source.file).is_file():
        if is_address(name):
            raise TrainingError(f"model.pretrained: {name} is not in {folder}. Fix: `ratchet weights {name}`")
        return name
    wanted = name if is_address(name) else source.address
    if (digest := files.digest_file(folder / source.file)) != source.sha256:
        raise TrainingError(
            f"model.pretrained: {folder / source.file} has the SHA-256 {digest}; allowed, by {_RECORD}: "
            f"{source.sha256}. Fix: delete the file, then `ratchet weights {wanted}`"
        )
    return source.file


def keep(folder: Path, name: str, source: WeightsSource) -> None:
    """Write to the record in `folder` what a name means.

    Raises:
        TrainingError: the record is damaged.
    """
    sources = _read(folder)
    if (before := sources.get(name)) and before.file != source.file:  # the settings may name this file, too
        sources[before.address] = before
    sources[name] = source
    files.write_json(folder / _RECORD, {key: to_plain(sources[key]) for key in sorted(sources)})
    ignored = folder / ".gitignore"
    if ignored.is_file() and f"!{_RECORD}" not in (lines := ignored.read_text(encoding="utf-8").splitlines()):
        files.write_text(ignored, "\n".join([*lines, f"!{_RECORD}", ""]))  # of a project from before this record


def _read(folder: Path) -> dict[str, WeightsSource]:
    path = folder / _RECORD
    if not path.is_file():
        return {}
    try:
        sources = parse(dict[str, WeightsSource], path.read_bytes())
        if outside := [source.file for source in sources.values() if Path(source.file).name != source.file]:
            raise ValueError(f"{outside[0]} is not the name of a file in this folder")
    except ValueError as error:
        raise TrainingError(
            f"{path}: is not a record of weights ({error}). Fix: restore it from git, or delete it, then `ratchet "
            "weights NAME`"
        ) from error
    return sources
