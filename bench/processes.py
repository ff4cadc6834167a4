"""Training in two processes beside a plain DistributedDataParallel script, and the bits after random kills.

    python -m bench.processes [--rounds 5] [--kills 20]

Both train the same ConvNet on the same made images in two processes on CPU cores, connected by gloo, with one thread
each: "loop" is `ratchet.training.fit_in_processes` with two pieces, "ddp" the usual script. The order changes from
round to round. Wall and CPU seconds are those of the steps after the first ten, the latter of both processes. Claims:
the medians of the ratios loop / ddp are at most 1.05 (CPU) and 1.15 (wall).

Kills: a training of random pieces, processes, optimizer and accumulation gets SIGKILL after a random step, continues
in another number of processes, and must end with the bits of an undisturbed run in one. The process that is killed is
the first, or another one, after whose loss all continue in the same number.

Memory: a decoder with 38 million parameters in 1, 2 and 4 processes with `training.shard: fsdp`. The peak of a process
less what it had before the model; the largest of all processes. Claims: at most .6 at 2 and .35 at 4 of one process.
"""

import contextlib
import importlib
import json
import os
import pickle
import random
import resource
import signal
import string
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import psutil
import torch
from torch import distributed, nn
from torch.nn import functional

from bench.project import ROOT, pack, scratch
from bench.report import Row, alone, options, ratio, spread
from ratchet.data.manifest import Manifest
from ratchet.kinds import ModelSpec
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
)
from ratchet.training.checkpoint import OthersCheckpoints
from ratchet.training.models.decoder import Decoder
from ratchet.training.ranks import Ranks
from ratchet.training.streams import StreamSplit
from tasks.training_job import make_plan

__all__ = ["measure"]

_BATCH, _WARM, _STEPS = 256, 10, 40
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
        different = sum(_differs(folder, number) for number in range(kills))
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


def _inputs(packed: Path, plan: Plan) -> TrainingInputs:
    manifest = Manifest.read(packed)
    train, validation = (open_split(packed, name) for name in ("train", "validation"))
    return TrainingInputs(train, validation, ModelSpec("convnet", manifest.input, manifest.target), plan)


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
        ranks.join(str(folder / "meeting"), torch.device("cpu"))
    for name in ("torch.distributed.fsdp", "torch._dynamo"):  # code that only several processes load
        importlib.import_module(name)
    before = psutil.Process().memory_info().rss
    inputs = TrainingInputs(*splits, ModelSpec("decoder", described, target), plan)
    *_, end = fit(inputs, store=(OthersCheckpoints if rank else CheckpointStore)(folder / "checkpoints"), ranks=ranks)
    assert isinstance(end, Finished)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    return peak, peak - before / 2**20


def _differs(folder: Path, number: int) -> bool:
    """Whether a killed training ends with other bits than an undisturbed one."""
    chance = random.SystemRandom()
    pieces = chance.choice((2, 4))
    plan = _plan(
        folder / "packed", pieces=pieces, max_steps=8, epochs=1, accumulation=chance.choice((1, 2)),
        optimizer=chance.choice(("adamw", "sgd", "adam")), ema_decay=chance.choice((0.0, 0.9)),
        shard=chance.choice(("none", "fsdp")),
    )  # fmt: skip
    plan = replace(plan, checkpoint_steps=2, batch_size=chance.choice((33, 64)))
    if plan.shard == "none" and chance.random() < 1 / 3:
        plan = replace(plan, optimizer="muon")
    sizes = chance.sample((1, 2, 4)[: pieces.bit_length()], 2)
    killed, expected = folder / f"killed-{number}", folder / f"undisturbed-{number}"
    kills_other = sizes[0] > 1 and chance.random() < 1 / 2
    content = json.dumps([str(folder / "packed"), str(killed), chance.randrange(1, 8), kills_other])
    code = "import sys, pickle, bench.processes as b; b._train_and_die(pickle.load(sys.stdin.buffer), sys.argv[1])"
    sent = pickle.dumps(replace(plan, processes=sizes[0]))
    ended = subprocess.run([sys.executable, "-c", code, content], input=sent, env=_environment(), check=False)
    assert ended.returncode == (0 if kills_other else -signal.SIGKILL)
    digests = [
        _digest(folder / "packed", replace(plan, processes=size), at)
        for size, at in ((sizes[1], killed), (1, expected))
    ]
    print(
        f"kill {number + 1}: {sizes} processes, {pieces} pieces, {plan.optimizer}, {plan.shard}, "
        f"{'another process' if kills_other else 'the first'}: {len(set(digests)) == 1}",
        flush=True,
    )
    return len(set(digests)) > 1


def _train_and_die(plan: Plan, content: str) -> None:
    packed, folder, step, kills_other = json.loads(content)
    for event in fit_in_processes(
        _inputs(Path(packed), plan), packed=Path(packed), store=CheckpointStore(Path(folder))
    ):
        if isinstance(event, Points) and event.step == step:
            if not kills_other:
                os.kill(os.getpid(), signal.SIGKILL)
            for process in psutil.Process().children()[:1] if kills_other else ():
                process.kill()
                kills_other = False


def _digest(packed: Path, plan: Plan, folder: Path) -> str:
    *_, end = fit_in_processes(_inputs(packed, plan), packed=packed, store=CheckpointStore(folder))
    assert isinstance(end, Finished)
    digest = sha256(repr(end.history).encode())
    for name in sorted(end.weights):
        digest.update(end.weights[name].contiguous().numpy().tobytes())
    return digest.hexdigest()


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
