"""Training in two processes beside a plain DistributedDataParallel script, and the bits after random kills.

    python -m bench.processes [--rounds 5] [--kills 20]

Both train the same ConvNet on the same made images in two processes on CPU cores, connected by gloo, with one thread
each: "loop" is `ratchet.training.fit_in_processes` with two pieces, "ddp" the usual script. The order changes from
round to round. Wall and CPU seconds are those of the steps after the first ten, the latter of both processes. Claims:
the medians of the ratios loop / ddp are at most 1.05 (CPU) and 1.15 (wall).

Kills: a training of random pieces, optimizer, accumulation, shards and widths gets ten SIGKILLs after random steps,
continues each time in a random number of processes, and must end with the bits of an undisturbed run in one. Killed is
the first process, or another one, after whose loss all continue in the same number. All are copies of a process that
has imported everything.

Memory: a decoder with 38 million parameters in 1, 2 and 4 processes with `training.shard: fsdp`. The peak of a process
less what it had before the model; the largest of all processes. Claims: at most .6 at 2 and .35 at 4 of one process.
"""

import contextlib
import importlib
import json
import os
import random
import resource
import signal
import string
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, ClassVar

import numpy as np
import psutil
import torch
from torch import distributed, nn
from torch.nn import functional

from bench.project import ROOT, pack, scratch
from bench.report import Row, alone, options, ratio, spread
from ratchet.data.manifest import Manifest
from ratchet.kinds import ModelSpec
from ratchet.parent_process import end_with_parent
from ratchet.problems import NextToken
from ratchet.settings.model import TrainingSettings
from ratchet.tokens.token_ids import encode, tokens
from ratchet.tokens.token_ids import fit as fit_tokenizer
from ratchet.training import (
    CheckpointStore,
    Finished,
    Plan,
    Points,
    TrainingInputs,
    build,
    fit,
    fit_in_processes,
    open_split,
    rank_processes,
)
from ratchet.training.checkpoint import OthersCheckpoints
from ratchet.training.models.decoder import Decoder
from ratchet.training.ranks import Meeting, Ranks
from ratchet.training.streams import StreamSplit
from tasks.training_job import make_plan

__all__ = ["measure"]

_BATCH, _WARM, _STEPS = 256, 10, 40
_CHAIN = 10  # kills of a training
_CLAIMS = {"cpu": 1.05, "wall": 1.15}
_DECODER = {"layers": 12, "heads": 8, "width": 512}
_MEMORY = {2: 0.6, 4: 0.35}  # of one process


def measure(rounds: int, *, kills: int, quick: bool) -> list[Row]:
    """Return the table's rows: seconds of both, their ratios, and the kills."""
    rounds, steps, kills = (1, 3, 1) if quick else (rounds, _STEPS, kills)
    seconds: dict[str, list[dict[str, float]]] = {"loop": [], "ddp": []}
    with scratch() as folder:
        pack(folder / "packed", rows=(_WARM + steps) * _BATCH)
        for number in range(rounds):
            for name in sorted(seconds, reverse=bool(number % 2)):
                seconds[name].append(_run(name, folder / "packed", steps))
            print(f"round {number + 1}: " + ", ".join(f"{name} {taken[-1]}" for name, taken in seconds.items()))
        pack(folder / "few" / "packed", rows=640, held_out=100)
        chains = [min(_CHAIN, kills - done) for done in range(0, kills, _CHAIN)]
        different = sum(_differs(folder / "few", number, length) for number, length in enumerate(chains))
    condition = f"ConvNet, batch {_BATCH}, 2 processes, {steps} steps, median of {rounds} rounds"
    rows = []
    for kind, claim in _CLAIMS.items():
        values = {name: [taken[kind] for taken in each] for name, each in seconds.items()}
        rows += [Row(f"{kind} seconds: {name}", condition, spread(each, form=".2f")) for name, each in values.items()]
        figure = ratio(values["loop"], values["ddp"])
        rows.append(Row(f"loop / ddp, {kind}", condition, f"{figure:.3f}", f"<= {claim}", figure <= claim))
    rows += _memory_rows()
    return [*rows, Row("other bits after a kill", f"{kills} SIGKILLs", f"{different}", "0", different == 0)]


