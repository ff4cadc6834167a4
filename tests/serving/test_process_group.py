"""The model server in two processes: right answers from both, one state for readers, and deaths that others survive."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import psutil
import pytest
from ports import reserved_port
from prometheus_client.parser import text_string_to_metric_families
from waiting import until

from ratchet import settings
from ratchet.errors import PlatformError
from ratchet.serving.process_group import _bound, _Group, _start_first
from ratchet.serving.server_metrics import not_ready, text_of
from ratchet.serving.shared_state import Member, SharedStates, read_block
from ratchet.serving.versions.alias_watcher import load
from ratchet.traffic.log_reader import log_folder, read
from tests.serving.test_model_server import HOST, SPECS, Served, expected, model_server

SWAPS = int(os.environ.get("RATCHET_SWAPS", "4")) // 2 * 2  # even: the tests after it expect version 1
CLIENTS = 6
ANSWERS_ONCE = """
import signal
from ratchet.serving.shared_state import Member, SharedStates
SharedStates(Member.enter()).publish({"state": {"version": "1"}})
signal.pause()
"""
GROUP = """
import sys
from ratchet.serving.process_group import run_group
run_group([sys.executable, "-c", sys.argv[1]], 2, settings=b"{}", host="127.0.0.1", port=0, deadline=1.0, say=print)
"""
PIXELS = np.random.default_rng(1).integers(0, 256, (64, 8, 8, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def registry(new_project: Callable[[str], Any]) -> Served:
    project = new_project("group")
    settings.override(project.workspace.params, {"registry.export": "onnx", "registry.model": "image"})
    served = Served(project)
    for seed in (1, 2):
        served.add("image", SPECS["image"], seed=seed)
    return served


@pytest.fixture(scope="module")
def group(registry: Served) -> Iterator[Served]:
    """Two processes."""
    with model_server(registry, "image", processes=2, deadline=30.0) as served:
        until(lambda: all(processes(served).values()))
        yield served


def processes(served: Served) -> dict[int, str | None]:
    """Return the version of each process by its id."""
    return {each["pid"]: each["version"] for each in served.get("/health")[1]["processes"]}


def parent(served: Served) -> psutil.Process:
    started = psutil.Process(next(iter(processes(served)))).parent()
    assert started
    return started


def predictions(content: Any) -> Any:
    return np.array(content["predictions"], np.float32)


class Client:
    """Asks over one connection that stays open, and compares each answer with that of its version."""

    def __init__(self, served: Served, answers: dict[str, Any], seed: int) -> None:
        self.connection, self.answers = HTTPConnection(HOST, served.port), answers
        self.choose, self.close = np.random.default_rng(seed), self.connection.close

    def ask(self) -> str:
        """Return the version that answered."""
        rows = self.choose.integers(0, len(PIXELS), self.choose.integers(1, 6))
        body = json.dumps({"inputs": PIXELS[rows].tolist()})
        self.connection.request("POST", "/invocations", body, {"Content-Type": "application/json"})
        with self.connection.getresponse() as response:
            content = json.loads(response.read())
        assert response.status == 200, content
        version = response.headers["ratchet-version"].partition("/")[2]
        assert predictions(content).tobytes() == self.answers[version][rows].tobytes(), version
        return version


@pytest.fixture(scope="module")
def answers(registry: Served, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Answers of both versions to all pixels, which MLflow's loader confirms."""
    result, folder = {}, tmp_path_factory.mktemp("versions")
    for version in ("1", "2"):
        loaded = load(registry.registry, registry.registry.find(f"image/{version}"), folder / version, threads=1)
        result[version] = loaded.predict((PIXELS,))
        assert np.abs(result[version] - expected(registry, "image", PIXELS.tolist(), version)).max() < 1e-3
    return result


def sample(served: Served, name: str, **labels: str) -> float:
    """Return the sum of a metric's samples with these labels."""
    import urllib.request

    with urllib.request.urlopen(served.url("/metrics")) as answer:
        text = answer.read().decode()
    return sum(
        each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
        if each.name == name and labels.items() <= each.labels.items()
    )


