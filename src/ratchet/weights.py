"""Pretrained weights for data/pretrained: from the caches of torch, timm and Hugging Face, or fetched and checked."""

import hashlib
import http.client
import os
import re
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from ratchet import files, urls
from ratchet.errors import TrainingError
from ratchet.settings import model_names
from ratchet.workspace import Workspace

__all__ = ["cached", "fetch", "file_name", "place_cached", "published"]

_SUFFIXES = (".safetensors", ".pt", ".pth")
_HUB = {"model.safetensors": ".safetensors", "pytorch_model.bin": ".pth"}  # files of a repository, and our suffix
_HASH_IN_NAME = re.compile(r"-([0-9a-f]{8,64})\.[a-z]+$")  # torch's convention: the beginning of the SHA-256
_OTHER = {"bn", "gn", "fbgemm", "qnnpack", "features", "swag"}
"""Words in the names of files for another network: its normalization, a quantized one, a part, another image size."""
_TIMEOUT = 30.0  # seconds without a byte
_CHUNK = 1 << 20


class Cached(NamedTuple):
    """Weights in a cache, and the name that they get in data/pretrained."""

    path: Path
    name: str


def published(model: str) -> str:
    """Return the address of torchvision's weights of a model.

    Raises:
        TrainingError: torchvision has no such classifier.
    """
    names = model_names.torchvision_classifiers()
    if model not in names:
        from ratchet.settings.messages import nearest

        near = ", ".join(nearest(model, list(names))) or "resnet18"
        raise TrainingError(
            f"weights: found {model}; allowed: a classifier of torchvision.models. Nearest: {near}. Fix: for weights "
            "of another network put the file into data/pretrained, and name it in model.pretrained"
        )
    from torchvision.models import get_model_weights

    address: str = get_model_weights(model).DEFAULT.url
    return address


def cached(model: str, name: str) -> Iterator[Cached]:
    """Yield weights in the caches: first the file with this name, then other files of the same network."""
    exact = _checkpoints() / name
    if exact.name == name and exact.is_file() and _is_whole(exact):
        yield Cached(exact, name)
    for path in sorted(_checkpoints().glob("*")):
        if path != exact and _is_of(model, path.name) and path.suffix in _SUFFIXES and _is_whole(path):
            yield Cached(path, path.name)
    for path in sorted(_hub().glob("models--*--*/snapshots/*/*")):
        repository = path.parents[2].name.rpartition("--")[2]
        if path.name in _HUB and _is_of(model, f"{repository}.") and _is_whole(path):
            yield Cached(path, repository + _HUB[path.name])


def place_cached(workspace: Workspace, weights: Cached) -> str:
    """Copy weights into data/pretrained. Return what was done."""
    with _draft(workspace, weights.name) as draft:
        shutil.copyfile(weights.path, draft)
    return f"weights: {weights.name} copied from {weights.path.parent} into {workspace.pretrained}"


def fetch(workspace: Workspace, address: str, *, sha256: str = "", say: Callable[[str], None]) -> str:
    """Fetch a file of weights into data/pretrained, whole and with the right SHA-256, or not at all. Return its name.

    Args:
        address: of the file, http or https.
        sha256: expected, or its beginning; by default the one in the file's name.

    Raises:
        TrainingError: there is no such file, no network, or what came is not the file.
    """
    name, shown = file_name(address), urls.redacted(address)
    match = _HASH_IN_NAME.search(name)
    expected = (sha256 or (match[1] if match else "")).lower()
    if not re.fullmatch("[0-9a-f]{8,64}", expected):
        fault = f"--sha256: found {sha256}" if sha256 else f"weights: the name {name} has no hash to check the file by"
        raise TrainingError(f"{fault}. Allowed: 8 to 64 hexadecimal digits. Fix: --sha256 HEX")
    target, digest = workspace.pretrained / name, hashlib.sha256()
    if target.is_file() and files.digest_file(target).startswith(expected):
        say(f"weights: {target} is there, and its SHA-256 is right")
        return name
    say(f"weights: fetching {shown}")
    with _draft(workspace, name) as draft:
        with draft.open("wb") as file:
            for chunk in _chunks(address, name):
                digest.update(chunk)
                file.write(chunk)
        if not digest.hexdigest().startswith(expected):
            raise TrainingError(
                f"weights: {shown} has the SHA-256 {digest.hexdigest()}; allowed: one that begins with {expected}. "
                "It was not kept. Fix: try again, or take another source with --from URL"
            )
        size = draft.stat().st_size
    say(f"weights: {target}, {size / 1e6:.1f} MB, SHA-256 {digest.hexdigest()}")
    return name


