"""Safetensors of Hugging Face's hub, by HTTP: its own library brings packages that nothing else here needs.

The hub is asked for the commit of a revision and the digests of its files. Without it, its cache on this machine is
read. HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE, HF_HOME and HF_HUB_CACHE mean what they mean to that library.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from ratchet import urls
from ratchet.downloads import DownloadError, stream
from ratchet.errors import TrainingError
from ratchet.weights_sources import HubAddress

__all__ = ["Entry", "RepositoryFiles", "cache_folder", "cached_snapshot", "find_snapshot", "refusal", "user_cache"]

_ENDPOINT = "https://huggingface.co"
_MOST_TEXT = 32 << 20  # bytes of a list of files
_MOST_CONFIG = 1 << 20
_DEFAULT = "model.safetensors"
_COMMIT, _SHA256 = re.compile("[0-9a-f]{40}"), re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Entry:
    """A file of a repository."""

    size: int
    sha256: str = ""  # empty: the hub has none, because the file is small


@dataclass(frozen=True)
class RepositoryFiles:
    """The files of a repository at a commit: on the hub, and in the folder of a cache."""

    address: HubAddress
    commit: str
    entries: Mapping[str, Entry]
    folder: Path | None = None

    @property
    def file(self) -> str:
        """Name of the safetensors that the address means.

        Raises:
            TrainingError: there is no such file, or the address means several.
        """
        names = sorted(name for name in self.entries if name.endswith(".safetensors"))
        if (name := self.address.file or _DEFAULT) in names:
            return name
        if self.address.file is None and len(names) == 1:
            return names[0]
        place = f"{self.address.repository} at {self.commit[:12]}"
        if names:
            problem = f"no file {self.address.file}" if self.address.file else "several .safetensors files"
            raise TrainingError(
                f"weights: {place} has {problem}. Existing: {', '.join(names[:8])}. Fix: name one that has all "
                f"tensors: hf://{self.address.repository}/{names[0]}"
            )
        pickles = sorted(name for name in self.entries if name.endswith((".bin", ".pt", ".pth", ".ckpt")))
        others = f"; it has {', '.join(pickles[:3])}, pickles, which can run code" if pickles else ""
        raise TrainingError(
            f"weights: {place} has no .safetensors file{others}. Fix: choose a repository or @REVISION with safetensors"
        )

    def read(self, name: str, most: int) -> Iterator[bytes]:
        """Yield the content of a file.

        Raises:
            DownloadError: it cannot be read to its end, or has more than `most` bytes.
        """
        if self.folder is not None and (self.folder / name).is_file():
            with (self.folder / name).open("rb") as file:
                while chunk := file.read(1 << 20):
                    yield chunk
            return
        path = f"{self.address.repository}/resolve/{self.commit}/{quote(name)}"
        yield from stream(f"{_endpoint()}/{path}", token=_token(), most=most)

    @property
    def config(self) -> Mapping[str, Any]:
        """config.json, which timm's repositories have; empty: there is none that can be read."""
        if "config.json" not in self.entries:
            return {}
        try:
            content = json.loads(b"".join(self.read("config.json", _MOST_CONFIG)))
        except (ValueError, RecursionError):
            return {}
        return content if isinstance(content, dict) else {}


def find_snapshot(address: HubAddress, commit: str | None = None) -> RepositoryFiles:
    """Return the files at a revision, or at a commit that is known: from the hub, or without it from its cache.

    Raises:
        TrainingError: there is no such repository or revision, no access to it, or neither the hub nor a copy.
    """
    revision = commit or address.revision or "main"
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "on", "yes", "true"):
        problem = "HF_HUB_OFFLINE is set"
    else:
        try:
            listed = _listed(address, revision)
            local = cached_snapshot(address, listed.commit)
            return replace(listed, folder=local.folder) if local else listed
        except DownloadError as error:
            has_copy = commit is not None and cached_snapshot(address, commit) is not None
            if error.status in (401, 403, 404) and not has_copy:
                raise TrainingError(refusal(address, revision, error)) from None
            problem = f"{urls.redacted(_endpoint())} cannot be read: {error}"
    if (snapshot := cached_snapshot(address, revision)) is not None:
        return snapshot
    at = f"@{quote(revision, safe='')}" if commit or address.revision else ""
    name = f"hf://{address.repository}{at}" + (f"/{address.file}" if address.file else "")
    raise TrainingError(
        f"weights: {name} is not on this machine, and {problem}. Looked at: data/pretrained, {cache_folder()}. Fix: "
        f"on a machine with a network run `ratchet weights {name}` in this project, and copy data/pretrained here; or "
        "name a mirror by HF_ENDPOINT"
    )


