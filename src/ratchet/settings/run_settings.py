"""Settings of one run. They are in params.yaml while it runs, and stay there only if it completes.

.ratchet/overrides.json notes what they replace before params.yaml is changed. So the settings of a killed run are taken
back, too: by the next process that holds the workspace.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from ratchet import files, settings
from ratchet.errors import SettingsError, WorkspaceBusy
from ratchet.settings import errors as settings_errors
from ratchet.settings.model import Params
from ratchet.workspace import Workspace

__all__ = ["RunSettings", "overridden", "restore", "restore_if_idle"]

log = logging.getLogger(__name__)


@dataclass
class RunSettings:
    """The settings that a run has, and whether params.yaml keeps them."""

    workspace: Workspace
    params: Params

    def keep(self) -> None:
        """Leave them in params.yaml: the run has made everything that they decide."""
        self.workspace.overrides.unlink(missing_ok=True)


@contextmanager
def overridden(
    workspace: Workspace, changes: Mapping[str, object], *, say: Callable[[str], None]
) -> Iterator[RunSettings]:
    """Set dotted keys in params.yaml; on leaving, take them back unless `keep` was called. Hold the workspace first.

    Raises:
        SettingsError: a change is not allowed; the file stays as it is.
    """
    edit = settings.plan(workspace.params, changes)
    if edit.after == edit.before:
        yield RunSettings(workspace, edit.params)  # nothing to take back
        return
    note = {"keys": sorted(changes), "before": edit.before, "after": edit.after}
    workspace.state.mkdir(exist_ok=True)
    files.write_json(workspace.overrides, note)
    edit.write()
    try:
        yield RunSettings(workspace, edit.params)
    finally:
        _take_back(workspace, say)


def restore(workspace: Workspace) -> str | None:
    """Take back what a run that did not complete has set. Return a sentence that says so; None: there was nothing.

    An edit that a person has made meanwhile stays.

    Raises:
        SettingsError: the note of what was set is damaged.
    """
    try:
        note = files.read_json(workspace.overrides)
        before, after, keys = str(note["before"]), str(note["after"]), list(note["keys"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise SettingsError(
            f"{workspace.overrides}: damaged ({error}), so the settings of a run that did not complete cannot be taken "
            "back. Fix: look at `git diff params.yaml`, then delete that file"
        ) from error
    restored: dict[str, object] = {}
    if workspace.params.exists():
        try:
            now = settings.read_text(workspace.params)
        except UnicodeDecodeError:
            return None  # as below, where it is no YAML
        restored = settings.differences(after, before, keys)
        if now == after:
            settings.write_text(workspace.params, before)
        elif now != before:
            taken = settings.take_back(now, before, after, keys)
            if taken is None:
                return None  # no YAML just now: whoever reads it says so, and the note waits until it is
            text, restored = taken
            if text != now:
                settings.write_text(workspace.params, text)
        else:
            restored = {}
    workspace.overrides.unlink(missing_ok=True)
    if not restored:
        return None
    values = ", ".join(f"{key} is {settings_errors.spell(value)} again" for key, value in restored.items())
    return f"params.yaml: {values}. The run that had changed it did not complete"


def restore_if_idle(workspace: Workspace) -> str | None:
    """The same, unless a run is under way in the workspace: then its settings are its own.

    Raises:
        SettingsError: the note of what was set is damaged.
    """
    if not workspace.overrides.exists():
        return None
    try:
        with workspace.hold("restoring params.yaml") as restored:
            return restored
    except WorkspaceBusy:
        return None


def _take_back(workspace: Workspace, say: Callable[[str], None]) -> None:
    """Restore on leaving a run. What ended the run is the error to show, not this."""
    try:
        restored = restore(workspace)
    except (OSError, SettingsError) as error:
        log.warning("params.yaml still has the settings of this run (%s). The next run takes them back.", error)
        return
    if restored:
        say(restored)
