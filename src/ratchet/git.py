"""Run git on a repository, whatever the user's environment and hooks are.

Variables that name another repository, index or object store are removed, hooks do not run, nothing asks for a
password, and replacement objects (`git replace`) do not hide the real history.
"""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from ratchet.errors import WorkspaceError

__all__ = ["GitError", "GitMissing", "line", "run", "text"]

NO_RESULT = "it calls git; DVC does not track what the commit is"

_OPTIONS = ("-c", "core.hooksPath=/dev/null", "-c", "advice.detachedHead=false")
_FIXED = {"GIT_TERMINAL_PROMPT": "0", "GIT_NO_REPLACE_OBJECTS": "1"}
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
    """git refused a command."""


class GitMissing(GitError):
    """git cannot be started."""


def run(root: Path, *arguments: str, environment: Mapping[str, str] | None = None, stdin: bytes = b"") -> bytes:
    """Run `git -C root ARGUMENTS` and return its standard output.

    Raises:
        GitMissing: git cannot be started.
        GitError: it failed; the message has its standard error output.
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
    except OSError as error:
        raise GitMissing(f"git cannot be run ({error}). Fix: install git") from error
    if done.returncode:
        command = next((argument for argument in arguments if not argument.startswith("-")), "")
        reason = " ".join(done.stderr.decode(errors="replace").split()) or f"exit code {done.returncode}"
        fix = ". Fix: `git init`" if "not a git repository" in reason else ""
        raise GitError(f"git {command} failed in {root} ({reason}){fix}")
    return done.stdout


def text(root: Path, *arguments: str) -> str:
    """Return the output of git without surrounding space. Raises the errors of `run`."""
    return os.fsdecode(run(root, *arguments)).strip()


def line(root: Path, *arguments: str) -> str | None:
    """Return the output of git without surrounding space; None if it is empty or git fails for any reason."""
    try:
        return text(root, *arguments) or None
    except GitError:
        return None