@pytest.mark.system
def test_answers_labels_and_metrics_are_those_of_all_processes(answers: dict[str, Any], group: Served) -> None:
    """Both processes have logged requests, by the names of the log's files."""
    pids, ids, count = set(processes(group)), [], 0
    before = sample(group, "ratchet_requests_total", envelope="own", status="200")
    content = json.dumps({"input": PIXELS[:1].tolist()})

    def ask(_: int) -> str:
        with closing(HTTPConnection(HOST, group.port)) as client:
            client.request("POST", "/v1/predict", content, {"Content-Type": "application/json"})
            answer = json.loads(client.getresponse().read())
        names = ("ant", "bee", "cat")
        assert answer["predictions"][0]["class"] == names[answers["1"][0].argmax()]
        return str(answer["id"])

    def writers() -> set[int]:
        return {int(path.name.split("-")[1]) for path in log_folder(group.workspace).rglob("*-*-*.parquet")} & pids

    def both_have_answered() -> bool:
        nonlocal count
        with ThreadPoolExecutor(16) as pool:
            ids.extend(pool.map(ask, range(64)))
        count += 64
        return writers() == pids

    until(both_have_answered)
    until(lambda: sample(group, "ratchet_requests_total", envelope="own", status="200") == before + count)
    assert sample(group, "ratchet_ready") == 1
    until(lambda: set(ids) <= set(read(log_folder(group.workspace))["answer"]))
    for answer in ids[:: len(ids) // 8]:
        status, stored, _ = group.ask("/v1/labels", {"labels": [{"id": answer, "label": "cat"}]})
        assert (status, stored) == (200, {"new": 1, "corrected": 0, "known": 0})


@pytest.mark.system
def test_a_killed_process_is_replaced_and_others_answer(
    answers: dict[str, Any], group: Served, request: pytest.FixtureRequest
) -> None:
    clients = [Client(group, answers, number) for number in range(16)]
    for client in clients:
        request.addfinalizer(client.close)
        client.ask()
    before, pids = sample(group, "ratchet_requests_total", envelope="mlflow"), set(processes(group))
    killed, other = pids
    settings.override(
        group.workspace.params, {"serving.canary": "image@challenger"}
    )  # none of the processes may have it
    os.kill(killed, signal.SIGKILL)
    outcomes = Counter[str]()
    for client in clients:
        try:
            outcomes[client.ask()] += 1
        except (ConnectionError, HTTPException):
            outcomes["connection error"] += 1
    assert outcomes["1"] > 0, outcomes
    with closing(Client(group, answers, 0)) as client:
        assert client.ask() == "1"
    until(lambda: killed not in (now := processes(group)) and all(now.values()))
    settings.override(group.workspace.params, {"serving.canary": "none"})
    assert other in processes(group)
    assert sample(group, "ratchet_requests_total", envelope="mlflow") >= before + outcomes["1"]


@pytest.mark.system
@pytest.mark.slow
def test_a_process_that_hangs_is_killed_and_others_answer(answers: dict[str, Any], group: Served) -> None:
    hung, _ = processes(group)
    os.kill(hung, signal.SIGSTOP)
    with closing(Client(group, answers, 0)) as client:
        assert client.ask() == "1"
    until(lambda: sample(group, "ratchet_ready") == 0)
    until(lambda: hung not in processes(group) and all(processes(group).values()))


@pytest.mark.system
def test_nothing_survives_a_killed_parent(registry: Served) -> None:
    settings.override(registry.workspace.params, {"serving.processes": 2})
    served = Served(registry.project, reserved_port(HOST))
    log = registry.workspace.root / "killed.log"
    started = registry.project.start("ratchet", "serve", "--port", str(served.port), log=log)
    until(lambda: all(processes(served).values()), process=started, log=log)
    pids = [*processes(served)]
    assert psutil.Process(pids[0]).cmdline()[-2:] == ["--model", "image@champion"]  # also if the data change
    started.kill()
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids))
    assert started.wait() == -signal.SIGKILL


