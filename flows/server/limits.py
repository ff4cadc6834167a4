"""Concurrency limits on Prefect's server, set from the settings."""

from contextlib import suppress

from prefect.client.orchestration import SyncPrefectClient
from prefect.exceptions import ObjectNotFound

from ratchet.servers.start import POOL
from ratchet.settings.model import PlatformSettings

__all__ = ["GPUS", "set_limits"]

GPUS = "ratchet-gpus"
"""Name of the limit on GPUs."""


def set_limits(client: SyncPrefectClient, settings: PlatformSettings) -> None:
    """Make the limits of Prefect's server, and of its queue, those of the settings (0: no limit)."""
    if settings.gpus:
        client.upsert_global_concurrency_limit_by_name(GPUS, settings.gpus)
    else:
        with suppress(ObjectNotFound):
            client.delete_global_concurrency_limit_by_name(GPUS)
    queue = client.read_work_queue_by_name("default", work_pool_name=POOL)
    if queue.concurrency_limit != (settings.queue_runs or None):
        client.update_work_queue(queue.id, concurrency_limit=settings.queue_runs or None)
