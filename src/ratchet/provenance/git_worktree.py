"""A revision's files in one git worktree, .ratchet/production, which every production run reuses.

One worktree for all revisions saves disk space, and DVC knows which of the outputs in it are still up to date.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ratchet import files, git
from ratchet.errors import WorkspaceError
from ratchet.workspace import Workspace, disk_errors

__all__ = ["checkout_revision", "current_commit"]

_REMOTE = "origin/"
_LOCK_WAIT = 5.0  # seconds to wait for a run that is about to end


def checkout_revision(project: Workspace, revision: str) -> Workspace:
    """Check a revision out in `project.production`. Files that git ignores there, such as DVC's outputs, stay.

    Raises:
        WorkspaceError: the project is no git repository, has no such revision, or git refuses.
        WorkspaceBusy: another run works in that folder.
    """
    from filelock import FileLock

    top = project.production.root
    with disk_errors(project.root), _revision_errors():
        project.state.mkdir(exist_ok=True)
        with FileLock(project.state / "production.lock"):
            commit = _resolve(project, revision)
            checkout = Workspace(top / git.text(project.root, "rev-parse", "--show-prefix"))
            checkout.root.mkdir(parents=True, exist_ok=True)  # the project can be a folder of the repository
            with checkout.hold(f"the checkout of {revision}", wait=_LOCK_WAIT):
                _connect(project, top / ".git", commit)
                _check_out(top, checkout.root / "dvc.lock", commit)
                if not checkout.params.is_file():
                    raise WorkspaceError(f"revision: {revision} has no params.yaml: name one of this project's commits")
                files.write_text(checkout.state / "project", str(project.root))
    return checkout


def current_commit(workspace: Workspace) -> str:
    """Return the commit that is checked out.

    Raises:
        WorkspaceError: the folder is in no git repository.
    """
    with _revision_errors():
        return git.text(workspace.root, "rev-parse", "HEAD")


@contextmanager
def _revision_errors() -> Iterator[None]:
    """Name the setting in git's errors."""
    try:
        yield
    except git.GitError as error:
        raise WorkspaceError(
            f"revision: {error}. Or leave `revision` empty to train the files in the project folder"
        ) from error


def _resolve(project: Workspace, revision: str) -> str:
    """Return the commit of a branch, tag or commit; branches of `origin` are fetched first."""
    if revision.startswith("-"):
        raise WorkspaceError(f"revision: found {revision}; allowed: a branch, a tag or a commit")
    git.run(project.root, "rev-parse", "--git-dir")
    if revision.startswith(_REMOTE):
        git.run(project.root, "fetch", "--quiet", "origin")
    commit = git.line(project.root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    if commit is None:
        raise WorkspaceError(
            f"revision: {project.root} has no branch, tag or commit {revision}: `git branch --all` and `git tag` list "
            "them. Fix: `git fetch` first, if another repository has it"
        )
    return commit


def _connect(project: Workspace, link: Path, commit: str) -> None:
    """Let git know the folder of `link`, its file .git, as a worktree of the project. All other files there stay.

    Git's record of a worktree and this file name each other by absolute paths. Both are written each time, because
    the project may have another path now: it was moved or copied, or a container shares it.
    """
    if link.is_dir():
        raise WorkspaceError(f"{link.parent}: found a repository of its own; allowed: a checkout. Fix: move it away")
    record = _own_record(project, link) or _new_record(project, commit)
    if not (record / "HEAD").stat().st_size:  # as a power cut can leave it: git would not open the folder again
        files.write_text(record / "HEAD", f"{commit}\n")
    files.write_bytes(record / "gitdir", os.fsencode(f"{link}\n"))
    files.write_bytes(link, os.fsencode(f"gitdir: {record}\n"))


def _own_record(project: Workspace, link: Path) -> Path | None:
    """Return git's record of this worktree; None if there is none, or it belongs to another folder."""
    common = Path(git.text(project.root, "rev-parse", "--path-format=absolute", "--git-common-dir"))
    name = _named_path(link).name if link.is_file() else ""
    for gitdir in sorted(common.glob("worktrees/*/gitdir"), key=lambda gitdir: gitdir.parent.name != name):
        record, place = gitdir.parent, _named_path(gitdir)
        if record.name == name and place.parts[-3:] == link.parts[-3:]:
            is_elsewhere = place.is_file() and not place.samefile(link) and _named_path(place) == record
        else:
            is_elsewhere = place != link
        if not is_elsewhere and (record / "HEAD").is_file():
            return record
    return None


def _named_path(file: Path) -> Path:
    """Return the path that a file `.git` or `gitdir` names."""
    return Path(os.path.normpath(file.parent / os.fsdecode(file.read_bytes()).removeprefix("gitdir: ").strip()))


def _new_record(project: Workspace, commit: str) -> Path:
    """Let git add a worktree in an empty folder, because it refuses one with files, and return its record."""
    draft = project.state / "production.new" / project.production.root.name
    if draft.exists():  # of a killed run
        shutil.rmtree(draft)
    options = ("--quiet", "--force", "--force", "--detach", "--no-checkout")  # twice: such a run's is locked
    git.run(project.root, "worktree", "add", *options, str(draft), commit)
    record = _named_path(draft / ".git")
    shutil.rmtree(draft.parent)
    return record


def _check_out(top: Path, lock: Path, commit: str) -> None:
    """Restore all files as committed, except for a dvc.lock that is newer than the commit's.

    The worktree's dvc.lock records what was built there. It is kept unless the commit contains a different
    dvc.lock.
    """
    index_lock = top / git.text(top, "rev-parse", "--git-path", "index.lock")
    index_lock.unlink(missing_ok=True)  # of a killed checkout; this folder is locked, so no other process uses it
    is_same = _lock_blob(lock.parent, "HEAD") == _lock_blob(lock.parent, commit)
    content = lock.read_bytes() if is_same and lock.exists() else None
    git.run(top, "checkout", "--quiet", "--force", "--detach", commit)
    if content is not None:
        files.write_bytes(lock, content)
    if (top / ".gitmodules").exists():
        git.run(top, "submodule", "update", "--quiet", "--init", "--recursive", "--force")


def _lock_blob(root: Path, commit: str) -> str | None:
    return git.line(root, "rev-parse", "--verify", "--quiet", f"{commit}:./dvc.lock")
