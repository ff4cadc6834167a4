"""A training in several processes ends with the bits of one in a single process, whatever is killed meanwhile."""

import functools
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from ports import reserved_port
from waiting import until

from ratchet import settings
from ratchet.errors import TrainingError
from ratchet.kinds import ModelSpec, input_from_json
from ratchet.problems import Classes
from ratchet.settings.model import TrainingSettings
from ratchet.training import (
    CheckpointStore,
    Event,
    Finished,
    Notice,
    Plan,
    Points,
    Started,
    Stopped,
    TrainingInputs,
    Trouble,
    fit_in_processes,
    open_split,
)
from ratchet.training.nodes import join_training
from ratchet.training.ranks import PieceSum, Ranks
from ratchet.training.step import pieces_of
from tasks.training_job import deciding, make_plan

NET = """\
import os
import torch
from torch import nn, distributed

class Net(nn.Module):
    '''Batch norm, dropout, a layer that only some pieces use, and a fault in one process.'''

    def __init__(self, *, classes, channels, height, width):
        super().__init__()
        self.fault = os.environ.get("FAULT", "")
        if self.fault == "weights" and distributed.is_initialized() and distributed.get_rank():
            raise ValueError("no such weights")
        if self.fault == "birth" and distributed.is_initialized() and distributed.get_rank():
            os.abort()
        self.register_buffer("mask", torch.tril(torch.ones(3, 3)).bool())
        self.register_buffer("turns", torch.linspace(0.1, 0.9, 7), persistent=False)
        self.register_buffer("least", torch.tensor(torch.finfo(torch.float32).min))
        self.register_buffer("mean", torch.zeros(()))
        self.features = nn.Sequential(
            nn.Conv2d(channels, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.blocks = nn.ModuleList([nn.Linear(classes, 411), nn.Linear(411, classes), nn.Linear(classes, classes)])
        self.unused = nn.Linear(3, 3)
        self.seldom = nn.Linear(6 * (height // 2) * (width // 2), classes)
        self.head = nn.Sequential(nn.Dropout(0.5), nn.Linear(6 * (height // 2) * (width // 2), classes))
        self.register_buffer("rows", torch.zeros((), dtype=torch.int64))

    def forward(self, images):
        if self.training and self.fault == "death" and distributed.get_rank():
            os.abort()
        if self.training and self.fault == "sample" and distributed.get_rank():
            raise ValueError("a sample of this piece is odd")
        if self.training and self.fault == "memory" and self._is_last() and len(images) > 8:
            raise torch.OutOfMemoryError("out of memory")
        if self.training and self.fault == "threads":
            assert torch.get_num_threads() == 2, torch.get_num_threads()
        if not self.training and self.fault == "validation":
            if self._is_last() and len(images) > 64:
                raise torch.OutOfMemoryError("out of memory")
            if len(images) > 1 and distributed.is_initialized() and distributed.get_rank():
                with open(os.environ["SEEN"], "a") as seen:
                    seen.write(f"{len(images)}\\n")
        if self.training:
            self.rows += len(images)
            self.mean = 0.9 * self.mean + 0.1 * images.float().mean().detach()
            self.mask[0, 1] = not self.mask[0, 1]
            print("a line without a reader " * 100)
        assert torch.equal(self.turns, torch.linspace(0.1, 0.9, 7, device=images.device))
        assert self.least > -torch.inf
        flat = self.features(images).flatten(1)
        answers = self.head(flat)
        answers = answers + self.blocks[2](self.blocks[1](torch.relu(self.blocks[0](answers))))
        return answers + self.seldom(flat) if not self.training or images.sum() % 2 < 1 else answers

    def _is_last(self):
        return not distributed.is_initialized() or distributed.get_rank() == distributed.get_world_size() - 1
"""


