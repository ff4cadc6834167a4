"""The one place where a stage meets Prefect and DVC.

A stage becomes a Prefect task that asks DVC whether there is anything to do, does it in this process if there is, and
records it in dvc.lock: after it `dvc repro` has nothing to do, and the other way round.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed

from flows import dvc_stage
from flows.final_state import ended_by
from flows.progress import PrefectProgress
from flows.quotas import a_gpu
from ratchet import settings
from ratchet.data.versions import DatasetVersion, read_version
from ratchet.errors import RatchetError, SettingsError
from ratchet.settings.model import BESIDE, Params
from ratchet.workspace import Workspace, disk_errors
from tasks.evaluate import Evaluation, evaluate
from tasks.ingest import Dataset, ingest
from tasks.register import Registration, register
from tasks.train import train
from tasks.trained_model import TrainedModel

__all__ = ["evaluate_stage", "ingest_stage", "register_stage", "train_stage", "version_stage"]


class Result(Protocol):
    """What a stage leaves, in small: it can be read back from its files."""

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
    retries: int = 0,
    knows_flow: bool = False,
    holding: Callable[[Params], AbstractContextManager[None]] | None = None,
) -> Callable[..., R]:
    """The stage as a Prefect task of its name; whatever else the task is given only says what it waits for.

    Args:
        knows_flow: it is told the flow run's id.
        holding: what it takes a place of while it runs.
    """
    name = stage.__name__

    def run(params: Params, workspace: Workspace, *waits_for: object) -> "R | State[R]":
        logger = get_run_logger()
        settled = dvc_stage.settle(workspace.root, name)
        if settled:
            recorded = result.load(workspace)
            logger.info("%s: %s, nothing to do: %s", name, settled, recorded.summary)
            return Completed(name="Unchanged", message=f"{settled}: {recorded.summary}", data=recorded)
        extra = {"flow_run": flow_run.get_id()} if knows_flow else {}
        place = holding(params) if holding else nullcontext()
        with place, disk_errors(workspace.root), PrefectProgress(name, unit=unit) as watch:
            made = stage(params, workspace, watch=watch, **extra)
            watch.say(made.summary)
            _refuse_if_edited(params, workspace)
            dvc_stage.record(workspace.root, name, say=watch.say)
        return Completed(message=made.summary, data=made)

    def run_plainly(params: Params, workspace: Workspace, *waits_for: object) -> "R | State[R]":
        try:
            return run(params, workspace, *waits_for)
        except RatchetError as error:
            return ended_by(error)

    run_plainly.__doc__ = stage.__doc__
    wrapped = task(
        name=name,
        task_run_name=name,
        retries=retries,
        retry_delay_seconds=2,
        retry_condition_fn=_is_worth_retrying,
        cache_policy=NO_CACHE,  # hashing inputs is DVC's work here
        persist_result=False,
    )(run_plainly)

    def call(params: Params, workspace: Workspace, *waits_for: object) -> R:
        # The state has the summary; the caller gets the stage's result, or its error.
        state: State[Any] = wrapped(params, workspace, *waits_for, return_state=True)
        made: R = state.result()
        return made

    return call


def _is_worth_retrying(_task: Any, _run: Any, state: State[Any]) -> bool:
    """A person's mistake stays one however often it is tried."""
    try:
        state.result()
    except RatchetError:
        return False
    except Exception:  # whatever else it was may be gone the next time
        return True
    return True


def _refuse_if_edited(params: Params, workspace: Workspace) -> None:
    """What is recorded next to the settings must have been made with them."""
    now = settings.load(workspace.params)
    if now.model_dump(exclude=set(BESIDE)) != params.model_dump(exclude=set(BESIDE)):
        raise SettingsError(
            f"{workspace.params}: was changed while the stage ran, so its result is not recorded: run the flow again"
        )


ingest_stage = as_task(ingest, Dataset, unit="samples")
train_stage = as_task(train, TrainedModel, unit="steps", retries=2, knows_flow=True, holding=a_gpu)
evaluate_stage = as_task(evaluate, Evaluation, unit="rows", retries=1)
register_stage = as_task(register, Registration, unit="steps", retries=1, knows_flow=True)


@task(name="version", task_run_name="version", cache_policy=NO_CACHE, persist_result=False)
def version_stage(workspace: Workspace, dataset: Dataset) -> DatasetVersion:
    """The packed data's version as DVC recorded it, stored in the remote; under `dvc repro` DVC does this itself."""
    version = read_version(workspace.root)
    assert version is not None, "ingest was recorded just now"
    get_run_logger().info(
        "%s: version %s, %d files, %d bytes", dataset.name, version.dvc_hash, version.files, version.size
    )
    return version
