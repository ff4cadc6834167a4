"""DVC stages in this process: check, record and restore them as `dvc repro` does, without starting a command."""

import os
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, nullcontext
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet import files
from ratchet.counts import count_of
from ratchet.errors import RatchetError, WorkspaceError, first_line
from ratchet.settings.model import Params
from ratchet.workspace import Workspace
from tasks.code import code, lock, require_own
from tasks.dvc_store import disable_progress_bars

if TYPE_CHECKING:
    from dvc.repo import Repo

__all__ = ["all_unchanged", "bring", "record", "refresh_code", "settle", "share"]

_FIXES = {
    "dependency 'data/releases.csv' does not exist": "git checkout data/releases.csv",
    "dependency 'data/pretrained' does not exist": "git checkout data/pretrained",
    "not a git repository": "git init",  # a project from a zip
    "not inside of a DVC repository": "dvc init",
    "Unable to read RWLock-file": "rm .dvc/tmp/rwlock",  # of a process that was killed while it wrote the file
}


def all_unchanged(root: Path, *, params: Path | None = None) -> bool:
    """Return whether `dvc status` is clean, so that no stage has anything to do. `params` as for `settle`."""
    with _opened(root, params=params) as repo:
        return not repo.status()


def settle(
    root: Path, name: str, *, params: Path | None = None, say: Callable[[str], None] = lambda text: None
) -> str | None:
    """Settle a stage without running it, if possible. Return how; None: it has to run.

    Unchanged stages are left alone. Results for the same code, data and settings in DVC's run cache are restored, as by
    `dvc repro`.

    Args:
        params: a copy of params.yaml as the run has read it. DVC uses it in place of the file, which may have been
            edited since.
        say: gets a line about each input tracked by `dvc add` whose content changed.

    Raises:
        WorkspaceError: such an input lacks files that DVC's cache does not have.
    """
    from dvc.dependency.base import DependencyDoesNotExistError
    from dvc.stage.cache import RunCacheNotFoundError

    with _opened(root, params=params) as repo:
        stage = repo.stage.load_one("dvc.yaml", name)
        _adopt_sources(repo, stage, say)
        if not stage.changed():
            return "unchanged"
        try:
            if stage.changed_deps() or stage.changed_stage():
                _forget_outputs(stage)
            repo.stage_cache.restore(stage, dry=True)
        except (RunCacheNotFoundError, DependencyDoesNotExistError):
            return None  # the stage itself names what is missing
        stage.remove_outs(ignore_remove=False, force=False)
        repo.stage_cache.restore(stage)
        stage.save()
        stage.commit()
        stage.dump(update_pipeline=False)
        return "restored from DVC's cache"


def refresh_code(params: Params, workspace: Workspace, *, say: Callable[[str], None]) -> None:
    """Run the stage code, if any file of code changed. Then DVC knows which stages are affected.

    Raises:
        WorkspaceError: the code that runs is not that of the workspace.
    """
    if not workspace.has_code:
        lock(workspace)
    require_own(workspace)
    if not settle(workspace.root, "code", params=workspace.settings_as_read):
        code(params, workspace)
        record(workspace.root, "code", say=say, params=workspace.settings_as_read)


def _adopt_sources(repo: Any, stage: Any, say: Callable[[str], None]) -> None:
    """Record the current content of inputs that `dvc add` tracks, as `dvc repro` does before the stage."""
    for source in _sources(repo, stage):
        if all(Path(out.fs_path).exists() for out in source.outs) and source.changed_outs():
            before, contents = ", ".join(map(_size, source.outs)), [out.hash_info for out in source.outs]
            _require_whole(source)
            source.save()
            source.commit()
            source.dump()
            if [out.hash_info for out in source.outs] != contents:  # else only DVC's cache lacked them
                now = ", ".join(map(_size, source.outs))
                say(
                    f"{source.addressing}: its data changed, and it records them as they are now "
                    f"({now}; before: {before})"
                )


def _size(out: Any) -> str:
    counts = {"file": out.meta.nfiles, "byte": out.meta.size or 0}
    return ", ".join(count_of(n, noun) for noun, n in counts.items() if n is not None)


