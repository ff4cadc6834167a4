"""Scratch projects: a packed set, and the shipped stages run on it as a person runs them, in processes of their own."""

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

__all__ = ["ROOT", "SIDE", "Clone", "Project", "StageRun", "pack", "scratch", "source"]

ROOT = Path(__file__).resolve().parent.parent
SIDE = 32  # pixels
_CLASSES = 10
_SHARD_ROWS = 50_000
_MEAN, _STD = (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)  # CIFAR-10's training pixels


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="ratchet-bench-") as folder:
        yield Path(folder)


def source() -> tuple[NDArray[np.uint8], NDArray[np.int64], str]:
    """50,000 images (n, 32, 32, 3), labels and their name: CIFAR-10's from $RATCHET_DATASETS, else noise of that shape.

    What the pixels show changes no figure of speed or memory.
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
    """Write a packed set with `rows` training rows, the source's over and over; the source's name comes back."""
    images, labels, name = source()
    splits = {}
    for split, count in (("train", rows), ("validation", held_out), ("test", held_out)):
        (folder / split).mkdir(parents=True)
        chosen = np.arange(count) % len(images)
        shards = []
        for number, start in enumerate(range(0, count, _SHARD_ROWS)):
            part = images[chosen[start : start + _SHARD_ROWS]]
            packed = write_array(folder / split, f"images-{number:05d}", part)
            shards.append(Shard(packed.file, len(part), packed.sha256))
        splits[split] = SplitFiles(
            rows=count,
            shards=tuple(shards),
            labels=write_array(folder / split, "labels", labels[chosen]),
            keys=write_array(folder / split, "keys", np.arange(count, dtype=np.uint64)),
        )
    manifest = Manifest.sealed(
        {"source": name, "quarantined": 0, "quarantined_by_rule": {}}, format=FORMAT, kind="image", name="bench",
        classes=tuple(map(str, range(_CLASSES))), height=SIDE, width=SIDE, channels=3, mean=_MEAN,
        std=_STD, splits=splits,
    )  # fmt: skip
    manifest.write(folder)
    return name


class Clone:
    """This repository as it is committed, in the folder `folder`, and commands that work there."""

    def __init__(self, folder: Path) -> None:
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
        self.folder = folder
        self.environment = {**os.environ, "PYTHONPATH": f"{folder / 'src'}{os.pathsep}{folder}"}

    def python(self, *arguments: str) -> str:
        """Run Python with these arguments to its end; what it printed comes back."""
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
    """A finished `python -m tasks.train`, as its own journal tells it."""

    began: float  # when the command was given, seconds since 1970
    entries: list[dict[str, Any]]

    def when(self, kind: str, key: str) -> float:
        """Seconds from the command to the first entry of a kind that has a value called `key`."""
        found = (one for one in self.entries if one["kind"] == kind and key in one["content"]["values"])
        return float(next(found)["time"]) / 1000 - self.began

    def rate(self, *, after: int, until: int | None = None, batch: int) -> float:
        """Samples per second from logged step `after` to `until`, or to the last one, by the time stamps."""
        times = {
            one["content"]["step"]: one["time"] / 1000
            for one in self.entries
            if one["kind"] == "metrics" and "step/loss" in one["content"]["values"]
        }
        last = max(times) if until is None else until
        rate: float = batch * (last - after) / (times[last] - times[after])
        return rate

    def values(self, name: str, *, after: int = 0) -> list[float]:
        """Every value of a metric told later than step `after`."""
        told = [one["content"] for one in self.entries if one["kind"] == "metrics"]
        return [one["values"][name] for one in told if name in one["values"] and one["step"] > after]


class Project:
    """A project folder with nothing in it but settings and, where given, packed data."""

    def __init__(self, folder: Path, changes: dict[str, object], *, packed: Path | None = None) -> None:
        self.folder = folder
        (folder / "data").mkdir(parents=True)
        files.write_text(folder / "params.yaml", settings.template())
        self.set(changes)
        if packed is not None:
            (folder / "data" / "packed").symlink_to(packed)

    def set(self, changes: dict[str, object]) -> None:
        """Change settings by their dotted names."""
        settings.override(self.folder / "params.yaml", changes)

    def stage(self, name: str, *, python: tuple[str, ...] = (), sample: Callable[[int], None] | None = None) -> str:
        """Run one stage to its end, on a terminal, so that its progress bar is drawn; what it wrote there comes back.

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
                    except OSError:  # how Linux says that the other end is closed
                        chunk = b""
                    if not chunk:
                        break
                    written.append(chunk)
        os.close(ours)
        said = b"".join(written).decode(errors="replace")
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{said}")
        return said

    def train(self, *, seed: int, **how: Any) -> StageRun:
        """Train; each `seed` is a run of its own."""
        self.set({"seed": seed})
        journals = self.folder / "mlruns" / "journal"
        before = set(journals.glob("*"))
        began = time.time()
        self.stage("train", **how)
        (journal,) = set(journals.glob("*")) - before
        lines = (journal / "events.jsonl").read_text().splitlines()
        return StageRun(began, [json.loads(line) for line in lines])