@dataclass
class Bench:
    """Trains a net of the user on the packed digits."""

    root: Path
    packed: Path
    spec: ModelSpec

    def plan(self, **changes: Any) -> Plan:
        known = {
            "max_steps": 24, "batch_size": 64, "checkpoint_steps": 5, "precision": "fp32", "device": "cpu", "pieces": 4,
            "log_every": 1,
        }  # fmt: skip
        return replace(make_plan(TrainingSettings(), self.spec.target, seed=0), **{**known, **changes})

    def inputs(self, plan: Plan) -> TrainingInputs:
        train, validation = (open_split(self.packed, split, self.spec.input) for split in ("train", "validation"))
        return TrainingInputs(train, validation, self.spec, plan, identity={"data": "digits"})

    def events(self, plan: Plan, name: str, **more: Any) -> Iterator[Event]:
        inputs = self.inputs(plan)
        store = CheckpointStore(self.root / name, keep_last=plan.keep_last, keep_best=plan.keep_best)
        return fit_in_processes(inputs, packed=self.packed, store=store, **more)

    def run(self, name: str, **changes: Any) -> tuple[Finished, list[Event]]:
        """Return the end, and all events."""
        events = list(self.events(self.plan(**changes), name))
        assert isinstance(events[-1], Finished)
        return events[-1], events

    def kill(self, name: str, processes: int, step: int, **changes: Any) -> list[int]:
        """Train in a process of its own, which kills itself at a step. Return the numbers of its other processes."""
        content = pickle.dumps((self, name, self.plan(processes=processes, **changes), step))
        code = "import sys, test_processes; test_processes.train_and_die(bytes.fromhex(sys.argv[1]))"
        paths = {"PYTHONPATH": os.pathsep.join((str(Path(__file__).parent), *sys.path))}
        ended = subprocess.run([sys.executable, "-c", code, content.hex()], env=os.environ | paths, check=False)
        assert ended.returncode == -signal.SIGKILL
        return json.loads((self.root / "processes.json").read_text())


def train_and_die(content: bytes) -> None:
    bench, name, plan, step = pickle.loads(content)
    for event in bench.events(plan, name):
        if isinstance(event, Points) and event.step == step:
            (bench.root / "processes.json").write_text(json.dumps(others()))
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from ratchet.data.ingest import IngestTask, ingest  # not in the processes that are killed, which import this module

    folder = tmp_path_factory.mktemp("digits")
    (folder / "params.yaml").write_text(settings.template())
    data = settings.load(folder / "params.yaml").data
    ingest(IngestTask(data, packed=folder / "packed", quarantine=folder / "quarantine.parquet", root=folder))
    return folder / "packed"


@pytest.fixture
def bench(digits: Path, tmp_path: Path) -> Bench:
    (tmp_path / "splitnet.py").write_text(NET)
    manifest = json.loads((digits / "manifest.json").read_text(encoding="utf-8"))
    names = tuple(manifest["target"]["names"])
    spec = ModelSpec(
        "convnet", input_from_json(manifest["input"]), Classes(names), factory="splitnet:Net", code="splitnet.py",
        root=str(tmp_path),
    )  # fmt: skip
    return Bench(tmp_path, digits, spec)


def assert_same(first: Finished, other: Finished) -> None:
    assert first.history == other.history
    assert first.weights.keys() == other.weights.keys()
    for name, tensor in first.weights.items():
        assert torch.equal(tensor, other.weights[name]), name


def assert_close(first: Finished, other: Finished) -> None:
    for name, tensor in first.weights.items():
        torch.testing.assert_close(other.weights[name], tensor, rtol=1e-3, atol=1e-4)


def test_pieces_are_added_in_a_tree_of_ranks() -> None:
    values = [torch.tensor([value]) for value in (1e8, 1.0, -1e8, 1.0)]
    whole = PieceSum()
    for value in values:
        whole.add(value.clone())
    assert whole.total[0] == (values[0] + values[1]) + (values[2] + values[3])
    halves = []
    for rank in (0, 1):
        half = PieceSum()
        for piece in Ranks(rank, 2).pieces(4):
            half.add(values[piece].clone())
        halves.append(half.total[0])
    assert halves[0] + halves[1] == whole.total[0]


def test_an_operation_may_end_just_after_a_look_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter((RuntimeError("Operation timed out!"), None))

    def wait(*_: object) -> None:
        if (error := next(answers)) is not None:
            raise error

    monkeypatch.setattr("ratchet.training.ranks.distributed.get_backend", lambda: "gloo")
    Ranks(0, 2).wait(lambda: SimpleNamespace(wait=wait, is_completed=lambda: True))
    assert list(answers) == []


