"""The MLflow runs of a search's trials: one for each trial, also where two workers have recorded it.

A worker that hangs keeps its journal, and with it its run. The one that continues its trial has a copy, whose run
replaces that one: MLflow accepts nothing for a deleted run, so nothing that the first worker still sends is seen.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.registry.mlflow_store import address, all_pages, connect, experiment_id, or_none, reachable
from ratchet.settings.model import Params
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = [
    "JOURNAL",
    "REPLACED_TAG",
    "UID_TAG",
    "copy_number",
    "delete_replaced",
    "end_trials",
    "trial_journals",
    "trial_records",
]

JOURNAL = "journal"
"""Folder of a search's trial with what is recorded of it."""
UID_TAG = "ratchet.uid"
REPLACED_TAG = "ratchet.replaced"
_REASON = "Another worker continued this trial. Its run has all of the trial."


def copy_number(folder: Path) -> int:
    """Return the number of a copy of a trial's folder, KEY-NUMBER; 0 for KEY itself."""
    number = folder.name.partition("-")[2]
    return int(number) if number.isdecimal() else 0


def trial_journals(study: Path) -> Iterator[Path]:
    """Yield the journals in the folder of a study: that of its latest copy for each trial."""
    latest: dict[str, Path] = {}
    for folder in sorted(study.glob("[!.]*/"), key=copy_number):
        latest[folder.name.partition("-")[0]] = folder / JOURNAL
    yield from (journal for _, journal in sorted(latest.items()) if journal.is_dir())


def trial_records(params: Params) -> Params:
    """Return the settings with which the trials of a search are recorded: in an experiment of their own."""
    name = f"{params.tracking.experiment}-search"
    return params.model_copy(update={"tracking": params.tracking.model_copy(update={"experiment": name})})


def end_trials(
    workspace: Workspace, params: Params, parent: str, statuses: Mapping[str, str], ended: Mapping[str, str]
) -> None:
    """Set the status of trials that a killed or stopped worker has left RUNNING, and delete second runs of trials.

    A worker that is killed while it creates a run leaves one that no journal has.

    Args:
        parent: id of the search's run.
        statuses: status by the key of a trial; others keep theirs.
        ended: run id by the key of a trial that has ended.

    Raises:
        TrackingUnavailable: MLflow does not answer.
    """
    records = trial_records(params)
    client = connect(workspace, records.tracking)
    with reachable(address(workspace, records.tracking)):
        experiment = experiment_id(client, workspace, records.tracking)
        wanted = f"tags.`mlflow.parentRunId` = '{parent}'"
        runs = list(all_pages(partial(client.search_runs, [experiment], wanted)))
        present = {run.info.run_id for run in runs}  # the run of a trial can be in the MLflow of another machine
        for run in runs:
            key, run_id = run.data.tags.get("ratchet.key"), run.info.run_id
            if key in ended and ended[key] in present - {run_id}:
                _delete(client, run_id)
            elif key in statuses and run.info.status == "RUNNING":
                client.set_terminated(run_id, statuses[key])


def delete_replaced(client: "MlflowClient", experiment: str, uid: str) -> None:
    """Delete the runs of a journal that a copy replaces. A tag of them says why."""
    for run in client.search_runs([experiment], f"tags.`{UID_TAG}` = '{uid}'"):
        _delete(client, run.info.run_id)


def _delete(client: "MlflowClient", run_id: str) -> None:
    or_none(partial(client.set_tag, run_id, REPLACED_TAG, _REASON))  # the other worker may have deleted it just now
    client.delete_run(run_id)
