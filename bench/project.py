"""Temporary projects: a packed set, and the stages run on it as on the command line, in their own processes."""

import json
import os
import pickle
import pty
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratchet import files, settings
from ratchet.data.manifest import FORMAT, Manifest, Shard, SplitFiles
from ratchet.data.pack import write_array
from ratchet.kinds import ImageInput
from ratchet.problems import Classes

__all__ = ["ROOT", "SIDE", "Clone", "Project", "StageRun", "pack", "scratch", "source"]

ROOT = Path(__file__).resolve().parent.parent
SIDE = 32  # pixels
_CLASSES = 10
_SHARD_ROWS = 50_000
_MEAN, _STD = (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)  # CIFAR-10's training pixels


@contextmanager
def scratch() -> Iterator[Path]:
    """Create a temporary folder and remove it afterwards."""
    with tempfile.TemporaryDirectory(prefix="ratchet-bench-") as folder:
        yield Path(folder)


def source() -> tuple[NDArray[np.uint8], NDArray[np.int64], str]:
    """Return 50,000 images (n, 32, 32, 3), labels and a name: CIFAR-10 from $RATCHET_DATASETS, else noise.

    The values of the pixels do not affect speed and memory.
    """
    folder = Path(os.environ.get("RATCHET_DATASETS", "")) / "cifar-10-batches-py"
    if folder.is_dir():
        batches = [pickle.loads((folder / f"data_batch_{n}").read_bytes(), encoding="bytes") for n in range(1, 6)]
        pixels = np.concatenate([batch[b"data"] for batch in batches])
        labels = np.concatenate([batch[b"labels"] for batch in batches]).astype(np.int64)
        return np.ascontiguousarray(pixels.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)), labels, "CIFAR-10"
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (50_000, SIDE, SIDE, 3), dtype=np.uint8)
    return pixels, generator.integers(0, _CLASSES, 50_000), "noise of CIFAR-10's shape (RATCHET_DATASETS is not set)"


def pack(folder: Path, *, rows: int, held_out: int = 1_000) -> str:
    """Write a packed set with `rows` training rows, repeated from the source. Return the source's name."""
    images, labels, name = source()
    splits = {}
    for split, count in (("train", rows), ("validation", held_out), ("test", held_out)):
        (folder / split).mkdir(parents=True)
        chosen = np.arange(count) % len(images)
        shards = []
        for number, start in enumerate(range(0, count, _SHARD_ROWS)):
            images_of_shard = images[chosen[start : start + _SHARD_ROWS]]
            packed = write_array(folder / split, f"images-{number:05d}", images_of_shard)
            shards.append(Shard(packed.file, len(images_of_shard), packed.sha256))
        splits[split] = SplitFiles(
            rows=count,
            arrays={"images": tuple(shards)},
            targets=write_array(folder / split, "targets", labels[chosen]),
            keys=write_array(folder / split, "keys", np.arange(count, dtype=np.uint64)),
        )
    manifest = Manifest.sealed(
        {"source": name, "quarantined": 0, "quarantined_by_rule": {}}, format=FORMAT, name="bench",
        input=ImageInput(SIDE, SIDE, 3, _MEAN, _STD), target=Classes(tuple(map(str, range(_CLASSES)))), splits=splits,
    )  # fmt: skip
    manifest.write(folder)
    return name


class Clone:
    """Clone of the last commit of this repository in `folder`, and commands that run there."""

    def __init__(self, folder: Path) -> None:
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
        self.folder = folder
        self.environment = {**os.environ, "PYTHONPATH": f"{folder / 'src'}{os.pathsep}{folder}"}

    def python(self, *arguments: str) -> str:
        """Run Python with these arguments, and return its output."""
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"python {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}")
        return done.stdout


@dataclass(frozen=True)
class StageRun:
    """Finished `python -m tasks.train`, read from its journal."""

    began: float  # start of the command, seconds since 1970
    entries: list[dict[str, Any]]

    def when(self, kind: str, key: str) -> float:
        """Return the seconds from the command to the first entry of a kind that has a value named `key`."""
        entries = (each for each in self.entries if each["kind"] == kind and key in each["content"]["values"])
        return float(next(entries)["time"]) / 1000 - self.began

    def rate(self, *, after: int, until: int | None = None, batch: int) -> float:
        """Return samples per second from logged step `after` to `until` or to the last one, by the time stamps."""
        times = {
            entry["content"]["step"]: entry["time"] / 1000
            for entry in self.entries
            if entry["kind"] == "metrics" and "step/loss" in entry["content"]["values"]
        }
        last = max(times) if until is None else until
        rate: float = batch * (last - after) / (times[last] - times[after])
        return rate

    def values(self, name: str, *, after: int = 0) -> list[float]:
        """Return every value of a metric logged after step `after`."""
        metrics = [entry["content"] for entry in self.entries if entry["kind"] == "metrics"]
        return [each["values"][name] for each in metrics if name in each["values"] and each["step"] > after]


class Project:
    """Project folder with settings and, if given, packed data only."""

    def __init__(self, folder: Path, changes: dict[str, object], *, packed: Path | None = None) -> None:
        self.folder = folder
        (folder / "data").mkdir(parents=True)
        files.write_text(folder / "params.yaml", settings.template())
        self.set(changes)
        if packed is not None:
            (folder / "data" / "packed").symlink_to(packed)

    @classmethod
    def open(cls, folder: Path) -> "Project":
        """Return the project of a folder that has one."""
        project = cls.__new__(cls)
        project.folder = folder
        return project

    def set(self, changes: dict[str, object]) -> None:
        """Change settings by their dotted names."""
        settings.override(self.folder / "params.yaml", changes)

    def stage(self, name: str, *, python: tuple[str, ...] = (), sample: Callable[[int], None] | None = None) -> str:
        """Run one stage on a terminal, so that it draws its progress bar. Return its output.

        Args:
            python: options of the interpreter.
            sample: called with the process id every 20 ms.
        """
        ours, theirs = pty.openpty()
        environment = {name: value for name, value in os.environ.items() if name != "RATCHET_ROOT"}
        environment |= {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "TERM": "xterm"}
        command = [sys.executable, *python, "-m", f"tasks.{name}"]
        written = []
        with subprocess.Popen(
            command, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
        ) as process:
            os.close(theirs)
            while True:
                if sample is not None:
                    sample(process.pid)
                if select.select([ours], [], [], 0.02 if sample else None)[0]:
                    try:
                        chunk = os.read(ours, 1 << 16)
                    except OSError:  # on Linux: the other end is closed
                        chunk = b""
                    if not chunk:
                        break
                    written.append(chunk)
        os.close(ours)
        output = b"".join(written).decode(errors="replace")
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{output}")
        return output

    def train(self, *, seed: int, **options: Any) -> StageRun:
        """Train; each `seed` is a separate run."""
        self.set({"seed": seed})
        journals = self.folder / "mlruns" / "journal"
        before = set(journals.glob("*"))
        began = time.time()
        self.stage("train", **options)
        (journal,) = set(journals.glob("*")) - before
        lines = (journal / "events.jsonl").read_text().splitlines()
        return StageRun(began, [json.loads(line) for line in lines])
