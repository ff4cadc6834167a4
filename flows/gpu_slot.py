"""Slots of the limit on GPUs in use by trainings, over all workers of one Prefect server.

A slot belongs to one of Prefect's global concurrency limits. It is held by a lease that this process renews. If a run
is killed, the server frees the slot when the lease expires. `ratchet up` sets the limit (flows/server/limits.py).
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from uuid import UUID

from httpx import HTTPStatusError, TransportError
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import ConcurrencyLeaseHolder
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run

from flows.progress import PrefectProgress
from flows.server.limits import GPUS
from ratchet.errors import TrainingError
from ratchet.settings.model import Params

__all__ = ["gpu_slot", "slots"]

_LEASE = 60.0  # seconds, the least that Prefect allows
_PAUSE = 2.0  # seconds between two attempts
_NO_ANSWER = "Prefect's server to answer"


@contextmanager
def gpu_slot(params: Params) -> Iterator[None]:
    """Hold a slot for each GPU that training uses.

    Raises:
        TrainingError: the device is not on this machine, or it has fewer GPUs than processes are to use.
    """
    from ratchet.training.device import choose_device
    from ratchet.training.processes import count_processes

    wanted = params.training
    if choose_device(wanted.device).type != "cuda":
        yield
        return
    with slots(count_processes(wanted.processes, pieces=wanted.pieces, device=wanted.device)):
        yield


@contextmanager
def slots(count: int = 1) -> Iterator[None]:
    """Hold slots inside a flow run. While there are too few, report it and wait.

    Raises:
        TrainingError: the limit is lower.
    """
    progress, reported = PrefectProgress("train", unit="gpus"), ""
    with ExitStack() as held:
        while reason := _acquire(held, count):
            if reason != reported:
                progress.say(f"waiting for {reason}")
                reported = reason
            time.sleep(_PAUSE)
        if reported:
            progress.say("continues")
        yield


def _acquire(held: ExitStack, count: int) -> str | None:
    """Acquire slots if there is a limit. Return what the run has to wait for; None: acquired."""
    full = "one of the gpus to be free" if count == 1 else f"{count} of the gpus to be free"
    try:
        with get_client(sync_client=True) as client:
            limit = client.read_global_concurrency_limit_by_name(GPUS)
        full += f" (limit platform.gpus={limit.limit} for all trainings)"
        if count > limit.limit:
            raise TrainingError(
                f"training.processes: found {count}, and platform.gpus allows {limit.limit} for all trainings. Fix: "
                "fewer processes, or a higher limit"
            )
        if limit.active_slots + count > limit.limit:
            return full
        holder = ConcurrencyLeaseHolder(type="flow_run", id=UUID(flow_run.get_id()))
        acquired = concurrency(
            [GPUS],
            occupy=count,
            max_retries=0,
            lease_duration=_LEASE,
            holder=holder,
            raise_on_lease_renewal_failure=False,  # the slot is lost then, but the run goes on
        )
        held.enter_context(acquired)
    except ObjectNotFound:  # no limit
        return None
    except TransportError:
        return _NO_ANSWER
    except ConcurrencySlotAcquisitionError as error:
        cause = error.__cause__
        if isinstance(cause, TransportError):
            return _NO_ANSWER
        if not isinstance(cause, HTTPStatusError) or cause.response.status_code != HTTPStatus.LOCKED:
            raise
        return full  # another run was faster
    return None
