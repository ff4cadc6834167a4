"""Command line of a stage: dvc.yaml runs `python -m tasks.NAME`."""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from ratchet import files, settings
from ratchet.errors import RatchetError, SettingsError
from ratchet.references import require_references
from ratchet.settings.errors import spell
from ratchet.settings.model import Params
from ratchet.workspace import Workspace, disk_errors
from tasks.code import require_current
from tasks.progress import Terminal

__all__ = ["run"]

NO_RESULT = "it starts a stage from the command line"

_INTERRUPTED = 128 + signal.SIGINT  # the exit code that shells give a program ended by Ctrl-C

_LEFT_SECONDS = 1.0  # in which a child of a killed run, between fork and exec, may still hold the workspace


def run(stage: Callable[..., Any], *, unit: str) -> None:
    """Run one stage on the workspace of the working folder. Exit code 1 and a message for a user error."""
    name = stage.__name__
    try:
        workspace = Workspace.find()
        params = settings.load(workspace.params)
        require_references(params, workspace)
        with (
            disk_errors(workspace.root),
            workspace.hold(f"the stage {name}", wait=_LEFT_SECONDS) as restored,
            Terminal(name, unit=unit) as progress,
        ):
            if restored:  # DVC read params.yaml before it was restored
                raise SettingsError(f"{restored}. Fix: run the same command again")
            if "DVC_STAGE" in os.environ and name != "code":
                require_current(name, params, workspace)
            result = stage(params, workspace, progress=progress)
            progress.say(result.summary)
            _refuse_if_dvc_would_record_an_edit(name, params, workspace)
    except RatchetError as error:
        sys.exit(f"{name}: {error}")
    except KeyboardInterrupt:
        print(f"{name}: interrupted. Run the same command again to continue", file=sys.stderr)
        sys.exit(_INTERRUPTED)


def _refuse_if_dvc_would_record_an_edit(name: str, params: Params, workspace: Workspace) -> None:
    """Refuse if settings of the stage were edited while it ran: `dvc repro` reads params.yaml again at its end.

    Raises:
        SettingsError: DVC would record the new settings with the result of the old ones.
    """
    if "DVC_STAGE" not in os.environ:
        return  # the stage was started by hand, and DVC records nothing
    tracked = files.read_yaml(workspace.root / "dvc.yaml")["stages"][name].get("params", ())
    before, now = (settings.dotted(each.model_dump(mode="json")) for each in (params, settings.load(workspace.params)))
    edited = [
        f"{key} was {spell(value)}, is now {spell(now[key])}"
        for key, value in before.items()
        if value != now[key] and any(key == each or key.startswith(f"{each}.") for each in tracked)
    ]
    if edited:
        raise SettingsError(
            f"{workspace.params}: {'; '.join(edited)}. The stage ran with the old value, and `dvc repro` would record "
            "the new one with its result. Fix: run it again. `ratchet train` records the settings that it has read, so "
            "there the file may be edited at any time"
        )
