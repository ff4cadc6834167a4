"""Settings of one run. They are in params.yaml while it runs, and stay there only if it completes.

A run works on the settings that it has read. A copy of the file (.ratchet/settings-as-read.yaml) is what DVC records
for it, so that params.yaml is free for the next experiment.

Before params.yaml is changed, a note (.ratchet/overrides.json) records the settings that the run replaces. So the
settings of a killed run are restored too: by the next process that locks the workspace.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ratchet import files
from ratchet.errors import SettingsError
from ratchet.settings import file as settings_file
from ratchet.settings import messages as settings_errors
from ratchet.settings.model import Params

__all__ = ["RunSettings", "overridden", "restore"]

log = logging.getLogger(__name__)


@dataclass
class RunSettings:
    """Settings of a run, and the note about the ones they replace in params.yaml."""

    params: Params
    note: Path

    def keep(self) -> None:
        """Leave them in params.yaml: the run has completed."""
        self.note.unlink(missing_ok=True)


@contextmanager
def overridden(
    path: Path, changes: Mapping[str, object], *, note: Path, say: Callable[[str], None]
) -> Iterator[RunSettings]:
    """Set dotted keys in params.yaml, and restore them at the end unless `keep` was called. Lock the workspace first.

    Without changes inside another such block, the settings are those that it has read: the file may have been edited.

    Args:
        note: file that records the replaced settings.

    Raises:
        SettingsError: a change is not allowed, or would be one for other projects too; the file stays unchanged.
    """
    as_read = note.with_name("settings-as-read.yaml")
    if as_read.exists() and not changes:
        yield RunSettings(settings_file.load(as_read), note)
        return
    with settings_file.changing(path, changes) as edit:
        _require_own(edit)
        note.parent.mkdir(exist_ok=True)
        files.write_text(as_read, edit.after)
        if edit.after != edit.before:
            files.write_json(note, {"keys": sorted(changes), "before": edit.before, "after": edit.after})
    try:
        yield RunSettings(edit.params, note)
    finally:
        if edit.after != edit.before:
            _restore_after_run(path, note, say)
        as_read.unlink(missing_ok=True)


def _require_own(edit: settings_file.Edit) -> None:
    """Refuse settings of one run in a file outside of the project: another project would train with them."""
    path, target = edit.path, edit.path.resolve()
    if edit.after != edit.before and not target.is_relative_to(path.parent.resolve()):
        raise SettingsError(
            f"{path}: is a link to {target}, which other projects may use, so one run cannot change "
            f"{', '.join(edit.changes)}. Allowed: a file in this project. Fix: `ratchet set`, which changes it for all "
            "of them; or make this project's own copy: `cp params.yaml own.yaml && mv own.yaml params.yaml`"
        )


def restore(path: Path, note: Path) -> str | None:
    """Restore the settings that an incomplete run replaced, except those that the user has edited since.

    Return a message about the restored settings, or None if there are none.

    Raises:
        SettingsError: the note is damaged.
    """
    try:
        content = files.read_json(note)
        before, after, keys = str(content["before"]), str(content["after"]), list(content["keys"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise SettingsError(
            f"{note}: damaged ({error}), so the settings of an incomplete run cannot be restored. Fix: look at "
            "`git diff params.yaml`, then delete that file"
        ) from error
    restored = _put_back(path, before, after, keys)
    if restored is None:
        return None
    note.unlink(missing_ok=True)
    if not restored:
        return None
    values = ", ".join(f"{key} is {settings_errors.spell(value)} again" for key, value in restored.items())
    return f"params.yaml: {values}. The run that had changed it did not complete"


def _put_back(path: Path, before: str, after: str, keys: Iterable[str]) -> dict[str, object] | None:
    """Restore values in the file, and return them. None if it is not YAML: its reader reports that, the note stays."""
    if not path.exists():
        return {}
    with files.locked(path.resolve().parent):  # the user may set others at this moment
        try:
            now = settings_file.read_text(path)
        except UnicodeDecodeError:
            return None  # the same as for invalid YAML below
        if (result := settings_file.restored(now, before, after, keys)) is None:
            return None
        text, restored = result
        if text != now:
            files.write_text(path.resolve(), text)
    return restored


def _restore_after_run(path: Path, note: Path, say: Callable[[str], None]) -> None:
    """Restore at the end of a run. An error here must not hide the error that ended the run."""
    try:
        restored = restore(path, note)
    except (OSError, SettingsError) as error:
        log.warning("params.yaml still has the settings of this run (%s). The next run restores them.", error)
        return
    if restored:
        say(restored)
