"""The engine `prefect`: checks of its owner and workers. tests/serving/test_scoring_engines.py loses a worker."""

import math
import time
from pathlib import Path
from typing import Any

import pytest
from prefect.states import Completed, Pending, Scheduled

from flows import shards
from ratchet import files
from ratchet.errors import PlatformError
from ratchet.scale.calls import ShardCall
from ratchet.scale.result_folder import ResultFolder


@pytest.mark.parametrize("content", [None, [], [{"function": "os:getpid"}]])
def test_a_worker_carries_out_the_calls_of_its_run_only(content: Any, tmp_path: Path) -> None:
    folder = ResultFolder(str(tmp_path / "results"))
    if content is not None:
        folder.write_json("job-a.json", content)
    with pytest.raises(
        PlatformError, match=rf"{tmp_path}/results: .* finds no job-a.json there .*Fix: share the folder"
    ):
        shards._take_shards(folder, "job-a", files.digest_json([{"function": "json:loads"}]))


def test_a_worker_begins_no_shard_of_an_ended_job(tmp_path: Path) -> None:
    folder = ResultFolder(str(tmp_path))
    call = ShardCall("json:loads", "1", "key", str(tmp_path)).data
    assert not shards._carry_out(folder, "job-a", call)
    folder.write_json("job-a.json", [call])
    assert shards._carry_out(folder, "job-a", call)
    assert folder.read_json("key.json") == 1
    assert not shards._carry_out(folder, "job-a", call)


def test_runs_that_no_worker_begins_are_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    long_ago, now = time.monotonic() - 1e6, time.monotonic()
    assert shards._last_begun([], long_ago) >= now
    assert shards._last_begun([Scheduled(), Pending()], long_ago) >= now
    assert shards._last_begun([Scheduled(), Completed()], long_ago) >= now
    assert shards._last_begun([Scheduled()], now) == now
    assert shards._last_begun([Scheduled(name="Late")], long_ago) == math.inf
    assert "no worker has begun a run of shard-worker-flow/local: each is busy, or none is up" in caplog.text
    assert shards._last_begun([Scheduled()], math.inf) == math.inf
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", "of a run on the pool")
    with pytest.raises(
        PlatformError, match=r"This run has a place of the pool.*Fix: `ratchet set platform.worker_runs=2`"
    ):
        shards._last_begun([Scheduled()], long_ago)
