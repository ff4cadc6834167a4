"""A user's own Dataset, read for training: the same bits from any number of workers, and a message for every problem.

The truth is the Dataset itself, called by hand after seeding by hand.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from waiting import let_run, until

from ratchet.data.ingest import IngestTask, ingest
from ratchet.errors import TrainingError
from ratchet.settings.model import DataSettings
from ratchet.training import CheckpointStore, Finished, Started, Stopped, TrainingInputs, Trouble, fit
from ratchet.training.augment import sample_bits
from ratchet.training.custom_dataset import DatasetSplit
from ratchet.training.sample_timeout import Interrupted
from tests.training.conftest import make_plan

CPU = torch.device("cpu")
ROWS = {"train": 30, "validation": 12, "test": 12}
MODULE = """
import os
import random
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).parent
ROWS = {"train": 30, "validation": 12, "test": 12}


class Noise:
    classes = ["circle", "cross", "square"]

    def __init__(self, split):
        self.split = split
        self.ids = [f"{split}-{row}" for row in range(ROWS[split])]

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, row):
        label = row % 3
        image = torch.rand(1, 8, 8) * random.uniform(0.5, 1.0) + label * 0.3 + np.random.rand() * 0.1
        with (HERE / "read.txt").open("a") as log:
            log.write(f"{self.split} {row} {os.getpid()}\\n")
        return image, label


def photos(split):
    return Noise(split)
"""
UINT8 = MODULE.replace("return image, label", "return (image * 100).to(torch.uint8), label")
MEAN = MODULE.replace("torch.rand(1, 8, 8)", "torch.randn(1, 300, 301)").replace(
    "return image, label", "return image - image.mean(), label"
)


class Home:
    """A project folder with own.py, and what ingest made of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.packed = root / "data" / "packed"
        self.opened: list[DatasetSplit] = []

    def ingest(self, source: str, *, workers: int = 1, sample_timeout: float = 0.0) -> "Home":
        self.write(source)
        own = {"source": "factory", "factory": "own:photos", "code": "own.py", "workers": workers}
        defaults = {name: field.default for name, field in DataSettings.model_fields.items()}
        settings = DataSettings(**{**defaults, **own})
        ingest(
            IngestTask(
                settings,
                packed=self.packed,
                quarantine=self.root / "data" / "quarantine.parquet",
                root=self.root,
                sample_timeout=sample_timeout,
            )
        )
        (self.root / "read.txt").unlink(missing_ok=True)
        return self

    def write(self, source: str) -> None:
        (self.root / "own.py").write_text(source)

    def open(self, split: str = "train", *, workers: int = 0, sample_timeout: float = 0.0) -> DatasetSplit:
        manifest = json.loads((self.packed / "manifest.json").read_text())
        self.opened.append(
            DatasetSplit.open_rows(self.packed, split, manifest, workers=workers, sample_timeout=sample_timeout)
        )
        return self.opened[-1]

    def change(self, line: str, *, split: str = "train") -> None:
        """Let sample 7 of a split do `line` instead, as if it had been so at ingest."""
        self.write(MODULE.replace("        label = row % 3\n", "        label = row % 3\n" + later(line, split=split)))
        self.pretend_ingested()

    def pretend_ingested(self) -> None:
        """Let the manifest name the code as it stands, as if only the data had changed."""
        path = self.packed / "manifest.json"
        manifest = json.loads(path.read_text())
        manifest["factory"]["code_digest"] = self.open_factory_digest()
        path.write_text(json.dumps(manifest))

    def open_factory_digest(self) -> str:
        from ratchet.training.custom_samples import Factory

        return Factory("own:photos", self.root, "own.py").digest()

    def read(self) -> list[tuple[str, int, int]]:
        """(split, row, process) of every read since the last question."""
        log = self.root / "read.txt"
        lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
        log.unlink(missing_ok=True)
        return [(split, int(row), int(process)) for split, row, process in lines]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    yield home
    for split in home.opened:
        split.close()


def pieces(size: int, rows: int = 30) -> list[np.ndarray]:
    order = np.random.default_rng(0).permutation(rows)
    return [order[start : start + size] for start in range(0, rows, size)]


def together(split: DatasetSplit, size: int, **how: Any) -> torch.Tensor:
    """Every training image in one order, fed `size` at a time."""
    return torch.cat([images for (images,), _ in split.feed(pieces(size), CPU, **how)])


