"""Checkpoints: one safetensors file each, written atomically and verified while training continues.

A file holds every tensor, and in its header the other state as JSON with a SHA-256 of everything. Those of a sharded
model are folders (`checkpoint_shards`). There is no pickle, so no code in a checkpoint can run.
"""

import contextlib
import hashlib
import io
import json
import os
import queue
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors.torch import load

from ratchet import files
from ratchet.checkpoint_names import INDEX, checkpoint_paths, checkpoint_step, unfinished_folders
from ratchet.errors import CheckpointError, TrainingError
from ratchet.training.checkpoint_shards import (
    StoredWeights,
    check_shards,
    read_index,
    reading,
    shard_name,
    tensor_bytes,
    write_tensors,
)
from ratchet.training.ranks import Ranks

__all__ = [
    "CheckpointStore",
    "OthersCheckpoints",
    "Snapshot",
    "checkpoint_step",
    "delete_checkpoint",
    "read_checkpoint",
]


@dataclass(frozen=True)
class Snapshot:
    """A copy of the training state, so that training can continue while it is written."""

    step: int
    tensors: dict[str, torch.Tensor]  # on the CPU; from a GPU they may be complete only after `copied`
    state: dict[str, Any]  # plain data
    # At the end of an epoch; larger is better; decides which ones `keep_best` keeps
    score: tuple[float, ...] | None = None
    copied: torch.cuda.Event | None = None
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)  # whole ones of the tensors that have only rows


@dataclass
class CheckpointStore:
    """Checkpoint folder of one training. A thread writes the files.

    Every snapshot is written, so the files that remain do not depend on the speed of the disk. One snapshot may wait
    while another is written; `put` of a third blocks. Use the store as a context: leaving it waits for the writer.
    """

    folder: Path
    keep_last: int = 2
    keep_best: int = 1
    problems: list[str] = field(default_factory=list)  # messages for the user; the reader removes those it has shown
    before_write: Callable[[], None] = lambda: None  # writes to disk what must precede a checkpoint

    def __post_init__(self) -> None:
        self._queue: queue.Queue[Snapshot | None] = queue.Queue(1)  # None: the end
        self._thread = threading.Thread(target=self._write_all, name="checkpoint-writer", daemon=True)

    def __enter__(self) -> "CheckpointStore":
        self.folder.mkdir(parents=True, exist_ok=True)
        files.clear_drafts(self.folder)
        for path in unfinished_folders(self.folder):
            shutil.rmtree(path)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.put(None)
        self._thread.join()

    def put(self, snapshot: Snapshot) -> None:
        """Queue a snapshot for the writer. Return at once, unless the snapshot before is still queued."""
        self._queue.put(snapshot)

    def wait(self) -> None:
        self._queue.join()

    def put_shards(self, snapshot: Snapshot, ranks: Ranks, device: torch.device) -> None:
        """Write this rank's rows into a draft, which is the checkpoint when all ranks have. Every rank calls it."""
        folder, problems, digest = self._path(snapshot.step).with_suffix(""), list[str](), bytes(32)
        draft = self.folder / f"{files.DRAFT}{folder.name}-shards"
        with _noted(problems):
            if ranks.is_first:
                shutil.rmtree(draft, ignore_errors=True)
                self.before_write()
                draft.mkdir(parents=True)
        [failed] = ranks.from_first([len(problems)], device)  # waits for it, on a GPU too
        with _noted(problems):
            if not failed:
                rows = {name: snapshot.tensors[name] for name in snapshot.shapes}
                tensors = snapshot.tensors if ranks.is_first else rows
                shard = draft / shard_name(ranks.rank, ranks.count)
                write_tensors(shard, tensors)
                digest = bytes.fromhex(files.digest_file(shard))
        digests = ranks.in_turn(torch.tensor([list(digest)], dtype=torch.int32, device=device)).tolist()
        if not ranks.is_first:
            return
        with _noted(problems):
            if list(bytes(32)) in digests:
                raise CheckpointError("another process could not write its shard")
            shards = {shard_name(rank, ranks.count): bytes(each).hex() for rank, each in enumerate(digests)}
            content = {
                "step": snapshot.step,
                "score": snapshot.score,
                "state": snapshot.state,
                "shapes": snapshot.shapes,
                "tensors": list(snapshot.tensors),
                "shards": shards,
            }
            content = json.loads(json.dumps(content))
            files.write_json(draft / INDEX, {**content, "sha256": files.digest_json(content)})
            files.replace_directory(folder, draft)
            self._prune()
        if problems:
            shutil.rmtree(draft, ignore_errors=True)
            self._report(snapshot.step, problems[0])

    def paths(self) -> list[Path]:
        return checkpoint_paths(self.folder)

    def newest_step(self) -> int:
        """Return the step of the newest checkpoint on disk, 0 if there is none. The file is not read."""
        return max(map(checkpoint_step, self.paths()), default=0)

    def newest(self, ranks: Ranks | None = None) -> tuple[Path, Snapshot] | None:
        """Return the newest undamaged checkpoint. Damaged ones are reported in `problems` and renamed.

        Raises:
            TrainingError: one cannot be read now. It may be good.
        """
        for path in reversed(self.paths()):
            try:
                if path.is_dir():
                    check_shards(path)
                return path, read_checkpoint(path, ranks)
            except CheckpointError as error:
                renamed = path.with_suffix(".damaged")
                delete_checkpoint(renamed)
                os.replace(path, renamed)
                self.problems.append(f"{error}; renamed to {renamed.name}, using the one before it")
        return None

    def at(self, step: int, ranks: Ranks | None = None) -> tuple[Path, Snapshot]:
        """Return the checkpoint of a step."""
        [path] = [path for path in self.paths() if checkpoint_step(path) == step]
        return path, read_checkpoint(path, ranks)

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:012d}.safetensors"

    def _write_all(self) -> None:
        while (snapshot := self._queue.get()) is not None:
            try:
                self.before_write()
                write_checkpoint(self._path(snapshot.step), snapshot)
                self._prune()
            except Exception as error:  # any disk error is reported, and the thread continues
                self._report(snapshot.step, str(error))
            finally:
                del snapshot  # the next one can take its memory
                self._queue.task_done()
        self._queue.task_done()

    def _report(self, step: int, problem: str) -> None:
        stored = self.paths()
        last = f"the last good one is {stored[-1].name}" if stored else "there is no other checkpoint yet"
        self.problems.append(f"checkpoint of step {step} was not written ({problem}); {last}; training continues")

    def _prune(self) -> None:
        paths = self.paths()
        keep, scored = set(paths[-self.keep_last :]), []
        for path in paths:
            try:
                score = _score(path)
            except (OSError, TrainingError):  # it cannot be read now, and may be the best
                keep.add(path)
                continue
            if score is not None:
                scored.append((score, path))
        keep |= {path for _, path in sorted(scored, reverse=True)[: self.keep_best]}
        for path in paths:
            if path not in keep:
                delete_checkpoint(path)


