"""Samples of an own kind that are not packed: the same bits from any number of workers, a message for each fault.

The truth is the class itself, called by hand after seeding by hand.
"""

import functools
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from waiting import let_run, until

from ratchet.data.ingest import IngestTask, ingest
from ratchet.data.manifest import Manifest
from ratchet.errors import RatchetError, TrainingError
from ratchet.kinds import ModelSpec
from ratchet.settings.model import DataSettings
from ratchet.training import (
    CheckpointStore,
    Finished,
    Split,
    Started,
    Stopped,
    TrainingInputs,
    build,
    custom_samples,
    fit_in_processes,
    open_split,
)
from ratchet.training.augment import sample_bits
from ratchet.training.custom_class import CustomClass
from ratchet.training.sample_timeout import Interrupted
from tasks.baseline import Baseline
from tasks.search_trial import constant_answer
from tasks.training_job import TrainingJob
from tests.training.conftest import make_plan

CPU = torch.device("cpu")
PLAN = make_plan(seed=5)
MODULE = """
import os
import random
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).parent


class Noise:
    packed = False

    def __init__(self, path):
        self.count = int(path.read_text())

    def __len__(self):
        return self.count

    def __getitem__(self, place):
        split = "train" if place < 30 else "validation" if place < 42 else "test"
        label = place % 3
        noise = (torch.rand(8, 8) * random.uniform(0.5, 1.0) + label * 0.3 + np.random.rand() * 0.1).numpy()
        with (HERE / "read.txt").open("a") as log:
            log.write(f"{place} {os.getpid()}\\n")
        return {"value": noise, "label": "abc"[label], "split": split, "id": f"clip {place}"}

    @staticmethod
    def arrays(value):
        return {"noise": value}
"""
MEAN = MODULE.replace("torch.rand(8, 8)", "torch.randn(300, 301)").replace(
    '"value": noise', '"value": (lambda t: t - t.mean())(torch.from_numpy(noise)).numpy()'
)
AUGMENTED = (
    MODULE
    + """
    @staticmethod
    def augment(arrays, seeds):
        shift = torch.tensor([np.random.default_rng(seed).normal() for seed in seeds], dtype=torch.float32)
        return {"noise": arrays["noise"] + shift[:, None, None]}
"""
)
HANG = "(HERE / 'hangs').touch() or (HERE / 'go').exists() or __import__('threading').Event().wait()"


def changed(line: str, place: int = 7) -> str:
    """Return the module with a line that is executed for one sample."""
    label = "        label = place % 3\n"
    return MODULE.replace(label, f"{label}        if place == {place}:\n            {line}\n")


class Home:
    """A project folder with own.py, and what ingest made of it."""

    def __init__(self, root: Path) -> None:
        self.root, self.packed = root, root / "data" / "packed"
        self.opened: list[Split] = []

    def ingest(self, source: str = MODULE, *, workers: int = 1, sample_timeout: float = 0.0) -> "Home":
        (self.root / "own.py").write_text(source)
        (self.root / "count.txt").write_text("54")
        own = {"kind": "own:Noise", "code": "own.py", "path": "count.txt", "workers": workers}
        defaults = {name: field.default for name, field in DataSettings.model_fields.items()}
        ingest(
            IngestTask(
                DataSettings(**{**defaults, **own}), packed=self.packed,
                quarantine=self.root / "data" / "quarantine.parquet", root=self.root, sample_timeout=sample_timeout,
            )
        )  # fmt: skip
        self.readings()
        return self

    def open(self, split: str = "train", *, workers: int = 0, sample_timeout: float = 0.0) -> Split:
        self.opened.append(open_split(self.packed, split, workers=workers, sample_timeout=sample_timeout))
        return self.opened[-1]

    def change(self, line: str, place: int = 7) -> None:
        """Let one sample execute a line, as if only the data had changed since ingest."""
        self.replace(changed(line, place))

    def replace(self, source: str) -> None:
        """Replace the code, and let the manifest have its digest."""
        (self.root / "own.py").write_text(source)
        path = self.packed / "manifest.json"
        manifest = json.loads(path.read_text())
        manifest["input"]["code_digest"] = CustomClass("own:Noise", self.root, "own.py").digest()
        path.write_text(json.dumps(manifest))

    def readings(self) -> list[tuple[int, int]]:
        """Return (place, process) of each read since the last call."""
        log = self.root / "read.txt"
        lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
        log.unlink(missing_ok=True)
        return [(int(place), int(process)) for place, process in lines]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    yield home
    for split in home.opened:
        split.close()


