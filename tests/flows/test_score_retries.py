"""Which failures of score-flow are tried again."""

import pytest

from flows.cancelled_runs import ended_by
from flows.score import _may_succeed_later
from ratchet.errors import DataError, RatchetError, StorageUnavailable, TrackingRefused, TrackingUnavailable


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
