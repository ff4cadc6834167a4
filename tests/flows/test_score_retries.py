"""Which failures of score-flow and of the stages are tried again."""

from dataclasses import replace
from pathlib import Path

import pytest
from httpx import ConnectError
from prefect.states import Failed

from flows.cancelled_runs import ended_by
from flows.score import _may_succeed_later, still_again
from flows.stages import _is_worth_retrying
from ratchet.errors import DataError, RatchetError, StorageUnavailable, TrackingRefused, TrackingUnavailable
from tasks.score import Request
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


def test_stage_is_not_retried_when_its_stop_is_not_reported() -> None:
    lost = ConnectError("refused")
    assert _is_worth_retrying(None, None, Failed(data=lost))
    lost.__context__ = TrainingStopped("stopped at step 4 of 9")
    assert not _is_worth_retrying(None, None, Failed(data=lost))


def test_a_retry_deletes_answers_only_if_none_has(tmp_path: Path) -> None:
    note = tmp_path / "again" / "run"
    request = Request(("rows.csv",), "answers", again=True)
    assert [still_again(request, note, attempt).again for attempt in (1, 2)] == [True, True]
    note.unlink()  # as the second attempt deletes the answers
    assert not still_again(request, note, 3).again
    assert not still_again(replace(request, again=False), note, 1).again
