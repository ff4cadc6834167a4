"""A Prefect server that is gone when a signal ends the run, as when a scheduler signals all processes of a job.

Prefect repeats each request, event and batch of logs for up to a minute, so that a run outlives a restart of its
server. A run that has got SIGTERM or Ctrl-C would wait so for minutes, at its end and again at the end of the process.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from filelock import FileLock, Timeout
from httpx import ConnectError, ConnectTimeout
from prefect.client.orchestration import get_client
from prefect.events.clients import NullEventsClient
from prefect.events.worker import EventsWorker
from prefect.exceptions import TerminationSignal
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, get_current_settings, temporary_settings

from ratchet.workspace import Workspace
from tasks.stopping import BudgetSpent, TrainingStopped

__all__ = ["ending_promptly", "give_up_if_lost", "is_going_down", "is_signal"]

_TRIES, _PAUSE = 3, 1.0  # and seconds between them: a server that starts again is not lost
_TIMEOUT = 5.0  # seconds for a connection


def is_signal(error: BaseException) -> bool:
    """Return whether a signal ended the run, and not a failure or a spent budget."""
    if isinstance(error, TrainingStopped):
        return not isinstance(error, BudgetSpent)
    return not isinstance(error, Exception)


@contextmanager
def ending_promptly() -> Iterator[None]:
    """When a signal ends what is inside, give up a lost server before Prefect reports the end to it.

    Raises:
        TrainingStopped: `ratchet down` ended it, wherever it was. Prefect would say Crashed, and alert.
    """
    try:
        yield
    except BaseException as error:
        if is_signal(error):
            give_up_if_lost()
        if isinstance(error, TerminationSignal) and is_going_down():
            raise TrainingStopped("stopped by `ratchet down`") from error
        raise


def is_going_down() -> bool:
    """Return whether `ratchet down` is at work, which ends the worker's runs: it holds this lock, as `up` does."""
    try:
        with FileLock(Workspace.find().project.state / "platform.lock", timeout=0):
            return False
    except Timeout:
        return True


def give_up_if_lost() -> bool:
    """Return whether no connection to the server is possible. If so, stop retries, and drop logs and events."""
    settings = get_current_settings()
    if settings.api.url is None:
        return False
    if settings.client.max_retries == 0 and not settings.logging.to_api.enabled:  # given up before
        return True
    if not _is_lost():
        return False
    settings.client.max_retries = 0
    settings.logging.to_api.enabled = False
    EventsWorker.set_client_override(NullEventsClient)
    try:
        from prefect._internal.concurrency.services import _active_services
    except ImportError:  # of another release of Prefect, whose services end after their last tries
        return True
    for service in list(_active_services):
        loop, task = service._loop, service._task
        if loop is not None and task is not None and not loop.is_closed():
            loop.call_soon_threadsafe(task.cancel)
    return True


def _is_lost() -> bool:
    """Ask by Prefect's own client, which knows about proxies, certificates and headers."""
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_PAUSE)
        with (
            temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
            get_client(httpx_settings={"timeout": _TIMEOUT}, sync_client=True) as client,
        ):
            if not isinstance(client.api_healthcheck(), ConnectError | ConnectTimeout):
                return False
    return True