def user_cache() -> Path:
    """Return the folder of a user's caches."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()


def cache_folder() -> Path:
    """Return Hugging Face's cache of repositories, which timm uses."""
    home = Path(os.environ.get("HF_HOME") or user_cache() / "huggingface").expanduser()
    named = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(named).expanduser() if named else home / "hub"


def cached_snapshot(address: HubAddress, revision: str) -> RepositoryFiles | None:
    """Return what the cache has of a revision; None: nothing. A blob is named by its SHA-256."""
    folder = cache_folder() / f"models--{address.owner}--{address.name}"
    reference = folder / "refs" / revision
    commit = revision if _COMMIT.fullmatch(revision) else reference.read_text().strip() if reference.is_file() else ""
    snapshot = folder / "snapshots" / commit
    if not _COMMIT.fullmatch(commit) or not snapshot.is_dir():
        return None
    entries = {
        path.relative_to(snapshot).as_posix(): Entry(path.stat().st_size, _digest_in_name(path.resolve()))
        for path in snapshot.rglob("*")
        if path.is_file()
    }
    has_file = address.file in entries if address.file else any(name.endswith(".safetensors") for name in entries)
    return RepositoryFiles(address, commit, entries, snapshot) if has_file else None


def _listed(address: HubAddress, revision: str) -> RepositoryFiles:
    """Ask the hub for the commit of a revision, and its files."""
    path = f"api/models/{address.repository}/revision/{quote(revision, safe='')}?blobs=true"
    content = b"".join(stream(f"{_endpoint()}/{path}", token=_token(), most=_MOST_TEXT))
    try:
        answer = json.loads(content)
        entries = {
            each["rfilename"]: Entry(int(each["size"]), str((each.get("lfs") or {}).get("sha256", "")))
            for each in answer["siblings"]
        }
        commit = answer["sha"]
        if not _COMMIT.fullmatch(commit) or any(x.sha256 and not _SHA256.fullmatch(x.sha256) for x in entries.values()):
            raise ValueError("a commit or a SHA-256 is malformed")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DownloadError(f"its answer is not a list of files ({type(error).__name__}: {error})") from None
    return RepositoryFiles(address, commit, entries)


def _digest_in_name(blob: Path) -> str:
    return blob.name if _SHA256.fullmatch(blob.name) else ""


def _endpoint() -> str:
    endpoint = (os.environ.get("HF_ENDPOINT") or _ENDPOINT).rstrip("/")
    if urlsplit(endpoint).scheme not in ("http", "https") or not urls.is_usable(endpoint):
        raise TrainingError(f"HF_ENDPOINT: found {urls.redacted(endpoint)}; allowed: an address of http or https")
    return endpoint


def _token() -> str:
    token = os.environ.get("HF_TOKEN", "").strip()
    if not (token.isascii() and token.isprintable()):  # http.client would print it
        raise TrainingError("HF_TOKEN: has characters that no token has. Fix: export HF_TOKEN=TOKEN of your account")
    return token


def refusal(address: HubAddress, revision: str, error: DownloadError) -> str:
    """Return the message for an answer of the hub that there is nothing, or nothing for this user."""
    repository = address.repository
    if error.code == "GatedRepo" or error.status == 403:
        return (
            f"weights: {repository} is gated ({error}): its owner decides who may read it. Fix: ask for access on its "
            "page, then export HF_TOKEN=TOKEN of your account"
        )
    if error.code == "RevisionNotFound":
        return f"weights: {repository} has no revision {revision}. Fix: name a branch, a tag or a commit that exists"
    return (
        f"weights: the hub shows no repository {repository} ({error}). Fix: correct the name; for a private "
        "repository export HF_TOKEN=TOKEN"
    )
