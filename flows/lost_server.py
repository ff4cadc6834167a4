"""A Prefect server that is gone when a signal ends the run, as when a scheduler signals all processes of a job.

Prefect repeats each request, event and batch of logs for up to a minute, so that a run outlives a restart of its
server. A run that has got SIGTERM or Ctrl-C would wait so for minutes, at its end and again at the end of the process.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from prefect._internal.concurrency.services import _active_services
from prefect.events.clients import NullEventsClient
from prefect.events.worker import EventsWorker
from prefect.settings import get_current_settings

from ratchet.servers.http import answers
from tasks.stopping import TrainingStopped

__all__ = ["ending_promptly", "give_up_if_lost"]

_TIMEOUT = 10.0  # seconds: a busy server is not lost, and a lost one refuses at once


@contextmanager
def ending_promptly() -> Iterator[None]:
    """When a signal ends what is inside, give up a lost server before Prefect reports the end to it."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, TrainingStopped) or not isinstance(error, Exception):
            give_up_if_lost()
        raise


def give_up_if_lost() -> bool:
    """Return whether the server does not answer. Then nothing is repeated, and logs and events are dropped."""
    settings = get_current_settings()
    if answers(f"{settings.api.url}/health", timeout=_TIMEOUT):
        return False
    settings.client.max_retries = 0
    settings.logging.to_api.enabled = False
    EventsWorker.set_client_override(NullEventsClient)
    for service in list(_active_services):
        loop, task = service._loop, service._task
        if loop is not None and task is not None and not loop.is_closed():
            loop.call_soon_threadsafe(task.cancel)
    return True
