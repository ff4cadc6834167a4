"""Slots of the limits on runs and GPUs, for each person and for all together, over all workers of one Prefect server.

A slot belongs to one of Prefect's global concurrency limits. It is held by a lease that this process renews. If a run
is killed, the server frees the slot when the lease expires. `ratchet up` sets the limits (flows/server/limits.py).
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
from flows.server.limits import GPUS, RUNS, each_limit, person_limit, total_limit
from ratchet.registry.access import user
from ratchet.settings.model import Params

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.responses import GlobalConcurrencyLimitResponse

__all__ = ["gpu_slot", "run_slot", "slot"]

_LEASE = 60.0  # seconds, the least that Prefect allows
_PAUSE = 2.0  # seconds between two attempts
_NO_ANSWER = "Prefect's server to answer"


@contextmanager
def run_slot() -> Iterator[None]:
    """Hold a slot for this user's run. While there is none, report it and wait."""
    with slot(RUNS, user(), stage="train-flow"):
        yield


@contextmanager
def gpu_slot(params: Params) -> Iterator[None]:
    """Hold a slot for the GPU that training uses, if it uses one.

    Raises:
        TrainingError: the device is not on this machine.
    """
    from ratchet.training.device import choose_device

    if choose_device(params.training.device).type != "cuda":
        yield
        return
    with slot(GPUS, user(), stage="train"):
        yield


@contextmanager
def slot(resource: str, person: str, *, stage: str) -> Iterator[None]:
    """Hold a slot of every limit on `resource`, the total and the person's, inside a flow run.

    Args:
        stage: the name that waits, for the log.
    """
    progress, reported = PrefectProgress(stage, unit=resource), ""
    with ExitStack() as held:
        while reason := _acquire(held, resource, person):
            if reason != reported:
                progress.say(f"waiting for {reason}")
                reported = reason
            time.sleep(_PAUSE)
        if reported:
            progress.say("continues")
        yield


def _acquire(held: ExitStack, resource: str, person: str) -> str | None:
    """Acquire a slot from every limit, or from none. Return what the run has to wait for; None: acquired."""
    try:
        with get_client(sync_client=True) as client:
            limits = list(_limits(client, resource, person))
        full = next((limit.reason for limit in limits if limit.full), None)
        if limits and not full:
            holder = ConcurrencyLeaseHolder(type="flow_run", id=UUID(flow_run.get_id()))
            slots = concurrency(
                [limit.name for limit in limits],
                max_retries=0,
                lease_duration=_LEASE,
                holder=holder,
                raise_on_lease_renewal_failure=False,  # the slot is lost then, but the run goes on
            )
            held.enter_context(slots)
    except TransportError:
        return _NO_ANSWER
    except ConcurrencySlotAcquisitionError as error:
        cause = error.__cause__
        if isinstance(cause, TransportError):
            return _NO_ANSWER
        if not isinstance(cause, HTTPStatusError) or cause.response.status_code != HTTPStatus.LOCKED:
            raise
        return limits[0].reason  # another run was faster
    return full


@dataclass(frozen=True)
class _Limit:
    """One of Prefect's limits.

    Attributes:
        reason: what a run waits for if the limit is full.
    """

    name: str
    reason: str
    full: bool


def _limits(client: "SyncPrefectClient", resource: str, person: str) -> Iterator[_Limit]:
    """Yield the limits that exist. Creates this person's limit if there is a limit for each person."""
    if total := _read(client, total_limit(resource)):
        reason = f"one of the {resource} to be free (limit platform.{resource}={total.limit} for all trainings)"
        yield _Limit(total.name, reason, total.active_slots >= total.limit)
    if each := _read(client, each_limit(resource)):
        name = person_limit(resource, person)
        with suppress(ObjectAlreadyExists):  # another run has just created it
            client.upsert_global_concurrency_limit_by_name(name, each.limit)
        own = _read(client, name)
        reason = f"another run of {person} to end (limit platform.person_{resource}={each.limit} for one person)"
        yield _Limit(name, reason, own is not None and own.active_slots >= own.limit)


def _read(client: "SyncPrefectClient", name: str) -> "GlobalConcurrencyLimitResponse | None":
    try:
        return client.read_global_concurrency_limit_by_name(name)
    except ObjectNotFound:  # there is no such limit, or `ratchet up` has just removed it
        return None
