"""Files that are written completely or not at all (draft, fsync, rename), and digests."""

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

__all__ = [
    "DRAFT",
    "clear_drafts",
    "digest_file",
    "digest_json",
    "digest_tree",
    "draft_directory",
    "draft_file",
    "link_or_copy",
    "locked",
    "parse_yaml",
    "read_json",
    "read_yaml",
    "remove_draft_files",
    "replace_directory",
    "write_bytes",
    "write_json",
    "write_text",
]

NO_RESULT = "it writes bytes to files; the caller chooses the bytes"

DRAFT = ".draft-"
"""Beginning of the names of files and folders that are not complete."""
_DRAFT_FOLDER = re.compile(rf"{re.escape(DRAFT)}(.+)[.-][a-z0-9_]{{8}}", re.DOTALL)  # - of an earlier Ratchet
_REPLACED = ".replaced"  # in a draft folder: the previous folder, until the new one is complete


def write_bytes(path: Path, content: bytes, *, private: bool = False) -> None:
    """Write `content` to `path`. The file is complete afterwards, or unchanged. `private`: only the owner can read it.

    The file is replaced, never overwritten: DVC may have linked the old one into its cache, where it must not change.
    """
    with draft_file(path, private=private) as draft:
        draft.write_bytes(content)


@contextlib.contextmanager
def draft_file(path: Path, *, private: bool = False) -> Iterator[Path]:
    """Yield an empty file. On leaving it replaces `path`. After an error nothing is changed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{_prefix(path)}{secrets.token_hex(4)}{path.suffix}")
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600 if private else 0o666))  # less the umask
    try:
        with _full_disk_of(path):
            yield draft
            _sync(draft)
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def remove_draft_files(path: Path) -> None:
    """Remove what killed writers of `path` left. No other process may be writing it."""
    for draft in path.parent.glob(f"{glob.escape(_prefix(path))}*"):
        draft.unlink(missing_ok=True)


def _prefix(path: Path) -> str:
    return f"{DRAFT}{path.name[:50]}."  # a file's name has at most 255 bytes


@contextlib.contextmanager
def _full_disk_of(path: Path) -> Iterator[None]:
    """Name `path` in an error of a full disk, which the system does not. Polars gives its number in a text alone."""
    try:
        yield
    except Exception as error:
        match = re.search(r"\(os error (\d+)\)$", str(error))
        number = error.errno if isinstance(error, OSError) else int(match[1]) if match else None
        if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) and not getattr(error, "filename", None):
            raise OSError(number, os.strerror(number), str(path)) from error
        raise


def link_or_copy(source: str | Path, to: str | Path) -> None:
    """Make a new file with the content of `source`: a hard link, or a copy where there can be none.

    There is none between two disks, and on exFAT and many shared or user-space file systems.
    """
    try:
        os.link(source, to)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS):
            raise
        with open(source, "rb") as content, open(to, "xb") as copy:
            shutil.copyfileobj(content, copy)


def write_text(path: Path, content: str) -> None:
    """Write text in UTF-8, as `write_bytes` does."""
    write_bytes(path, content.encode())


def write_json(path: Path, content: object) -> None:
    """Write `content` as indented JSON: equal content gives equal bytes."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Return the content of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def parse_yaml(text: str) -> Any:
    """Parse YAML 1.2 into plain Python, with the C parser where there is one (five times as fast).

    Raises:
        ruamel.yaml.error.YAMLError: it is not YAML.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return YAML(typ="safe").load(text)
    except ValueError as error:  # looks like a date or a number, and is not a valid one
        raise YAMLError(str(error)) from error


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file."""
    return parse_yaml(path.read_text(encoding="utf-8"))


@contextlib.contextmanager
def draft_directory(path: Path) -> Iterator[Path]:
    """Yield an empty folder. On leaving it replaces `path`. After an error nothing is changed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f"{DRAFT}{glob.escape(path.name)}*"):
        if _finished(left) == path.name:
            _remove_abandoned(left)
    with _new_draft(path) as draft:
        try:
            with _full_disk_of(path):
                yield draft
                replace_directory(path, draft)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise


@contextlib.contextmanager
def _new_draft(path: Path) -> Iterator[Path]:
    """Make a draft folder for `path`, and hold a lock on it: so others know that its writer lives."""
    while True:
        draft = path.with_name(f"{DRAFT}{path.name}.{secrets.token_hex(4)}")
        draft.mkdir()  # unlike those of tempfile, with the rights that the user's umask gives
        with locked(draft) as is_mine:
            if is_mine and draft.exists():  # no other writer took it for abandoned before it was locked
                yield draft
                return


def _remove_abandoned(draft: Path) -> None:
    """Remove the draft folder of a dead writer, whose lock ended with it."""
    with locked(draft, wait=False) as is_mine:
        if is_mine:
            _remove_drafts([draft])


@contextlib.contextmanager
def locked(folder: Path, *, wait: bool = True) -> Iterator[bool]:
    """Lock a folder, among the processes of this machine. Yield False if it is gone, or locked and not waited for.

    The lock ends with the process. It leaves no file. Yield False also for another user's folder that cannot be read.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        yield False
        return
    try:
        yield _flock(descriptor, wait=wait)
    finally:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # to close it is not enough: a forked process has it too
        os.close(descriptor)


def _flock(descriptor: int, *, wait: bool) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP):  # a file system without locks
            raise
    return True


def _finished(draft: Path) -> str | None:
    """Return the name that a draft folder is to get; None: it is the draft of a file, or of other code."""
    match = _DRAFT_FOLDER.fullmatch(draft.name)
    return match[1] if match else None


def replace_directory(path: Path, draft: Path) -> None:
    """Make a complete draft beside it the folder `path`. After an error nothing is changed."""
    for place in (draft, *draft.rglob("*")):
        _sync(place)
    if path.exists():
        with _new_draft(path) as aside:
            old = aside / _REPLACED
            os.replace(path, old)
            try:
                os.replace(draft, path)
            except BaseException:
                os.replace(old, path)
                raise
            finally:
                shutil.rmtree(aside)
    else:
        os.replace(draft, path)
    _sync(path.parent)


def clear_drafts(folder: Path) -> None:
    """Remove the drafts of killed writers in and below `folder`. No other process may write there now."""
    _remove_drafts(folder.rglob(f"{DRAFT}*"))


def _remove_drafts(drafts: Iterable[Path]) -> None:
    """Remove drafts, and restore the folders that their writers were replacing."""
    for draft in sorted(drafts):  # a draft folder before the drafts in it
        name = _finished(draft)
        if name and (draft / _REPLACED).exists() and not (draft.parent / name).exists():
            os.replace(draft / _REPLACED, draft.parent / name)
        if draft.is_dir():
            shutil.rmtree(draft, ignore_errors=True)
        else:
            draft.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Write a file, or the renames in a folder, to the disk, so that they survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def digest_json(content: object) -> str:
    """Return the SHA-256 (hex) of plain data; the order of keys does not matter."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def digest_file(path: Path) -> str:
    """Return the SHA-256 (hex) of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_tree(root: Path, patterns: Iterable[str] = ("**/*",)) -> str:
    """Return the SHA-256 (hex) over the relative names and contents of the files under `root` that match a pattern."""
    files = {path for pattern in patterns for path in root.glob(pattern) if path.is_file()}
    return digest_json({path.relative_to(root).as_posix(): digest_file(path) for path in files})