def test_every_sample_is_seeded_by_seed_epoch_and_key(home: Home) -> None:
    split = home.ingest(MODULE).open()
    namespace: dict[str, Any] = {"__file__": str(home.root / "own.py")}
    exec(MODULE, namespace)
    dataset = namespace["photos"]("train")
    bits = sample_bits(split.keys, seed=5, epoch=3).tolist()
    plan = make_plan(seed=5, flip="none", crop_padding=0)
    (images,), labels = split.batch(np.arange(30), CPU, plan=plan, epoch=3)
    for row in range(30):
        random.seed(bits[row])
        np.random.seed([bits[row] & 0xFFFFFFFF, bits[row] >> 32])
        torch.manual_seed(bits[row])
        image, label = dataset[row]
        assert torch.equal(images[row], image)
        assert labels[row] == label


@pytest.mark.parametrize("source", [MODULE, UINT8, MEAN])
def test_samples_do_not_depend_on_workers_or_batch_size(home: Home, source: str) -> None:
    """All bits are equal."""
    torch.set_num_threads(2)  # put back by the room; a worker has one
    home.ingest(source)
    plan = make_plan(seed=3, flip="random", crop_padding=2, cutout=2)
    whole, *others = home.open(), (home.open(), 4), (home.open(workers=1), 7), (home.open(workers=2), 4)
    for epoch in (0, 1):
        expected = together(whole, 30, plan=plan, epoch=epoch)
        for split, size in others:
            assert torch.equal(together(split, size, plan=plan, epoch=epoch), expected)
    assert expected.dtype == (torch.uint8 if source == UINT8 else torch.float32)


def test_samples_depend_on_epoch_and_seed(home: Home) -> None:
    """Without a plan they are always the same."""
    split = home.ingest(MODULE).open()
    plan = make_plan(flip="none", crop_padding=0)
    first = together(split, 10, plan=plan, epoch=1)
    assert not (first == together(split, 10, plan=plan, epoch=2)).flatten(1).any(1).any()
    assert not (first == together(split, 10, plan=make_plan(seed=1, flip="none", crop_padding=0), epoch=1)).all()
    assert torch.equal(together(split, 10), together(split, 30))


def test_augmentation_is_done_to_whole_batches_of_either_type(home: Home) -> None:
    for source in (MODULE, UINT8):
        split = home.ingest(source).open()
        plain = together(split, 10, plan=make_plan(flip="none", crop_padding=0))
        flipped = together(split, 10, plan=make_plan(flip="random", crop_padding=0))
        mirrored = [not torch.equal(item, other) for item, other in zip(plain, flipped, strict=True)]
        assert 5 < sum(mirrored) < 25
        expected = [item.flip(2) if turned else item for item, turned in zip(plain, mirrored, strict=True)]
        assert torch.equal(flipped, torch.stack(expected))


def test_reading_in_this_process_draws_nothing_from_its_random_states(home: Home) -> None:
    split = home.ingest(MODULE).open()
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    together(split, 10)
    assert random.getstate() == before[0]
    assert np.random.get_state()[1].tolist() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])


@pytest.mark.parametrize("workers", [0, 2])
def test_only_what_is_asked_for_is_read(home: Home, workers: int) -> None:
    split = home.ingest(MODULE).open(workers=workers)
    list(split.feed(pieces(4)[5:], CPU))
    assert {row for _, row, _ in home.read()} == set(np.concatenate(pieces(4)[5:]).tolist())


def test_workers_stay_until_closed(home: Home) -> None:
    """They are separate processes, the same in all epochs."""
    split = home.ingest(MODULE).open(workers=2)
    by_epoch = []
    for epoch in range(3):
        together(split, 3, plan=make_plan(), epoch=epoch)
        by_epoch.append({process for _, _, process in home.read()})
    assert by_epoch[0] == by_epoch[1] == by_epoch[2]
    assert len(by_epoch[0]) == 2
    assert os.getpid() not in by_epoch[0]
    split.close()
    assert not any(psutil.pid_exists(process) for process in by_epoch[0])


def test_a_feed_left_half_read_does_not_disturb_the_next(home: Home) -> None:
    split = home.ingest(MODULE).open(workers=2)
    expected = together(split, 4, plan=make_plan(), epoch=1)
    for taken in (1, 3):
        left = split.feed(pieces(4), CPU, plan=make_plan(), epoch=0)
        for _ in range(taken):
            next(left)
        assert torch.equal(together(split, 4, plan=make_plan(), epoch=1), expected)


