"""The engine `prefect`: workers of Prefect's pool, on this and other machines, take shards until none is left.

Each worker run holds a lease for its shard: a slot of a global concurrency limit of one, which its process renews. When
the process or its machine is lost, the server frees the slot within a minute, and another worker takes the shard.
"""

import contextlib
import logging
import math
import platform
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
from prefect.runtime import deployment
from prefect.states import Cancelling, Completed, Crashed, Scheduled
from pydantic import Field

from flows.cancelled_runs import ended_by
from flows.progress import log_errors_without_traceback
from flows.run_names import run_name
from flows.run_records import recording
from ratchet import files
from ratchet.errors import PlatformError, RatchetError, first_line
from ratchet.scale.calls import ShardCall, answer, result_of
from ratchet.scale.result_folder import ResultFolder
from ratchet.settings.model import ScaleSettings
from ratchet.workspace import Workspace

__all__ = ["run", "shard_worker_flow"]

_DEPLOYMENT = "shard-worker-flow/local"
_LOOK = 0.5  # seconds between two looks at the results
_LEASE = 60.0  # seconds, the least that Prefect allows
_LIST = 2.0  # seconds between two listings of a worker run
_GRACE = 10.0  # seconds for runs to end when nothing is left, and when they are cancelled
_PATIENCE = 60.0  # seconds for a worker to begin a run
_MOST_LOSSES = 3  # of worker runs, for each worker that was asked for
_ERROR = "error.json"
_LOG = logging.getLogger(__name__)

Text = Annotated[str, Field(min_length=1)]


def run(calls: Sequence[ShardCall], settings: ScaleSettings, state: Path) -> Iterator[tuple[int, Any]]:
    """Let `settings.workers` runs of shard-worker-flow carry out the calls, and yield (place, result) as they end.

    Raises:
        RatchetError: of the function.
        PlatformError: Prefect's server does not answer, runs ended before their shards several times, or this process
            holds a place of the pool, and no worker begins a run.
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
    target = client.read_deployment_by_name(_DEPLOYMENT).id
    digest = files.digest_json([call.data for call in calls])
    parameters = {"folder": folder.where, "job": job, "digest": digest}
    waiting = {f"{call.key}.json": place for place, call in enumerate(calls)}
    losses, begun = 0, time.monotonic()
    while waiting:
        states = [_state(client, run) for run in runs]
        names = folder.sizes()
        if error := f"{job}-{_ERROR}" in names and folder.read_json(f"{job}-{_ERROR}"):
            result_of(error)
        for name in waiting.keys() & names.keys():
            if (result := folder.read_json(name)) is not None:
                yield waiting.pop(name), result
        runs[:] = [run for run, state in zip(runs, states, strict=True) if not state.is_final()]
        if not waiting:
            break
        ended = [state.message for state in states if state.is_final()]  # before their shards, however they ended
        losses += len(ended)
        if losses > _MOST_LOSSES * workers:
            raise PlatformError(f"{losses} runs of {_DEPLOYMENT} ended before their shards did. The last: {ended[-1]}")
        begun = _last_begun(states, begun)
        for _ in range(min(workers, len(waiting)) - len(runs)):
            runs.append(client.create_flow_run_from_deployment(target, parameters=parameters))
        time.sleep(_LOOK)
    _await_end(client, runs)


def _last_begun(states: Sequence["State[Any]"], begun: float) -> float:
    """Return when a worker was last seen to have one of the runs. Say once that none has, if that lasts."""
    if not states or any(not state.is_scheduled() for state in states):
        return time.monotonic()
    if time.monotonic() - begun < _PATIENCE:
        return begun
    text = f"scale.engine: in {_PATIENCE:.0f} s no worker has begun a run of {_DEPLOYMENT}: each is busy, or none is up"
    if deployment.id:
        raise PlatformError(
            f"{text}. This run has a place of the pool itself. Fix: `ratchet set platform.worker_runs=2`, `ratchet "
            "down`, `ratchet up`, or start another machine's worker; then retry this run"
        )
    _LOG.warning("%s. Fix: `ratchet up`, or wait", text)
    return math.inf


def _end(client: SyncPrefectClient, runs: Sequence[FlowRun], calls: Sequence[ShardCall]) -> None:
    """Cancel the runs that have not ended, and remove the limits."""
    for each in runs:
        if not _state(client, each).is_final():
            client.set_flow_run_state(each.id, Cancelling())
    _await_end(client, runs)
    for call in calls:
        with contextlib.suppress(ObjectNotFound):
            client.delete_global_concurrency_limit_by_name(_limit(call.key))


def _await_end(client: SyncPrefectClient, runs: Sequence[FlowRun]) -> None:
    until = time.monotonic() + _GRACE
    while time.monotonic() < until and not all(_state(client, each).is_final() for each in runs):
        time.sleep(_LOOK)


def _state(client: SyncPrefectClient, run: FlowRun) -> "State[Any]":
    """Return the state of a run. One that was deleted on Prefect's pages is lost."""
    try:
        return client.read_flow_run(run.id).state or Scheduled()
    except ObjectNotFound:
        return Crashed(message="it was deleted")


@flow(name="shard-worker-flow", flow_run_name=run_name, persist_result=False)
def shard_worker_flow(folder: Text, job: Text, digest: Text) -> "State[int]":
    """Take shards of a job until none is left. Ratchet starts these runs; see docs/scale.md.

    Args:
        folder: Path or URL of the job's results.
        job: Name of the job there.
        digest: SHA-256 of its calls. No others are carried out, since others may write to the folder.
    """
    log_errors_without_traceback()
    try:
        with recording(Workspace.find()):
            count = _take_shards(ResultFolder(folder), job, digest)
        return Completed(message=f"{count:,} shards", data=count)
    except RatchetError as error:
        return ended_by(error)


def _take_shards(folder: ResultFolder, job: str, digest: str) -> int:
    calls = folder.read_json(f"{job}.json")
    if calls is None or files.digest_json(calls) != digest:
        raise PlatformError(
            f"{folder.where}: {platform.node()} finds no {job}.json there with the digest {digest[:12]}: the job has "
            "ended, the file was changed, or this machine has another folder at this path. Fix: share the folder, or "
            "use a URL"
        )
    count = 0
    with get_client(sync_client=True) as client:
        while todo := _unfinished(folder, job, calls):
            before, listed = count, time.monotonic()
            for call in todo:
                with _lease(client, call["key"]) as is_held:
                    count += is_held and _carry_out(folder, job, call)
                if time.monotonic() - listed > _LIST:
                    break
            if count == before:  # others hold the rest; theirs come back if they are lost
                time.sleep(_LIST)
    return count


def _carry_out(folder: ResultFolder, job: str, call: dict[str, Any]) -> bool:
    """Carry out a call whose lease is held. Return False if it has a result by now, or the job was ended."""
    if folder.has(f"{call['key']}.json") or not folder.has(f"{job}.json"):
        return False
    done = answer(call)
    if "error" in done:
        folder.write_json(f"{job}-{_ERROR}", done)
        result_of(done)
    return True


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
