"""The engine `prefect`: workers of Prefect's pool, on this and other machines, take shards until none is left.

Each worker run holds a lease for its shard: a slot of a global concurrency limit of one, which its process renews. When
the process or its machine is lost, the server frees the slot within a minute, and another worker takes the shard.
"""

import contextlib
import time
from collections.abc import Collection, Iterator, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

from httpx import HTTPError, HTTPStatusError
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.states import Cancelling, Completed
from pydantic import Field

from flows.cancelled_runs import ended_by
from flows.lost_server import ending_promptly
from flows.progress import log_errors_without_traceback
from flows.run_names import run_name
from flows.run_records import record_run
from ratchet.errors import PlatformError, RatchetError, first_line
from ratchet.scale.calls import ShardCall, answer, result_of
from ratchet.scale.result_folder import ResultFolder
from ratchet.settings.model import ScaleSettings
from ratchet.workspace import Workspace

__all__ = ["run", "shard_worker_flow"]

_DEPLOYMENT = "shard-worker-flow/local"
_LOOK = 0.5  # seconds between two looks at the results
_LEASE = 60.0  # seconds, the least that Prefect allows
_GRACE = 10.0  # seconds for runs to end when nothing is left
_MOST_LOSSES = 3  # of worker runs, for each worker that was asked for
_ERROR = "error.json"

Text = Annotated[str, Field(min_length=1)]


def run(calls: Sequence[ShardCall], settings: ScaleSettings, state: Path) -> Iterator[tuple[int, Any]]:
    """Let `settings.workers` runs of shard-worker-flow carry out the calls, and yield (place, result) as they end.

    Raises:
        RatchetError: of the function.
        PlatformError: Prefect's server does not answer, or runs failed or were lost several times.
    """
    folder = ResultFolder(calls[0].folder)
    job = f"job-{calls[0].key[:16]}"
    folder.delete([name for name in folder.sizes() if name.startswith(job)])
    folder.write_json(f"{job}.json", [call.data for call in calls])
    runs = list[FlowRun]()
    try:
        with get_client(sync_client=True) as client:
            try:
                yield from _results(client, folder, job, calls, settings.workers, runs)
            finally:
                _end(client, runs, calls)
    except (HTTPError, ObjectNotFound) as error:
        raise PlatformError(
            f"scale.engine: Prefect's server, or its deployment {_DEPLOYMENT}, does not answer ({first_line(error)}). "
            "Fix: `ratchet up`"
        ) from error
    finally:
        folder.delete([name for name in folder.sizes() if name.startswith(job)])


def _results(
    client: SyncPrefectClient,
    folder: ResultFolder,
    job: str,
    calls: Sequence[ShardCall],
    workers: int,
    runs: list[FlowRun],
) -> Iterator[tuple[int, Any]]:
    deployment = client.read_deployment_by_name(_DEPLOYMENT).id
    waiting = {f"{call.key}.json": place for place, call in enumerate(calls)}
    losses = 0
    while waiting:
        seen = [client.read_flow_run(run.id) for run in runs]
        ended = [run for run in seen if run.state and run.state.is_final()]
        losses += sum(not run.state.is_completed() for run in ended if run.state)
        runs[:] = [run for run in runs if run.id not in {each.id for each in ended}]
        names = folder.sizes()
        if error := f"{job}-{_ERROR}" in names and folder.read_json(f"{job}-{_ERROR}"):
            result_of(error)
        for name in waiting.keys() & names.keys():
            if (result := folder.read_json(name)) is not None:
                yield waiting.pop(name), result
        if losses > _MOST_LOSSES * workers:
            last = ended[-1].state.message if ended and ended[-1].state else ""
            raise PlatformError(f"{losses} runs of shard-worker-flow ended before their shards did. The last: {last}")
        for _ in range(min(workers, len(waiting)) - len(runs)):
            parameters = {"folder": folder.where, "job": job}
            runs.append(client.create_flow_run_from_deployment(deployment, parameters=parameters))
        if waiting:
            time.sleep(_LOOK)
    until = time.monotonic() + _GRACE
    while time.monotonic() < until and not all(_has_ended(client, each) for each in runs):
        time.sleep(_LOOK)


def _end(client: SyncPrefectClient, runs: Sequence[FlowRun], calls: Sequence[ShardCall]) -> None:
    """Cancel the runs that have not ended, and remove the limits."""
    for each in runs:
        if not _has_ended(client, each):
            client.set_flow_run_state(each.id, Cancelling())
    for call in calls:
        with contextlib.suppress(ObjectNotFound):
            client.delete_global_concurrency_limit_by_name(_limit(call.key))


def _has_ended(client: SyncPrefectClient, run: FlowRun) -> bool:
    state = client.read_flow_run(run.id).state
    return state is not None and state.is_final()


@flow(name="shard-worker-flow", flow_run_name=run_name, persist_result=False)
def shard_worker_flow(folder: Text, job: Text) -> "State[int]":
    """Take shards of a job until none is left. Ratchet starts these runs; see docs/scale.md.

    Args:
        folder: Path or URL of the job's results.
        job: Name of the job there.
    """
    log_errors_without_traceback()
    try:
        record_run(Workspace.find())
        with ending_promptly():
            count = _take_shards(ResultFolder(folder), job)
        return Completed(message=f"{count:,} shards", data=count)
    except RatchetError as error:
        return ended_by(error)


def _take_shards(folder: ResultFolder, job: str) -> int:
    count, calls = 0, folder.read_json(f"{job}.json") or []
    with get_client(sync_client=True) as client:
        while todo := _unfinished(folder, job, calls):
            taken = 0
            for call in todo:
                with _lease(client, call["key"]) as is_held:
                    if not is_held or f"{call['key']}.json" in folder.sizes():
                        continue
                    done = answer(call)
                    if "error" in done:
                        folder.write_json(f"{job}-{_ERROR}", done)
                        result_of(done)
                    taken += 1
            count += taken
            if not taken:  # others hold the rest; theirs come back if they are lost
                time.sleep(_LOOK)
    return count


def _unfinished(folder: ResultFolder, job: str, calls: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the calls without a result; none when the job was ended."""
    names: Collection[str] = folder.sizes()
    if f"{job}.json" not in names or f"{job}-{_ERROR}" in names:
        return []
    return [call for call in calls if f"{call['key']}.json" not in names]


def _limit(key: str) -> str:
    return f"ratchet-shard-{key[:32]}"


@contextlib.contextmanager
def _lease(client: SyncPrefectClient, key: str) -> Iterator[bool]:
    """Hold the lease of a shard. Yield False if another worker holds it."""
    name = _limit(key)
    with contextlib.ExitStack() as held:
        try:
            with contextlib.suppress(ObjectAlreadyExists):  # another worker was faster
                client.upsert_global_concurrency_limit_by_name(name, 1)
            held.enter_context(
                concurrency(
                    [name], max_retries=0, lease_duration=_LEASE, strict=True, raise_on_lease_renewal_failure=False
                )
            )
        except ConcurrencySlotAcquisitionError as error:
            cause = error.__cause__
            if not isinstance(cause, HTTPStatusError) or cause.response.status_code != HTTPStatus.LOCKED:
                raise
            yield False
            return
        yield True