def pieces(size: int, rows: int = 30) -> list[np.ndarray]:
    order = np.random.default_rng(0).permutation(rows)
    return [order[start : start + size] for start in range(0, rows, size)]


def together(split: Split, size: int, **how: Any) -> torch.Tensor:
    """Return every training sample in one order, fed `size` at a time."""
    return torch.cat([noise for (noise,), _ in split.feed(pieces(size), CPU, **how)])


def test_every_sample_is_seeded_by_seed_epoch_and_place(home: Home) -> None:
    split = home.ingest().open()
    namespace: dict[str, Any] = {"__file__": str(home.root / "own.py")}
    exec(MODULE, namespace)
    samples = namespace["Noise"](home.root / "count.txt")
    places = np.load(home.packed / "train" / "places.npy")
    bits = sample_bits(places.astype(np.uint64), seed=5, epoch=3).tolist()
    (noise,), labels = split.batch(np.arange(30), CPU, plan=PLAN, epoch=3)
    for row, place in enumerate(places.tolist()):
        random.seed(bits[row])
        np.random.seed([bits[row] & 0xFFFFFFFF, bits[row] >> 32])
        torch.manual_seed(bits[row])
        sample = samples[place]
        assert np.array_equal(noise[row].numpy(), sample["value"])
        assert "abc"[labels[row]] == sample["label"]


def test_nothing_is_packed_and_statistics_are_those_of_the_samples(home: Home) -> None:
    split = home.ingest().open()
    manifest = Manifest.read(home.packed)
    values = together(split, 30).double()
    [array] = manifest.input.arrays
    assert (array.mean, array.std) == pytest.approx((float(values.mean()), float(values.std(unbiased=False))))
    assert manifest.splits["train"].arrays == {}
    assert split.gather(np.arange(3))[0].shape == split.only(np.arange(3)).batch(np.arange(3), CPU)[0][0].shape
    assert sum(path.stat().st_size for path in home.packed.rglob("*.npy")) < 5000


def test_changed_values_give_the_packed_set_another_digest(home: Home) -> None:
    """Although their code, places, ids and labels are the same."""
    home.ingest(MODULE + "\nFACTOR = float((HERE / 'factor').read_text()) if (HERE / 'factor').exists() else 1\n")
    scaled = (home.root / "own.py").read_text().replace('"value": noise', '"value": FACTOR * noise')
    first = Manifest.read(home.ingest(scaled).packed)
    (home.root / "factor").write_text("1.00001")
    second = Manifest.read(home.ingest(scaled + "# import it again\n").packed)
    assert second.input.code_digest == first.input.code_digest
    assert second.digest != first.digest


@pytest.mark.parametrize("source", [MEAN, AUGMENTED])
def test_samples_do_not_depend_on_workers_or_batch_size(home: Home, source: str) -> None:
    """All bits are equal."""
    torch.set_num_threads(2)  # put back by the room; a worker has one
    home.ingest(source)
    whole, *others = home.open(), (home.open(), 4), (home.open(workers=2), 7)
    for epoch in (0, 1):
        expected = together(whole, 30, plan=PLAN, epoch=epoch)
        for split, size in others:
            assert torch.equal(together(split, size, plan=PLAN, epoch=epoch), expected)


def test_reading_in_this_process_draws_nothing_from_its_random_states(home: Home) -> None:
    split = home.ingest().open()
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    together(split, 10)
    assert random.getstate() == before[0]
    assert np.random.get_state()[1].tolist() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])


