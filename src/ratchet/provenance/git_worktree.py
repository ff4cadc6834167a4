"""A revision's files in a folder of their own: one git worktree, .ratchet/production, that each such run is given anew.

One, not one for each revision: the disk does not fill up, and DVC knows what of the outputs there is still right.
"""

import os
import shutil
import subprocess
from pathlib import Path

from ratchet import files
from ratchet.errors import WorkspaceError
from ratchet.provenance.git_patch import git_line
from ratchet.workspace import Workspace, disk_errors

__all__ = ["commit_in", "lay_down"]

# A person's hooks are for their own commits and checkouts, and nobody is there to type a password.
_QUIET = ("-c", "core.hooksPath=/dev/null", "-c", "advice.detachedHead=false")
_REMOTE = "origin/"
_PATIENCE = 5.0  # seconds that a run which is just ending is waited for


def lay_down(project: Workspace, revision: str) -> Workspace:
    """The revision's committed files in `project.production`; what git ignores there (DVC's outputs) stays as it was.

    Raises:
        WorkspaceError: there is no git here or no such revision, or git refuses.
        WorkspaceBusy: another run works in that folder.
    """
    from filelock import FileLock

    top = project.production.root
    with disk_errors(project.root):
        project.state.mkdir(exist_ok=True)
        with FileLock(project.state / "production.lock"):
            commit = _commit_of(project, revision)
            made = Workspace(top / _git(project.root, "rev-parse", "--show-prefix"))
            if not _stands(project, top):
                _add(project, top, commit)
            made.root.mkdir(parents=True, exist_ok=True)  # below the top, if the project lies there
            with made.hold(f"the laying down of {revision}", wait=_PATIENCE):
                _check_out(top, made.root / "dvc.lock", commit)
                if not made.params.is_file():
                    raise WorkspaceError(f"revision: {revision} has no params.yaml: name one of this project's commits")
                files.write_text(made.state / "project", str(project.root))
    return made


def commit_in(workspace: Workspace) -> str:
    """The commit that the folder stands at."""
    return _git(workspace.root, "rev-parse", "HEAD")


def _commit_of(project: Workspace, revision: str) -> str:
    if revision.startswith("-"):
        raise WorkspaceError(f"revision: found {revision}: name a branch, a tag or a commit")
    _git(project.root, "rev-parse", "--git-dir")
    if revision.startswith(_REMOTE):
        _git(project.root, "fetch", "--quiet", "origin")
    try:
        return _git(project.root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    except WorkspaceError:
        raise WorkspaceError(
            f"revision: {project.root} has no branch, tag or commit {revision}: `git branch --all` and `git tag` list "
            "them; of another repository's, `git fetch` first"
        ) from None


def _stands(project: Workspace, top: Path) -> bool:
    """Is the folder a worktree of this project, not what a killed `git worktree add` left, nor another's copy?"""
    if not (top / ".git").is_file():
        return False
    shared = ("rev-parse", "--path-format=absolute", "--git-common-dir")
    try:
        return _git(top, *shared) == _git(project.root, *shared)
    except WorkspaceError:
        return False


def _add(project: Workspace, top: Path, commit: str) -> None:
    if top.exists():
        shutil.rmtree(top)
    _git(project.root, "worktree", "prune")
    _git(project.root, "worktree", "add", "--quiet", "--force", "--detach", "--no-checkout", str(top), commit)


def _check_out(top: Path, made: Path, commit: str) -> None:
    """All as committed, but for the record of what was made here: unless another was committed, it is the newer one."""
    lock = top / _git(top, "rev-parse", "--git-path", "index.lock")
    lock.unlink(missing_ok=True)  # a killed checkout's: no other is at work, this folder is held
    same = _record_in(made.parent, "HEAD") == _record_in(made.parent, commit)
    kept = made.read_bytes() if same and made.exists() else None
    _git(top, "checkout", "--quiet", "--force", "--detach", commit)
    if kept is not None:
        files.write_bytes(made, kept)
    if (top / ".gitmodules").exists():
        _git(top, "submodule", "update", "--quiet", "--init", "--recursive", "--force")


def _record_in(root: Path, commit: str) -> str | None:
    return git_line(root, "rev-parse", "--verify", "--quiet", f"{commit}:./dvc.lock")


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *_QUIET, *arguments]
    try:
        done = subprocess.run(
            command,
            env=os.environ | {"GIT_TERMINAL_PROMPT": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    except OSError as error:
        raise WorkspaceError(
            f"revision: git cannot be run ({error}): install it, or leave `revision` empty to train what lies here"
        ) from error
    if done.returncode:
        said = " ".join(done.stderr.decode(errors="replace").split()) or f"exit code {done.returncode}"
        raise WorkspaceError(
            f"revision: git {arguments[0]} failed in {root} ({said}): mend that, or leave `revision` empty to train "
            "what lies there"
        )
    return os.fsdecode(done.stdout).strip()
