"""A training on two nodes: two launchers on one machine, and two network namespaces joined by a cable.

The truth is the same training in one process.
"""

import functools
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from ports import reserved_port
from waiting import until

from ratchet import settings
from ratchet.errors import RatchetError

pytestmark = pytest.mark.system

STEPS = 120
SETTINGS = {
    "training.epochs": 6,
    "training.batch_size": 64,
    "training.pieces": 4,
    "training.checkpoint_steps": 2,
    "training.log_every": 1,
    "training.nodes": 2,
}


@dataclass
class Nodes:
    """A project that two nodes share, and the commands that run on them."""

    project: Any
    log: Path
    addresses: tuple[str, str] = ("127.0.0.1", "127.0.0.1")
    prefixes: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    started: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.address = f"{self.addresses[0]}:{reserved_port('127.0.0.1')}"
        self.set("training.rendezvous", self.address)

    def set(self, name: str, value: object) -> None:
        settings.override(self.project.workspace.params, {name: value})

    def first(self) -> Any:
        return self._start(0, *self.project.stage("train"))

    def second(self, project: Any = None) -> Any:
        return self._start(1, "ratchet", "join", self.address, project=project)

    def _start(self, node: int, *command: str, project: Any = None) -> Any:
        process = (project or self.project).start(*self.prefixes[node], *command, log=self.log)
        self.started.append(process)
        return process

    def step(self) -> int:
        """The step of the newest checkpoint, 0 before the first."""
        names = [path.stem for path in (self.project.root / "data" / "running").glob("*/step-*.safetensors")]
        return max((int(name.removeprefix("step-")) for name in names), default=0)

    def reach(self, step: int, process: Any) -> None:
        until(lambda: self.step() >= step, process=process, log=self.log)

    def wait_for(self, text: str, process: Any = None) -> None:
        until(lambda: text in self.log.read_text(), process=process, log=self.log)


def ranks_of(process: Any) -> list[psutil.Process]:
    """Return the processes that a launcher has started to train."""
    children = psutil.Process(process.pid).children(recursive=True)
    return [child for child in children if "rank_processes" in " ".join(child.cmdline())]


def is_gone(processes: list[psutil.Process]) -> bool:
    return not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)


@pytest.fixture(scope="module")
def whole(new_project, use_small_net):
    """The training in one process."""
    project = new_project("whole")
    use_small_net(project)
    settings.override(project.workspace.params, SETTINGS | {"training.nodes": 1})
    project.good(*project.stage("ingest"))
    project.good(*project.stage("train"))
    return project


@pytest.fixture
def make_nodes(whole, new_project, use_small_net, tmp_path) -> Iterator[Callable[..., Nodes]]:
    projects: list[Nodes] = []

    def make(name: str, **changes: Any) -> Nodes:
        project = new_project(name)
        use_small_net(project)
        settings.override(project.workspace.params, SETTINGS | {"training.rendezvous": "127.0.0.1:1"})
        subprocess.run(["cp", "-r", whole.workspace.packed, project.workspace.packed], check=True)
        projects.append(Nodes(project, tmp_path / "log", **changes))
        return projects[-1]

    yield make
    for process in (process for nodes in projects for process in nodes.started):
        process.kill()
        process.wait()


@pytest.fixture
def namespaces() -> Iterator[tuple[str, str]]:
    """Two network namespaces, 10.213.7.1 and 10.213.7.2, with a cable between them."""
    names = tuple(f"ratchet-{os.getpid()}-{side}" for side in "ab")
    cables = tuple(f"rt{os.getpid()}{side}" for side in "ab")
    commands = [
        *(f"netns add {name}" for name in names),
        f"link add {cables[0]} netns {names[0]} type veth peer name {cables[1]} netns {names[1]}",
        *(
            f"-n {name} {command}"
            for at, name in enumerate(names)
            for command in (
                "link set lo up",
                f"addr add 10.213.7.{at + 1}/24 dev {cables[at]}",
                f"link set {cables[at]} up",
            )
        ),
    ]
    try:
        for command in commands:
            try:
                done = subprocess.run(["ip", *command.split()], capture_output=True, text=True, check=False)
            except FileNotFoundError:
                pytest.skip("no network namespaces: iproute2 is not installed")
            if done.returncode:
                pytest.skip(f"no network namespaces on this machine: `ip {command}`: {done.stderr.strip()}")
        yield names[0], names[1]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def test_two_nodes_end_with_the_bits_of_one(
    make_nodes, new_project, use_small_net, whole, assert_same_training
) -> None:
    """The second node is killed and comes back; then the first one is killed, and the training goes on alone.

    Before that a node with other settings is refused, and one in another folder.
    """
    nodes = make_nodes("shared")
    first = nodes.first()
    nodes.wait_for("waits for other nodes", first)
    other = new_project("other")
    use_small_net(other)
    changes = {"training.learning_rate": 0.5, "training.rendezvous": nodes.address}
    settings.override(other.workspace.params, SETTINGS | changes)
    subprocess.run(["cp", "-r", nodes.project.workspace.packed, other.workspace.packed], check=True)
    text = other.refused("ratchet", "join")
    assert "differs from the first one: training.learning_rate (here 0.5, there 2.0e-3)" in text
    nodes.wait_for("cannot take part: this machine differs", first)
    settings.override(other.workspace.params, {"training.learning_rate": 0.002})
    assert "is not that of the first machine. Allowed: the same folder" in other.refused("ratchet", "join")

    (other.root / "data" / "running").symlink_to(nodes.project.root / "data" / "running")
    second = nodes.second(other)
    nodes.reach(10, first)
    ranks = ranks_of(second)
    assert len(ranks) == 1
    second.kill()
    until(functools.partial(is_gone, ranks))
    nodes.wait_for("all continue at the newest checkpoint", first)
    second = nodes.second()
    nodes.reach(nodes.step() + 20, first)
    ranks = ranks_of(second)
    first.kill()
    until(functools.partial(is_gone, ranks))
    assert second.wait() == 1
    assert f"the first node at {nodes.address} is lost" in nodes.log.read_text()
    nodes.set("training.nodes", 1)
    nodes.set("training.processes", 2)
    assert "continues at step" in nodes.project.good(*nodes.project.stage("train"))
    assert_same_training(nodes.project, whole, steps=STEPS)