def test_workers_read_what_is_asked_for_and_stay_until_closed(home: Home) -> None:
    """They are separate processes, the same in all epochs."""
    split = home.ingest().open(workers=2)
    places = np.load(home.packed / "train" / "places.npy")
    list(split.feed(pieces(4)[5:], CPU))
    assert {place for place, _ in home.readings()} == set(places[np.concatenate(pieces(4)[5:])].tolist())
    by_epoch = []
    for epoch in range(2):
        together(split, 3, plan=PLAN, epoch=epoch)
        by_epoch.append({process for _, process in home.readings()})
    assert by_epoch[0] == by_epoch[1]
    assert len(by_epoch[0] - {os.getpid()}) == 2
    split.close()
    assert not any(psutil.pid_exists(process) for process in by_epoch[0])


def test_a_feed_left_half_read_does_not_disturb_the_next(home: Home) -> None:
    split = home.ingest().open(workers=2)
    expected = together(split, 4, plan=PLAN, epoch=1)
    for taken in (1, 3):
        half = split.feed(pieces(4), CPU, plan=PLAN, epoch=0)
        for _ in range(taken):
            next(half)
        assert torch.equal(together(split, 4, plan=PLAN, epoch=1), expected)


FAULTS = [
    ('raise OSError("gone")', r"sample 00000007 of own:Noise cannot be used \(raised: OSError: gone \(line \d+ of own"),
    ('raise SystemExit("no licence")', r"sample 00000007 .* \(raised: SystemExit: no licence \(line"),
    ("return {'label': 'a'}", r"sample 00000007 .*not-arrays: __getitem__ returns a dict with label"),
    ("return {'value': [1.0], 'id': 'clip 7'}", r"sample clip 7 .*not-arrays: noise is a list, not a NumPy array"),
    ("return {'value': np.zeros((7, 8)), 'id': 'clip 7'}", r"clip 7 .*other-shape: .*7, 8\), where all .*8, 8"),
    ("return {'value': np.full((8, 8), np.nan), 'id': 'clip 7'}", r"clip 7 .*not-finite: 64 of the 64 values of noise"),
]  # fmt: skip
DEADLY = ("os._exit(3)", r"a worker process of training.workers ended .*the same command, which continues")


@pytest.mark.parametrize(
    ("line", "problem", "workers"), [*((*case, 0) for case in FAULTS), (*FAULTS[0], 2), (*DEADLY, 2)]
)
def test_a_sample_that_became_bad_ends_training(home: Home, line: str, problem: str, workers: int) -> None:
    """The error is one line that names the sample."""
    home.ingest().change(line)
    with pytest.raises(TrainingError, match=problem) as refusal:
        together(home.open(workers=workers), 4)
    assert "\n" not in str(refusal.value)


def test_data_or_code_changed_since_ingest_is_refused(home: Home) -> None:
    """Nothing is read before."""
    home.ingest()
    (home.root / "own.py").write_text(MODULE + "another = 1\n")
    with pytest.raises(TrainingError, match=r"data.code: own.py changed since the data were ingested"):
        home.open()
    home.replace(MODULE)
    (home.root / "count.txt").write_text("55")
    with pytest.raises(TrainingError, match=r"own:Noise finds 55 samples in .*count.txt, but found 54 at ingest"):
        together(home.open(), 4)
    (home.root / "count.txt").unlink()
    with pytest.raises(TrainingError, match=r"data.path: .*count.txt does not exist"):
        together(home.open(), 4)
    (home.packed / "train" / "places.npy").unlink()
    with pytest.raises(TrainingError, match="split train cannot be read"):
        home.open()
    assert home.readings() == []


FILES = MODULE.replace(
    "        with (HERE", "        noise = np.load(sorted((HERE / 'clips').glob('*.npy'))[place])\n        with (HERE"
)


@pytest.mark.parametrize(("plan", "workers"), [(None, 0), (PLAN, 2)])
def test_samples_that_moved_to_other_places_are_refused(home: Home, plan: Any, workers: int) -> None:
    """One file is gone and another came, so each sample has its neighbour's place. A wrong label would be learned."""
    (home.root / "clips").mkdir()
    for number in range(54):
        np.save(home.root / "clips" / f"{number:03}.npy", np.random.default_rng(number).random((8, 8), np.float32))
    home.ingest(FILES)
    together(home.open(workers=workers), 4, plan=plan)
    (home.root / "clips" / "000.npy").rename(home.root / "clips" / "900.npy")
    moved = (
        r"sample clip \d+ of own:Noise has other arrays than the sample that ingest found.*`dvc repro --force ingest`"
    )
    with pytest.raises(TrainingError, match=moved):
        together(home.open(workers=workers), 4, plan=plan)


