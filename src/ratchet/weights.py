"""Pretrained weights for data/pretrained: from the caches of torch, timm and Hugging Face, or fetched and checked."""

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from ratchet import files, urls, weights_hub
from ratchet.downloads import DownloadError, stream
from ratchet.errors import TrainingError
from ratchet.settings import model_names
from ratchet.weights_sources import HubAddress, WeightsSource, address_fault, find, is_address, keep
from ratchet.workspace import Workspace

__all__ = [
    "Published",
    "cached",
    "fetch",
    "fetch_address",
    "file_name",
    "place_cached",
    "provide",
    "published",
    "source_of",
]

_SUFFIXES = (".safetensors", ".pt", ".pth")
_HASH_IN_NAME = re.compile(r"-([0-9a-f]{8,64})\.[a-z]+$")  # torch's convention: the beginning of the SHA-256
_OTHER = {"bn", "gn", "fbgemm", "qnnpack", "features", "swag"}
"""Words in the names of files for another network: its normalization, a quantized one, a part, another image size."""
_MOST = 64 << 30  # bytes of a file


class Cached(NamedTuple):
    """Weights in a cache, and the name that they get in data/pretrained."""

    path: Path
    name: str
    snapshot: weights_hub.RepositoryFiles | None = None  # of a repository of Hugging Face


class Published(NamedTuple):
    """Weights of torchvision."""

    address: str
    source: WeightsSource  # without its SHA-256


def published(model: str, version: str = "DEFAULT") -> Published:
    """Return torchvision's weights of a model.

    Raises:
        TrainingError: torchvision has no such classifier, or no such weights of it.
    """
    names = model_names.torchvision_classifiers()
    if model not in names:
        from ratchet.settings.messages import nearest

        near = ", ".join(nearest(model, list(names))) or "resnet18"
        raise TrainingError(
            f"weights: found {model}; allowed: a classifier of torchvision.models. Nearest: {near}. Fix: for weights "
            "of another network name hf://ORG/NAME, or put the file into data/pretrained; and name it in "
            "model.pretrained"
        )
    from torchvision.models import get_model_weights

    versions: dict[str, Any] = get_model_weights(model).__members__
    if version not in versions:
        raise TrainingError(f"weights: {model} has no weights {version}. Allowed: {', '.join(versions)}")
    weights = versions[version]
    preset = weights.transforms()
    mean, std, size = (tuple(getattr(preset, name, ())) for name in ("mean", "std", "crop_size"))
    name = f"torchvision://{model}/{weights.name}"
    source = WeightsSource(file_name(weights.url), "", name, None, mean, std, size[0] if size else None)
    return Published(weights.url, source)


def provide(workspace: Workspace, name: str, say: Callable[[str], None]) -> None:
    """Fetch the weights of an address in model.pretrained, unless they are in data/pretrained.

    Raises:
        TrainingError: they cannot be fetched; the message says what to do.
    """
    if not is_address(name):
        return
    source = find(workspace.pretrained, name)
    if source is None or not (workspace.pretrained / source.file).is_file():
        with workspace.hold("fetching weights"):
            fetch_address(workspace, name, known=source, say=say)


def fetch_address(
    workspace: Workspace, name: str, *, known: WeightsSource | None = None, say: Callable[[str], None]
) -> WeightsSource:
    """Put the weights of an address into data/pretrained, from a cache or a server, and record their source.

    Args:
        known: the recorded source: the same commit and digest are required; None: the newest of the revision.

    Raises:
        TrainingError: there are no such weights, no network and no copy, or what came is not the file.
    """
    if fault := address_fault(name):
        raise TrainingError(fault)
    get = _from_hub if name.startswith("hf:") else _from_torchvision
    source = get(workspace, name, known, say)
    keep(workspace.pretrained, name, source)
    say(f"weights: {source.description}")
    say(f"weights: normalization by {source.normalization}")
    return source


def _from_torchvision(
    workspace: Workspace, name: str, known: WeightsSource | None, say: Callable[[str], None]
) -> WeightsSource:
    model, _, version = name.partition("://")[2].partition("/")
    address, source = published(model, version or (known.source.rpartition("/")[2] if known else "DEFAULT"))
    if place := next((each for each in cached(model, source.file) if each.name == source.file), None):
        placed = place_cached(workspace, place, say=say)
    else:
        placed = fetch(workspace, address, sha256=known.sha256 if known else "", say=say)
    return replace(source, sha256=placed.sha256)


