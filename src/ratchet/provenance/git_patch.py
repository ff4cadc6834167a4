"""The uncommitted changes of a working tree as a patch. The user's index and object store are not changed."""

import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ratchet import git

__all__ = ["MAX_UNTRACKED", "UncommittedChanges", "uncommitted_changes"]

MAX_UNTRACKED = 1 << 20  # bytes; larger untracked files are not in the patch
_MAX_SHOWN = 5  # names of hidden files in a message
_MAX_LISTED = 50  # names of files that are not in the patch
# Options of `git diff`, so that the user's git settings do not change the format.
_WHOLE = ("--binary", "--full-index", "--no-renames", "-U3", "--submodule=short", "--ignore-submodules=none")
_PLAIN = ("--no-color", "--no-ext-diff", "--no-textconv", "--src-prefix=a/", "--dst-prefix=b/", "-O/dev/null")
_NOT_SPARSE = ("-c", "core.sparseCheckout=false")  # else changes outside of the sparse checkout are passed over
_OUTPUTS = ("dvc.lock", "data/ledger.heads")  # written by runs and kept elsewhere, so they do not decide a training

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class UncommittedChanges:
    """A patch against `commit` in the format of `git apply --binary`, and the untracked files that are not in it.

    Without git, outside of a repository and before the first commit there is no commit, and the patch is empty.
    """

    commit: str | None = None
    patch: bytes = b""
    left_out: tuple[str, ...] = ()

    @property
    def digest(self) -> str | None:
        """SHA-256 (hex) of the patch; None if it is empty."""
        return hashlib.sha256(self.patch).hexdigest() if self.patch else None


def uncommitted_changes(root: Path, *, data: Sequence[str] = (), code: Sequence[str] = ()) -> UncommittedChanges:
    """Collect changed files and the untracked ones that git does not ignore.

    Args:
        data: files and folders below it whose untracked content is left out, because DVC keeps it.
        code: files and folders whose content is included even so.

    Raises:
        WorkspaceError: git cannot read the tree.
    """
    commit = git.commit(root)
    if commit is None:
        return UncommittedChanges()
    untracked = _untracked(root)
    included = {name for name in untracked if _is_included(root, name, data, code)}
    others = [name for name in untracked if name not in included and name not in _OUTPUTS]
    left_out = sorted({_label(root, name, data) for name in [*others, *_changed_submodules(root)]})
    if len(left_out) > _MAX_LISTED:
        left_out = [*left_out[:_MAX_LISTED], f"and {len(left_out) - _MAX_LISTED:,} more"]
    # A name need not be text, but the record is.
    readable = (os.fsencode(name).decode(errors="replace") for name in left_out)
    return UncommittedChanges(commit, _patch(root, commit, sorted(included)), tuple(readable))


def _untracked(root: Path) -> list[str]:
    """List untracked files that git does not ignore. A folder, or a repository inside this one, ends in a slash."""
    names = git.run(root, "ls-files", "-z", "--others", "--exclude-standard")
    return [os.fsdecode(name) for name in names.split(b"\0") if name]


def _changed_submodules(root: Path) -> list[str]:
    """List submodules with changes that are not committed there: no patch of this repository can have them.

    One that git cannot read is among them: nothing shows that it has no changes.
    """
    flags = ("--no-optional-locks", "status", "--porcelain", "--ignore-submodules=none", "--untracked-files=normal")
    modules = ((name, root / name) for name in _submodules(root))
    return [f"{name}/" for name, path in modules if not _is_readable(path) or git.run(path, *flags)]


def _submodules(root: Path) -> list[str]:
    files = git.run(root, "ls-files", "-z", "--stage").split(b"\0")
    names = [os.fsdecode(line.partition(b"\t")[2]) for line in files if line.startswith(b"160000 ")]
    return [name for name in names if (root / name / ".git").exists()]


def _is_readable(submodule: Path) -> bool:
    try:
        return bool(git.run(submodule, "rev-parse", "--verify", "HEAD"))
    except git.GitError:
        return False


