"""What a working tree has that its commit has not, as a patch; the user's index and object store stay as they are."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ratchet.errors import WorkspaceError

__all__ = ["LARGEST", "Changes", "changes", "git_line"]

LARGEST = 1 << 20  # bytes of an untracked file that is taken into the patch
_LISTED = 50  # left-out names that are told one by one
_MADE = ("dvc.lock", "data/ledger.heads")  # say what was made, not of what; kept by themselves


@dataclass(frozen=True)
class Changes:
    """A patch against the commit, as `git apply --binary` takes it, and the untracked files that are not in it."""

    patch: bytes
    left_out: tuple[str, ...]

    @property
    def digest(self) -> str | None:
        """SHA-256 (hex) of the patch; None where nothing differs."""
        return hashlib.sha256(self.patch).hexdigest() if self.patch else None


def changes(root: Path, *, data: Sequence[str] = (), code: Sequence[str] = ()) -> Changes | None:
    """Changed files and untracked ones that git does not ignore; None without git, or without a commit.

    Args:
        root: the project folder.
        data: files and folders in it whose untracked content is DVC's matter and is left out.
        code: files and folders whose content is taken all the same.

    Raises:
        WorkspaceError: git cannot read the tree.
    """
    if git_line(root, "rev-parse", "--verify", "HEAD") is None:
        return None
    untracked = _listed(root)
    taken = {name for name in untracked if _is_taken(root, name, data, code)}
    folders, mixed = set(_listed(root, "--directory")), {parent for name in taken for parent in Path(name).parents}
    left = {_folded(name, folders, mixed) for name in untracked if name not in taken and name not in _MADE}
    told = sorted(left)
    if len(told) > _LISTED:
        told = [*told[:_LISTED], f"and {len(told) - _LISTED:,} more"]
    return Changes(_patch(root, sorted(taken)), tuple(told))


def git_line(root: Path, *arguments: str) -> str | None:
    """What git answers, on one line; None where there is no git, no repository, or no such thing in it."""
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return os.fsdecode(done.stdout).strip() or None


def _listed(root: Path, *options: str) -> list[str]:
    """The untracked files that git does not ignore; a repository inside this one, and a folder, ends in a slash."""
    found = _git(root, "ls-files", "-z", "--others", "--exclude-standard", *options)
    return [os.fsdecode(name) for name in found.split(b"\0") if name]


def _is_taken(root: Path, name: str, data: Sequence[str], code: Sequence[str]) -> bool:
    if name in _MADE or name.endswith("/"):
        return False
    is_code = any(_is_in(name, place) for place in code)
    is_data = any(_is_in(name, place) for place in data) and not name.endswith(".dvc")  # which tells what DVC keeps
    return (is_code or not is_data) and not _is_large(root / name)


def _is_in(name: str, place: str) -> bool:
    return Path(os.path.normpath(place)) in (Path(name), *Path(name).parents)


def _is_large(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > LARGEST


def _folded(name: str, untracked: set[str], mixed: set[Path]) -> str:
    """The untracked folder that a left-out file lies in, if nothing of it is taken: a million pictures are one."""
    inside = False
    for parent in reversed(Path(name).parents[:-1]):
        inside = inside or f"{parent.as_posix()}/" in untracked
        if inside and parent not in mixed:
            return f"{parent.as_posix()}/"
    return name


def _patch(root: Path, untracked: Sequence[str]) -> bytes:
    """The difference of HEAD and a throw-away index that has everything, whose objects are thrown away with it."""
    index, objects = (_absolute(root, "--git-path", name) for name in ("index", "objects"))
    with tempfile.TemporaryDirectory(prefix="ratchet-patch-") as folder:
        own = {
            "GIT_INDEX_FILE": f"{folder}/index",
            "GIT_OBJECT_DIRECTORY": f"{folder}/objects",
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(objects),
        }
        (Path(folder) / "objects").mkdir()
        if index.exists():
            # So that only what changed is read; with its time, by which git knows files that changed since in the same
            # second.
            shutil.copy2(index, own["GIT_INDEX_FILE"])
        else:
            _git(root, "read-tree", "HEAD", environment=own)
        _git(root, "add", "--update", environment=own)
        if untracked:
            names = b"\0".join(os.fsencode(name) for name in untracked)
            options = ("--pathspec-from-file=-", "--pathspec-file-nul")
            _git(root, "--literal-pathspecs", "add", *options, environment=own, stdin=names)
        plain = ("--no-color", "--no-ext-diff", "--no-textconv", "--no-renames")  # whatever the user's git is set to
        shown = ("--cached", "HEAD", "--binary", "--full-index", *plain)
        excluded = [f":(top,exclude,literal){name}" for name in _made(root)]
        return _git(root, "diff", *shown, "--", ":/", *excluded, environment=own)


def _made(root: Path) -> list[str]:
    """`_MADE` as paths from the top of the repository, which the project need not be."""
    prefix = git_line(root, "rev-parse", "--show-prefix") or ""
    return [prefix + name for name in _MADE]


def _absolute(root: Path, *question: str) -> Path:
    return root / os.fsdecode(_git(root, "rev-parse", *question)).strip()


def _git(root: Path, *arguments: str, environment: dict[str, str] | None = None, stdin: bytes | None = None) -> bytes:
    done = subprocess.run(
        ["git", "-C", str(root), *arguments],
        env=os.environ | (environment or {}),
        input=stdin,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise WorkspaceError(f"{root}: git {arguments[0]} failed ({said}): mend that, then run this again")
    return done.stdout