def _from_hub(
    workspace: Workspace, name: str, known: WeightsSource | None, say: Callable[[str], None]
) -> WeightsSource:
    address = HubAddress.of(name)
    before = find(workspace.pretrained, name)
    snapshot = weights_hub.find_snapshot(address, known.commit if known else None)
    if before and before.commit != snapshot.commit:
        say(f"weights: {address.revision or 'main'} moved from {before.commit} to {snapshot.commit}")
        before = None
    source = _place(workspace, snapshot, before.file if before else "", known.sha256 if known else "", say)
    if before and before.sha256 == source.sha256 and not source.mean:  # of a cache without config.json
        return before
    return source


def _place(
    workspace: Workspace, snapshot: weights_hub.RepositoryFiles, name: str, sha256: str, say: Callable[[str], None]
) -> WeightsSource:
    """Copy or fetch the safetensors of a repository into data/pretrained, checked by size and digest.

    `name` and `sha256` are the recorded ones; empty: there are none.
    """
    entry, repository = snapshot.entries[snapshot.file], snapshot.address.repository
    expected = sha256 or entry.sha256
    mark = expected or files.digest_json([snapshot.commit, snapshot.file])
    name = name or f"{snapshot.address.name}-{mark[:8]}.safetensors"
    say(f"weights: {repository}/{snapshot.file} at {snapshot.commit}, {entry.size / 1e6:.1f} MB")
    target = workspace.pretrained / name
    fault = f"weights: {repository}/{snapshot.file} at {snapshot.commit}"
    fix = f"delete {snapshot.folder}, then try again" if snapshot.folder else "try again"
    try:
        source = _of_snapshot(snapshot, name, expected)
        if expected and target.is_file() and files.digest_file(target) == expected:
            return source
        with _draft(workspace, name, entry.size) as draft:
            digest = _write(draft, snapshot.read(snapshot.file, entry.size))
            if (size := draft.stat().st_size) != entry.size or not digest.startswith(expected):
                raise TrainingError(
                    f"{fault} has {size:,} bytes and the SHA-256 {digest}; allowed: {entry.size:,} bytes"
                    f"{f' and {expected}' if expected else ''}. It was not kept. Fix: {fix}"
                )
            _require_safetensors(draft, fault)
    except (DownloadError, OSError) as error:
        if isinstance(error, DownloadError) and error.status in (401, 403):  # the hub lists the files of a gated one
            raise TrainingError(weights_hub.refusal(snapshot.address, snapshot.commit, error)) from None
        raise TrainingError(f"{fault} cannot be read: {error}. Nothing was kept. Fix: {fix}") from None
    return replace(source, sha256=digest)


def _of_snapshot(snapshot: weights_hub.RepositoryFiles, name: str, sha256: str) -> WeightsSource:
    """Return the source of a file of a repository, with what timm's config.json says about its training."""
    config = snapshot.config
    trained = config.get("pretrained_cfg")
    trained = trained if isinstance(trained, dict) else {}
    mean, std = (_numbers(trained.get(key)) for key in ("mean", "std"))
    if len(mean) != len(std) or not all(value > 0 for value in std):
        mean, std = (), ()
    size, network = _numbers(trained.get("input_size")), config.get("architecture")
    return WeightsSource(
        name,
        sha256,
        f"hf://{snapshot.address.repository}/{snapshot.file}",
        snapshot.commit,
        mean,
        std,
        int(size[-1]) if size else None,
        network if isinstance(network, str) and network.isidentifier() else None,
    )


def _numbers(value: object) -> tuple[float, ...]:
    """Return a list of up to four finite numbers as a tuple; empty: it is not one."""
    if not isinstance(value, list) or len(value) > 4:
        return ()
    is_right = all(isinstance(x, int | float) and not isinstance(x, bool) and abs(x) < 1e6 for x in value)
    return tuple(map(float, value)) if is_right else ()


