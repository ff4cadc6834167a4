"""Command line of a stage: dvc.yaml runs `python -m tasks.NAME`."""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from ratchet.errors import RatchetError, SettingsError
from ratchet.references import require_measurable, require_references
from ratchet.settings.run_settings import overridden
from ratchet.terminal_lines import echo
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
        workspace.make_importable()
        with (
            disk_errors(workspace.root),
            workspace.hold(f"the stage {name}", wait=_LEFT_SECONDS) as restored,
            overridden(workspace.params, {}, note=workspace.overrides, say=print) as run_settings,
            Terminal(name, unit=unit) as progress,
        ):
            params = run_settings.params
            require_references(params, workspace)
            if restored:  # DVC read params.yaml before it was restored
                raise SettingsError(f"{restored}. Fix: run the same command again")
            if "DVC_STAGE" in os.environ and name != "code":
                require_current(name, params, workspace)
            if name == "train":
                from ratchet.registry.alias_sync import require_agreement

                require_agreement(workspace, params)  # as train-flow does at its start
            if name not in ("code", "ingest"):
                require_measurable(params, workspace.packed)
            result = stage(params, workspace, progress=progress)
            progress.say(result.summary)
    except RatchetError as error:
        echo(f"{name}: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        echo(f"{name}: interrupted. Run the same command again to continue", err=True)
        sys.exit(_INTERRUPTED)
