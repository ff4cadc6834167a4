"""Names of flow runs, for Prefect's pages: data, time and deployment, as in "digits 2026-11-25 02:00 nightly"."""

import re
from pathlib import Path

from prefect.runtime import deployment, flow_run

from ratchet import settings
from ratchet.errors import RatchetError
from ratchet.settings import source_names
from ratchet.workspace import Workspace

__all__ = ["run_name"]

_RANDOM = re.compile(r"[a-z]+-[a-z]+")  # names that Prefect makes up, such as "happy-otter"


def run_name() -> str:
    """Return the name of the current flow run, with its scheduled time in UTC. A name that somebody chose is kept."""
    name = str(flow_run.name or "")
    if name and not _RANDOM.fullmatch(name):
        return name
    at = flow_run.scheduled_start_time.strftime("%Y-%m-%d %H:%M")
    return " ".join(filter(None, [_data(), at, deployment.name or "command line"]))


def _data() -> str:
    """Return registry.model; of auto, the name of the source, which is known before the first ingest."""
    try:
        params = settings.load(Workspace.find().params)
    except RatchetError:
        return ""  # the flow itself reports it
    if params.registry.model != "auto":
        return params.registry.model
    is_set = params.data.kind == "image" and params.data.source not in source_names.OWN[1:]
    return params.data.source if is_set else Path(params.data.path).stem
