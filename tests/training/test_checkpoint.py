"""Checkpoints on disk: whole or named as damaged, kept as said, written whatever the disk does to it."""

import hashlib
import json
import os
import pickle
import random
import resource
import subprocess
import threading
import weakref
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from ratchet.errors import CheckpointError, TrainingError
from ratchet.training import CheckpointStore, Finished, Notice, Started, Stopped
from ratchet.training.checkpoint import Snapshot, read_checkpoint, write_checkpoint


def snapshot(step: int, *, score: tuple[float, ...] | None = None) -> Snapshot:
    generator = torch.Generator().manual_seed(step)
    tensors = {
        "model/weight": torch.randn(3, 2, 3, 3, generator=generator).to(memory_format=torch.channels_last),
        "model/half": torch.randn(5, generator=generator).to(torch.bfloat16),
        "optimizer/step": torch.tensor(float(step)),
        "sums/bytes": torch.randint(0, 256, (40,), dtype=torch.uint8, generator=generator),
        "sums/none": torch.zeros(0, dtype=torch.float64),
    }
    return Snapshot(step, tensors, {"history": [{"epoch": 1, "loss": 0.1 + step}], "words": "größer"}, score)


def written(folder: Path, *snapshots: Snapshot, **keep: int) -> CheckpointStore:
    with CheckpointStore(folder, **keep) as store:
        for item in snapshots:
            store.put(item)
    return store


def content_of(item: Snapshot, folder: Path) -> bytes:
    """Return the bytes of a checkpoint's file."""
    path = folder / "content.safetensors"
    write_checkpoint(path, item)
    return path.read_bytes()


def steps(store: CheckpointStore) -> list[int]:
    return [int(path.stem.removeprefix("step-")) for path in store.paths()]


def test_what_is_read_is_what_was_written(lab, tmp_path) -> None:
    store = written(tmp_path, snapshot(7, score=(0.5, -1.25, -1.0)))
    path, result = store.newest()
    assert path.name == "step-000000000007.safetensors"
    expected = snapshot(7, score=(0.5, -1.25, -1.0))
    assert (result.step, result.state, result.score) == (expected.step, expected.state, expected.score)
    lab.assert_same(result.tensors, expected.tensors)
    assert store.problems == []


def test_equal_snapshots_give_equal_bytes(tmp_path) -> None:
    assert len({content_of(snapshot(step), tmp_path) for step in (3, 3, 4)}) == 2


def test_a_checkpoints_bytes_are_those_of_earlier_versions(tmp_path) -> None:
    """An older Ratchet can read the checkpoint, and this one an older checkpoint."""
    tensors = {
        "model/weight": torch.arange(12.0).view(2, 1, 3, 2).to(memory_format=torch.channels_last),
        "model/half": torch.arange(5.0).to(torch.bfloat16),
        "optimizer/step": torch.tensor(3.0),
        "sums/bytes": torch.arange(40, dtype=torch.uint8),
        "sums/none": torch.zeros(0, dtype=torch.float64),
    }
    item = Snapshot(7, tensors, {"history": [{"epoch": 1, "loss": 0.1}], "words": "größer"}, (0.5, -1.25, -1.0))
    digest = hashlib.sha256(content_of(item, tmp_path)).hexdigest()
    assert digest == "e5ae33feba2796488436b83e48c0107d4da64980e8baf7bd990ec5dc50309267"


def test_a_file_cut_off_at_any_length_is_named(tmp_path) -> None:
    path = tmp_path / "step-000000000007.safetensors"
    content = content_of(snapshot(7), tmp_path)
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=str(path)):
            read_checkpoint(path)
    path.write_bytes(content)
    assert read_checkpoint(path).step == 7


def test_a_flipped_bit_anywhere_is_named_or_changes_nothing(lab, tmp_path) -> None:
    """The header is JSON: blank space, or the case of an escape's letter, can be another byte for the same content."""
    path = tmp_path / "step-000000000007.safetensors"
    content, expected, chance = content_of(snapshot(7), tmp_path), snapshot(7), random.Random(7)
    harmless = 0
    for place in range(len(content)):
        altered = bytearray(content)
        altered[place] ^= 1 << chance.randrange(8)
        path.write_bytes(altered)
        try:
            result = read_checkpoint(path)
        except CheckpointError:
            continue
        harmless += 1
        assert (result.step, result.state) == (expected.step, expected.state)
        lab.assert_same(result.tensors, expected.tensors)
    assert harmless < 10


