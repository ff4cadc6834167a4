"""Stages as Prefect tasks that use DVC.

A task asks DVC whether the stage is outdated, runs it in this process if it is, and records it in dvc.lock. Then `dvc
repro` has nothing to do, and vice versa.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar, cast

from httpx import TransportError
from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.runtime import deployment, flow_run
from prefect.states import Completed

from flows import dvc_stage
from flows.cancelled_runs import ended_by
from flows.gpu_slot import gpu_slot
from flows.lost_server import ending_promptly
from flows.progress import PrefectProgress, whole
from ratchet.data.versions import DatasetVersion, read_version
from ratchet.errors import RatchetError, StorageUnavailable, find_cause
from ratchet.references import require_measurable
from ratchet.settings.model import Params
from ratchet.workspace import Workspace, disk_errors
from tasks.code import require_current
from tasks.evaluate import Evaluation, evaluate
from tasks.export import Exported, export
from tasks.ingest import Dataset, ingest
from tasks.register import Registration, register
from tasks.train import train
from tasks.trained_model import TrainedModel

__all__ = ["evaluate_stage", "export_stage", "ingest_stage", "register_stage", "train_stage", "version_stage"]


class Result(Protocol):
    """Summary of a stage's result, which can be read back from its files."""

    @classmethod
    def load(cls, workspace: Workspace) -> "Result": ...

    @property
    def summary(self) -> str: ...


R = TypeVar("R", bound=Result)


def as_task(
    stage: Callable[..., R],
    result: type[R],
    *,
    unit: str,
    knows_flow: bool = False,
    holding: Callable[[Params], AbstractContextManager[None]] = lambda params: nullcontext(),
    **options: Any,
) -> Callable[..., R]:
    """Make a Prefect task of a stage, which runs while `holding` a slot. It gets the flow run's id if it `knows_flow`.

    Further arguments of the task only say which tasks it waits for. `options` are Prefect's of the task.
    """
    name = stage.__name__

    @task(name=name, description=stage.__doc__, task_run_name=name, **(_OPTIONS | options))
    def run(params: Params, workspace: Workspace, *waits_for: object) -> "R | State[R]":
        extra = {"flow_run": flow_run.get_id()} if knows_flow else {}
        try:
            if unchanged := _unchanged(name, result, workspace):
                return unchanged
            require_current(name, params, workspace)
            if name != "ingest":
                require_measurable(params, workspace.packed)
            slot = holding(params)
            with slot, ending_promptly(), disk_errors(workspace.root), PrefectProgress(name, unit=unit) as progress:
                output = stage(params, workspace, progress=progress, **extra)
                progress.say(output.summary)
                dvc_stage.record(workspace.root, name, say=progress.say, params=workspace.settings_as_read)
        except RatchetError as error:
            return ended_by(error)
        return Completed(message=output.summary, data=output)

    def call(params: Params, workspace: Workspace, *waits_for: object) -> R:
        # The state carries the summary; the caller needs the result or the error.
        return cast(R, run(whole(params), workspace, *waits_for, return_state=True).result())

    return call


def _unchanged(name: str, result: type[R], workspace: Workspace) -> "State[R] | None":
    """Return the state of a stage that need not run; None: it must run."""
    say = get_run_logger().info
    reason = dvc_stage.settle(workspace.root, name, params=workspace.settings_as_read, say=say)
    if not reason:
        return None
    recorded = result.load(workspace)
    say("%s: %s, nothing to do: %s", name, reason, recorded.summary)
    return Completed(name="Unchanged", message=f"{reason}: {recorded.summary}", data=recorded)


def _is_worth_retrying(_task: Any, _run: Any, state: State[Any]) -> bool:
    """Retry neither user errors nor what failed after one, as when the server is gone to which it was reported."""
    error = state.result(raise_on_failure=False)
    if isinstance(error, TransportError):
        error = find_cause(error, RatchetError)
    return not isinstance(error, RatchetError)


def _may_read_later(_task: Any, _run: Any, state: State[Any]) -> bool:
    """Retry an ingest if a storage does not answer now, in a run of a deployment, which no user would start again."""
    error = state.result(raise_on_failure=False)
    return isinstance(error, StorageUnavailable) and deployment.id is not None


_OPTIONS: Any = {
    "retry_delay_seconds": 2,
    "retry_condition_fn": _is_worth_retrying,
    "cache_policy": NO_CACHE,  # hashing inputs is DVC's work here
    "persist_result": False,
}
_LATER: Any = {"retries": 3, "retry_delay_seconds": [2, 10, 60], "retry_condition_fn": _may_read_later}  # as score-flow
ingest_stage = as_task(ingest, Dataset, unit="samples", **_LATER)
train_stage = as_task(train, TrainedModel, unit="steps", retries=2, knows_flow=True, holding=gpu_slot)
evaluate_stage = as_task(evaluate, Evaluation, unit="rows", retries=1)
export_stage = as_task(export, Exported, unit="variants", retries=1)
register_stage = as_task(register, Registration, unit="steps", retries=1, knows_flow=True)


@task(name="version", task_run_name="version", cache_policy=NO_CACHE, persist_result=False)
def version_stage(workspace: Workspace, dataset: Dataset) -> DatasetVersion:
    """Return the version of the packed data, as DVC recorded it and stored it in the remote."""
    version = read_version(workspace.root)
    assert version is not None, "ingest was recorded just now"
    get_run_logger().info(
        "%s: version %s, %d files, %d bytes", dataset.name, version.dvc_hash, version.files, version.size
    )
    return version