@pytest.fixture(scope="module")
def following(registry: Served) -> Iterator[Served]:
    """Two processes that follow the alias. The last test that uses them ends them."""
    with model_server(registry, "image", processes=2, poll=0.05) as served:
        until(lambda: all(processes(served).values()))
        yield served


@pytest.mark.system
@pytest.mark.slow
def test_swaps_under_load_give_no_wrong_answer(registry: Served, answers: dict[str, Any], following: Served) -> None:
    """Each connection sees the versions in the order in which they were promoted. RATCHET_SWAPS: number of swaps."""
    promoted, stop, counts = ["1"], threading.Event(), Counter[str]()

    def ask(seed: int) -> None:
        place = 0
        with closing(Client(following, answers, seed)) as client:
            while not stop.is_set():
                version = client.ask()
                place = promoted.index(version, place)
                counts[version] += 1

    with ThreadPoolExecutor(CLIENTS) as pool:
        jobs = [pool.submit(ask, seed) for seed in range(CLIENTS)]
        try:
            for swap in range(SWAPS):
                version = "21"[swap % 2]
                promoted.append(version)
                registry.promote("image", version)
                until(lambda version=version: have(following, version))  # type: ignore[misc]
                for job in jobs:
                    assert not job.done(), job.result()
        finally:
            stop.set()
        for job in jobs:
            job.result()
    registry.promote("image", "1")
    assert counts.keys() == {"1", "2"}
    print(dict(counts))


def have(served: Served, version: str) -> bool:
    """Return whether all processes have this version."""
    return set(processes(served).values()) == {f"image version {version}"}


@pytest.mark.system
def test_sigterm_lets_requests_end(following: Served, answers: dict[str, Any], request: pytest.FixtureRequest) -> None:
    """Bodies of which a half has come, in both processes, are read to their end and answered, also after SIGHUP."""
    until(lambda: have(following, "1"))
    body = json.dumps({"inputs": PIXELS.tolist()}).encode()
    head = f"POST /invocations HTTP/1.1\r\nHost: {HOST}:{following.port}\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    started = parent(following)
    clients = [HTTPConnection(HOST, following.port) for _ in range(16)]
    for client in clients:
        request.addfinalizer(client.close)
        client.connect()
        client.sock.sendall(head.encode() + body[:100])
    until(lambda: sample(following, "ratchet_requests_in_flight") > len(clients))
    started.terminate()
    until(lambda: _is_refused(following))
    started.send_signal(signal.SIGHUP)
    for client in clients:
        client.sock.sendall(body[100:])
    for client in clients:
        response = client.response_class(client.sock)
        response.begin()
        assert predictions(json.loads(response.read())).tobytes() == answers["1"].tobytes()


def _is_refused(served: Served) -> bool:
    try:
        served.get("/health")
    except (URLError, ConnectionError):
        return True
    return False


@pytest.mark.system
def test_canary_needs_one_process(registry: Served) -> None:
    changes = ("serving.processes=2", "serving.canary=image@challenger")
    try:
        assert "warning: serving.processes: found 2" in registry.project.good("ratchet", "set", *changes)
        message = registry.project.refused("ratchet", "serve", "--port", str(reserved_port(HOST)))
    finally:
        settings.override(registry.workspace.params, {"serving.processes": 1, "serving.canary": "none"})
    assert "serving.processes: found 2, with serving.canary image@challenger" in message


@pytest.fixture
def small(request: pytest.FixtureRequest) -> Iterator[_Group]:
    """A group of one small process."""
    files = [os.memfd_create(name) for name in ("state", "settings")]
    group = _Group([sys.executable, "-c", ANSWERS_ONCE], _bound("::", 0), (files[0],), files[1])
    yield group
    for process in group.running:
        process.kill()
        process.wait()
    group.listening.close()
    for file in files:
        os.close(file)


