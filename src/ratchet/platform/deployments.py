"""What `up` tells Prefect's server: the work pool, the deployments of prefect.yaml, and what became of cut-off runs."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

from ratchet import files
from ratchet.errors import PlatformError
from ratchet.platform.servers import POOL, call, part_environment
from ratchet.workspace import Workspace

__all__ = [
    "begin_deploy",
    "create_pool",
    "deployed",
    "deployment_digest",
    "finish_deploy",
    "point_clients",
    "settle_runs",
    "unpoint_clients",
]

_MARK = "# Written by `ratchet up`, removed by `ratchet down`: how Prefect's commands find the server in this folder."


def create_pool(api: str) -> None:
    """Make the work pool `local`, of type process, if there is none."""
    if _has_pool(api):
        return
    kinds = call(api, "/collections/views/aggregate-worker-metadata")
    template = kinds["prefect"]["process"]["default_base_job_configuration"]
    description = "Runs flows as processes of this machine; made by `ratchet up`."
    body = {"name": POOL, "type": "process", "description": description, "base_job_template": template}
    try:
        call(api, "/work_pools/", body)
    except PlatformError:
        if not _has_pool(api):  # another machine was faster
            raise


def _has_pool(api: str) -> bool:
    return any(pool["name"] == POOL for pool in call(api, "/work_pools/filter", {}))


def deployment_digest(workspace: Workspace) -> str:
    """What the deployments are made from: prefect.yaml, the flows and the settings, from which the run form comes."""
    return files.digest_tree(workspace.root, ("prefect.yaml", "flows/*.py", "src/ratchet/settings/model.py"))


def begin_deploy(workspace: Workspace, api: str) -> "subprocess.Popen[str]":
    """Start creating every deployment of prefect.yaml; `finish_deploy` waits for it.

    Raises:
        PlatformError: there is no prefect.yaml.
    """
    if not (workspace.root / "prefect.yaml").is_file():
        raise PlatformError(f"{workspace.root / 'prefect.yaml'}: missing; bring it back: `git checkout prefect.yaml`")
    return subprocess.Popen(
        [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"],
        cwd=workspace.root,
        env=part_environment(workspace, api) | {"NO_COLOR": "1", "COLUMNS": "120"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
    )


def finish_deploy(process: "subprocess.Popen[str]", api: str) -> list[str]:
    """Wait; the deployments that exist then.

    Raises:
        PlatformError: one could not be created; the message ends with what Prefect said.
    """
    output, _ = process.communicate()
    if process.returncode:
        said = "\n".join(f"    {line}" for line in output.rstrip().splitlines()[-15:])
        raise PlatformError(f"prefect.yaml: the deployments could not be created; Prefect said:\n{said}")
    return deployed(api)


def deployed(api: str) -> list[str]:
    """The deployments that exist, as FLOW/DEPLOYMENT."""
    flows = {flow["id"]: flow["name"] for flow in call(api, "/flows/filter", {})}
    found = call(api, "/deployments/filter", {})
    return sorted(f"{flows[deployment['flow_id']]}/{deployment['name']}" for deployment in found)


def settle_runs(api: str, worker: str, *, missed: bool, why: str = "The worker ended before this run did") -> list[str]:
    """Give every run that `worker` took and no process carries out any more its true state. Call it when that is dead.

    A run whose process was killed would stay Running for ever, and hold its deployment's only place. What another
    worker took is for that one to settle: only on its machine is it known whether the run goes on.

    Args:
        missed: also cancel scheduled runs whose time passed while nothing was up, instead of doing them all now.
        why: what became of the worker, for the run's state.

    Returns: a line for each.
    """
    others = [w for w in call(api, f"/work_pools/{POOL}/workers/filter", {}) if w["name"] != worker]
    alone = not any(other["status"] == "ONLINE" for other in others)
    lines = []
    for run in _runs(api, {"type": {"any_": ["RUNNING", "PENDING", "CANCELLING"]}}):
        took = run["labels"].get("prefect.worker.name")  # none in the moment between taking it and saying so
        if took != worker and not (alone and took is None):
            continue
        kind = "CANCELLED" if run["state"]["type"] == "CANCELLING" else "CRASHED"
        message = f"{why}. To continue at its last checkpoint: retry it, or run it again with the same parameters."
        lines.append(_settle(api, run, {"type": kind, "name": kind.capitalize(), "message": message}))
    if missed and alone:
        before = {"before_": datetime.now(UTC).isoformat()}
        for run in _runs(api, {"type": {"any_": ["SCHEDULED"]}}, expected_start_time=before):
            if run["auto_scheduled"]:
                message = "Nothing was up at its time."
                lines.append(_settle(api, run, {"type": "CANCELLED", "name": "Missed", "message": message}))
    return lines


def _runs(api: str, state: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    body = {"flow_runs": {"state": state, **more}, "work_pools": {"name": {"any_": [POOL]}}}
    found: list[dict[str, Any]] = call(api, "/flow_runs/filter", body)
    return found


def _settle(api: str, run: dict[str, Any], state: dict[str, str]) -> str:
    call(api, f"/flow_runs/{run['id']}/set_state", {"state": state, "force": True})
    return f"run {run['name']} was left {run['state']['name']}: now {state['name']}"


def point_clients(workspace: Workspace, api: str) -> bool:
    """Let `prefect ...` in the project folder find the server, from any shell. False: a person's own file is there."""
    path = workspace.root / "prefect.toml"
    if path.exists() and not _ours(workspace):
        return False
    home = json.dumps(str(workspace.state / "prefect"), ensure_ascii=False)  # a JSON string is a TOML string
    files.write_text(path, f'{_MARK}\nhome = {home}\n\n[api]\nurl = "{api}"\n')
    return True


def unpoint_clients(workspace: Workspace) -> None:
    """Take back what `point_clients` wrote; a person's own file stays."""
    if _ours(workspace):
        (workspace.root / "prefect.toml").unlink()


def _ours(workspace: Workspace) -> bool:
    path = workspace.root / "prefect.toml"
    return path.is_file() and path.read_text(encoding="utf-8", errors="replace").startswith(_MARK)