def file_name(address: str) -> str:
    """Return the name of the file at an address.

    Raises:
        TrainingError: it is not that of a file of weights.
    """
    is_web = urls.is_usable(address) and urlsplit(address).scheme in ("http", "https")
    name = PurePosixPath(unquote(urlsplit(address).path)).name if is_web else ""
    if not (name.endswith(_SUFFIXES) and name.isprintable()):
        raise TrainingError(
            f"--from: found {urls.redacted(address)}; allowed: http or https, and a file {', '.join(_SUFFIXES)}"
        )
    return name


def _chunks(address: str, name: str) -> Iterator[bytes]:
    """Yield the content of an address.

    Raises:
        TrainingError: it cannot be read to its end.
    """
    received, length = 0, None
    try:
        with urllib.request.urlopen(address, timeout=_TIMEOUT) as response:
            length = response.headers.get("Content-Length")
            while chunk := response.read(_CHUNK):
                received += len(chunk)
                yield chunk
        reason = f"it ended after {received:,} of {int(length):,} bytes" if length and received != int(length) else ""
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = str(getattr(error, "reason", "") or error or type(error).__name__)
    if reason:
        raise TrainingError(
            f"weights: {urls.redacted(address)} cannot be fetched: {reason}. Fix: fetch it on a machine with a "
            f"network, and put it into data/pretrained as {name}; name a mirror with --from URL; or train without "
            "weights: `ratchet use photos-from-scratch`"
        )


@contextmanager
def _draft(workspace: Workspace, name: str) -> Iterator[Path]:
    """Yield a file that becomes data/pretrained/NAME at the end of the block.

    It is not in that folder before, which is an input of the stage train. The caller holds the workspace.
    """
    folder = workspace.pretrained
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder.resolve().parent / f"{files.DRAFT}{name}"  # of a killed command: overwritten
    try:
        yield draft
        with draft.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(draft, folder / name)
    finally:
        draft.unlink(missing_ok=True)


def _is_of(model: str, name: str) -> bool:
    """Return whether a file's name says that its weights are of this network: vgg16_bn is another one than vgg16."""
    names = model_names.torchvision_classifiers()
    networks = [each for each in {model, *names} if re.match(rf"{re.escape(each)}[-_.]", name)]
    is_own = bool(networks) and max(networks, key=len) == model
    return is_own and _OTHER.isdisjoint(re.split("[-_.]", name.removeprefix(model)))


def _is_whole(path: Path) -> bool:
    """Return whether the SHA-256 is the one in the file's name, or in that of Hugging Face's blob, if there is one."""
    blob, match = path.resolve().name, _HASH_IN_NAME.search(path.name)
    expected = blob if re.fullmatch("[0-9a-f]{64}", blob) else match[1] if match else ""
    return path.is_file() and files.digest_file(path).startswith(expected)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()


def _checkpoints() -> Path:
    """Return torch's folder of weights, which timm used too."""
    return Path(os.environ.get("TORCH_HOME") or _cache() / "torch").expanduser() / "hub" / "checkpoints"


def _hub() -> Path:
    """Return Hugging Face's cache of repositories, which timm uses."""
    home = Path(os.environ.get("HF_HOME") or _cache() / "huggingface").expanduser()
    named = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(named).expanduser() if named else home / "hub"