def _require_whole(source: Any) -> None:
    """Refuse to take a folder for changed data that lacks recorded files, if they were perhaps never here.

    Raises:
        WorkspaceError: it does, and DVC's cache does not have them.
    """
    for out in source.outs:
        recorded, folder = out.meta.nfiles or 0, Path(out.fs_path)
        present = sum(path.is_file() for path in folder.rglob("*")) if recorded else 0
        if present < recorded and out.changed_cache():
            raise WorkspaceError(
                f"{source.addressing}: records {recorded:,} files, and {folder} has {present:,}. DVC's cache lacks the "
                f"others, as after a `dvc pull` that was cut off. Fix: `dvc pull {source.addressing}`; or if you "
                f"removed them, `dvc add {out.def_path}`"
            )


def _sources(repo: Any, stage: Any) -> list[Any]:
    """Return the .dvc files whose data the stage reads."""
    dependencies = [Path(dep.fs_path) for dep in stage.deps]
    sources = []
    for source in repo.index.stages:
        outs = [Path(out.fs_path) for out in source.outs] if source.is_data_source else []
        if any(out.is_relative_to(place) or place.is_relative_to(out) for out in outs for place in dependencies):
            sources.append(source)
    return sources


def _forget_outputs(stage: Any) -> None:
    """Let DVC search for results of the stage's current dependencies.

    The recorded outputs belong to other code, data or settings. With new dependencies beside them, DVC would restore
    them as if they were current.
    """
    from dvc_data.hashfile.hash_info import HashInfo

    stage.save_deps()
    for out in stage.outs:
        out.hash_info = HashInfo()


def record(root: Path, name: str, *, say: Callable[[str], None], params: Path | None = None) -> None:
    """Record the stage's new outputs in DVC's cache and dvc.lock, and store them in the default remote, if any.

    dvc.lock names the settings that made them: those of `params`, as for `settle`.

    Inputs that `dvc add` tracks are stored there too: without them `dvc pull` fails in another clone. An unreachable
    remote is reported, and is no error: `dvc push` stores them later.
    """
    with _opened(root, params=params) as repo:
        stage = repo.stage.load_one("dvc.yaml", name)
        stage.save()
        stage.commit()
        stage.dump(update_pipeline=False)
        sources = [source.addressing for source in _sources(repo, stage)]
    with _opened(root, locked=False, params=params) as repo:
        if error := _push(repo, [name], run_cache=True):
            say(f"recorded, but not stored in DVC's remote ({error}): `dvc push` stores it later")
        elif sources and (error := _push(repo, sources, run_cache=False)):
            say(
                f"{', '.join(sources)}: not stored in DVC's remote ({error}), so `dvc pull` fails in another clone. "
                "Fix: `dvc push`"
            )


def _push(repo: Any, targets: list[str], *, run_cache: bool) -> str | None:
    """Store targets in the default remote, if there is one. Return the error message; None: stored, or no remote."""
    from dvc.config import NoRemoteError

    try:
        repo.push(targets=targets, run_cache=run_cache)
    except NoRemoteError:
        return None  # a workspace without a remote keeps its versions in .dvc/cache alone
    except Exception as error:  # each kind of remote has its own errors, and the version is safe in DVC's cache
        return first_line(error)
    return None


def share(project: Path, root: Path) -> None:
    """Let `root`, the same project in another folder, use the cache and remotes of `project`.

    Raises:
        WorkspaceError: DVC was not set up in one of them.
    """
    from configobj import ConfigObj
    from dvc.config import Config
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        theirs, own = (Path(Repo.find_dvc_dir(str(folder))) for folder in (project, root))
        config = Config(str(theirs))  # its paths are absolute
    except DvcException as error:
        raise WorkspaceError(f"DVC: {error}") from error
    # In DVC's format, but not by its Config.edit, which cannot write a path outside ASCII.
    shared = ConfigObj(encoding="utf-8")
    shared["core"] = dict(config["core"])
    shared["cache"] = {"dir": str(theirs / "cache"), **config["cache"]}
    for name, remote in config["remote"].items():
        shared[f'remote "{name}"'] = dict(remote)
    content = BytesIO()
    shared.write(content)
    files.write_bytes(own / "config.local", content.getvalue(), private=True)  # a remote's password may be in it


