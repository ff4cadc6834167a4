"""A sharded model: its checkpoints load in any number of processes, and what cannot be exact is refused."""

import os
import resource
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from torch import nn

from ratchet.checkpoint_names import checkpoint_paths
from ratchet.errors import CheckpointError, TrainingError
from ratchet.training.checkpoint import CheckpointStore, OthersCheckpoints, Snapshot
from ratchet.training.checkpoint_shards import TYPES, StoredWeights, write_tensors
from ratchet.training.device import precise_type
from ratchet.training.model_shards import _row_squares, refuse_shards
from ratchet.training.models import build, load_model, save_model
from ratchet.training.optim import without_compile_wrappers
from ratchet.training.ranks import Ranks

CPU = torch.device("cpu")
ROWS = {"model/a": torch.arange(21.0).view(7, 3), "optimizer/a/exp_avg": -torch.arange(21.0).view(7, 3)}
EQUAL = {"optimizer/a/step": torch.tensor(5.0), "model/mask": torch.tensor([True, False])}
SHAPES = {name: tuple(tensor.shape) for name, tensor in ROWS.items()}


def stored(folder: Path, *steps: int) -> CheckpointStore:
    store = CheckpointStore(folder)
    for step in steps:
        store.put_shards(Snapshot(step, ROWS | EQUAL, {"epoch": step}, None, shapes=SHAPES), Ranks(), CPU)
    return store


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_any_number_of_ranks_reads_its_rows(count: int, tmp_path: Path) -> None:
    [path] = stored(tmp_path, 5).paths()
    shares = [StoredWeights(path, rank=rank, count=count) for rank in range(count)]
    for name, tensor in ROWS.items():
        assert torch.equal(torch.cat([share[name] for share in shares]), tensor)
    for name, tensor in EQUAL.items():
        assert all(torch.equal(share[name], tensor) for share in shares)
    assert dict(StoredWeights(path, "optimizer/a/")).keys() == {"exp_avg", "step"}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_shard_that_is_missing_or_cannot_be_read_now(tmp_path: Path) -> None:
    [path] = stored(tmp_path, 5).paths()
    weights, shard = StoredWeights(path), path / "shard-0-of-1.safetensors"
    name = next(iter(weights))
    shard.unlink()
    with pytest.raises(CheckpointError, match="is damaged"):
        weights[name]
    shard.symlink_to(shard)
    with pytest.raises(TrainingError, match="is left as it is"):
        weights[name]


def test_a_damaged_shard_falls_back_to_the_checkpoint_before(tmp_path: Path) -> None:
    """The damaged folder is no checkpoint: not listed, not kept instead of a good one, and replaced by the next."""
    stored(tmp_path, 5)
    for _ in range(2):
        with stored(tmp_path, 6) as store:
            shard = store.paths()[-1] / "shard-0-of-1.safetensors"
            shard.write_bytes(shard.read_bytes()[:-1] + b"\1")
            newest = store.newest()
            assert newest is not None
            assert (newest[1].step, newest[1].state) == (5, {"epoch": 5})
            assert "shard-0-of-1.safetensors" in store.problems[0]
            assert store.newest_step() == 5
            assert store.paths() == checkpoint_paths(tmp_path) == [newest[0]]
            assert store.at(5)[0] == newest[0]
    assert names(tmp_path) == ["step-000000000005", "step-000000000006.damaged"]
    store.keep_last = 1
    store.put_shards(newest[1], Ranks(), CPU)
    assert store.paths() == [newest[0]]


def end_at_rename(point: int) -> None:
    """End this process, as by SIGKILL, instead of the rename after so many."""
    rename, left = os.replace, iter(range(point))
    os.replace = lambda *paths: rename(*paths) if next(left, None) is not None else os._exit(9)


def test_a_kill_at_any_rename_keeps_the_checkpoint(tmp_path: Path) -> None:
    stored(tmp_path, 5)
    for point in range(20):
        if not (process := os.fork()):
            end_at_rename(point)
            stored(tmp_path, 5)
            os._exit(0)
        was_killed = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        with CheckpointStore(tmp_path) as store:
            newest = store.newest()
        assert newest is not None
        assert (newest[1].step, store.problems, names(tmp_path)) == (5, [], ["step-000000000005"])
        if not was_killed:
            return
    raise AssertionError("the checkpoint was never written to its end")


def test_a_full_disk_keeps_the_checkpoint_and_training(tmp_path: Path) -> None:
    """A limit on file size makes the system refuse the index, which is larger than the shard here."""
    store = stored(tmp_path, 5)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for step in (5, 6):
        large = Snapshot(step, ROWS | EQUAL, {"history": "." * 5000}, None, shapes=SHAPES)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
        try:
            store.put_shards(large, Ranks(), CPU)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert f"checkpoint of step {step} was not written ([Errno 27]" in store.problems.pop()
        assert names(tmp_path) == ["step-000000000005"]
    assert store.at(5)[1].state == {"epoch": 5}


def test_no_checkpoint_is_written_without_what_precedes_it(tmp_path: Path) -> None:
    store = stored(tmp_path, 5)
    store.before_write = (tmp_path / "journal" / "events.jsonl").touch
    store.put_shards(Snapshot(6, ROWS | EQUAL, {}, None, shapes=SHAPES), Ranks(), CPU)
    assert "checkpoint of step 6 was not written ([Errno 2]" in store.problems.pop()
    assert names(tmp_path) == ["step-000000000005"]