def test_pictures_to_look_at_span_black_to_white(home: Home) -> None:
    split = home.ingest(MODULE).open()
    images = split.batch(np.arange(30), CPU)[0][0].permute(0, 2, 3, 1).numpy()
    shown = split.images(np.arange(30))
    assert (shown.dtype, shown.shape) == (np.uint8, (30, 8, 8, 1))
    low, high = images.min(), images.max()
    assert (shown.min(), shown.max()) == (0, 255)
    np.testing.assert_array_equal(shown, np.rint((images - low) / (high - low) * 255))
    assert split.images(np.arange(0)).shape == (0, 8, 8, 1)
    split = home.ingest(UINT8).open()
    np.testing.assert_array_equal(
        split.images(np.arange(30)), split.batch(np.arange(30), CPU)[0][0].permute(0, 2, 3, 1)
    )


@pytest.mark.parametrize(("channels", "shown"), [(2, 1), (5, 3)])
def test_only_the_first_channels_of_many_are_shown(home: Home, channels: int, shown: int) -> None:
    split = home.ingest(UINT8.replace("torch.rand(1,", f"torch.rand({channels},")).open()
    images = split.batch(np.arange(4), CPU)[0][0].permute(0, 2, 3, 1).numpy()
    assert images.shape == (4, 8, 8, channels)
    np.testing.assert_array_equal(split.images(np.arange(4)), images[..., :shown])


NO_LONGER_GOOD = [
    ('raise OSError("gone")', r"sample train-7 of split train cannot be used \(raised: OSError: gone \(line"),
    ("return image[:, 1:], label", r"train-7 .*other-shape: float32 1 x 7 x 8, where all others are .* 8 x 8"),
    ('raise SystemExit("no licence")', r"sample train-7 of split train .* \(raised: SystemExit: no licence \(line"),
    ('return image / float("nan"), label', r"train-7 .*not-finite: 64 of its 64 values are infinite or not a number"),
    ("return image.to_sparse(), label", r"train-7 .*not-a-sample: an image that is a torch.sparse_coo tensor\)"),
    ('return image.to("meta"), label', r"train-7 .*not-a-sample: an image without values \(device meta\)"),
    (
        "return torch.nested.nested_tensor([image[0]], layout=torch.jagged), label",
        r"train-7 .*not-a-sample: an image that is a nested tensor",
    ),
    ("return image, 2", r"sample 7 of split train has label 2, but had 1 when it was ingested.*ingests the data again"),
]
DEADLY = ("os._exit(3)", r"a worker process of training.workers ended .*the same command, which continues")


@pytest.mark.parametrize(
    ("line", "problem", "workers"),
    [*((*case, 0) for case in NO_LONGER_GOOD), *((*case, 2) for case in (*NO_LONGER_GOOD[:2], DEADLY))],
)
def test_a_sample_that_became_bad_ends_training(home: Home, line: str, problem: str, workers: int) -> None:
    """The error is one line that names the sample."""
    home.ingest(MODULE).change(line)
    split = home.open(workers=workers)
    with pytest.raises(TrainingError, match=problem) as refusal:
        together(split, 4)
    assert "\n" not in str(refusal.value)


def later(line: str, *, split: str = "train") -> str:
    """The line, for one sample of a split."""
    image = "        image = torch.rand(1, 8, 8)\n"
    return f'{image}        if self.split == "{split}" and row == 7:\n            {line}\n'


def test_data_or_code_changed_since_ingest_is_refused(home: Home) -> None:
    """Nothing is read before."""
    home.ingest(MODULE)
    home.write(MODULE + "another = 1\n")
    with pytest.raises(TrainingError, match=r"data.code: own.py changed since the data was ingested"):
        home.open()
    home.write(MODULE.replace('"train": 30', '"train": 31'))
    home.pretend_ingested()
    with pytest.raises(TrainingError, match=r"own:photos\('train'\) has 31 samples, but had 30"):
        home.open()
    home.write(MODULE)
    home.pretend_ingested()
    (home.packed / "train" / "places.npy").unlink()
    with pytest.raises(TrainingError, match="split train cannot be read"):
        home.open()
    assert home.read() == []