def _require_safetensors(path: Path, fault: str) -> None:
    """Refuse a file whose header does not fit its bytes: of another format, such as a pickle, or damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as content:
            names = list(content.keys())
    except (SafetensorError, ValueError) as error:
        raise TrainingError(f"{fault} is not in the format safetensors ({error}). It was not kept") from None
    if not names:
        raise TrainingError(f"{fault} has no tensors. It was not kept")


def cached(model: str, name: str) -> Iterator[Cached]:
    """Yield weights in the caches: first the file with this name, then other files of the same network."""
    exact = _checkpoints() / name
    if exact.name == name and exact.is_file() and _is_whole(exact):
        yield Cached(exact, name)
    for path in sorted(_checkpoints().glob("*")):
        if path != exact and _is_of(model, path.name) and path.suffix in _SUFFIXES and _is_whole(path):
            yield Cached(path, path.name)
    for path in sorted(weights_hub.cache_folder().glob("models--*--*/snapshots/*/*")):
        repository = path.parents[2].name.rpartition("--")[2]
        if path.name == "model.safetensors" and _is_of(model, f"{repository}.") and _is_whole(path):
            yield Cached(path, f"{repository}.safetensors", _snapshot_of(path))


def place_cached(workspace: Workspace, weights: Cached, *, say: Callable[[str], None]) -> WeightsSource:
    """Copy weights into data/pretrained, and return their source."""
    with _draft(workspace, weights.name, weights.path.stat().st_size) as draft, weights.path.open("rb") as file:
        digest = _write(draft, iter(lambda: file.read(1 << 20), b""))
    say(f"weights: {weights.name} copied from {weights.path.parent} into {workspace.pretrained}")
    if weights.snapshot:
        return _of_snapshot(weights.snapshot, weights.name, digest)
    return source_of(weights.name, digest)


def fetch(workspace: Workspace, address: str, *, sha256: str = "", say: Callable[[str], None]) -> WeightsSource:
    """Fetch a file of weights into data/pretrained, whole and with the right SHA-256, or not at all.

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
    target = workspace.pretrained / name
    if target.is_file() and (digest := files.digest_file(target)).startswith(expected):
        say(f"weights: {target} is there, and its SHA-256 is right")
        return source_of(name, digest)
    say(f"weights: fetching {shown}")
    with _draft(workspace, name) as draft:
        try:
            digest = _write(draft, stream(address, most=_MOST))
        except DownloadError as error:
            raise TrainingError(
                f"weights: {shown} cannot be fetched: {error}. Fix: fetch it on a machine with a network, and put it "
                f"into data/pretrained as {name}; name a mirror with --from URL; or train without weights: `ratchet "
                "use photos-from-scratch`"
            ) from None
        if not digest.startswith(expected):
            raise TrainingError(
                f"weights: {shown} has the SHA-256 {digest}; allowed: one that begins with {expected}. "
                "It was not kept. Fix: try again, or take another source with --from URL"
            )
        size = draft.stat().st_size
    say(f"weights: {target}, {size / 1e6:.1f} MB, SHA-256 {digest}")
    return source_of(name, digest)


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


def source_of(name: str, sha256: str) -> WeightsSource:
    """Return the source of a file by its name: torchvision's, or an unknown one."""
    names, match = model_names.torchvision_classifiers(), _HASH_IN_NAME.search(name)
    if names and match and sha256.startswith(match[1]):
        from torchvision.models import get_model_weights

        for model, version in ((each, version) for each in names for version in get_model_weights(each)):
            if version.url.endswith(f"/{name}"):
                return replace(published(model, version.name).source, sha256=sha256)
    return WeightsSource(name, sha256, name)


def _snapshot_of(path: Path) -> weights_hub.RepositoryFiles | None:
    """Return the snapshot of a cache in which a file is."""
    _, owner, name = path.parents[2].name.split("--", 2)
    address = HubAddress(owner, name, path.parent.name, path.name)
    return weights_hub.cached_snapshot(address, path.parent.name)


def _write(path: Path, chunks: Iterable[bytes]) -> str:
    """Write a file and return its SHA-256 (hex)."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for chunk in chunks:
            digest.update(chunk)
            file.write(chunk)
    return digest.hexdigest()


@contextmanager
def _draft(workspace: Workspace, name: str, size: int = 0) -> Iterator[Path]:
    """Yield a file that becomes data/pretrained/NAME at the end of the block.

    It is not in that folder before, which is an input of the stage train. The caller holds the workspace.

    Raises:
        TrainingError: the disk has no space for `size` bytes.
    """
    folder = workspace.pretrained
    folder.mkdir(parents=True, exist_ok=True)
    if size > (free := shutil.disk_usage(folder).free):
        raise TrainingError(f"weights: {name} has {size:,} bytes, and {folder} has space for {free:,}. Fix: free some")
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


def _checkpoints() -> Path:
    """Return torch's folder of weights, which timm used too."""
    return Path(os.environ.get("TORCH_HOME") or weights_hub.user_cache() / "torch").expanduser() / "hub" / "checkpoints"
