"""Checkpoints: one safetensors file each, whole or absent, verified, written while training goes on.

A file holds every tensor and, in its header, the rest as JSON with a SHA-256 over all of it. No pickle: nothing in a
checkpoint can run.
"""

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from ratchet import files
from ratchet.errors import CheckpointError

__all__ = ["CheckpointStore", "Snapshot", "read_checkpoint"]


@dataclass(frozen=True)
class Snapshot:
    """One moment of a training: copies, so that training may go on while it is written."""

    step: int
    tensors: dict[str, torch.Tensor]  # on the CPU
    state: dict[str, Any]  # plain data
    score: tuple[float, ...] | None = None  # of an epoch's end: larger is better; decides what `keep_best` keeps


@dataclass
class CheckpointStore:
    """The checkpoints of one training, in one folder, written by a thread of their own.

    Every snapshot is written: one may wait while one is being written, and only a third has to wait itself. So what is
    kept in the end does not depend on the disk's speed. Use it as a context: leaving waits for the writer.
    """

    folder: Path
    keep_last: int = 2
    keep_best: int = 1
    problems: list[str] = field(default_factory=list)  # sentences for a person; whoever shows one removes it
    before_write: Callable[[], None] = lambda: None  # puts on disk what a checkpoint has behind it

    def __post_init__(self) -> None:
        self._turn = threading.Condition()
        self._waiting: Snapshot | None = None
        self._writing = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "CheckpointStore":
        self.folder.mkdir(parents=True, exist_ok=True)
        for draft in self.folder.glob(".draft-*"):
            draft.unlink()  # a killed writer's
        self._thread = threading.Thread(target=self._write_on, name="checkpoint-writer", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()
        with self._turn:
            self._closed = True
            self._turn.notify_all()
        if self._thread is not None:
            self._thread.join()

    def put(self, snapshot: Snapshot) -> None:
        """Hand a snapshot to the writer; returns at once unless the one before still waits for its turn."""
        with self._turn:
            self._turn.wait_for(lambda: self._waiting is None)
            self._waiting = snapshot
            self._turn.notify_all()

    def wait(self) -> None:
        """Return when everything handed over is on disk."""
        with self._turn:
            self._turn.wait_for(lambda: self._waiting is None and not self._writing)

    def paths(self) -> list[Path]:
        """The checkpoints on disk, oldest first."""
        return sorted(self.folder.glob("step-*.safetensors"))

    def newest_step(self) -> int:
        """The step of the newest checkpoint on disk, 0 if there is none. It is not read."""
        return max((int(path.stem.removeprefix("step-")) for path in self.paths()), default=0)

    def newest(self) -> tuple[Path, Snapshot] | None:
        """The newest undamaged checkpoint. Damaged ones are named in `problems` and set aside as NAME.damaged."""
        for path in reversed(self.paths()):
            try:
                return path, read_checkpoint(path)
            except CheckpointError as error:
                aside = path.with_suffix(".damaged")
                os.replace(path, aside)
                self.problems.append(f"{error}; set aside as {aside.name}, the one before it is used")
        return None

    def _write_on(self) -> None:
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._waiting is not None or self._closed)
                snapshot, self._waiting = self._waiting, None
                if snapshot is None:
                    return
                self._writing = True
                self._turn.notify_all()
            try:
                self.before_write()
                self._write(snapshot)
            except Exception as error:  # the thread must live on, whatever a disk can do; the sentence tells
                kept = self.paths()
                last = f"the last good one is {kept[-1].name}" if kept else "there is none yet"
                self.problems.append(
                    f"checkpoint of step {snapshot.step} was not written ({error}); {last}; training goes on"
                )
            finally:
                with self._turn:
                    self._writing = False
                    self._turn.notify_all()

    def _write(self, snapshot: Snapshot) -> None:
        path = self.folder / f"step-{snapshot.step:012d}.safetensors"
        content = encode(snapshot)
        files.write_bytes(path, content)
        if path.read_bytes() != content:
            path.unlink()
            raise CheckpointError("what was read back is not what was written")
        self._prune()

    def _prune(self) -> None:
        paths = self.paths()
        keep = set(paths[-self.keep_last :])
        scored = [(score, path) for path in paths if (score := _score(path)) is not None]
        keep |= {path for _, path in sorted(scored, reverse=True)[: self.keep_best]}
        for path in paths:
            if path not in keep:
                path.unlink()


def encode(snapshot: Snapshot) -> bytes:
    """The file's bytes."""
    tensors = {name: tensor.contiguous() for name, tensor in snapshot.tensors.items()}
    state = json.dumps({"step": snapshot.step, "score": snapshot.score, **snapshot.state})  # order is content too
    # One entry: safetensors writes several in an order of chance, and equal snapshots must have equal bytes.
    return save(tensors, {"state": f"{_digest(tensors, state)} {state}"})


def read_checkpoint(path: Path) -> Snapshot:
    """Read and verify one file.

    Raises:
        CheckpointError: it is truncated or altered; the message names it and says how.
    """
    try:
        content = path.read_bytes()
        digest, state_text = _header(content)
        tensors = load(content)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise CheckpointError(f"checkpoint {path} is damaged ({error})") from error
    if _digest(tensors, state_text) != digest:
        raise CheckpointError(
            f"checkpoint {path} is damaged (its content does not have the digest it was written with)"
        )
    state = json.loads(state_text)
    step, score = state.pop("step"), state.pop("score")
    return Snapshot(step=step, score=None if score is None else tuple(score), tensors=tensors, state=state)


def _header(content: bytes) -> tuple[str, str]:
    """The SHA-256 (hex) the file was written with, and the state as JSON."""
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 + length:
        raise ValueError(f"{len(content)} bytes, its header alone says {8 + length}")
    metadata: dict[str, str] = json.loads(content[8 : 8 + length])["__metadata__"]
    digest, _, state = metadata["state"].partition(" ")
    return digest, state


def _score(path: Path) -> tuple[float, ...] | None:
    with path.open("rb") as file:
        start = file.read(8)
        length = min(int.from_bytes(start, "little"), path.stat().st_size)  # a damaged file may claim any length
        content = start + file.read(length)
    with contextlib.suppress(ValueError, KeyError):  # damaged: not among the best
        score: list[float] | None = json.loads(_header(content)[1])["score"]
        return None if score is None else tuple(score)
    return None


def _digest(tensors: dict[str, torch.Tensor], state: str) -> str:
    digest = hashlib.sha256(state.encode())
    for name, raw in _raw(tensors):
        digest.update(name.encode())
        digest.update(raw)
    return digest.hexdigest()


def _raw(tensors: dict[str, torch.Tensor]) -> Iterator[tuple[str, memoryview]]:
    for name in sorted(tensors):
        tensor = tensors[name]
        described = f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|"
        yield described, tensor.reshape(-1).view(torch.uint8).numpy().data
