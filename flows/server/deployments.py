"""The work pool, and the deployments of prefect.yaml."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound

from ratchet import files
from ratchet.code.closure import module_path
from ratchet.errors import PlatformError
from ratchet.servers.environment import service_environment
from ratchet.servers.start import POOL
from ratchet.workspace import Workspace

__all__ = ["begin_deploy", "create_pool", "deployed", "deployment_digest", "finish_deploy", "note"]


def create_pool(client: SyncPrefectClient) -> None:
    """Create the work pool `local`, of type process, if it is missing."""
    try:
        client.read_work_pool(POOL)
    except ObjectNotFound:
        template = client.read_worker_metadata()["prefect"]["process"]["default_base_job_configuration"]
        description = "Runs flows as processes of this machine; created by `ratchet up`."
        pool = WorkPoolCreate(name=POOL, type="process", description=description, base_job_template=template)
        with suppress(ObjectAlreadyExists):  # another machine was faster
            client.create_work_pool(pool)


def deployment_digest(workspace: Workspace) -> str:
    """Return a digest of what the deployments are made from; the run form comes from the settings."""
    flows, library = (path.parent for path in map(module_path, ("flows", "ratchet")) if path)
    own = files.digest_tree(workspace.root, ("prefect.yaml",))
    return files.digest_json(
        [own, files.digest_tree(flows, ("*.py",)), files.digest_tree(library / "settings", ("*.py",))]
    )


def note(workspace: Workspace) -> Path:
    """Return the path of the digest of the deployments that were created. Each `ratchet up` writes it."""
    return workspace.state / "deployed"


def begin_deploy(workspace: Workspace, api: str) -> "subprocess.Popen[str]":
    """Start creating every deployment of prefect.yaml; `finish_deploy` waits for it.

    Raises:
        PlatformError: there is no prefect.yaml.
    """
    if not (workspace.root / "prefect.yaml").is_file():
        raise PlatformError(f"{workspace.root / 'prefect.yaml'}: missing. Fix: `git checkout prefect.yaml`")
    return subprocess.Popen(
        [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"],
        cwd=workspace.root,
        env=service_environment(workspace, api) | {"NO_COLOR": "1", "COLUMNS": "120"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
    )


def finish_deploy(process: "subprocess.Popen[str]", client: SyncPrefectClient) -> list[str]:
    """Wait until they are created, and return the deployments that exist.

    Raises:
        PlatformError: one could not be created. The message ends with Prefect's output.
    """
    output, _ = process.communicate()
    if process.returncode:
        tail = "\n".join(f"    {line}" for line in output.rstrip().splitlines()[-15:])
        raise PlatformError(f"prefect.yaml: the deployments could not be created. Prefect's output ends with:\n{tail}")
    return deployed(client)


def deployed(client: SyncPrefectClient) -> list[str]:
    """Return the deployments that exist, as FLOW/DEPLOYMENT."""
    deployments = list(_pages(client.read_deployments))
    flows = {flow.id: flow.name for flow in _pages(client.read_flows)}
    # A shared server's flow may be deleted between the two questions.
    return sorted(f"{flows[each.flow_id]}/{each.name}" for each in deployments if each.flow_id in flows)


def _pages(read: Callable[..., list[Any]]) -> Iterator[Any]:
    """Yield what all answers of a server have, each of which has a limit of its own (200 by default)."""
    offset = 0
    while page := read(offset=offset):
        yield from page
        offset += len(page)