def test_few_rows_leave_the_last_pieces_empty() -> None:
    assert [list(piece) for piece in pieces_of(np.arange(5), 8)] == [[0], [1], [2], [3], [4], [], [], []]
    assert [len(piece) for piece in pieces_of(np.arange(5), 8, smallest=2)] == [3, 2, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("changes", "kills"),
    [
        # The last batch of an epoch has fewer rows than two for each piece, as batch norm needs.
        ({"batch_size": 179, "pieces": 8, "sampling": "balanced"}, ((2, 8), (4, 17))),
        ({"shard": "fsdp", "optimizer": "sgd", "ema_decay": 0.9, "accumulation": 3, "batch_size": 179}, ((2, 17),)),
    ],
)
def test_any_number_of_processes_ends_with_the_same_bits(
    changes: dict[str, Any], kills: tuple[tuple[int, int], ...], bench: Bench
) -> None:
    """It is killed in several processes, then in others, and ends in one. No process outlives the first."""
    undisturbed, _ = bench.run("undisturbed", **changes)
    for processes, step in kills:
        numbers = bench.kill("killed", processes, step, **changes)
        assert len(numbers) == processes - 1
        until(functools.partial(all_ended, numbers))
    end, events = bench.run("killed", **changes)
    assert next(event for event in events if isinstance(event, Started)).step in (15, 16)
    assert_same(end, undisturbed)
    assert not [event for event in events if isinstance(event, Notice)]


def test_sharded_adam_with_clipped_elements_ends_with_the_same_bits(bench: Bench) -> None:
    changes = {"shard": "fsdp", "optimizer": "adam", "clip_value": 0.01, "batch_size": 61}
    assert_same(bench.run("two", processes=2, **changes)[0], bench.run("single", **changes)[0])


@pytest.mark.filterwarnings("ignore:Grad strides do not match")  # by DDP, of a convolution of one channel
@pytest.mark.parametrize(
    ("changes", "reference"),
    [({"shard": "fsdp"}, {"shard": "fsdp", "processes": 1}), ({"reduction": "fast"}, {"reduction": "fast"})],
)
def test_a_lost_process_costs_no_bit(changes: dict[str, Any], reference: dict[str, Any], bench: Bench) -> None:
    """An exact sum has the bits of a single process, a fast one those of as many processes."""
    undisturbed, _ = bench.run("undisturbed", **({"processes": 2} | reference))
    events = []
    for event in bench.events(bench.plan(processes=2, **changes), "lost"):
        events.append(event)
        if getattr(event, "step", 0) == 12 and not any(isinstance(each, Trouble) for each in events):
            os.kill(others()[0], signal.SIGKILL)
    [trouble] = [event for event in events if isinstance(event, Trouble)]
    assert trouble.kind == "lost process"
    assert_same(events[-1], undisturbed)


def test_a_fast_sum_of_automatic_processes_is_refused(bench: Bench) -> None:
    with pytest.raises(TrainingError, match=r"training.processes: found auto, .*`ratchet set training.processes=\d"):
        next(bench.events(bench.plan(processes="auto", reduction="fast"), "refused"))


@pytest.mark.filterwarnings("ignore:Grad strides do not match")
def test_a_fast_sum_leaves_frozen_layers_alone(bench: Bench) -> None:
    net = NET.replace("self.unused = nn.Linear(3, 3)", "").replace(
        "images.sum() % 2 < 1", "True"
    )  # the head comes last
    (bench.root / "splitnet.py").write_text(net)
    plan = {"pieces": 2, "frozen_epochs": 1, "batch_size": 256, "max_steps": 6}
    assert_close(*(bench.run(how, reduction=how, processes=n, **plan)[0] for how, n in (("exact", 1), ("fast", 2))))


def test_processes_are_part_of_a_fast_training(bench: Bench) -> None:
    fast, exact = ([deciding(bench.plan(processes=n, reduction=how)) for n in (2, 4)] for how in ("fast", "exact"))
    assert fast[0] != fast[1]
    assert exact[0] == exact[1]


