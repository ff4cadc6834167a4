"""`python -m tasks.NAME`: what dvc.yaml runs."""

import sys
from collections.abc import Callable
from typing import Any, NoReturn

from ratchet import settings
from ratchet.errors import RatchetError, SettingsError
from ratchet.workspace import Workspace, disk_errors
from tasks.progress import Terminal

__all__ = ["INTERRUPTED", "end_with", "run"]

INTERRUPTED = 130  # the exit code of what Ctrl-C ended, as shells give it


def run(stage: Callable[..., Any], *, unit: str) -> None:
    """Run one stage on the workspace around the working folder; a person's mistake ends it with words and code 1."""
    name = stage.__name__
    try:
        workspace = Workspace.find()
        params = settings.load(workspace.params)
        with (
            disk_errors(workspace.root),
            workspace.hold(f"the stage {name}") as restored,
            Terminal(name, unit=unit) as watch,
        ):
            if restored:  # DVC has read the file as it was before
                raise SettingsError(f"{restored}. Fix: run the same command again")
            result = stage(params, workspace, watch=watch)
            watch.say(result.summary)
    except RatchetError as error:
        sys.exit(f"{name}: {error}")
    except KeyboardInterrupt:
        print(f"{name}: interrupted; the same command begins or continues it", file=sys.stderr)
        sys.exit(INTERRUPTED)


def end_with(name: str, main: Callable[[], int]) -> NoReturn:
    """End this program as `main` says; a person's mistake ends it with words and code 1."""
    try:
        sys.exit(main())
    except RatchetError as error:
        sys.exit(f"{name}: {error}")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
