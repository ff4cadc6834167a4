"""Run git on a repository, whatever the user's environment and hooks are.

Variables that name another repository, index or object store are removed, hooks do not run, nothing asks for a
password, and replacement objects (`git replace`) do not hide the real history.
"""

import errno
import itertools
import os
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

from ratchet.errors import WorkspaceError

__all__ = ["GitError", "GitMissing", "NoRepository", "commit", "keep", "line", "run", "text"]

NO_RESULT = "it calls git; DVC does not track what the commit is"

_SETTINGS = (  # so that the user's do not count
    "core.hooksPath=/dev/null",
    "advice.detachedHead=false",
    "log.showSignature=false",
    "log.showRoot=true",
    "log.diffMerges=separate",
)
_OPTIONS = tuple(part for setting in _SETTINGS for part in ("-c", setting))
_FIXED = {"GIT_TERMINAL_PROMPT": "0", "GIT_NO_REPLACE_OBJECTS": "1", "LC_ALL": "C"}
_NO_REPOSITORY = "not a git repository (or any"  # of the parent folders; a broken worktree's message has a path here
_NONE = (1,)  # exit code of `rev-parse --quiet` and of `config --get` for what does not exist
_REMOVED = frozenset(
    {
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_COMMON_DIR",
        "GIT_DIR",
        "GIT_EXTERNAL_DIFF",
        "GIT_GRAFT_FILE",
        "GIT_IMPLICIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_NAMESPACE",
        "GIT_OBJECT_DIRECTORY",
        "GIT_PREFIX",
        "GIT_REPLACE_REF_BASE",
        "GIT_SHALLOW_FILE",
        "GIT_WORK_TREE",
    }
)
"""Variables that a git hook, for example, sets. They would lead to another repository than the given folder's."""


class GitError(WorkspaceError):
    """git refused a command, with an exit code, or could not be started."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class GitMissing(GitError):
    """git is not installed."""


class NoRepository(GitError):
    """The folder is in no git repository."""


def run(root: Path, *arguments: str, environment: Mapping[str, str] | None = None, stdin: bytes = b"") -> bytes:
    """Run `git -C root ARGUMENTS` and return its standard output.

    Raises:
        GitMissing: git is not installed.
        NoRepository: the folder is in no repository.
        GitError: it failed for another reason; the message has its standard error output.
    """
    environ = {name: value for name, value in os.environ.items() if name not in _REMOVED}
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *_OPTIONS, *arguments],
            env=environ | _FIXED | dict(environment or {}),
            input=stdin,
            capture_output=True,
            check=False,
        )
    except (FileNotFoundError, PermissionError) as error:
        raise GitMissing(f"git cannot be run ({error}). Fix: install git") from error
    except OSError as error:
        fix = "install git again" if error.errno == errno.ENOEXEC else "end other programs, then run this again"
        raise GitError(f"git cannot be run now ({error}). Fix: {fix}") from error
    if done.returncode:
        command = next((each for each in arguments if not each.startswith("-") and "=" not in each), "")
        reason = " ".join(done.stderr.decode(errors="replace").split()) or f"exit code {done.returncode}"
        message = f"git {command} failed in {root} ({reason})"
        if _NO_REPOSITORY not in reason:
            raise GitError(message, done.returncode)
        if damaged := _damaged_repository(root):
            raise GitError(f"{message}. Fix: restore {damaged}, which git cannot read, or delete it", done.returncode)
        raise NoRepository(f"{message}. Fix: `git init`", done.returncode)
    return done.stdout


def text(root: Path, *arguments: str) -> str:
    """Return the output of git without surrounding space. Raises the errors of `run`."""
    return os.fsdecode(run(root, *arguments)).strip()


def line(root: Path, *arguments: str) -> str | None:
    """Return the output of git without surrounding space; None if there is none, or no such thing.

    There is no such thing without git and outside of a repository.

    Raises:
        GitError: git fails for another reason, which is no answer.
    """
    try:
        return text(root, *arguments) or None
    except (GitMissing, NoRepository):
        return None
    except GitError as error:
        if error.code not in _NONE:
            raise
        return None


def keep(root: Path, commit: str) -> None:
    """Keep a commit for as long as the repository: git deletes one that an amend or a rebase replaced, after weeks.

    Raises:
        GitError: git cannot write to the repository.
    """
    run(root, "update-ref", f"refs/ratchet/{commit}", commit)


def commit(root: Path) -> str | None:
    """Return the commit that is checked out; None without git, outside of a repository and before the first commit.

    Raises:
        GitError: git fails, or takes a branch for one without commits because its file is damaged.
    """
    checked_out = line(root, "rev-parse", "--verify", "--quiet", "HEAD")
    head = root / ("" if checked_out else line(root, "rev-parse", "--git-path", "HEAD") or "")
    kind, _, branch = head.read_text().strip().partition(" ") if head.is_file() else ("", "", "")
    if kind != "ref:":
        return checked_out
    file, log = (root / text(root, "rev-parse", "--git-path", name) for name in (branch, f"logs/{branch}"))
    if file.is_file():  # as a power cut can leave it
        commits = log.read_text(errors="replace").split("\n")[-2:-1] if log.is_file() else []
        last = next((each.split()[1] for each in commits if each.split()[1:]), "COMMIT")
        remove = f"rm {shlex.quote(os.path.abspath(file))}"
        raise GitError(
            f"{file}: damaged, so git knows no commit of this branch. Fix: `{remove} && git update-ref HEAD {last}`"
        )
    return None


def _damaged_repository(root: Path) -> Path | None:
    """Return the `.git` that git takes for no repository. It looks in the folders above, but on no other disk."""
    folder = root.resolve()
    device, ceilings = folder.stat().st_dev, os.environ.get("GIT_CEILING_DIRECTORIES", "").split(os.pathsep)
    above = itertools.takewhile(lambda each: each.stat().st_dev == device and str(each) not in ceilings, folder.parents)
    return next((each / ".git" for each in (folder, *above) if os.path.lexists(each / ".git")), None)