def test_a_worker_that_cannot_open_the_data_says_why(home: Home) -> None:
    home.ingest()
    alone = f'        if os.getpid() != {os.getpid()}:\n            raise OSError("locked by another process")\n'
    home.replace(MODULE.replace("        self.count =", f"{alone}        self.count ="))
    with pytest.raises(TrainingError, match=r"^data.kind: own:Noise cannot open .*count.txt: OSError: locked by"):
        together(home.open(workers=1), 4)


def test_a_worker_that_dies_in_ingest_names_its_setting(home: Home) -> None:
    with pytest.raises(TrainingError, match=r"of data.workers ended .* lower data.workers, or set it to 1 to debug"):
        home.ingest(changed(f"os.getpid() == {os.getpid()} or os._exit(3)"), workers=2)


UNSTEADY = {
    "a generator of its own": ("noise = noise + RNG.random()", "RNG = np.random.default_rng(0)\n"),
    "its data changed": ("STORE[place] += 1; noise = noise + STORE[place]", "STORE = np.zeros(100, np.float32)\n"),
}


@pytest.mark.parametrize("case", UNSTEADY)
def test_samples_that_differ_when_read_again_stop_ingest(home: Home, case: str) -> None:
    """A resumed run would see other samples than an uninterrupted one."""
    line, more = UNSTEADY[case]
    source = MODULE.replace("        with (HERE", f"        {line}\n        with (HERE") + more
    with pytest.raises(RatchetError, match=r"sample clip \d+ of own:Noise differs when it is read again\. Fix"):
        home.ingest(source)
    assert not home.packed.exists()


def fitted(
    home: Home, name: str, *, workers: int = 0, processes: int = 1, pieces: int | None = None, **how: Any
) -> Any:
    """Return the events of a training of two epochs, with checkpoints in folder `name`."""
    manifest = Manifest.read(home.packed)
    train, validation = (home.open(split, workers=workers) for split in ("train", "validation"))
    store = CheckpointStore(home.root / name, keep_last=2, keep_best=1)
    shared = {"processes": processes, "pieces": pieces or processes, "workers": workers}
    plan = make_plan(epochs=2, batch_size=8, precision="fp32", device="cpu", checkpoint_steps=3, **shared)
    inputs = TrainingInputs(train, validation, ModelSpec("mlp", manifest.input, manifest.target), plan)
    return fit_in_processes(inputs, packed=home.packed, store=store, **how)


def test_an_error_in_augment_names_its_line(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home.root)
    home.ingest(AUGMENTED.replace('arrays["noise"] +', 'arrays["noises"] +'))
    line = AUGMENTED[: AUGMENTED.index('{"noise": arrays["noise"] +')].count("\n") + 1
    with pytest.raises(TrainingError, match=rf"own.py, line {line}, raised KeyError: 'noises'\. Fix: correct it$"):
        list(fitted(home, "wrong"))


def assert_same(first: Any, other: Any) -> None:
    assert isinstance(first, Finished)
    assert isinstance(other, Finished)
    assert first.history == other.history
    assert all(torch.equal(first.weights[name], other.weights[name]) for name in first.weights | other.weights)


def test_resumed_run_equals_uninterrupted_run_with_other_workers(home: Home) -> None:
    home.ingest(AUGMENTED)
    whole = list(fitted(home, "whole"))[-1]
    requested = iter(range(100))
    stopped = list(fitted(home, "halved", workers=2, stop=lambda: next(requested) == 2))[-1]
    assert isinstance(stopped, Stopped)
    home.readings()
    assert_same(list(fitted(home, "halved", workers=1))[-1], whole)
    train = [place for place, _ in home.readings() if place < 30]
    # Compared with ingest all 30, then of the epoch in which it was stopped only the samples after it.
    assert len(train) == 30 + 30 + 30 - 2 * 8


