"""Names of flow runs, for Prefect's pages: data, time and deployment, as in "digits 2026-11-25 02:00 nightly"."""

from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from coolname.data import config
from prefect.runtime import deployment, flow_run

from ratchet import settings
from ratchet.errors import RatchetError
from ratchet.kinds.registry import kind_chosen
from ratchet.settings import source_names
from ratchet.workspace import Workspace

__all__ = ["is_made_up", "run_name", "time_text"]

_LISTS: dict[str, Any] = config  # the words from which Prefect makes up names


def run_name() -> str:
    """Return the name of the current flow run, with its scheduled time in UTC. A name that somebody chose is kept."""
    name = str(flow_run.name or "")
    if name and not is_made_up(name):
        return name
    return " ".join(
        filter(None, [_data(), time_text(flow_run.scheduled_start_time), deployment.name or "command line"])
    )


def time_text(at: datetime) -> str:
    """Return a time for a name. Runs of the same minute differ in seconds; a schedule has none."""
    return at.strftime("%Y-%m-%d %H:%M:%S").removesuffix(":00")


def is_made_up(name: str) -> bool:
    """Return whether Prefect has made up a name, such as "happy-otter". One such as "nightly-retrain" was chosen."""
    lists = _LISTS["an"]["lists"]  # of adjectives and of nouns
    parts = name.split("-")
    return len(parts) == len(lists) and all(part in _words(each) for part, each in zip(parts, lists, strict=True))


@cache
def _words(name: str) -> frozenset[str]:
    """Return the words of a list, which may consist of others."""
    content = _LISTS[name]
    return frozenset(content.get("words", ())).union(*map(_words, content.get("lists", ())))


def _data() -> str:
    """Return registry.model; of auto, the name of the source, which is known before the first ingest."""
    try:
        params = settings.load(Workspace.find().params)
    except RatchetError:
        return ""  # the flow itself reports it
    if params.registry.model != "auto":
        return params.registry.model
    is_set = kind_chosen(params.data.kind).has_sources and params.data.source not in source_names.OWN[1:]
    return params.data.source if is_set else Path(params.data.path).stem
