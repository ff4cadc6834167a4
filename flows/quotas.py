"""Places: how many runs and GPUs a person, or all together, may hold over all workers of one Prefect server.

A place is a slot of one of Prefect's global concurrency limits, held by a lease that this process renews: from a run
that was killed the server takes it back when the lease has run out. `ratchet up` says how many there are
(ratchet.platform.quotas).
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
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

from flows.watch import PrefectWatch
from ratchet.params import Params
from ratchet.platform.quotas import GPUS, RUNS, anybodys, everybodys, one_persons
from ratchet.registry.access import user

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

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
    watch, told = PrefectWatch(stage, unit=what), ""
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
            limits = _limits(client, what, who)
            full = [words for name, words in limits.items() if _is_full(client, name)]
        if limits and not full:
            holder = ConcurrencyLeaseHolder(type="flow_run", id=UUID(flow_run.get_id()))
            slot = concurrency(
                list(limits),
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
        return next(iter(limits.values()))  # another was faster
    return full[0] if full else None


def _limits(client: "SyncPrefectClient", what: str, who: str) -> dict[str, str]:
    """The limits that there are, by name, and what one that is full makes wait for."""
    limits = {}
    if everybody := _limit(client, everybodys(what)):
        limits[everybodys(what)] = f"one of the {what} to be free: platform.{what} lets trainings hold {everybody}"
    if each := _limit(client, anybodys(what)):
        with suppress(ObjectAlreadyExists):  # another run has made it just now
            client.upsert_global_concurrency_limit_by_name(one_persons(what, who), each)
        limits[one_persons(what, who)] = (
            f"another run of {who} to end: platform.person_{what} lets one person hold {each} at once"
        )
    return limits


def _limit(client: "SyncPrefectClient", name: str) -> int | None:
    try:
        return client.read_global_concurrency_limit_by_name(name).limit
    except ObjectNotFound:
        return None


def _is_full(client: "SyncPrefectClient", name: str) -> bool:
    with suppress(ObjectNotFound):  # `ratchet up` has taken it away just now
        limit = client.read_global_concurrency_limit_by_name(name)
        return limit.active_slots >= limit.limit
    return False