def test_a_node_joins_and_leaves_a_training(make_nodes, whole, assert_same_training) -> None:
    """Two processes of each node. The first one goes on alone when the other leaves, and ends with it again."""
    nodes = make_nodes("elastic")
    nodes.set("training.nodes", "1:2")
    nodes.set("training.processes", 2)
    first, second = nodes.first(), nodes.second()
    nodes.wait_for("2 nodes (", first)
    nodes.reach(10, first)
    second.terminate()
    nodes.wait_for("1 nodes (", first)
    second = nodes.second()
    nodes.wait_for("more nodes have come", first)
    assert first.wait() == 0, nodes.log.read_text()
    assert second.wait() == 0, nodes.log.read_text()
    assert f"the training has ended at step {STEPS}" in nodes.log.read_text()
    assert_same_training(nodes.project, whole, steps=STEPS)


def test_two_network_namespaces_survive_a_cut_cable(make_nodes, namespaces, whole, assert_same_training) -> None:
    """No connection is closed: only the silence says that a node is lost. Both go on when the second one is back."""
    nodes = make_nodes(
        "cut",
        addresses=("10.213.7.1", "10.213.7.2"),
        prefixes=tuple(("ip", "netns", "exec", name) for name in namespaces),
    )
    first, second = nodes.first(), nodes.second()
    nodes.wait_for("2 nodes (", first)
    nodes.reach(10, first)
    ranks = ranks_of(second)
    assert len(ranks) == 1
    cable = f"rt{os.getpid()}a"
    subprocess.run(["ip", "-n", namespaces[0], "link", "set", cable, "down"], check=True)
    until(functools.partial(is_gone, ranks))
    assert second.wait() == 1
    nodes.wait_for("has not answered for 6 s): all continue at the newest checkpoint", first)
    subprocess.run(["ip", "-n", namespaces[0], "link", "set", cable, "up"], check=True)
    second = nodes.second()
    assert first.wait() == 0, nodes.log.read_text()
    assert second.wait() == 0, nodes.log.read_text()
    assert nodes.log.read_text().count("all continue at the newest checkpoint") == 1
    assert_same_training(nodes.project, whole, steps=STEPS)


def test_wrong_nodes_are_refused(make_nodes) -> None:
    project = make_nodes("wrong").project
    before = project.workspace.params.read_bytes()
    for changes, message in (
        ({"training.nodes": 3}, "training.nodes: found 3, and no such number of nodes"),
        ({"training.rendezvous": "203.0.113.7:29400"}, "which this machine cannot open"),
        ({"training.rendezvous": "127.0.0.1:99999"}, "training.rendezvous: found 127.0.0.1:99999. Allowed: HOST:PORT"),
    ):
        project.workspace.params.write_bytes(before)
        settings.override(project.workspace.params, changes)
        assert message in project.refused(*project.stage("train"))


@pytest.mark.parametrize(
    ("changes", "message", "fix"),
    [
        ({"training.rendezvous": "none"}, "training.rendezvous: found none", {"training.rendezvous": "HOST:29400"}),
        ({"training.nodes": "3:2"}, "training.nodes: found 3:2. Allowed: MIN:MAX", {"training.nodes": "2:3"}),
    ],
)
def test_contradictions_of_nodes_are_refused_when_set(
    changes: dict[str, Any], message: str, fix: dict[str, Any], tmp_path: Path
) -> None:
    params = tmp_path / "params.yaml"
    params.write_text(settings.template())
    settings.override(params, SETTINGS | {"training.rendezvous": "127.0.0.1:1"})
    with pytest.raises(RatchetError, match=message):
        settings.override(params, changes)
    settings.override(params, changes | fix)
