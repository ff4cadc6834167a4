"""score-flow: score files by a registered version, as `ratchet predict --output` does."""

from typing import Annotated, Any

from prefect import flow, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed
from pydantic import Field

from flows.cancelled_runs import ended_by
from flows.progress import PrefectProgress, log_errors_without_traceback, whole
from flows.run_names import run_name
from flows.run_records import recording
from ratchet import settings
from ratchet.errors import RatchetError, StorageUnavailable, TrackingRefused, TrackingUnavailable
from ratchet.reports.templating import escaped
from ratchet.settings.model import Params
from ratchet.workspace import Workspace, disk_errors
from tasks.score import Request, Scored, absolute, score

__all__ = ["score_flow"]

Text = Annotated[str, Field(min_length=1)]


@flow(name="score-flow", flow_run_name=run_name, persist_result=False)
def score_flow(
    inputs: Text | list[Text],
    output: Text,
    model: str = "",
    shard_rows: Annotated[int, Field(ge=0)] = 0,
    column: str = "",
    again: bool = False,
    interval: Annotated[float, Field(ge=0, lt=1)] = 0,
    abstain: Annotated[float, Field(ge=0, lt=1)] = 0,
    novelty: bool = False,
) -> "State[Scored]":
    """Score files by a registered version, into a folder of shards. A retry continues at the first unfinished shard.

    Args:
        inputs: A file or folder, or a list of them: local paths, or URLs such as s3://bucket/prefix.
        output: The folder for the answers: a path, or a URL such as s3://bucket/prefix.
        model: NAME@ALIAS or NAME/VERSION. Empty: serving.model, which is the champion of the data by default.
        shard_rows: Rows of each file of answers. 0: 100000, or as an earlier attempt began.
        column: Column of a table with the texts of a text model. Empty: text, or the only column.
        again: Delete the answers of an earlier run in this folder first.
        interval: Level of prediction intervals or sets of classes, such as 0.9. 0: without them.
        abstain: Error rate among the answered rows, such as 0.02; unsure rows have no class. 0: all are answered.
        novelty: Add how unusual each row is, from 0 to 1.
    """
    log_errors_without_traceback()
    try:
        workspace = Workspace.find()
        with recording(workspace):
            paths = absolute([*([inputs] if isinstance(inputs, str) else inputs), output], base=workspace.root)
            options = model or None, column or None, shard_rows or None, again, interval or None, abstain or None
            request = Request(paths[:-1], paths[-1], *options, novelty)
            params = whole(settings.load(workspace.params))
            state: State[Any] = score_task(params, workspace, request, return_state=True)
            scored: Scored = state.result()
            _publish(scored)
        if scored.refused == scored.rows:
            return Failed(message=f"every row is refused: {scored.summary}", data=scored)
        return Completed(message=scored.summary, data=scored)
    except RatchetError as error:
        return ended_by(error)


def _may_succeed_later(_task: Any, _run: Any, state: "State[Any]") -> bool:
    """Do not retry user errors."""
    try:
        state.result()
    except TrackingRefused:
        return False
    except (StorageUnavailable, TrackingUnavailable):
        return True
    except RatchetError:
        return False
    except Exception:  # any other error may be temporary
        return True
    return False


@task(
    name="score",
    task_run_name="score",
    retries=3,
    retry_delay_seconds=[2, 10, 60],
    retry_condition_fn=_may_succeed_later,
    cache_policy=NO_CACHE,
    persist_result=False,
)
def score_task(params: Params, workspace: Workspace, request: Request) -> "State[Scored]":
    """Score the files of a request, or continue where an earlier attempt ended."""
    forgotten = workspace.state / "forgotten" / str(flow_run.get_id())
    try:
        with disk_errors(workspace.root), PrefectProgress("score", unit="rows") as progress:
            scored = score(params, workspace, request, progress=progress, forgotten=forgotten)
            progress.say(scored.summary)
        forgotten.unlink(missing_ok=True)
        return Completed(message=scored.summary, data=scored)
    except RatchetError as error:
        return ended_by(error)


def _publish(scored: Scored) -> None:
    """Publish counts, version and time as an artifact."""
    rows = {
        "rows": f"{scored.rows:,}",
        "refused": f"{scored.refused:,}",
        "shards": f"{scored.shards:,}",
        "shards of earlier attempts": f"{scored.earlier:,}",
        "version": escaped(f"{scored.identity.model}/{scored.identity.version}"),
        "provenance": escaped(scored.identity.provenance or "none"),
        "seconds": f"{scored.seconds:.1f}",
        "folder": escaped(scored.output),
    }
    lines = ["# Scored", "", "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]
    create_markdown_artifact("\n".join(lines), key="scores", description="Rows, version and time of batch scoring")