def test_the_newest_undamaged_checkpoint_is_used(tmp_path) -> None:
    """Damaged ones are renamed."""
    store = written(tmp_path, *(snapshot(step) for step in (1, 2, 3, 4)), keep_last=4)
    _, _, third, fourth = store.paths()
    third.write_bytes(b"")
    fourth.write_bytes(b"\xff" * 1000)
    path, result = store.newest()
    assert result.step == 2
    assert path.name == "step-000000000002.safetensors"
    assert [str(name) in problem for name, problem in zip((fourth, third), store.problems, strict=True)] == [True, True]
    assert sorted(left.name for left in tmp_path.glob("*.damaged")) == [
        "step-000000000003.damaged",
        "step-000000000004.damaged",
    ]


def test_a_checkpoint_that_cannot_be_read_now_is_kept(tmp_path) -> None:
    """The system refuses to open it, here because of a link to itself, and not because there is none."""
    store = written(tmp_path, snapshot(1), snapshot(2))
    second = store.paths()[1]
    content = second.read_bytes()
    second.unlink()
    second.symlink_to(second)
    with pytest.raises(TrainingError, match=r"step-0+2.safetensors cannot be read .* is left as it is") as refused:
        store.newest()
    assert not isinstance(refused.value, CheckpointError)
    assert not store.problems
    second.unlink()
    second.write_bytes(content)
    _, newest = store.newest()
    assert newest.step == 2


def test_a_checkpoint_that_cannot_be_read_now_is_not_pruned(tmp_path) -> None:
    best = written(tmp_path, snapshot(1, score=(9.0,))).paths()[0]
    best.unlink()
    best.symlink_to(best)
    store = written(tmp_path, snapshot(2), snapshot(3), keep_last=1)
    assert [path.name[-13] for path in store.paths()] == ["1", "3"]
    assert not store.problems


def test_without_a_good_checkpoint_newest_is_none(tmp_path) -> None:
    store = CheckpointStore(tmp_path)
    assert store.newest() is None
    (tmp_path / "step-000000000001.safetensors").write_bytes(b"no")
    assert store.newest() is None
    assert len(store.problems) == 1


def test_new_checkpoints_are_written_beside_a_damaged_one(tmp_path) -> None:
    (tmp_path / "step-000000000001.safetensors").write_bytes(b"\xff" * 100)  # claims a header of 2^64 bytes
    store = written(tmp_path, snapshot(2, score=(1.0,)), snapshot(3), snapshot(4))
    assert steps(store) == [2, 3, 4]
    assert store.problems == []


@pytest.mark.parametrize(
    ("last", "best", "expected"), [(1, 1, [2, 6]), (2, 1, [2, 5, 6]), (1, 2, [2, 4, 6]), (10, 1, [1, 2, 3, 4, 5, 6])]
)
def test_the_last_and_the_best_are_kept(tmp_path, last: int, best: int, expected: list[int]) -> None:
    scores = {1: 0.1, 2: 0.9, 4: 0.8, 5: 0.3}
    snapshots = [snapshot(step, score=(scores[step],) if step in scores else None) for step in range(1, 7)]
    assert steps(written(tmp_path, *snapshots, keep_last=last, keep_best=best)) == expected


