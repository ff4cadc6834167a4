"""Batch scoring by each engine: equal bytes although workers and a node are killed, and nothing left when cancelled."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pytest
from ports import reserved_port
from ray_cluster import VARIABLES, RayCluster, ray_cluster
from scored import DATASETS, TITANIC, Place, digests
from waiting import until

from ratchet import settings

pytestmark = [pytest.mark.system, pytest.mark.slow]

SHARDS = 120


@pytest.fixture(scope="module")
def place(new_project: Callable[[str], Any]) -> Place:
    project = new_project("engines")
    ports = {f"platform.{name}_port": reserved_port("127.0.0.1") for name in ("prefect", "mlflow")}
    settings.override(project.workspace.params, {"registry.export": "onnx", "serving.enabled": False, **ports})
    place = Place(project)
    place.add("titanic", TITANIC)
    return place


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = DATASETS / "tabular" / "titanic.csv"
    if not source.is_file():
        pytest.skip("RATCHET_DATASETS names no folder with tabular/titanic.csv")
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    frame = pl.read_csv(source)
    pl.concat([frame] * (SHARDS * 200 // len(frame) + 1)).head(SHARDS * 200).write_csv(path)
    return path


@pytest.fixture(scope="module")
def expected(place: Place, rows: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Digests of the files that one process writes."""
    out = tmp_path_factory.mktemp("one") / "out"
    use(place, engine="here", workers=1)
    place.project.good(*place.command(rows, out, "--shard-rows", "200"))
    assert len(digests(out)) == SHARDS + 2
    return digests(out)


def use(place: Place, **scale: Any) -> None:
    settings.override(place.workspace.params, {f"scale.{name}": value for name, value in scale.items()})


def begin(place: Place, rows: Path, out: Path, **variables: str) -> Any:
    """Start `ratchet predict`, and return when it has results of its workers."""
    log = place.project.home / "predict.log"
    process = place.project.start(*place.command(rows, out, "--shard-rows", "200"), log=log, **variables)
    until(lambda: finished(out), process=process, log=log, pause=0.01)
    return process


def finished(out: Path) -> int:
    """Return how many shards have results."""
    return len([path for path in (out / ".results").glob("[0-9a-f]*.json") if "job" not in path.name])


def kill_in_work(workers: Callable[[], list[psutil.Process]], out: Path, process: Any) -> None:
    """Kill a worker that is in the middle of a shard."""
    victim = until(lambda: next(iter(workers()), None), process=process, pause=0.01)
    victim.kill()
    assert finished(out) < SHARDS - 1


def cancel(process: Any, workers: Callable[[], list[psutil.Process]], out: Path) -> None:
    """Send SIGTERM to the command, and check that no worker is left when it has ended, and no shard comes after it."""
    until(workers, process=process, pause=0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait() > 0  # in order, not by the signal itself
    until(lambda: not workers())
    assert 0 < finished(out) < SHARDS
    assert not list(out.rglob(".draft-*.parquet"))


@pytest.fixture(scope="module")
def cluster(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """Two nodes. The last test that uses them kills the second."""
    with ray_cluster(tmp_path_factory.mktemp("cluster"), place.project.environment) as cluster:
        yield cluster


def test_scoring_on_ray_is_cancelled_and_continued_here(
    place: Place, rows: Path, expected: dict[str, str], cluster: RayCluster, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    use(place, engine="ray", workers=4, address=cluster.address)
    cancel(begin(place, rows, out, **VARIABLES), cluster.tasks, out)
    use(place, engine="here", workers=1)
    assert f"{finished(out):,} of them earlier" in place.project.good(*place.command(rows, out, "--shard-rows", "200"))
    assert digests(out) == expected


def test_ray_writes_equal_bytes_though_a_node_dies(
    place: Place, rows: Path, expected: dict[str, str], cluster: RayCluster, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    use(place, engine="ray", workers=4, address=cluster.address)
    process = begin(place, rows, out, **VARIABLES)
    kill_in_work(cluster.tasks, out, process)
    before = finished(out)
    until(lambda: finished(out) > before + 4, process=process, pause=0.01)
    cluster.kill_second_node()
    assert finished(out) < SHARDS
    assert process.wait() == 0, (place.project.home / "predict.log").read_text()
    assert digests(out) == expected


def test_scoring_here_is_cancelled_and_survives_a_lost_process(
    place: Place, rows: Path, expected: dict[str, str], tmp_path: Path
) -> None:
    out, children = tmp_path / "out", list[psutil.Process]()
    use(place, engine="here", workers=2)
    process = begin(place, rows, out)
    children += psutil.Process(process.pid).children(recursive=True)
    assert len(children) == 2
    cancel(process, lambda: [each for each in children if is_at_work(each)], out)
    before, log = finished(out), place.project.home / "predict.log"
    process = place.project.start(*place.command(rows, out, "--shard-rows", "200"), log=log)
    until(lambda: finished(out) > before, process=process, log=log, pause=0.01)
    children = psutil.Process(process.pid).children(recursive=True)
    children[0].kill()
    assert finished(out) < SHARDS - 1  # it was in the middle of the work
    assert process.wait() == 0, log.read_text()
    assert digests(out) == expected
    assert not [each for each in children if is_at_work(each)]
    assert not [path for path in out.rglob(".draft-*") if path.is_file()]


def is_at_work(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(scope="module")
def pool(place: Place) -> Iterator[Callable[[], list[psutil.Process]]]:
    """Two workers of Prefect's pool. Yield a function that returns the processes of their runs."""
    project = place.project
    project.good("ratchet", "up")
    worker = ("worker", "start", "--pool", "local", "--type", "process", "--name", "second", "--limit", "1")
    second = project.start(sys.executable, "-m", "prefect", *worker, log=project.home / "second.log")
    session = os.environ["RATCHET_TEST_SESSION"]

    def runs() -> list[psutil.Process]:
        return [each for each in psutil.process_iter() if is_at_work(each) and is_run(each, session)]

    try:
        yield runs
    finally:
        second.terminate()
        second.wait()
        project.good("ratchet", "down")


def is_run(process: psutil.Process, session: str) -> bool:
    """Return whether it is the process of a flow run of this test session."""
    try:
        variables = process.environ()
    except psutil.Error:
        return False
    return "PREFECT__FLOW_RUN_ID" in variables and variables.get("RATCHET_TEST_SESSION") == session


def test_two_prefect_workers_write_equal_bytes_though_a_run_dies(
    place: Place, rows: Path, expected: dict[str, str], pool: Callable[[], list[psutil.Process]], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    use(place, engine="prefect", workers=2)
    process = begin(place, rows, out)
    until(lambda: len(pool()) == 2, process=process, pause=0.1)
    kill_in_work(pool, out, process)
    assert process.wait() == 0, (place.project.home / "predict.log").read_text()
    assert digests(out) == expected
    assert finished(out) == SHARDS
    assert not list((out / ".results").glob("job-*"))  # which let workers begin a shard


def test_scoring_by_prefect_is_cancelled_and_continued_here(
    place: Place, rows: Path, expected: dict[str, str], pool: Callable[[], list[psutil.Process]], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    use(place, engine="prefect", workers=2)
    cancel(begin(place, rows, out), pool, out)
    use(place, engine="here", workers=1)
    place.project.good(*place.command(rows, out, "--shard-rows", "200"))
    assert digests(out) == expected