def test_a_worker_that_cannot_open_the_dataset_says_why(home: Home) -> None:
    home.ingest(MODULE)
    alone = f'    if os.getpid() != {os.getpid()}:\n        raise OSError("locked by another process")\n'
    home.write(MODULE.replace("def photos(split):\n", "def photos(split):\n" + alone))
    home.pretend_ingested()
    with pytest.raises(TrainingError, match=r"^data.factory: own:photos\('train'\) fails with OSError: locked by"):
        together(home.open(workers=1), 4)


def test_resumed_run_equals_uninterrupted_run_with_another_number_of_workers(home: Home, lab: Any) -> None:
    home.ingest(MODULE)
    lab.spec = lab.make_spec(classes=3)
    plan = lab.plan(epochs=2)

    def run(name: str, workers: int, stop: Callable[[], bool] = lambda: False) -> list[Any]:
        lab.train, lab.validation = home.open("train", workers=workers), home.open("validation", workers=workers)
        store = CheckpointStore(home.root / name, keep_last=2, keep_best=1)
        events = fit(
            TrainingInputs(lab.train, lab.validation, lab.spec, plan, identity={"data": "d"}), store=store, stop=stop
        )
        return list(events)

    whole = run("whole", 0)[-1]
    requested = iter(range(100))
    assert isinstance(run("halved", 2, lambda: next(requested) == 2)[-1], Stopped)
    home.read()
    resumed = run("halved", 1)[-1]
    assert isinstance(whole, Finished)
    assert isinstance(resumed, Finished)
    lab.assert_same(resumed.weights, whole.weights)
    assert resumed.history == whole.history
    train = [row for split, row, _ in home.read() if split == "train"]
    assert len(train) == 30 + 30 - 2 * plan.batch_size  # of the epoch it was stopped in only what was left


KILLED = """
import json, signal, sys
from pathlib import Path
import numpy as np, torch
from ratchet.training.custom_dataset import DatasetSplit
from ratchet.training.sample_timeout import Interrupted

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job is started with it ignored
    packed = Path(sys.argv[1])
    split = DatasetSplit.open_rows(packed, "train", json.loads((packed / "manifest.json").read_text()), workers=2)
    for epoch in range(1_000_000):
        for images, labels in split.feed([np.arange(n, n + 10) for n in (0, 10, 20)], torch.device("cpu"), epoch=epoch):
            print(len(labels), flush=True)
"""