def test_a_pause_of_the_machine_kills_no_process(small: _Group, caplog: pytest.LogCaptureFixture) -> None:
    """A process is killed after 30 s without a state, and a start that fails is tried again later."""
    child, now = small.children[0], 0.0
    small.clock, small.looked = lambda: now, now

    def look(seconds: float) -> None:
        nonlocal now
        now += seconds
        small.look()

    look(0)
    until(lambda: read_block(small.blocks[0]))
    for _ in range(30):
        look(3600)
    assert not caplog.text
    look(1)
    look(1)
    assert child.process
    assert child.process.wait() == -signal.SIGKILL
    command, small.command = small.command, ["/nowhere"]
    for _ in range(3):
        look(1)
    pauses = [message.split()[-2] for message in caplog.messages if "does not start" in message]
    assert pauses == ["1.0", "2.0"]
    small.command = command
    look(1)
    assert child.process is None
    look(1)
    assert child.process


def test_a_first_process_that_is_killed_is_reported(small: _Group) -> None:
    assert small.listening.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
    for command, message in ((["sh", "-c", "kill -9 $$"], "was killed by signal 9"), (["/nowhere"], "does not start")):
        small.command = command
        with pytest.raises(PlatformError, match=f"the first process {message}.*Fix: "):
            _start_first(small, "", print)


def test_nohup_keeps_the_group_after_a_logout() -> None:
    command = ["nohup", sys.executable, "-u", "-c", GROUP, ANSWERS_ONCE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert "by 2 processes" in process.stdout.readline()
        process.send_signal(signal.SIGHUP)
        process.terminate()
    assert process.returncode == -signal.SIGTERM


@pytest.mark.parametrize(
    "program",
    [
        ["-m", "ratchet.serving", "--host", HOST, "--port", "1"],
        ["-c", "import pathlib, ratchet.serving.offline.bundle_server as it; exit(it.main(pathlib.Path()))"],
    ],
    ids=["project", "bundle"],
)
def test_ctrl_c_while_a_process_loads_prints_no_traceback(program: list[str]) -> None:
    """The parent blocks the signal, and the process unblocks it."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would hand on SIG_IGN
    place = Member(0, 0, (), os.getpid(), 0).environment
    process = subprocess.Popen(
        [sys.executable, *program], cwd=Path(__file__).parents[2], env=os.environ | place, stderr=subprocess.PIPE
    )
    signal.signal(signal.SIGINT, before)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    process.send_signal(signal.SIGINT)
    assert (process.communicate()[1], process.returncode) == (b"", 130)


def test_a_group_is_ready_if_every_process_is() -> None:
    ready = [["ratchet_ready", "1 if a version answers", "gauge", [["ratchet_ready", {}, 1.0]]]]
    assert b"ratchet_ready 1.0" in text_of([ready, ready])
    assert b"ratchet_ready 0.0" in text_of([ready, not_ready(ready)])
    assert b"ratchet_ready 0.0" in text_of([ready, not_ready([])])  # it has written no state yet


def test_states_are_seen_by_others_and_by_the_next_process() -> None:
    now = 100.0
    blocks = tuple(os.memfd_create(str(number)) for number in range(2))
    first, second = (SharedStates(Member(number, 0, blocks, 0, 0), clock=lambda: now) for number in range(2))
    assert second.others() == {0: {"late": True}}
    first.publish({"state": {"ready": True}, "text": "long " * 1000})
    first.publish({"state": {"ready": True}})
    assert second.others()[0] == {"state": {"ready": True}, "pid": os.getpid(), "time": 100.0, "late": False}
    now = 200.0
    assert second.others()[0]["late"]
    assert SharedStates(Member(0, 0, blocks, 0, 0)).earlier["state"] == {"ready": True}
    os.pwrite(blocks[0], b"x", 20)  # as after a kill while it was written
    assert read_block(blocks[0]) == {}
    for block in blocks:
        os.close(block)