def test_every_snapshot_handed_over_is_written_however_slow_the_disk(tmp_path, monkeypatch) -> None:
    sync, slow = os.fsync, threading.Event()
    monkeypatch.setattr(os, "fsync", lambda handle: (slow.wait(0.01), sync(handle)))
    store = written(tmp_path, *(snapshot(step) for step in range(1, 11)), keep_last=100)
    assert steps(store) == list(range(1, 11))


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1] + bytes([content[-1] ^ 1]),
        lambda content: content[:-1],
        lambda content: content + b"\0",
    ],
    ids=["changed", "shorter", "longer"],
)
def test_a_file_that_the_disk_changed_replaces_none(
    damage: Callable[[bytes], bytes], tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, sync = written(tmp_path, snapshot(1)), os.fsync
    [path] = store.paths()
    good = path.read_bytes()

    def damaging(handle: int) -> None:
        sync(handle)
        for draft in tmp_path.glob(".draft-*"):
            draft.write_bytes(damage(draft.read_bytes()))

    monkeypatch.setattr(os, "fsync", damaging)
    again = written(tmp_path, snapshot(1))
    [problem] = again.problems
    assert "checkpoint of step 1 was not written" in problem
    assert "read back differs from what was written" in problem
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == good


def test_a_written_snapshot_is_freed_before_the_next_comes(tmp_path) -> None:
    item = snapshot(1)
    reference = weakref.ref(item)
    with CheckpointStore(tmp_path) as store:
        store.put(item)
        del item
        store.wait()
        assert reference() is None


def test_drafts_of_a_killed_writer_are_removed(tmp_path) -> None:
    (tmp_path / ".draft-abc.safetensors").write_bytes(b"half")
    written(tmp_path, snapshot(1))
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000000001.safetensors"]


def test_stopping_at_an_epochs_end_keeps_the_epochs_score(lab) -> None:
    plan = lab.plan(checkpoint_steps=0)
    lab.stop_at(4, plan)
    assert lab.store(plan).newest()[1].score is not None


def test_a_checkpoint_is_read_without_pickle(lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is JSON and raw numbers."""
    plan = lab.plan()
    lab.stop_at(6, plan)
    content = lab.store(plan).paths()[-1].read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    json.loads(header.pop("__metadata__")["state"].partition(" ")[2])
    spans = sorted(tuple(entry["data_offsets"]) for entry in header.values())
    assert spans[0][0] == 0
    assert all(end == start for (_, end), (start, _) in pairwise(spans))
    assert 8 + length + spans[-1][1] == len(content)  # not a byte besides

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a pickle was read")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "load", refuse)
    assert lab.run(plan).step == 12


def test_training_continues_on_a_full_disk(lab) -> None:
    """A message reports the error, and the last good checkpoint stays."""
    small = lab.root / "small"
    small.mkdir()
    mounted = (
        os.geteuid() == 0
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small], check=False, capture_output=True
        ).returncode
    )
    if not mounted:
        pytest.skip("mounting a small tmpfs needs root and the right to mount")
    try:
        plan = lab.plan()
        store = CheckpointStore(small / "run")
        filler = small / "filler"
        events = []
        for event in lab.events(plan, store=store):
            events.append(event)
            if not filler.exists() and len(store.paths()) == 2:
                with filler.open("wb") as file:
                    size = os.statvfs(small).f_bavail * os.statvfs(small).f_frsize
                    file.write(b"\0" * size)
        assert isinstance(events[-1], Finished)
        assert events[-1].step == 12
        notices = [notice.text for notice in lab.every(events, Notice)]
        assert notices
        assert all("was not written ([Errno 28] No space left" in text for text in notices)
        assert all("the last good one is step-" in text and "training continues" in text for text in notices)
        filler.unlink()
        assert store.newest() is not None
        assert not list(store.folder.glob(".draft-*"))
        lab.assert_same(lab.run(plan, name="roomy").weights, events[-1].weights)
    finally:
        subprocess.run(["umount", small], check=True)


@pytest.mark.parametrize("step", [2, 7])
def test_a_stop_on_a_full_disk_reports_its_checkpoint(lab, step: int) -> None:
    """A limit on file size makes the system refuse a checkpoint, as a full disk does."""
    plan, requested = lab.plan(), iter(range(100))
    store = lab.store(plan)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def stop() -> bool:
        if next(requested) < step:
            return False
        store.wait()
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        return True

    try:
        events = list(lab.events(plan, stop=stop, store=store))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    kept = {2: 0, 7: 6}[step]
    assert events[-1] == Stopped(step, saved_step=kept)
    assert f"checkpoint of step {step} was not written" in lab.every(events, Notice)[-1].text
    assert lab.every(lab.events(plan), Started)[0].step == kept


def test_before_write_runs_before_the_checkpoint_is_written(tmp_path) -> None:
    seen: list[list[int]] = []
    with CheckpointStore(tmp_path) as store:
        store.before_write = lambda: seen.append(steps(store))
        for step in (1, 2):
            store.put(snapshot(step))
            store.wait()
    assert seen == [[], [1]]