def test_a_packed_set_behind_a_link_finds_its_project(home: Home, tmp_path: Path) -> None:
    """The links of `ratchet verify-resume`, and of a user whose data folder is on another disk."""
    (tmp_path / "disk" / "deep" / "data").mkdir(parents=True)
    (home.root / "data").symlink_to(tmp_path / "disk" / "deep" / "data")
    link = tmp_path / "state" / "verify" / "killed" / "packed"
    link.parent.mkdir(parents=True)
    link.symlink_to(home.ingest().packed)
    for packed in (home.packed, link):
        assert open_split(packed, "train").input_spec.root == str(home.root)
        together(open_split(packed, "train"), 30)


def test_workers_read_the_samples_of_a_trial(home: Home) -> None:
    manifest = Manifest.read(home.ingest().packed)
    spec = ModelSpec("mlp", manifest.input, manifest.target)
    job = TrainingJob(make_plan(workers=2), spec, None, None, "network", {}, {})
    constant_answer(job, home.packed, build(spec).state_dict())
    assert os.getpid() not in {process for _, process in home.readings()}


def fitted_baseline(home: Home) -> Baseline:
    manifest, plan = Manifest.read(home.packed), make_plan(seed=0)
    spec = ModelSpec("mlp", manifest.input, manifest.target)
    return Baseline.fit(TrainingJob(plan, spec, None, None, "network", {}, {}), home.open(workers=2))