def _run(name: str, packed: Path, steps: int) -> dict[str, float]:
    """Return wall and CPU seconds of the steps of one contender, in a process of its own."""
    command = [sys.executable, "-m", "bench.processes", name, str(packed), str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, env=_environment(), check=False)
    if done.returncode:
        raise RuntimeError(f"{name} ended with {done.returncode}:\n{done.stderr}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _environment() -> dict[str, str]:
    paths = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def _plan(packed: Path, **changes: object) -> Plan:
    target = Manifest.read(packed).target
    plan = make_plan(TrainingSettings(), target, seed=0)
    return replace(plan, batch_size=_BATCH, precision="fp32", device="cpu", checkpoint_steps=0, log_every=1, **changes)


def _inputs(packed: Path, plan: Plan, *, is_odd: bool = False) -> TrainingInputs:
    manifest = Manifest.read(packed)
    train, validation = (open_split(packed, name) for name in ("train", "validation"))
    own = {"factory": "bench.processes:OddNet", "code": "bench/processes.py", "root": str(ROOT)} if is_odd else {}
    return TrainingInputs(train, validation, ModelSpec("convnet", manifest.input, manifest.target, **own), plan)


class OddNet(nn.Module):
    """A network whose widths no number of processes divides, where kernels round the last elements otherwise."""

    def __init__(self, *, classes: int, channels: int, height: int, width: int) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(channels, 7, 3), nn.BatchNorm2d(7), nn.ReLU(), nn.MaxPool2d(4))
        features = 7 * ((height - 2) // 4) * ((width - 2) // 4)
        self.blocks = nn.ModuleList([nn.Linear(features, 131), nn.Linear(131, 37)])
        self.head = nn.Sequential(nn.Dropout(0.3), nn.Linear(37, classes))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = self.features(images).flatten(1)
        for block in self.blocks:
            hidden = torch.relu(block(hidden))
        return self.head(hidden)


def _clocks() -> tuple[float, float]:
    """Return wall seconds, and CPU seconds of this process and those that it started."""
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return time.monotonic(), sum(sum(member.cpu_times()[:2]) for member in family)


def _loop(packed: Path, steps: int) -> tuple[float, float]:
    plan = _plan(packed, pieces=2, processes=2, max_steps=_WARM + steps, epochs=1, crop_padding=0)
    with tempfile.TemporaryDirectory() as folder:
        began = ended = (0.0, 0.0)
        for event in fit_in_processes(_inputs(packed, plan), packed=packed, store=CheckpointStore(Path(folder))):
            if isinstance(event, Points) and event.step == _WARM:
                began = _clocks()
            elif isinstance(event, Points) and event.step == _WARM + steps:
                ended = _clocks()
    return ended[0] - began[0], ended[1] - began[1]


def _ddp(packed: Path, steps: int, rank: int, meeting: str) -> tuple[float, float]:
    """Train as a tutorial does: each process has half of the batch, clips the norm and looks at the loss."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group(
        "gloo",
        store=distributed.FileStore(meeting, 2),
        rank=rank,
        world_size=2,  # type: ignore[attr-defined]
    )
    plan = _plan(packed)
    inputs = _inputs(packed, plan)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(build(inputs.spec))
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.learning_rate, weight_decay=plan.weight_decay, fused=True)
    order, began = np.random.default_rng(0).permutation(len(inputs.train)), (0.0, 0.0)
    for step in range(_WARM + steps):
        if step == _WARM:
            distributed.barrier()
            began = _clocks()
        rows = np.array_split(order[step * _BATCH : (step + 1) * _BATCH], 2)[rank]
        samples, targets = inputs.train.batch(rows, torch.device("cpu"))
        loss = functional.cross_entropy(model(*samples), targets, label_smoothing=0.1)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()
    distributed.barrier()
    ended = _clocks()
    distributed.barrier()  # the other process lives while its time is read
    return ended[0] - began[0], ended[1] - began[1]


def _memory_rows() -> list[Row]:
    peaks = {count: _peak(count) for count in (1, *_MEMORY)}
    condition = "decoder of 12 blocks, width 512, AdamW, peak of a process"
    rows = [
        Row(f"MiB: {count} processes", condition, f"{peak:.0f}, {needed:.0f} of them for the training")
        for count, (peak, needed) in peaks.items()
    ]
    for count, claim in _MEMORY.items():
        share = peaks[count][1] / peaks[1][1]
        rows.append(Row(f"memory, {count} / 1 processes", condition, f"{share:.2f}", f"<= {claim}", share <= claim))
    return rows


def _peak(count: int) -> tuple[float, float]:
    """Return the largest peak of the processes of a sharded training, and without what was there before, MiB."""
    with tempfile.TemporaryDirectory() as folder:
        commands = (
            [sys.executable, "-m", "bench.processes", "peak", str(rank), str(count), folder] for rank in range(count)
        )
        ranks = [
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=_environment()) for command in commands
        ]
        outputs = [rank.communicate()[0] for rank in ranks]
    peaks, needed = zip(*(map(float, output.splitlines()[-1].split()) for output in outputs), strict=True)
    return max(peaks), max(needed)


def _peak_of_rank(rank: int, count: int, folder: Path) -> tuple[float, float]:
    """Train a sharded decoder as one of the ranks; return its peak, and that less what it had before the model, MiB."""
    Decoder.__init__.__kwdefaults__.update(_DECODER)
    described = fit_tokenizer(string.printable * 30, "characters", context=64)
    ids, target = encode(string.printable * 30, described), NextToken(tokens(described))
    splits = (StreamSplit.of(name, ids, 64) for name in ("train", "validation"))
    plan = make_plan(TrainingSettings(), target, seed=0, kind="tokens")
    plan = replace(
        plan, shard="fsdp", pieces=4, batch_size=4, max_steps=3, precision="fp32", device="cpu", checkpoint_steps=0
    )
    torch.set_num_threads(1)
    ranks = Ranks(rank, count)
    if count > 1:
        ranks.join(Meeting(str(folder / "meeting")), torch.device("cpu"))
    _load_shards()
    before = psutil.Process().memory_info().rss
    inputs = TrainingInputs(*splits, ModelSpec("decoder", described, target), plan)
    *_, end = fit(inputs, store=(OthersCheckpoints if rank else CheckpointStore)(folder / "checkpoints"), ranks=ranks)
    assert isinstance(end, Finished)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    return peak, peak - before / 2**20


def _load_shards() -> None:
    """Import what only several processes import."""
    for name in ("torch.distributed.fsdp", "torch._dynamo"):
        importlib.import_module(name)


def _differs(folder: Path, number: int, kills: int) -> bool:
    """Whether a training that is killed so many times ends with other bits than an undisturbed one."""
    _load_shards()
    chance = random.SystemRandom()
    pieces, is_odd = chance.choice((2, 4)), chance.random() < 1 / 2
    plan = _plan(
        folder / "packed", pieces=pieces, epochs=9, accumulation=chance.choice((1, 2)), keep_last=2,
        optimizer=chance.choice(("adamw", "sgd", "adam")), ema_decay=chance.choice((0.0, 0.9)),
        shard=chance.choice(("none", "fsdp")),
    )  # fmt: skip
    plan = replace(plan, checkpoint_steps=2, batch_size=chance.choice((33, 64)), max_steps=4 * kills + 8)
    if plan.shard == "none" and chance.random() < 1 / 4:
        plan = replace(plan, optimizer="muon")
    killed, expected = folder / f"killed-{number}", folder / f"undisturbed-{number}"
    sizes = []
    while kills:
        sizes.append(chance.choice((1, 2, 4)[: pieces.bit_length()]))
        others = chance.randrange(min(3, kills)) if sizes[-1] > 1 else 0  # after four losses it would end
        at = sorted(chance.sample(range(1, 3 * others + 4), others + 1))
        train = folder / "packed", replace(plan, processes=sizes[-1]), killed, at, is_odd
        pid = _fork(_train_and_die, *train, spares=(sizes[-1] - 1) * (others + 1))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code == -signal.SIGKILL, code
        kills -= others + 1
    digests = []
    for size, at in ((chance.choice((1, 2)), killed), (1, expected)):
        result = folder / "digest"
        train = folder / "packed", replace(plan, processes=size), at, result, is_odd
        os.waitpid(_fork(_digest, *train, spares=size - 1), 0)
        digests.append(result.read_text())
        result.unlink()
    form = f"{plan.optimizer}, {plan.shard}, {'odd' if is_odd else 'usual'} widths, batches of {plan.batch_size}"
    print(f"{number + 1}: {sizes} processes, {pieces} pieces, {form}: {digests[0] == digests[1]}", flush=True)
    return digests[0] != digests[1]


def _fork(function: Callable[..., object], *arguments: object, spares: int = 0) -> int:
    """Call the function in a copy of this process, without the seconds that imports take. Return its number."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        _Spare.waiting = [_Spare() for _ in range(spares)]
        rank_processes.subprocess.Popen = _take_spare  # type: ignore[misc, assignment]
        function(*arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _take_spare(command: list[str], *, stdin: int, stdout: int, stderr: BinaryIO) -> "_Spare":
    """Run the code of `[python, "-c", code]` in a copy of this process, in place of a new one."""
    spare = _Spare.waiting.pop()
    spare.stdin.write(json.dumps([command[2], stderr.name]).encode() + b"\n")
    spare.stdin.flush()
    return spare


class _Spare:
    """A copy of a process from before it trained, because PyTorch cannot be forked afterwards."""

    waiting: "ClassVar[list[_Spare]]"

    def __init__(self) -> None:
        (own, to), (of, given) = os.pipe(), os.pipe()
        self.returncode: int | None = None
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                end_with_parent(parent)
                os.dup2(own, 0)
                os.dup2(given, 1)
                os.closerange(3, 256)  # a pipe that stays open would hide the end of its owner
                sys.stdin = open(0, closefd=False)  # noqa: SIM115
                code, log = json.loads(sys.stdin.buffer.readline())
                os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT), 2)
                exec(code, {})
                os._exit(0)
            except SystemExit as ended:
                print(ended.code, file=sys.stderr, flush=True)
            finally:
                os._exit(1)
        os.close(own)
        os.close(given)
        self.stdin, self.stdout = os.fdopen(to, "wb"), os.fdopen(of, "rb")

    def poll(self) -> int | None:
        if self.returncode is None and (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.returncode = os.waitstatus_to_exitcode(ended[1])
        return self.returncode

    def wait(self, timeout: float = float("inf")) -> int:
        began = time.monotonic()
        while (code := self.poll()) is None:
            if time.monotonic() - began > timeout:
                raise subprocess.TimeoutExpired("", timeout)
            time.sleep(0.01)
        return code

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def _train_and_die(packed: Path, plan: Plan, folder: Path, at: list[int], is_odd: bool) -> None:
    """Kill another process at all numbers of `at` but the last: there this one. They count the steps made here."""
    made, inputs = 0, _inputs(packed, plan, is_odd=is_odd)
    for event in fit_in_processes(inputs, packed=packed, store=CheckpointStore(folder)):
        if not isinstance(event, Points):
            continue
        made += 1
        if made == at[-1]:
            os.kill(os.getpid(), signal.SIGKILL)
        elif made in at:
            waiting = {spare.pid for spare in _Spare.waiting}
            others = [child for child in psutil.Process().children() if child.pid not in waiting]
            random.SystemRandom().choice(others).kill()
    os.kill(os.getpid(), signal.SIGKILL)  # it has ended before


def _digest(packed: Path, plan: Plan, folder: Path, result: Path, is_odd: bool) -> None:
    """Train to the end, and write the digest of history and weights."""
    *_, end = fit_in_processes(_inputs(packed, plan, is_odd=is_odd), packed=packed, store=CheckpointStore(folder))
    assert isinstance(end, Finished)
    digest = sha256(repr(end.history).encode())
    for name in sorted(end.weights):
        digest.update(end.weights[name].contiguous().numpy().tobytes())
    result.write_text(digest.hexdigest())


def _contend(name: str, packed: Path, steps: int) -> tuple[float, float]:
    if name == "loop":
        return _loop(packed, steps)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        command = [sys.executable, "-m", "bench.processes", "ddp-1", str(packed), str(steps), f"{folder}/meeting"]
        stack.enter_context(subprocess.Popen(command))
        return _ddp(packed, steps, 0, f"{folder}/meeting")


def main() -> None:
    """Measure and print; or be one of the contenders."""
    if sys.argv[1:2] == ["ddp-1"]:
        _ddp(Path(sys.argv[2]), int(sys.argv[3]), 1, sys.argv[4])
    elif sys.argv[1:2] == ["peak"]:
        print(*_peak_of_rank(int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])))
    elif sys.argv[1:2] in (["loop"], ["ddp"]):
        wall, cpu = _contend(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
        print(json.dumps({"wall": round(wall, 3), "cpu": round(cpu, 3)}))
    else:
        parser = options(__doc__)
        parser.add_argument("--kills", type=int, default=20, help="default: 20")
        alone(parser, lambda asked: measure(asked.rounds, kills=asked.kills, quick=asked.quick))


if __name__ == "__main__":
    main()