def bring(root: Path) -> None:
    """Check out what .dvc files and dvc.lock record: sources from cache or remote, outputs if the cache has them.

    Raises:
        WorkspaceError: a source is in neither.
    """
    from dvc.exceptions import CheckoutError

    with _opened(root) as repo:
        repo.checkout(force=True, allow_missing=True)
        sources = [source.addressing for source in repo.index.stages if source.is_data_source]
        if not sources:
            return
        try:
            repo.checkout(targets=sources, force=True)
        except CheckoutError:
            _pull(repo, sources)


def _pull(repo: Any, sources: list[str]) -> None:
    try:
        repo.pull(targets=sources, force=True)
    except Exception as error:  # each kind of remote has its own errors
        raise WorkspaceError(
            f"{', '.join(sources)}: its data is neither in DVC's cache nor in its remote "
            f"({' '.join(str(error).split())}). Fix: `dvc push` it from the folder that has it"
        ) from error


def _reading(path: Path, copy: Path) -> Any:
    """Return a file system for DVC in which the content of `path` is that of `copy`."""
    from dvc.fs import LocalFileSystem

    class WithCopy(LocalFileSystem):  # type: ignore[misc, unused-ignore]  # DVC has no types
        def open(self, opened: str, *arguments: Any, **options: Any) -> Any:
            is_path = os.path.realpath(opened) == os.path.realpath(path)
            return super().open(os.fspath(copy) if is_path else opened, *arguments, **options)

    return WithCopy()


def _release_own(repo: Any) -> None:
    """Remove DVC's locks of files that have this process's id. This process has none yet, so the owner was killed.

    In containers every killed process had the id 1, and DVC would wait for the new one with this id.
    """
    from dvc.rwlock import _edit_rwlock

    with _edit_rwlock(repo.tmp_dir, repo.fs, repo.config["core"].get("hardlink_lock", False)) as locks:
        own = os.getpid()
        locks["write"] = {path: owner for path, owner in locks["write"].items() if owner["pid"] != own}
        readers = {path: [each for each in all_ if each["pid"] != own] for path, all_ in locks["read"].items()}
        locks["read"] = {path: left for path, left in readers.items() if left}


@contextmanager
def _opened(root: Path, *, locked: bool = True, params: Path | None = None) -> "Iterator[Repo]":
    import logging

    from dvc.exceptions import DvcException
    from dvc.lock import LockError
    from dvc.repo import Repo, lock_repo

    repo: Any = None
    logging.getLogger("dvc").setLevel(logging.WARNING)  # the stage reports itself
    disable_progress_bars()
    try:
        with chdir(root):  # where DVC looks for dvc.yaml, wherever its repository is
            repo = Repo(str(root), _wait_for_lock=True)
            if params is not None and params.exists():
                repo.fs = _reading(root / "params.yaml", params)
            try:
                with lock_repo(repo) if locked else nullcontext():
                    if locked:
                        _release_own(repo)
                    yield repo
            finally:
                repo.close()
    except LockError as error:
        raise WorkspaceError(f"{root}: DVC is busy here ({error}). Fix: wait until it has ended") from error
    except DvcException as error:
        cause = f" ({error.__cause__})" if error.__cause__ else ""
        fix = next((f". Fix: `{fix}`" for text, fix in _FIXES.items() if text in str(error)), "")
        raise WorkspaceError(f"DVC: {error}{cause}{fix}") from error
    except RatchetError:
        raise
    except Exception as error:  # DVC does not wrap the errors of a storage
        from ratchet.data.reading.storage import is_storage_error, is_url, unreachable

        deps = repo.index.deps if repo else []
        away = [dep.def_path for dep in deps if is_url(str(dep.def_path))]
        if not away or not is_storage_error(error):
            raise
        raise unreachable(away[0], error) from None
