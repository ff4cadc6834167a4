"""search-flow and search-worker-flow: find better settings, on this machine and on others."""

from typing import Annotated, Any

from prefect import flow, get_run_logger, task
from prefect.artifacts import create_link_artifact, create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Completed
from pydantic import Field

from flows import dvc_stage
from flows.cancelled_runs import ended_by, flow_ended_by
from flows.progress import PrefectProgress, log_errors_without_traceback, whole
from flows.run_names import run_name
from flows.run_records import recorded_run, recording
from flows.stages import ingest_stage
from ratchet import settings
from ratchet.counts import count_of
from ratchet.errors import RatchetError
from ratchet.references import require_references
from ratchet.registry.access import require, user
from ratchet.reports.search_text import score_sentence
from ratchet.reports.templating import escaped
from ratchet.search.records import Study
from ratchet.search.store import StudyStore
from ratchet.settings.model import Overrides, Params
from ratchet.settings.run_settings import overridden
from ratchet.workspace import Workspace, disk_errors
from tasks.search import Searched, run_workers, search

__all__ = ["search_flow", "search_worker_flow"]


@flow(name="search-flow", flow_run_name=run_name, persist_result=False)
def search_flow(
    overrides: Overrides = Overrides(),  # type: ignore[valid-type]  # noqa: B008  (frozen)
) -> "State[Searched]":
    """Find better settings as `ratchet search` does, and write the winner to params.yaml.

    Args:
        overrides: Settings of this run, those of the section `search` too. An empty field uses the value of
            params.yaml. If the run completes, they are written to params.yaml.
    """
    log_errors_without_traceback()
    try:
        workspace = Workspace.find()
        say = get_run_logger().info
        with recorded_run(workspace, "search-flow", say=say):
            changes = settings.flatten(overrides)
            with overridden(workspace.params, changes, note=workspace.overrides, say=say) as run:
                require_references(run.params, workspace)
                require(run.params.access, "runners", user(), "run search-flow")
                dvc_stage.refresh_code(run.params, workspace, say=say)
                ingest_stage(run.params, workspace)
                state: State[Any] = search_task(whole(run.params), workspace, return_state=True)
                result: Searched = state.result()
                run.keep()
                _publish(result)
                return Completed(message=_summary(result.study), data=result)
    except RatchetError as error:
        return flow_ended_by(error)


@flow(name="search-worker-flow", flow_run_name=run_name, persist_result=False)
def search_worker_flow(
    study: Annotated[str, Field(min_length=1)], workers: Annotated[int, Field(ge=0)] = 0
) -> "State[Study]":
    """Help with a study that was begun elsewhere, as `ratchet search join` does, until it ends.

    Args:
        study: Name of the study, in the database of search.storage.
        workers: Processes. 0: search.workers of params.yaml.
    """
    log_errors_without_traceback()
    try:
        workspace = Workspace.find()
        with recording(workspace):
            params = settings.load(workspace.params)
            if workers:
                params = params.model_copy(update={"search": params.search.model_copy(update={"workers": workers})})
            state: State[Any] = join_task(whole(params), workspace, study, return_state=True)
            joined: Study = state.result()
        return Completed(message=_summary(joined), data=joined)
    except RatchetError as error:
        return ended_by(error)


@task(name="search", task_run_name="search", cache_policy=NO_CACHE, persist_result=False)
def search_task(params: Params, workspace: Workspace) -> "State[Searched]":
    """Begin or continue the study, and wait for its end."""
    try:
        with disk_errors(workspace.root), PrefectProgress("search", unit="trials") as progress:
            result = search(params, workspace, progress=progress)
        return Completed(message=_summary(result.study), data=result)
    except RatchetError as error:
        return ended_by(error)


@task(name="join", task_run_name="join", cache_policy=NO_CACHE, persist_result=False)
def join_task(params: Params, workspace: Workspace, name: str) -> "State[Study]":
    """Train trials of a study until it ends."""
    try:
        store = StudyStore(workspace, params.search.storage, name)
        store.require()
        with disk_errors(workspace.root), PrefectProgress("search", unit="trials") as progress:
            run_workers(params, workspace, store, progress=progress)
        study = store.require()
        return Completed(message=_summary(study), data=study)
    except RatchetError as error:
        return ended_by(error)


def _summary(study: Study) -> str:
    """Return the result of a study as one sentence."""
    return f"{study.name}: {count_of(len(study.searched), 'trial')}. {score_sentence(study)}"


def _publish(result: Searched) -> None:
    """Publish the winner's settings and the table."""
    study = result.study
    lines = [f"# {escaped(_summary(study))}", "", "| setting | before | now |", "|---|---|---|"]
    lines += [
        f"| {escaped(key)} | {escaped(before)} | {escaped(now)} |" for key, (before, now) in result.changes.items()
    ]
    create_markdown_artifact("\n".join(lines), key="winner", description="Settings that the search has changed")
    create_link_artifact(result.table.as_uri(), key="search-table", link_text="Table of the study")
