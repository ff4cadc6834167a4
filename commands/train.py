"""`ratchet train`: run train-flow in this process, without a deployment."""

import atexit
import os
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from flows import dvc_stage
from ratchet import settings
from ratchet.errors import PlatformError, RatchetError, SettingsError, find_cause, first_line
from ratchet.references import require_references
from ratchet.settings.run_settings import RunSettings, overridden
from ratchet.terminal_lines import echo
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

    from tasks.register import Registration

__all__ = ["train"]


def train(
    workspace: Workspace, assignments: list[str], *, start: str = "", continue_with_changed_code: bool = False
) -> None:
    """Run train-flow on the workspace, with some settings (KEY=VALUE) of this run.

    Args:
        start: a registered version, whose weights the training begins with.
        continue_with_changed_code: let an interrupted training go on though its code changed.
    """
    changes = settings.parse_assignments(assignments)
    if start:
        changes |= _parent(workspace, start, changes)
    if not workspace.overrides.exists():  # else params.yaml still has the settings of a killed run
        planned = settings.plan(workspace.params, changes)  # refuse a wrong value before anything is written
        require_references(planned.params, workspace)
    with workspace.hold("ratchet train") as restored:
        if restored:
            _print_note(restored)
        with overridden(workspace.params, changes, note=workspace.overrides, say=_print_note) as run:
            if continue_with_changed_code:
                from tasks.changed_code import ALLOWED_VARIABLE

                os.environ[ALLOWED_VARIABLE] = "1"  # for the stage train, which knows whether it continues one
            _run(workspace, run)


def _parent(workspace: Workspace, reference: str, changes: Mapping[str, Any]) -> dict[str, str]:
    """Put the files of a registered version into data/pretrained, and return the setting that continues it."""
    from ratchet.registry.models import ModelRegistry
    from ratchet.registry.parents import place_parent

    if "model.pretrained" in changes:
        raise SettingsError(
            f"--from: found {reference}, and model.pretrained={changes['model.pretrained']}. Allowed: one of them"
        )
    with workspace.hold("ratchet train") as restored:
        if restored:
            _print_note(restored)
        params = settings.plan(workspace.params, changes).params
        version = place_parent(ModelRegistry(workspace, params), reference, workspace)
    _print_note(f"continues {version.label}: from its weights as they are served, with a new optimizer and schedule")
    return {"model.pretrained": f"{version.name}/{version.number}"}


def _run(workspace: Workspace, run: RunSettings) -> None:
    """Run the flow, if any stage has something to do. Otherwise start nothing."""
    from tasks.summary import print_summary

    params = run.params
    dvc_stage.refresh_code(params, workspace, say=_print_note)
    if workspace.registration.exists() and dvc_stage.all_unchanged(workspace.root, params=workspace.settings_as_read):
        run.keep()
        print_summary(params, workspace, title="Nothing to do: code, data and settings are those of the last run.")
        return

    from ratchet.servers import PrefectServer, client_environment

    server = PrefectServer.begin(workspace, params.platform)
    atexit.register(server.stop)  # registered before prefect is imported: runs after it has sent its last logs
    os.environ.update(client_environment(workspace, server.api_url))
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")  # the stages print their own messages
    _import_ahead()
    server.wait()
    from httpx import TransportError

    from flows.train import train_flow

    try:
        state = train_flow(return_state=True)
    except TransportError as error:
        raise _end_without_server(error, server.api_url) from error
    if not state.is_completed():
        raise _failure(state)
    run.keep()
    print_summary(params, workspace, cast("Registration", state.result()))


def _import_ahead() -> None:
    """Import what the stages need while the server starts: importing needs one core and waits for the disk."""
    import mlflow.pyfunc  # noqa: F401
    import polars  # noqa: F401
    import torch  # noqa: F401


def _end_without_server(error: BaseException, api: str) -> BaseException:
    """Return what ended a flow run whose server is gone, so that its state could not be recorded."""
    from prefect.exceptions import TerminationSignal

    if find_cause(error, TerminationSignal):
        return KeyboardInterrupt()
    ended = find_cause(error, RatchetError) or find_cause(error, KeyboardInterrupt)
    return ended or PlatformError(f"Prefect's server at {api} is gone ({first_line(error)}). Fix: run it again")


def _failure(state: "State") -> RatchetError:
    """Return the error that ended the flow run; print a traceback if it is not a user error."""
    error = state.result(raise_on_failure=False)
    if isinstance(error, BaseException) and not isinstance(error, RatchetError):
        traceback.print_exception(error)
    return RatchetError(str(state.message))


def _print_note(text: str) -> None:
    echo(f"ratchet: {text}", err=True)
