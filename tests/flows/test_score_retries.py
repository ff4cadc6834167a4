"""Which failures of score-flow and of the stages are tried again."""

import pytest
from httpx import ConnectError
from prefect import Task
from prefect.states import Failed

from flows.cancelled_runs import ended_by
from flows.score import _may_succeed_later
from flows.stages import _is_worth_retrying, ingest_stage
from ratchet.errors import DataError, RatchetError, StorageUnavailable, TrackingRefused, TrackingUnavailable
from tasks.stopping import TrainingStopped


@pytest.mark.parametrize(
    ("error", "is_retried"),
    [
        (StorageUnavailable("the bucket is silent"), True),
        (TrackingUnavailable("MLflow is silent"), True),
        (TrackingRefused("the run is deleted"), False),
        (DataError("no such column"), False),
    ],
)
def test_only_silent_servers_are_asked_again(error: RatchetError, is_retried: bool) -> None:
    assert _may_succeed_later(None, None, ended_by(error)) is is_retried


def test_only_a_scheduled_ingest_waits_for_a_silent_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user at a terminal reads the message at once."""
    (stage,) = (cell.cell_contents for cell in ingest_stage.__closure__ or () if isinstance(cell.cell_contents, Task))
    silent, wrong = ended_by(StorageUnavailable("the disk fails")), ended_by(DataError("no such column"))
    condition = stage.retry_condition_fn
    assert condition is not None
    assert not condition(stage, None, silent)
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", "of train-flow/nightly")
    assert condition(stage, None, silent)
    assert not condition(stage, None, wrong)
    assert (stage.retries, stage.retry_delay_seconds) == (3, [2, 10, 60])


def test_stage_is_not_retried_when_its_stop_is_not_reported() -> None:
    lost = ConnectError("refused")
    assert _is_worth_retrying(None, None, Failed(data=lost))
    lost.__context__ = TrainingStopped("stopped at step 4 of 9")
    assert not _is_worth_retrying(None, None, Failed(data=lost))
