"""The engine `prefect`: checks of its owner and workers; and a real server with two workers, one of which is lost."""

import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from ports import reserved_port
from prefect.states import Completed, Pending, Scheduled
from waiting import until, until_or_end

from flows import shards
from ratchet import files, settings
from ratchet.errors import PlatformError
from ratchet.scale.calls import ShardCall
from ratchet.scale.result_folder import ResultFolder

ACTS = """
import os
import signal
from pathlib import Path


def act(shard):
    calls = Path(shard["marks"], str(shard["number"]))
    with calls.open("a") as file:
        file.write(f"{os.getpid()} ")
    if shard["waits"] and len(calls.read_text().split()) == 1:
        signal.pause()
    return {"square": shard["number"] ** 2}
"""
SCRIPT = """
import json, sys
from pathlib import Path
from ratchet import scale
from ratchet.settings.model import ScaleSettings

home = Path(sys.argv[1])
shards = [{"number": number, "marks": str(home), "waits": number == 0} for number in range(8)]
settings = ScaleSettings(engine="prefect", workers=2)
print(json.dumps(scale.map("scale_acts:act", shards, folder=str(home / "results"), settings=settings, state=home)))
"""


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


@pytest.mark.slow
def test_the_shard_of_a_lost_worker_is_taken_by_another(new_project: Callable[[str], Any], tmp_path: Path) -> None:
    project = new_project("shards")
    (project.root / "scale_acts.py").write_text(ACTS)
    path = {"PYTHONPATH": str(project.root)}
    ports = {f"platform.{name}_port": reserved_port("127.0.0.1") for name in ("prefect", "mlflow")}
    settings.override(project.workspace.params, {**ports, "serving.enabled": False})
    project.good("ratchet", "up", **path)
    second = None
    try:
        worker = ("worker", "start", "--pool", "local", "--type", "process", "--name", "second", "--limit", "1")
        log = project.home / "second.log"
        second = project.start(sys.executable, "-m", "prefect", *worker, log=log, **path)
        owner = project.start(sys.executable, "-c", SCRIPT, str(tmp_path), log=project.home / "owner.log", **path)
        until_or_end((tmp_path / "0").read_text, owner, pause=0.1)
        waiting = psutil.Process(int((tmp_path / "0").read_text()))  # of either worker
        until_or_end(lambda: len(list((tmp_path / "results").glob("[0-9a-f]*.json"))) == 7, owner, pause=0.1)
        waiting.kill()
        until(lambda: owner.poll() is not None, process=owner, pause=0.5)
        output = (project.home / "owner.log").read_text()
        assert json.loads(output.strip().splitlines()[-1]) == [{"square": number**2} for number in range(8)], output
        assert len((tmp_path / "0").read_text().split()) == 2
        assert all(len((tmp_path / str(number)).read_text().split()) == 1 for number in range(1, 8))
        assert not list((tmp_path / "results").glob("job-*"))
    finally:
        if second is not None:
            second.terminate()
            second.wait()
        project.good("ratchet", "down")