class OthersCheckpoints(CheckpointStore):
    """The checkpoints that rank 0 writes, as another rank of the training reads them."""

    def __enter__(self) -> "CheckpointStore":
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the folder as it is."""


def delete_checkpoint(path: Path) -> None:
    """Delete a checkpoint, a file or a folder, if there is one."""
    if path.is_dir():
        (path / INDEX).unlink(missing_ok=True)  # what is left is no checkpoint
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _noted(problems: list[str]) -> Iterator[None]:
    """Add the error of what is done inside to `problems`: no disk ends a training."""
    try:
        yield
    except Exception as error:
        problems.append(str(error))


def write_checkpoint(path: Path, snapshot: Snapshot) -> None:
    """Write a checkpoint file, completely or not at all. Training continues meanwhile."""
    if snapshot.copied is not None:
        snapshot.copied.synchronize()
    # The order of the keys is part of the content.
    state = json.dumps({"step": snapshot.step, "score": snapshot.score, **snapshot.state})
    write_tensors(path, snapshot.tensors, {"state": f"{_digest(snapshot.tensors, state)} {state}"})


def read_checkpoint(path: Path, ranks: Ranks | None = None) -> Snapshot:
    """Read and verify one checkpoint. Of a sharded one only the rows of this rank, if `ranks` is given.

    Raises:
        CheckpointError: it is truncated or changed; the message says how.
        TrainingError: it cannot be read now.
    """
    if path.is_dir():
        index, ranks = read_index(path), ranks or Ranks()
        stored = StoredWeights(path, rank=ranks.rank, count=ranks.count)
        return Snapshot(index["step"], dict(stored), index["state"], index["score"] and tuple(index["score"]))
    with reading(path):
        content = path.read_bytes()
        tensors = load(content)
        digest, state_text = _header(io.BytesIO(content))
    if _digest(tensors, state_text) != digest:
        raise CheckpointError(f"checkpoint {path} is damaged (its content does not match its digest)")
    state = json.loads(state_text)
    step, score = state.pop("step"), state.pop("score")
    return Snapshot(step=step, score=None if score is None else tuple(score), tensors=tensors, state=state)


def _header(file: BinaryIO) -> tuple[str, str]:
    """Return the SHA-256 (hex) that a safetensors file was written with, and the state as JSON."""
    size = min(int.from_bytes(file.read(8), "little"), 100_000_000)  # the format allows no longer header
    header = json.loads(file.read(size))
    digest, _, state = header["__metadata__"]["state"].partition(" ")
    return digest, state


def _score(path: Path) -> tuple[float, ...] | None:
    with contextlib.suppress(ValueError, KeyError, TypeError, CheckpointError):  # a damaged one is never the best
        if path.is_dir():
            content = read_index(path)
        else:
            with path.open("rb") as file:
                content = json.loads(_header(file)[1])
        score: list[float] | None = content["score"]
        return None if score is None else tuple(score)
    return None


def _digest(tensors: dict[str, torch.Tensor], state: str) -> str:
    digest = hashlib.sha256(state.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor_bytes(tensor))
    return digest.hexdigest()