class Second(Ranks):
    """The second of two processes with GPUs: the host goes on while they exchange tensors, and waits for numbers."""

    def __init__(self, folder: Path) -> None:
        super().__init__(1, 2)
        self.folder, self.seen = folder, list[list[str]]()

    def in_turn(self, items: torch.Tensor) -> torch.Tensor:
        self.seen.append(names(self.folder))
        return items.repeat(2, 1)

    def from_first(self, values: Sequence[float], device: torch.device) -> list[float]:
        self.seen.append(names(self.folder))
        (self.folder / ".draft-step-000000000005-shards").mkdir()
        return list(values)


def test_no_process_writes_before_the_first_has_made_the_folder(tmp_path: Path) -> None:
    ranks = Second(tmp_path)
    OthersCheckpoints(tmp_path).put_shards(Snapshot(5, ROWS, {}, None, shapes=SHAPES), ranks, CPU)
    assert ranks.seen == [[], [".draft-step-000000000005-shards"]]
    assert names(tmp_path / ".draft-step-000000000005-shards") == ["shard-1-of-2.safetensors"]


def test_a_start_removes_what_a_kill_has_left(tmp_path: Path) -> None:
    stored(tmp_path, 5, 6)
    (tmp_path / "step-000000000006" / "index.json").unlink()
    (tmp_path / ".draft-step-000000000007-shards").mkdir()
    with CheckpointStore(tmp_path):
        assert names(tmp_path) == ["step-000000000005"]


def test_a_checkpoint_without_index_is_none(tmp_path: Path) -> None:
    store = stored(tmp_path, 5, 6)
    (store.paths()[-1] / "index.json").unlink()
    assert store.newest_step() == 5


def test_tensors_are_written_one_by_one_with_the_usual_bytes(tmp_path: Path) -> None:
    tensors = {f"{dtype}".replace("torch", "é"): torch.ones(3, 2).to(dtype).T for dtype in TYPES} | ROWS | EQUAL
    tensors["empty"], tensors["large"] = torch.zeros(0, 3), torch.arange(1.5e6, dtype=torch.float64)
    for metadata in (None, {"state": 'é \u2028 " \\ / \n \x01 \x7f'}):
        write_tensors(tmp_path / "a.safetensors", tensors, metadata)
        expected = save({name: tensor.contiguous() for name, tensor in tensors.items()}, metadata)
        assert (tmp_path / "a.safetensors").read_bytes() == expected


NET = """from torch import nn, zeros, {kind}


class Net(nn.Module):
    def __init__(self, *, classes, channels, height, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, classes))
        self.register_buffer("phase", zeros(2, dtype={kind}))

    def forward(self, images):
        return self.layers(images)
"""


def test_a_model_keeps_any_type_that_a_file_can_hold(lab, tmp_path: Path) -> None:
    """Any other is refused before the first step."""
    for kind in ("complex64", "float8_e4m3fn", "uint16", "complex128"):
        folder = tmp_path / kind
        folder.mkdir()
        (folder / "kept.py").write_text(NET.format(kind=kind))
        spec = replace(lab.make_spec(), factory="kept:Net", code="kept.py", root=str(folder))
        if kind == "complex128":
            with pytest.raises(
                TrainingError, match=r"keeps phase as torch\.complex128\. Allowed: bool, uint8, .*Fix: "
            ):
                build(spec)
        else:
            save_model(folder / "model", build(spec).state_dict(), spec, about={})
            assert load_model(folder / "model")[0].network.phase.dtype == getattr(torch, kind)


def test_the_norm_needs_no_float64_on_apples_gpu() -> None:
    assert precise_type(torch.device("mps")) == torch.float32
    assert _row_squares(torch.ones(3, 2)).dtype == precise_type(CPU) == torch.float64


@pytest.mark.parametrize("width", [7, 1001, 62_503])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_an_optimizer_without_fused_kernel_computes_rows_alone(kind: type[torch.optim.Optimizer], width: int) -> None:
    generator = torch.Generator().manual_seed(0)
    start, *gradients = torch.randn(4, width, generator=generator)
    more = {"momentum": 0.9, "nesterov": True} if kind is torch.optim.SGD else {}

    def after(rows: slice) -> torch.Tensor:
        parameter = nn.Parameter(start[rows].clone())
        optimizer = without_compile_wrappers(kind)([parameter], lr=0.01, weight_decay=0.01, fused=False, **more)
        for gradient in gradients:
            parameter.grad = gradient[rows].clone()
            optimizer.step()
        return parameter.detach()

    for share in (-(-width // 2), -(-width // 4)):
        parts = [after(slice(at, at + share)) for at in range(0, width, share)]
        assert torch.equal(torch.cat(parts), after(slice(None)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("optimizer", "muon"), ("prune_channels", 0.5), ("frozen_epochs", 1), ("compile", "default"),
        ("precision", "fp16"), ("channels_last", True), ("gradient_checkpointing", True),
    ],
)  # fmt: skip
def test_a_setting_that_cannot_be_exact_is_refused(name: str, value: object, lab) -> None:
    with pytest.raises(TrainingError, match=rf"training.shard: found fsdp, and training.{name} .*training.shard=none"):
        refuse_shards(lab.plan(shard="fsdp", **{name: value}))
    refuse_shards(lab.plan(shard="none", **{name: value}))
