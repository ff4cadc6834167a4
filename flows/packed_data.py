"""The packed data for a command that needs it, without Prefect: as the stage ingest of a flow or of `dvc repro`."""

from flows import dvc_stage
from ratchet.settings.model import Params
from ratchet.workspace import Workspace
from tasks.ingest import ingest
from tasks.progress import Terminal

__all__ = ["bring_data"]


def bring_data(params: Params, workspace: Workspace) -> None:
    """Ingest, unless data/packed is current, and record it in dvc.lock.

    Raises:
        DataError: the source cannot be read, or too much of it is bad.
    """
    with Terminal("ingest", unit="samples") as progress:
        dvc_stage.refresh_code(params, workspace, say=progress.say)
        if dvc_stage.settle(workspace.root, "ingest", say=progress.say):
            return
        progress.say(ingest(params, workspace, progress=progress).summary)
        dvc_stage.record(workspace.root, "ingest", say=progress.say)
