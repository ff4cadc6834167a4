"""Places: how many runs and GPUs a person, or all together, may hold over all workers of one Prefect server.

A place is a slot of one of Prefect's global concurrency limits, held by a lease that this process renews: from a run
that was killed the server takes it back when the lease has run out. `ratchet up` says how many there are
(ratchet.platform.quotas).
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING
from uuid import UUID

from httpx import HTTPStatusError, TransportError
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import ConcurrencyLeaseHolder
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.runtime import flow_run

from flows.progress import PrefectProgress
from ratchet.platform.quotas import GPUS, RUNS, anybodys, everybodys, one_persons
from ratchet.registry.access import user
from ratchet.settings.model import Params

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.responses import GlobalConcurrencyLimitResponse

__all__ = ["a_gpu", "a_run", "place"]

_LEASE = 60.0  # seconds, the least that Prefect allows
_PAUSE = 2.0  # seconds between two attempts at a place
_AWAY = "Prefect's server to answer"


@contextmanager
def a_run() -> Iterator[None]:
    """Hold one of the places that this process's user has for runs; say so and wait while there is none."""
    with place(RUNS, user(), stage="train-flow"):
        yield


@contextmanager
def a_gpu(params: Params) -> Iterator[None]:
    """The same for the GPU that training takes, where it takes one.

    Raises:
        TrainingError: the device is not on this machine.
    """
    from ratchet.training.device import choose_device

    if choose_device(params.training.device).type != "cuda":
        yield
        return
    with place(GPUS, user(), stage="train"):
        yield


@contextmanager
def place(what: str, who: str, *, stage: str) -> Iterator[None]:
    """Hold a place for `what`, of all and of this person, inside a flow run; `stage` is who waits for it."""
    watch, told = PrefectProgress(stage, unit=what), ""
    with ExitStack() as held:
        while full := _take(held, what, who):
            if full != told:
                watch.say(f"waits for {full}")
                told = full
            time.sleep(_PAUSE)
        if told:
            watch.say("goes on")
        yield


def _take(held: ExitStack, what: str, who: str) -> str | None:
    """Take a place of each limit that there is, or of none; what is to be waited for, or None when it is taken."""
    try:
        with get_client(sync_client=True) as client:
            limits = list(_limits(client, what, who))
        full = next((limit.words for limit in limits if limit.full), None)
        if limits and not full:
            holder = ConcurrencyLeaseHolder(type="flow_run", id=UUID(flow_run.get_id()))
            slot = concurrency(
                [limit.name for limit in limits],
                max_retries=0,
                lease_duration=_LEASE,
                holder=holder,
                raise_on_lease_renewal_failure=False,  # it costs the place, but not the run
            )
            held.enter_context(slot)
    except TransportError:
        return _AWAY
    except ConcurrencySlotAcquisitionError as error:
        cause = error.__cause__
        if isinstance(cause, TransportError):
            return _AWAY
        if not isinstance(cause, HTTPStatusError) or cause.response.status_code != HTTPStatus.LOCKED:
            raise
        return limits[0].words  # another was faster
    return full


@dataclass(frozen=True)
class _Limit:
    """One of Prefect's limits that a place is a slot of."""

    name: str
    words: str  # what it makes wait for when it is full
    full: bool


def _limits(client: "SyncPrefectClient", what: str, who: str) -> Iterator[_Limit]:
    """The limits that there are."""
    if everybody := _read(client, everybodys(what)):
        words = f"one of the {what} to be free: platform.{what} lets trainings hold {everybody.limit}"
        yield _Limit(everybody.name, words, everybody.active_slots >= everybody.limit)
    if each := _read(client, anybodys(what)):
        name = one_persons(what, who)
        with suppress(ObjectAlreadyExists):  # another run has made it just now
            client.upsert_global_concurrency_limit_by_name(name, each.limit)
        one = _read(client, name)
        words = f"another run of {who} to end: platform.person_{what} lets one person hold {each.limit} at once"
        yield _Limit(name, words, one is not None and one.active_slots >= one.limit)


def _read(client: "SyncPrefectClient", name: str) -> "GlobalConcurrencyLimitResponse | None":
    try:
        return client.read_global_concurrency_limit_by_name(name)
    except ObjectNotFound:  # not asked for, or `ratchet up` has taken it away just now
        return None
