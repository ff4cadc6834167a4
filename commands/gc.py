"""`ratchet gc`: list what nothing needs, move it to the trash, restore it, or free its space."""

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

from ratchet import settings
from ratchet.counts import count_of
from ratchet.errors import SettingsError
from ratchet.registry.run_trash import RunTrash, bytes_on_disk
from ratchet.settings.model import Params
from ratchet.terminal_lines import echo, echo_table
from ratchet.trash import trash_folders
from ratchet.workspace import Workspace
from tasks.cleanup import CleanUp, Old, Policy, held

__all__ = ["empty", "list_or_apply", "policy_of", "undo"]

_AGE = re.compile(r"(\d{1,6})([dh])")
_SECONDS = {"d": 86_400.0, "h": 3_600.0}
_MIB = 1 << 20


def policy_of(older_than: str, keep_last: int, *, remote: bool) -> Policy:
    """Return the policy of the command's options.

    Raises:
        SettingsError: the age is not a number of days or hours.
    """
    match = _AGE.fullmatch(older_than)
    if match is None:
        raise SettingsError(f"--older-than: found {older_than}. Allowed: days or hours, such as 30d or 12h")
    return Policy(int(match[1]) * _SECONDS[match[2]], keep_last, remote)


def list_or_apply(workspace: Workspace, policy: Policy, *, apply: bool) -> None:
    """Print what nothing needs; with `apply` move it to the trash."""
    with _held_settings(workspace) if apply else nullcontext(settings.load(workspace.params)) as params:
        clean_up = CleanUp(workspace, params, policy)
        items = clean_up.find()
        if apply:
            clean_up.apply(items)
    for note in clean_up.notes:
        echo(f"note: {note}")
    if not items:
        echo("nothing is old and without use: nothing was moved")
    else:
        _print_table(items)
        moved = "moved to .ratchet/trash. `ratchet gc --undo` moves it back, `ratchet gc --empty` frees its space"
        listed = "nothing was changed. `ratchet gc --apply` with the same options moves this to .ratchet/trash"
        echo(moved if apply else listed)
    if not apply and (trash := workspace.state / "trash").exists() and (size := bytes_on_disk(trash)):
        echo(f"the trash has {size / _MIB:,.1f} MiB: `ratchet gc --undo` moves it back, `ratchet gc --empty` frees it")


@contextmanager
def _held_settings(workspace: Workspace) -> Iterator[Params]:
    """Hold the project, and yield its settings: those of a killed run may name another ledger."""
    with held(workspace) as notes:
        for note in notes:
            echo(f"note: {note}")
        yield settings.load(workspace.params)


def _print_table(items: Sequence[Old]) -> None:
    rows = []
    for category in dict.fromkeys(old.category for old in items):
        group = [old for old in items if old.category == category]
        oldest = time.strftime("%Y-%m-%d", time.localtime(min(old.changed for old in group)))
        rows.append([category, f"{len(group):,}", f"{sum(old.size for old in group) / _MIB:,.1f}", oldest])
    echo_table(["what", "count", "MiB", "oldest"], rows)


def undo(workspace: Workspace) -> None:
    """Move everything in the trash back. What exists again in the project stays in the trash."""
    with _held_settings(workspace) as params:
        folders = [folder for folder in trash_folders(workspace) if not folder.is_erasing]
        runs, staying = 0, 0
        for folder in folders:
            trash = RunTrash(workspace, params) if folder.runs else None
            runs += sum(trash.restore(run) for run in folder.runs) if trash else 0
            for path in folder.restore():
                staying += 1
                echo(f"note: {path} exists again, so the one in {folder.folder} stays there")
            folder.close()
    restored = f"{'the rest' if staying else 'everything'} back, and restored {count_of(runs, 'MLflow run')}"
    echo(f"moved {restored}" if folders else "the trash is empty: nothing to move back")


def empty(workspace: Workspace) -> None:
    """Free the space of the trash. Nothing returns after this."""
    with _held_settings(workspace) as params:
        folders = trash_folders(workspace)
        size = sum(bytes_on_disk(folder.folder) for folder in folders)
        staying = []
        for folder in (folder.erase_begun() for folder in folders):
            if folder.runs:
                trash = RunTrash(workspace, params)
                sizes = {run: trash.size(stored) for run in folder.runs if (stored := trash.find_run(run))}
                needed = trash.versions_text()
                active = [run for run in folder.runs if not trash.erase(run, needed=needed)]
                size += sum(sizes[run] for run in sizes if run not in active)
                staying += active
            folder.erase()
    if staying:
        echo(
            f"note: {len(staying)} MLflow runs were not erased: they are in use again, or a server has them. Fix for "
            "the trash of a server: `mlflow gc` there"
        )
    echo(f"freed {size / _MIB:,.1f} MiB" if folders else "the trash is empty: nothing to free")
