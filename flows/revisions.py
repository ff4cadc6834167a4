"""Runs of a given revision, which a pull step of the deployment checks out before the flow's code is imported."""

import os
from pathlib import Path
from uuid import UUID

from prefect import get_run_logger
from prefect.client.orchestration import get_client

from flows import dvc_stage
from ratchet.errors import RatchetError, WorkspaceError
from ratchet.provenance.git_worktree import checkout_revision, current_commit
from ratchet.servers.environment import require_names
from ratchet.workspace import ROOT_VARIABLE, Workspace

__all__ = ["find_workspace", "prepare", "project_or_revision"]

_COMMIT, _ERROR = "RATCHET_COMMIT", "RATCHET_ERROR"


def project_or_revision(project: str) -> dict[str, str]:
    """Return the folder of a run: the project folder, or a checkout of its parameter `revision`. A pull step.

    The folder is the worker's own, because other machines have theirs elsewhere; `project` is for a worker without one.
    Prefect then starts the run's process in this folder and with this process's environment. An error raised here would
    show as a crash, so `find_workspace` raises it.
    """
    project = os.environ.get(ROOT_VARIABLE) or project
    with get_client(sync_client=True) as client:
        revision = client.read_flow_run(UUID(os.environ["PREFECT__FLOW_RUN_ID"])).parameters.get("revision")
    owner = Workspace(Path(project))
    try:
        checkout = checkout_revision(owner, revision) if revision else owner
        require_names(checkout)
        if not revision:
            return {"directory": project}
        dvc_stage.share(Path(project), checkout.root)
        os.environ[_COMMIT] = current_commit(checkout)
    except RatchetError as error:
        os.environ[_ERROR] = str(error)
        return {"directory": str(owner.root if owner.has_code else owner.state)}  # here Ratchet's own flow is imported
    os.environ[ROOT_VARIABLE] = str(checkout.root)
    os.environ["PYTHONPATH"] = checkout.import_path(os.environ.get("PYTHONPATH"))
    return {"directory": str(checkout.root)}


def find_workspace(revision: str | None, *, labelled: bool = False) -> Workspace:
    """Return the folder to run in.

    Raises:
        WorkspaceError: the revision could not be checked out, or no pull step has run; or a run without a revision is
            to be `labelled`, whose settings would stay in params.yaml.
    """
    if _ERROR in os.environ:
        raise WorkspaceError(os.environ[_ERROR])
    if labelled and not revision:
        raise WorkspaceError(
            "labelled: found true. Allowed: only with a revision. Fix: for the project folder run `ratchet data "
            "from-requests NAME`, which prints the settings for its data set"
        )
    if revision and _COMMIT not in os.environ:
        raise WorkspaceError(
            f"revision: found {revision}. Allowed: only in a deployment's run, which has a folder of its own. Fix: "
            f"`prefect deployment run train-flow/local --param revision={revision}`"
        )
    return Workspace.find()


def prepare(workspace: Workspace, revision: str | None) -> None:
    """Check that the held folder still has the revision, and check out its data.

    Raises:
        WorkspaceError: another run has checked out another revision, or DVC cannot get the data.
    """
    if not revision:
        return
    commit = current_commit(workspace)
    if commit != os.environ[_COMMIT]:
        raise WorkspaceError(
            f"{workspace.root}: another run has checked out {commit[:10]} here meanwhile. Fix: run this again"
        )
    get_run_logger().info("revision %s: commit %s, in %s", revision, commit[:10], workspace.root)
    dvc_stage.bring(workspace.root)
