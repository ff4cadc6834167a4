"""When labelled requests are enough for a new training, and the record of these trainings."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet import files
from ratchet.counts import count_of
from ratchet.errors import NoRequests, PlatformError, RatchetError
from ratchet.monitoring.labelled_rows import SpecOf
from ratchet.monitoring.labelled_set import LabelledSet, training_hours, write_labelled_set
from ratchet.monitoring.to_label import write_rows_to_label
from ratchet.settings.model import Params
from ratchet.traffic.label_store import LabelStore
from ratchet.traffic.log_reader import log_folder
from ratchet.typed_json import STRICT, parse, to_plain
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    import polars

__all__ = ["ON_DRIFT", "LabelledData", "NotTrained", "arrived", "collect", "mark_trained"]

ON_DRIFT = "on-drift"
"""Name of the data set. Only runs that hold .ratchet/production write it."""
_WEEK = 604_800


@dataclass(frozen=True)
class _Record:
    """Trainings with labelled requests.

    Attributes:
        times: when they ended, in seconds since 1970.
        attempt: when labels were missing for the last time, in the same unit.
        missing: labels that were missing; 0: none are waited for.
    """

    times: list[float] = field(default_factory=list)
    attempt: float = 0.0
    missing: int = 0

    __pydantic_config__ = STRICT


class NotTrained(RatchetError):
    """Nothing is trained. `needs_labels`: labels are missing, and the message names the file of requests to label."""

    def __init__(self, message: str, *, needs_labels: bool = False) -> None:
        super().__init__(message)
        self.needs_labels = needs_labels


@dataclass(frozen=True)
class LabelledData:
    """A data set for a training, with `new` labelled requests that no such training had. `digests`: of all of them."""

    dataset: LabelledSet
    new: int
    digests: "polars.DataFrame"


def collect(
    workspace: Workspace, params: Params, spec_of: SpecOf, *, now: float, say: Callable[[str], None]
) -> LabelledData | None:
    """Write the data set `on-drift` of the project from the packed data of a workspace and all labelled requests.

    Return None, and say why, if requests cannot join these data.

    Raises:
        NotTrained: there were too many such trainings, or fewer new labelled requests than monitoring.min_labels; then
            requests to label are written to label-these.parquet.
    """
    import polars as pl

    project = workspace.project
    record = _read(project)
    if _is_limit_reached(record, params, now):
        raise NotTrained(
            f"not trained: monitoring.max_retrainings_per_week is {params.monitoring.max_retrainings_per_week}, and "
            "there were as many in seven days. Fix: raise it, or wait"
        )
    try:
        dataset = write_labelled_set(workspace, params, spec_of, project.data / "labelled" / ON_DRIFT)
    except NoRequests as reason:
        say(f"training without requests: {reason}")
        return None
    rows = pl.read_parquet(dataset.folder / "rows.parquet", columns=["digest"])
    trained = _folder(project) / "trained.parquet"
    new = rows.join(pl.read_parquet(trained), on="digest", how="anti") if trained.exists() else rows
    missing = params.monitoring.min_labels - len(new)
    if missing <= 0:
        return LabelledData(dataset, len(new), rows)
    _write(project, replace(record, attempt=now, missing=missing))
    hours = training_hours(workspace, params.data, dataset.folder)
    raise _missing_labels(project, params, spec_of, dataset, len(new), hours)


def _missing_labels(
    project: Workspace, params: Params, spec_of: SpecOf, dataset: LabelledSet, new: int, hours: Callable[[int], bool]
) -> NotTrained:
    """Write the requests to label, and return the error that names them."""
    path = _folder(project) / "label-these.parquet"
    to_label = write_rows_to_label(path, log_folder(project), spec_of, seed=params.seed, may_train=hours)
    fix = f"send the labels of the requests in {path} to /v1/labels; the training begins when they are there"
    if not len(to_label):
        fix = "set serving.log_inputs=keep, and wait for requests: the log has none with its input and without a label"
    left_out = "".join(
        f"; left out: {count_of(count, 'label')}: {reason}" for reason, count in dataset.left_out.items()
    )
    return NotTrained(
        f"not trained: {count_of(new, 'new labelled request')}, monitoring.min_labels is "
        f"{params.monitoring.min_labels:,}{left_out}. Fix: {fix}",
        needs_labels=True,
    )


def mark_trained(workspace: Workspace, data: LabelledData) -> None:
    """Record that a training had these requests."""
    import polars as pl

    project = workspace.project
    path = _folder(project) / "trained.parquet"
    earlier = [pl.read_parquet(path)] if path.exists() else []
    with files.draft_file(path) as draft:
        pl.concat([*earlier, data.digests]).unique(maintain_order=True).write_parquet(draft)
    record = _read(project)
    _write(project, replace(record, times=[*record.times, time.time()], missing=0))


def arrived(project: Workspace, params: Params, *, now: float) -> str:
    """Return a key if the labels that a training waits for may have arrived since, a new one each day; else "".

    So a run that failed, or that another one kept from starting, is tried again the next day.
    """
    record = _read(project)
    if not record.missing or _is_limit_reached(record, params, now):
        return ""
    attempt = 0.0 if record.attempt > now else record.attempt  # the clock was set back since
    times = LabelStore(log_folder(project)).newest()["labelled"].dt.epoch("us")
    key = f"ratchet-labels-{record.attempt:.0f}-{now // 86_400:.0f}"
    return key if (times > attempt * 1e6).sum() >= record.missing else ""


def _is_limit_reached(record: _Record, params: Params, now: float) -> bool:
    return sum(abs(now - each) < _WEEK for each in record.times) >= params.monitoring.max_retrainings_per_week


def _folder(project: Workspace) -> Path:
    return project.state / "monitoring"


def _read(project: Workspace) -> _Record:
    path = _folder(project) / "retraining.json"
    try:
        return parse(_Record, path.read_bytes())
    except FileNotFoundError:
        return _Record()
    except ValueError as error:
        raise PlatformError(
            f"{path}: is damaged ({error}). Fix: delete it; then all labelled requests count as new"
        ) from error


def _write(project: Workspace, record: _Record) -> None:
    files.write_json(_folder(project) / "retraining.json", to_plain(record))