def test_workers_read_a_part_of_many_samples_for_the_baseline(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.ingest()
    monkeypatch.setattr("tasks.baseline._MOST_UNPACKED_BYTES", 12 * 8 * 8 * 4)
    assert fitted_baseline(home).name == "HistGradientBoosting of 12 training samples"
    readings = home.readings()
    assert len(readings) == 12
    assert os.getpid() not in {process for _, process in readings}


def test_no_sample_is_read_for_a_constant_baseline(home: Home) -> None:
    """Trees would have too many values."""
    assert fitted_baseline(home.ingest(MODULE.replace("rand(8, 8)", "rand(40, 40)"))).name == "majority class"
    assert home.readings() == []


READ = """
import sys
from pathlib import Path
import numpy as np, torch
from ratchet.training import open_split, sample_timeout
from ratchet.training.sample_timeout import Interrupted
from tasks.stopping import on_request

if __name__ == "__main__":
    sample_timeout._LAST = 0.5
    packed, workers, limit, epochs = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    split = open_split(packed, "train", workers=workers, sample_timeout=limit)
    with on_request() as stop:
        split.interrupt_on(stop)
        try:
            for epoch in range(epochs):
                for noise, labels in split.feed(np.split(np.arange(30), 3), torch.device("cpu"), epoch=epoch):
                    print(len(labels), flush=True)
        except Interrupted:
            sys.exit("left in good order")
"""


def read_alone(home: Home, *, workers: int = 0, limit: float = 0.0, epochs: int = 1) -> "subprocess.Popen[str]":
    """Start a process that reads the training samples and prints the size of each batch."""
    (home.root / "reading.py").write_text(READ)
    command = [sys.executable, "reading.py", str(home.packed), str(workers), str(limit), str(epochs)]
    return subprocess.Popen(
        command, cwd=home.root, env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


@pytest.mark.system
def test_no_worker_outlives_a_killed_parent(home: Home) -> None:
    parent = read_alone(home.ingest(), workers=2, epochs=1_000_000)
    assert parent.stdout is not None
    for _ in range(6):
        assert parent.stdout.readline() == "10\n"
    below = psutil.Process(parent.pid).children(recursive=True)
    assert {process for _, process in home.readings()} <= {process.pid for process in below}
    parent.kill()
    parent.communicate()  # until the last process that could write to its pipes has ended
    assert not psutil.wait_procs(below)[1]


def test_workers_survive_a_signal_to_the_process_group(home: Home) -> None:
    """Only their parent ends them."""
    split = home.ingest().open(workers=2)
    expected = together(split, 3)
    for process in {process for _, process in home.readings()}:
        os.kill(process, signal.SIGINT)
        os.kill(process, signal.SIGTERM)
    assert torch.equal(together(split, 3), expected)


def test_a_class_may_fill_one_buffer_again_and_again(home: Home) -> None:
    """Each row of a batch is the sample that was asked for, and at ingest no two look like copies of each other."""
    expected = together(home.ingest().open(), 7)
    reused = (
        MODULE.replace('"value": noise', '"value": np.copyto(BUFFER, noise) or BUFFER') + "BUFFER = np.zeros((8, 8))\n"
    )
    assert torch.equal(together(home.ingest(reused).open(), 7), expected)


HANGS = {
    "loop": ("while True: pass", 0),
    "catches": ("exec('try:\\n  __import__(\\'threading\\').Event().wait()\\nexcept Exception: pass')", 0),
    "worker": (HANG, 2),
}


@pytest.mark.parametrize("case", HANGS)
def test_a_sample_that_hangs_is_named_after_its_time(home: Home, case: str) -> None:
    line, workers = HANGS[case]
    home.ingest().change(line)
    with pytest.raises(TrainingError, match=r"sample 7 of own:Noise was not read within 1 s .*sample_timeout") as error:
        together(home.open(workers=workers, sample_timeout=1.0), 4)
    worker = re.search(r"worker process (\d+)", str(error.value))
    assert (worker is not None) == (workers > 0)
    assert worker is None or not psutil.pid_exists(int(worker[1]))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_sample_that_hangs_ends_ingest_with_its_place(home: Home, workers: int) -> None:
    with pytest.raises(TrainingError, match=r"sample 40 of own:Noise was not read within 1 s"):
        home.ingest(changed(HANG, place=40), workers=workers, sample_timeout=1.0)
    assert not home.packed.exists()


OPENINGS = {
    "module": MODULE + "\nwhile HANGS: pass\n",
    "class": MODULE.replace("        self.count = int(", "        while HANGS: pass\n        self.count = int("),
}
IN_WORKER = "import multiprocessing\nHANGS = multiprocessing.parent_process() is not None\n"


@pytest.mark.parametrize(
    ("case", "hangs", "workers"), [("module", IN_WORKER, 2), ("class", "HANGS = True\n", 1)], ids=["worker", "here"]
)
def test_a_class_that_does_not_open_ends_ingest(home: Home, monkeypatch, case: str, hangs: str, workers: int) -> None:
    monkeypatch.setattr(custom_samples, "LEAST_OPENING", 5.0)  # the parent's opening, which is good, has this limit too
    with pytest.raises(
        TrainingError, match=r"own:Noise did not open .*count.txt within \d+ s.*sample_timeout"
    ) as error:
        home.ingest(hangs + OPENINGS[case], workers=workers, sample_timeout=0.5)
    assert ("worker process" in str(error.value)) == (workers > 1)
    assert not home.packed.exists()


THREADS = """
import threading

import polars as pl

pl.DataFrame({"label": [0, 1] * 500}).group_by("label").len()
threading.Thread(target=threading.Event().wait, daemon=True).start()
"""
INGEST = """
import os
import sys
from pathlib import Path

from ratchet.data.ingest import IngestTask, ingest
from ratchet.settings.model import DataSettings

root = Path(sys.argv[1])
fields = {name: field.default for name, field in DataSettings.model_fields.items()}
fields |= {"kind": "own:Noise", "code": "own.py", "path": "count.txt", "workers": 2}
data = DataSettings(**fields)
ingest(IngestTask(data, packed=root / "packed", quarantine=root / "bad", root=root, sample_timeout=60.0))
print(os.getpid())
"""


@pytest.mark.system
def test_workers_fork_from_a_server_without_the_users_module(home: Home) -> None:
    """A fork of a process with threads can hang, and the user's module may start some, as polars does."""
    reading = "        label = place % 3\n"
    source = MODULE.replace("class Noise", THREADS + "(HERE / f'imported-{os.getpid()}').touch()\n\n\nclass Noise", 1)
    source = source.replace(
        reading,
        reading + "        label = int(pl.DataFrame({'x': [label] * 1000}).group_by('x').len()['x'][0])\n"
        "        (HERE / f'read-{os.getpid()}-{os.getppid()}').touch()\n",
    )
    (home.root / "own.py").write_text(source)
    (home.root / "count.txt").write_text("54")
    command = [sys.executable, "-c", INGEST, str(home.root)]
    parent = subprocess.run(command, check=True, timeout=240, stdout=subprocess.PIPE, text=True).stdout.split()[-1]
    imported = {path.name.split("-")[1] for path in home.root.glob("imported-*")}
    readers = dict(path.name.split("-")[1:] for path in home.root.glob("read-*"))
    assert readers.keys() <= imported
    servers = {readers[reader] for reader in readers if reader != parent}
    assert len(servers) == 1
    assert not servers & {*imported, parent}


@pytest.mark.system
@pytest.mark.parametrize(("workers", "place", "processes"), [(2, 35, 1), (0, 7, 2)])
def test_a_request_to_stop_is_answered_while_a_sample_hangs(
    home: Home, workers: int, place: int, processes: int
) -> None:
    """Also in another process of the training, in a step or in validation."""
    home.ingest().change(HANG, place)
    (home.root / "go").touch()
    expected = list(fitted(home, "whole", pieces=processes))[-1]
    (home.root / "go").unlink()
    (home.root / "hangs").unlink()
    train = functools.partial(fitted, home, "run", workers=workers, pieces=processes)
    stopped = list(train(processes=processes, stop=(home.root / "hangs").exists))[-1]
    assert isinstance(stopped, Stopped)
    assert stopped.saved_step is None
    (home.root / "go").touch()
    resumed = list(train())  # in one process, with the same pieces
    assert [event.step for event in resumed if isinstance(event, Started)] == [stopped.step]
    assert_same(resumed[-1], expected)


@pytest.mark.system
def test_sigterm_interrupts_a_sample_that_hangs(home: Home) -> None:
    """The sample is read by this process."""
    home.ingest().change(HANG)
    process = read_alone(home)
    until((home.root / "hangs").exists, process=process, pause=0.01)
    process.terminate()
    _, message = process.communicate()
    assert (process.returncode, message) == (1, "left in good order\n")


DEADLOCK = (
    'libc, mutex = __import__("ctypes").CDLL(None), __import__("ctypes").create_string_buffer(64); '
    "libc.pthread_mutex_lock(mutex), libc.pthread_mutex_lock(mutex)"
)


@pytest.mark.system
@pytest.mark.skipif(sys.platform != "linux", reason="locks a mutex of glibc's twice")
def test_uninterruptible_code_ends_the_process(home: Home) -> None:
    """The message names the sample."""
    home.ingest().change(DEADLOCK)
    process = read_alone(home, limit=1.0)
    _, message = process.communicate()
    assert process.returncode == 1
    assert "sample 7 of own:Noise was not read within 1 s" in message
    assert "Its code cannot be interrupted, so this process ends now" in message
    assert "Traceback" not in message


@pytest.mark.system
@pytest.mark.parametrize("workers", [0, 1])
def test_the_time_that_a_run_is_suspended_does_not_count(home: Home, workers: int) -> None:
    """All its processes are stopped inside a sample, for longer than the limit, as a scheduler's preemption does."""
    home.ingest().change("(HERE / 'hangs').touch() or __import__('threading').Event().wait(0.7)")
    process = read_alone(home, workers=workers, limit=1.5)
    until((home.root / "hangs").exists, process=process, pause=0.01)
    family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    for member in family:
        member.suspend()
    let_run(process, 2.5)
    for member in family:
        member.resume()
    output, message = process.communicate()
    assert (process.returncode, output) == (0, "10\n10\n10\n"), message


def test_worker_death_after_a_stop_request_is_no_error(home: Home) -> None:
    """A signal to the whole process group may end a worker whose class sets its own handlers."""
    home.ingest().change("os._exit(3)")
    split = home.open(workers=1)
    split.interrupt_on(lambda: True)
    with pytest.raises(Interrupted):
        together(split, 4)


def test_watchdog_interrupts_although_a_class_took_its_signal(home: Home) -> None:
    """The handler is installed again before the next batch."""
    home.ingest().change(HANG)
    split = home.open(sample_timeout=0.5)
    (home.root / "go").touch()
    split.batch(np.arange(4), CPU)
    (home.root / "go").unlink()
    before = signal.signal(signal.SIGURG, signal.SIG_IGN)
    try:
        with pytest.raises(TrainingError, match=r"sample 7 of own:Noise was not read within 0\.5 s"):
            together(split, 4)
    finally:
        signal.signal(signal.SIGURG, before)
