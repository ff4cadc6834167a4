"""Runs of a given revision: a pull step of the deployment lays it down, before any code of the flow is imported."""

import os
from pathlib import Path
from uuid import UUID

from prefect import get_run_logger
from prefect.client.orchestration import get_client

from flows import dvc_stage
from ratchet.errors import RatchetError, WorkspaceError
from ratchet.provenance.git_worktree import checkout_revision, current_commit
from ratchet.workspace import ROOT_VARIABLE, Workspace

__all__ = ["find_workspace", "prepare", "project_or_revision"]

_COMMIT, _MISTAKE = "RATCHET_COMMIT", "RATCHET_MISTAKE"


def project_or_revision(project: str) -> dict[str, str]:
    """A deployment's pull step: the run works in the project folder, or in one of its parameter `revision`.

    The folder is the worker's own, for other machines have theirs elsewhere; `project` is for a worker that names none.
    Prefect starts the run's process after it, in the folder and with the environment that this leaves. A mistake is not
    raised here, where it would show as a crash: `find_workspace` tells it.
    """
    project = os.environ.get(ROOT_VARIABLE) or project
    with get_client(sync_client=True) as client:
        revision = client.read_flow_run(UUID(os.environ["PREFECT__FLOW_RUN_ID"])).parameters.get("revision")
    if not revision:
        return {"directory": project}
    try:
        made = checkout_revision(Workspace(Path(project)), revision)
        dvc_stage.share(Path(project), made.root)
        os.environ[_COMMIT] = current_commit(made)
    except RatchetError as error:
        os.environ[_MISTAKE] = str(error)
        return {"directory": project}
    os.environ[ROOT_VARIABLE] = str(made.root)
    others = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    own = [str(made.root), str(made.root / "src")]
    os.environ["PYTHONPATH"] = os.pathsep.join([*own, *(one for one in others if one)])
    return {"directory": str(made.root)}


def find_workspace(revision: str | None) -> Workspace:
    """The folder to run in.

    Raises:
        WorkspaceError: the revision could not be laid down, or nobody did it.
    """
    if _MISTAKE in os.environ:
        raise WorkspaceError(os.environ[_MISTAKE])
    if revision and _COMMIT not in os.environ:
        raise WorkspaceError(
            f"revision: found {revision}, but only a deployment's run is given a folder of its own: "
            f"`prefect deployment run train-flow/local --param revision={revision}`"
        )
    return Workspace.find()


def prepare(workspace: Workspace, revision: str | None) -> None:
    """Of a revision's folder, once it is held: make sure that it is still that revision's, and bring its data.

    Raises:
        WorkspaceError: another run has laid down another revision; or DVC cannot bring the data.
    """
    if not revision:
        return
    commit = current_commit(workspace)
    if commit != os.environ[_COMMIT]:
        raise WorkspaceError(f"{workspace.root}: another run has put {commit[:10]} here meanwhile: run this again")
    get_run_logger().info("revision %s: commit %s, in %s", revision, commit[:10], workspace.root)
    dvc_stage.bring(workspace.root)
