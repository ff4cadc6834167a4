"""Concurrency limits on Prefect's server, set from the settings, and their names.

The limit of one person is created by their first run (flows/quotas.py), with the value of the limit for each person.
"""

import re
from contextlib import suppress

from prefect.client.orchestration import SyncPrefectClient
from prefect.exceptions import ObjectNotFound

from ratchet.servers.start import POOL
from ratchet.settings.model import PlatformSettings

__all__ = ["GPUS", "RUNS", "each_limit", "person_limit", "set_limits", "total_limit"]

RUNS, GPUS = "runs", "gpus"  # the limited resources


def total_limit(resource: str) -> str:
    """Return the name of the limit on all users together."""
    return f"ratchet-{resource}"


def each_limit(resource: str) -> str:
    """Return the name of the limit that holds the value for each person. No run takes a slot of it."""
    return f"ratchet-{resource}-each"


def person_limit(resource: str, person: str) -> str:
    """Return the name of the limit on one person."""
    return f"ratchet-{resource}-of-{re.sub('[/%&<>]', '-', person)}"  # characters that Prefect forbids in names


def set_limits(client: SyncPrefectClient, settings: PlatformSettings) -> None:
    """Make the limits of Prefect's server, and of its queue, those of the settings (0: no limit)."""
    limits = {
        each_limit(RUNS): settings.person_runs,
        total_limit(GPUS): settings.gpus,
        each_limit(GPUS): settings.person_gpus,
    }
    for name, limit in limits.items():
        if limit:
            client.upsert_global_concurrency_limit_by_name(name, limit)
        else:
            with suppress(ObjectNotFound):
                client.delete_global_concurrency_limit_by_name(name)
    queue = client.read_work_queue_by_name("default", work_pool_name=POOL)
    if queue.concurrency_limit != (settings.queue_runs or None):
        client.update_work_queue(queue.id, concurrency_limit=settings.queue_runs or None)