def _is_included(root: Path, name: str, data: Sequence[str], code: Sequence[str]) -> bool:
    if name in _OUTPUTS or name.endswith("/"):
        return False
    is_code = any(_is_in(name, place) for place in code)
    # A .dvc file names the content that DVC keeps, so it is included.
    is_data = any(_is_in(name, place) for place in data) and not name.endswith(".dvc")
    return (is_code or not is_data) and not _is_large(root / name)


def _is_in(name: str, place: str) -> bool:
    return Path(os.path.normpath(place)) in (Path(name), *Path(name).parents)


def _is_large(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > MAX_UNTRACKED


def _label(root: Path, name: str, data: Sequence[str]) -> str:
    """Return a file that is left out; of data its place, so that a million images are one name."""
    return next((place for place in data if _is_in(name, place) and not _is_large(root / name)), name)


def _patch(root: Path, commit: str, untracked: Sequence[str]) -> bytes:
    """Return the difference between `commit` and a temporary index with all changes and these untracked files."""
    index, objects = (root / git.text(root, "rev-parse", "--git-path", name) for name in ("index", "objects"))
    top = root / (git.line(root, "rev-parse", "--show-cdup") or "")
    with tempfile.TemporaryDirectory(prefix="ratchet-patch-") as folder:
        own = {
            "GIT_INDEX_FILE": f"{folder}/index",
            "GIT_OBJECT_DIRECTORY": f"{folder}/objects",
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(objects),
        }
        (Path(folder) / "objects").mkdir()
        if index.exists():
            # git then reads only changed files. The copy keeps its time: git compares it with the times of files to
            # detect those that changed within the same second.
            shutil.copy2(index, own["GIT_INDEX_FILE"])
            hidden = _show_hidden(top, own)
        else:
            hidden = frozenset()
            git.run(root, "read-tree", commit, environment=own)
        unreadable = [f":(top,exclude,literal){name}" for name in _submodules(top) if not _is_readable(top / name)]
        git.run(top, *_NOT_SPARSE, "add", "--update", "--", ":/", *unreadable, environment=own)
        if untracked:
            names = b"\0".join(os.fsencode(name) for name in untracked)
            from_stdin = ("--pathspec-from-file=-", "--pathspec-file-nul")
            git.run(root, *_NOT_SPARSE, "--literal-pathspecs", "add", *from_stdin, environment=own, stdin=names)
        prefix = git.line(root, "rev-parse", "--show-prefix") or ""  # the project can be a folder of a repository
        excluded = [f":(top,exclude,literal){prefix}{name}" for name in _OUTPUTS]
        names_only = ("diff", "--cached", "--name-only", "--no-renames", "-z", "-O/dev/null", commit)
        changed = git.run(top, *names_only, environment=own) if hidden else b""
        if edited := sorted(hidden.intersection(changed.split(b"\0"))):
            shown = ", ".join(name.decode(errors="replace") for name in edited[:_MAX_SHOWN])
            _LOG.warning(
                "the patch for MLflow has edits that git hides (--skip-worktree, --assume-unchanged): %s", shown
            )
        # From the top, where paths are whole also with the setting diff.relative.
        return git.run(top, "diff", "--cached", commit, *_WHOLE, *_PLAIN, "--", ":/", *excluded, environment=own)


def _show_hidden(top: Path, environment: Mapping[str, str]) -> frozenset[bytes]:
    """Let an index show the changes of files that --assume-unchanged or --skip-worktree hides. Return their names.

    Files that a sparse checkout leaves out stay hidden: they are not there, and not deleted.
    """
    listed = git.run(top, *_NOT_SPARSE, "ls-files", "-v", "-z", environment=environment).split(b"\0")
    hidden = [line for line in listed if line[:1] == b"S" or line[:1].islower()]
    shown = [line for line in hidden if line[:1] not in b"Ss" or os.path.lexists(os.fsencode(top) + b"/" + line[2:])]
    names = b"\0".join(line[2:] for line in shown)
    for flag in ("--no-skip-worktree", "--no-assume-unchanged") if names else ():
        git.run(top, "update-index", flag, "-z", "--stdin", environment=environment, stdin=names)
    return frozenset(line[2:] for line in shown)