@pytest.mark.filterwarnings("ignore:Grad strides do not match")
def test_a_fast_sum_keeps_two_samples_for_a_batch_norm(bench: Bench) -> None:
    """The last batch of the epoch has three rows, in two processes."""
    rows = len(open_split(bench.packed, "train", bench.spec.input))
    batch = next(size for size in range(100, rows) if rows % size == 3)
    net = NET.replace("nn.Dropout(0.5)", "nn.BatchNorm1d(6 * (height // 2) * (width // 2))")
    (bench.root / "splitnet.py").write_text(net)
    plan = {"pieces": 2, "batch_size": batch, "max_steps": rows // batch + 2}
    assert_close(*(bench.run(how, reduction=how, processes=n, **plan)[0] for how, n in (("exact", 1), ("fast", 2))))


def test_a_batch_norm_without_module_ends_a_fast_sum(bench: Bench) -> None:
    flat = "self.features(images).flatten(1)"
    net = NET.replace(
        flat,
        f"{flat}\n        flat = nn.functional.batch_norm(flat, None, None, training=True) if self.training else flat",
    )
    (bench.root / "splitnet.py").write_text(net.replace("nn.BatchNorm2d(6)", "nn.Identity()"))
    with pytest.raises(TrainingError, match="got one sample, from which a batch norm cannot learn"):
        list(bench.events(bench.plan(processes=2, pieces=2, batch_size=3, reduction="fast"), "refused"))


@pytest.mark.filterwarnings("ignore:Grad strides do not match")
def test_a_process_lost_at_the_begin_is_replaced(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT", "birth")
    events = []
    for event in bench.events(bench.plan(processes=2, reduction="fast", max_steps=2), "lost"):
        events.append(event)
        if isinstance(event, Trouble):
            monkeypatch.undo()
    assert [event.kind for event in events if isinstance(event, Trouble)] == ["lost process"]
    assert isinstance(events[-1], Finished)


def test_all_processes_stop_after_the_same_step(bench: Bench) -> None:
    steps = [0]
    for event in bench.events(bench.plan(processes=2), "stopped", stop=lambda: steps[-1] == 9):
        steps.append(getattr(event, "step", 0))
    assert event == Stopped(10)
    end, _ = bench.run("stopped")
    assert_same(end, bench.run("undisturbed")[0])


@pytest.mark.parametrize(("own", "threads"), [(8, "auto"), (3, 2)])
def test_threads_of_a_piece_stay_in_any_process(
    own: int, threads: int | str, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt has as many threads as the four pieces need, the second one fewer, in two processes."""
    monkeypatch.setenv("FAULT", "threads")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(own)
        calls = iter(range(100))
        *_, stopped = bench.events(bench.plan(threads=threads), "resumed", stop=lambda: next(calls) == 9)
        assert stopped == Stopped(9)
        torch.set_num_threads(1)
        bench.run("resumed", processes=2, threads=threads)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_all_processes_halve_a_batch_without_memory(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    halved, _ = bench.run("halved", accumulation=2)
    monkeypatch.setenv("FAULT", "memory")
    for processes in (1, 2):
        end, events = bench.run(f"{processes} processes", processes=processes)
        [trouble] = [event for event in events if isinstance(event, Trouble)]
        assert trouble.kind == "out of memory"
        assert_same(end, halved)


def test_processes_share_validation_also_without_memory(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT", "validation")
    monkeypatch.setenv("SEEN", str(bench.root / "seen"))
    end, _ = bench.run("single")
    assert_same(bench.run("several", processes=2)[0], end)
    rows = len(open_split(bench.packed, "validation", bench.spec.input))
    share = sum(min(64, rows - start) for start in range(64, rows, 128))  # every other batch
    seen = (bench.root / "seen").read_text().split()
    assert sum(map(int, seen)) == share * len(end.history) > 0


def test_processes_that_are_lost_again_and_again_end_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT", "death")
    monkeypatch.setattr("ratchet.training.processes._MOST_LOSSES", 1)  # each attempt takes seconds
    with pytest.raises(TrainingError, match=r"a process of the training was lost .*2 times.* fewer training.processes"):
        list(bench.events(bench.plan(processes=2), "lost"))


def test_a_hung_process_is_named_and_replaced(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Event] = []
    for event in bench.events(bench.plan(processes=2), "hung"):
        events.append(event)
        if isinstance(event, Trouble):
            monkeypatch.undo()
        elif getattr(event, "step", 0) == 12 and not any(isinstance(each, Trouble) for each in events):
            os.kill(*others(), signal.SIGSTOP)
            monkeypatch.setattr(Ranks, "LONGEST_WAIT", 1.0)
    [trouble] = [event for event in events if isinstance(event, Trouble)]
    assert "process 2 of 2 has not answered for 1 s" in trouble.text
    assert_same(events[-1], bench.run("undisturbed")[0])


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("weights", r"^model.factory: .*no such weights"),
        ("sample", r"^splitnet\.py, line \d+, raised ValueError: .* is odd\. Fix"),
    ],
)
def test_error_of_another_process_ends_the_training(fault: str, text: str, bench: Bench, monkeypatch) -> None:
    monkeypatch.setenv("FAULT", fault)
    events = bench.events(bench.plan(processes=2), "refused")
    with pytest.raises(TrainingError, match=text):
        assert not [event for event in events if isinstance(event, Trouble)]


@pytest.fixture
def two_nodes(bench: Bench) -> Iterator[tuple[Plan, int]]:
    """A plan of two nodes, and the number of the other one's launcher."""
    plan = bench.plan(nodes=2, rendezvous=f"127.0.0.1:{reserved_port('127.0.0.1')}")
    content = pickle.dumps((bench, plan)).hex()
    code = f"import test_processes; test_processes.join_node(bytes.fromhex({content!r}))"
    paths = {"PYTHONPATH": os.pathsep.join((str(Path(__file__).parent), *sys.path))}
    with subprocess.Popen([sys.executable, "-c", code], env=os.environ | paths) as other:
        yield plan, other.pid
        assert other.wait() == 0


def join_node(content: bytes) -> None:
    bench, plan = pickle.loads(content)

    def prepare(state: dict[str, Any]) -> tuple[TrainingInputs, Path, Path]:
        assert state["facts"] == {"key": "digits"}
        return bench.inputs(plan), bench.packed, bench.root / "nodes"

    join_training(plan.rendezvous, prepare=prepare, say=print)


def test_a_hung_process_is_named_with_its_node(two_nodes: Plan, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    (plan, launcher), (undisturbed, _) = two_nodes, bench.run("undisturbed")
    events: list[Event] = []
    for event in bench.events(plan, "nodes", facts={"key": "digits"}):
        events.append(event)
        if isinstance(event, Trouble):
            monkeypatch.undo()
        elif getattr(event, "step", 0) == 12 and not any(isinstance(each, Trouble) for each in events):
            os.kill(*others(of=launcher), signal.SIGSTOP)
            monkeypatch.setattr(Ranks, "LONGEST_WAIT", 1.0)
    [trouble] = [event for event in events if isinstance(event, Trouble)]
    assert f"process 2 (node {socket.gethostname()}) of 2 has not answered for 1 s" in trouble.text
    assert_same(events[-1], undisturbed)


def test_nodes_that_do_not_come_end_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ratchet.training.nodes._GATHER", 0.0)
    address = f"127.0.0.1:{reserved_port('127.0.0.1')}"
    with pytest.raises(TrainingError, match=f"1 of at least 2 nodes came .*Fix: run `ratchet join {address}`"):
        list(bench.events(bench.plan(nodes="2:4", rendezvous=address), "alone", facts={}))
    with pytest.raises(TrainingError, match=f"no first node answers at {address} .*Fix: start it"):
        join_training(address, prepare=lambda state: (_ for _ in ()).throw(AssertionError), say=print)
    alone, _ = bench.run("alone", nodes="2:4", rendezvous=address)
    assert alone.step == 24


def test_a_fast_sum_of_any_number_of_nodes_is_refused(bench: Bench) -> None:
    plan = bench.plan(reduction="fast", nodes="1:2", rendezvous="127.0.0.1:1")
    with pytest.raises(TrainingError, match=r"training.nodes: found 1:2, .*`ratchet set training.nodes=2"):
        list(bench.events(plan, "refused", facts={}))


def test_processes_that_cannot_share_the_pieces_are_refused(bench: Bench) -> None:
    with pytest.raises(TrainingError, match=r"training.processes: found 2.*1 of training.pieces.*training.pieces=2"):
        list(bench.events(bench.plan(processes=2, pieces=1), "refused"))  # the fix is what a fast sum is tested with


def test_a_model_with_complex_numbers_is_refused(bench: Bench) -> None:
    (bench.root / "splitnet.py").write_text(NET.replace("torch.zeros(()))", "torch.zeros((), dtype=torch.complex64))"))
    with pytest.raises(TrainingError, match=r"training.pieces: .*complex.*training.pieces=1"):
        list(bench.events(bench.plan(), "complex"))


def others(of: int | None = None) -> list[int]:
    """Return the numbers of the processes that this one, or another one, has started to train."""
    command = ["pgrep", "--parent", str(of or os.getpid()), "--full", "ratchet.training.rank_processes"]
    return list(map(int, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()))


def all_ended(numbers: list[int]) -> bool:
    return not any(Path(f"/proc/{number}/cwd").exists() for number in numbers)