@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_worker_outlives_a_killed_parent(home: Home, tmp_path: Path, number: signal.Signals) -> None:
    home.ingest(MODULE)
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    parent = subprocess.Popen(
        [sys.executable, str(script), str(home.packed)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=tmp_path,
        start_new_session=True,
    )
    assert parent.stdout is not None
    for _ in range(6):
        assert parent.stdout.readline() == b"10\n"
    below = psutil.Process(parent.pid).children(recursive=True)
    assert {process for _, _, process in home.read()} <= {process.pid for process in below}
    parent.send_signal(number)
    parent.stdout.read()  # until the last process that could write to it has ended
    parent.wait()
    parent.stdout.close()
    assert not psutil.wait_procs(below)[1]


def test_workers_survive_a_signal_to_the_process_group(home: Home) -> None:
    """Only their parent ends them."""
    split = home.ingest(MODULE).open(workers=2)
    expected = together(split, 3)
    for process in {process for _, _, process in home.read()}:
        os.kill(process, signal.SIGINT)
        os.kill(process, signal.SIGTERM)
    assert torch.equal(together(split, 3), expected)


REUSED = MODULE.replace("        return image, label", "        return self.fill(image), label").replace(
    "    def __len__(self)",
    """    def fill(self, image):
        self.memory = getattr(self, "memory", image)
        return self.memory.copy_(image)

    def __len__(self)""",
)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_may_fill_one_buffer_again_and_again(home: Home, workers: int) -> None:
    """Each row of a batch is the sample that was asked for, and at ingest no two look like copies of each other."""
    for source, reused in (
        (MODULE, REUSED),
        (UINT8, REUSED.replace("fill(image)", "fill((image * 100).to(torch.uint8))")),
    ):
        expected = together(home.ingest(source).open(), 7)
        split = home.ingest(reused, workers=1 + workers).open(workers=workers)
        assert torch.equal(together(split, 7), expected)


def fitted(home: Home, lab: Any, name: str, *, workers: int = 0, timeout: float = 0.0, **how: Any) -> Any:
    """The events of a training on the Dataset, checkpoints in folder `name`."""
    lab.spec = lab.make_spec(classes=3)
    train, validation = (home.open(split, workers=workers, sample_timeout=timeout) for split in ("train", "validation"))
    store = CheckpointStore(home.root / name, keep_last=2, keep_best=1)
    inputs = TrainingInputs(train, validation, lab.spec, lab.plan(epochs=2), identity={"data": "d"})
    return fit(inputs, store=store, **how)


@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_sample_that_is_not_finite_is_reported(home: Home, lab: Any, split: str) -> None:
    """Nothing is rolled back."""
    home.ingest(MODULE).change("image[0, 0, 0] = torch.inf", split=split)
    home.write((home.root / "own.py").read_text().replace("image = torch.rand(1, 8, 8) *", "image = image *"))
    home.pretend_ingested()
    events = []
    with pytest.raises(TrainingError, match=rf"sample {split}-7 of split {split} .*not-finite: 1 of its 64 values"):
        events.extend(fitted(home, lab, "run"))
    assert not lab.every(events, Trouble)


HANG = "(HERE / 'hangs').touch() or (HERE / 'go').exists() or __import__('threading').Event().wait()"
HANGS = {
    "sleep": HANG,
    "loop": "while True: pass",
    "lock": "lock = __import__('threading').Lock(); lock.acquire(); lock.acquire()",
    "catches": "exec('try:\\n  __import__(\\'threading\\').Event().wait()\\nexcept Exception: pass')",
}


@pytest.mark.parametrize(("line", "workers"), [*((line, 0) for line in HANGS.values()), (HANGS["lock"], 2)])
def test_a_sample_that_hangs_is_named_after_its_time(home: Home, line: str, workers: int) -> None:
    home.ingest(MODULE).change(line)
    split = home.open(workers=workers, sample_timeout=1.0)
    with pytest.raises(
        TrainingError, match=r"sample train-7 of split train was not read within 1 s .*sample_timeout"
    ) as refusal:
        together(split, 4)
    if workers:
        hung_worker = re.search(r"worker process (\d+)", str(refusal.value))
        assert hung_worker is not None
        assert not psutil.pid_exists(int(hung_worker[1]))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_sample_that_hangs_ends_ingest_with_its_name(home: Home, workers: int) -> None:
    line = later("import threading; threading.Event().wait()")
    source = MODULE.replace("        label = row % 3\n", "        label = row % 3\n" + line)
    with pytest.raises(TrainingError, match=r"sample train-7 of split train was not read within 1 s"):
        home.ingest(source, workers=workers, sample_timeout=1.0)
    assert not home.packed.exists()


@pytest.mark.system
@pytest.mark.parametrize(("workers", "split"), [(2, "train"), (0, "validation")])
def test_a_request_to_stop_is_answered_while_a_sample_hangs(home: Home, lab: Any, workers: int, split: str) -> None:
    home.ingest(MODULE).change(HANG, split=split)
    (home.root / "go").touch()
    expected = list(fitted(home, lab, "whole", workers=workers))[-1]
    (home.root / "go").unlink()
    (home.root / "hangs").unlink()
    stopped = list(fitted(home, lab, "run", workers=workers, stop=(home.root / "hangs").exists))[-1]
    assert isinstance(stopped, Stopped)
    assert stopped.kept is None
    (home.root / "go").touch()
    resumed = list(fitted(home, lab, "run", workers=workers))
    assert lab.every(resumed, Started)[0].step == stopped.step
    lab.assert_same(resumed[-1].weights, expected.weights)
    assert resumed[-1].history == expected.history


HUNG = """
import json, sys
from pathlib import Path
import numpy as np, torch
from ratchet.training import sample_timeout
from ratchet.training.custom_dataset import DatasetSplit
from ratchet.training.sample_timeout import Interrupted
from tasks.stopping import on_request

sample_timeout._LAST = 0.5
packed = Path(sys.argv[1])
manifest = json.loads((packed / "manifest.json").read_text())
split = DatasetSplit.open_rows(packed, "train", manifest, sample_timeout=float(sys.argv[2]))
with on_request() as stop:
    split.interrupt_on(stop)
    try:
        split.batch(np.arange(30), torch.device("cpu"))
    except Interrupted:
        sys.exit("left in good order")
"""


def hung(home: Home, timeout: float) -> "subprocess.Popen[str]":
    (home.root / "hung.py").write_text(HUNG)
    root = Path(__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, str(home.root / "hung.py"), str(home.packed), str(timeout)],
        env=os.environ | {"PYTHONPATH": str(root)}, cwd=home.root, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.system
def test_sigterm_interrupts_a_sample_that_hangs(home: Home) -> None:
    """The sample is read by this process."""
    home.ingest(MODULE).change(HANG)
    process = hung(home, 0.0)
    until((home.root / "hangs").exists, process=process, pause=0.01)
    process.terminate()
    _, message = process.communicate()
    assert (process.returncode, message) == (1, "left in good order\n")


DEADLOCK = """
        libc, mutex = __import__("ctypes").CDLL(None), __import__("ctypes").create_string_buffer(64)
        libc.pthread_mutex_lock(mutex), libc.pthread_mutex_lock(mutex)
"""


@pytest.mark.system
@pytest.mark.skipif(sys.platform != "linux", reason="locks a mutex of glibc's twice")
def test_uninterruptible_code_ends_the_process(home: Home) -> None:
    """The message names the sample."""
    home.ingest(MODULE)
    home.write(MODULE.replace("        label = row % 3\n", DEADLOCK + "        label = row % 3\n"))
    home.pretend_ingested()
    process = hung(home, 1.0)
    _, message = process.communicate()
    assert process.returncode == 1
    assert "sample train-0 of split train was not read within 1 s" in message
    assert "Its code cannot be interrupted, so this process ends now" in message
    assert "Traceback" not in message


@pytest.mark.parametrize("place", ["def photos(split):\n", "import torch\n"])
def test_a_dataset_that_exits_when_it_is_opened_says_so(home: Home, place: str) -> None:
    exits = f'{place}{"    " * ("def" in place)}raise SystemExit("no licence")\n'
    with pytest.raises(TrainingError, match="SystemExit: no licence"):
        home.ingest(MODULE.replace(place, exits))


STOPPED = """
import json, os, sys
from pathlib import Path
import numpy as np, torch
from ratchet.training.custom_dataset import DatasetSplit
from ratchet.training.sample_timeout import Interrupted

if __name__ == "__main__":
    packed, workers = Path(sys.argv[1]), int(sys.argv[2])
    manifest = json.loads((packed / "manifest.json").read_text())
    split = DatasetSplit.open_rows(packed, "train", manifest, workers=workers, sample_timeout=1.5)
    print(sum(len(labels) for _, labels in split.feed([np.arange(30)], torch.device("cpu"))))
"""


@pytest.mark.system
@pytest.mark.parametrize("workers", [0, 1])
def test_the_time_that_a_run_is_suspended_does_not_count(home: Home, tmp_path: Path, workers: int) -> None:
    """All its processes are stopped inside a sample, for longer than the limit, as a scheduler's preemption does."""
    home.ingest(MODULE).change("(HERE / 'hangs').touch() or __import__('threading').Event().wait(0.7)")
    (tmp_path / "stopped.py").write_text(STOPPED)
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "stopped.py"), str(home.packed), str(workers)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    until((home.root / "hangs").exists, process=process, pause=0.01)
    family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    for item in family:
        item.suspend()
    let_run(process, 2.5)
    for item in family:
        item.resume()
    message, _ = process.communicate()
    assert (process.returncode, message) == (0, "30\n")


def test_worker_death_after_a_stop_request_is_no_error(home: Home) -> None:
    """A signal to the whole process group may end a worker whose Dataset sets its own handlers."""
    home.ingest(MODULE).change("os._exit(3)")
    split = home.open(workers=1)
    split.interrupt_on(lambda: True)
    with pytest.raises(Interrupted):
        together(split, 4)


def test_watchdog_interrupts_although_a_dataset_took_its_signal(home: Home) -> None:
    """The handler is installed again before the next batch."""
    home.ingest(MODULE).change("__import__('threading').Event().wait()")
    split = home.open(sample_timeout=0.5)
    split.batch(np.arange(4), CPU)
    before = signal.signal(signal.SIGURG, signal.SIG_IGN)
    try:
        with pytest.raises(TrainingError, match=r"sample train-7 of split train was not read within 0\.5 s"):
            together(split, 4)
    finally:
        signal.signal(signal.SIGURG, before)
