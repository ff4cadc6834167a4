"""A sharded model: its checkpoints load in any number of processes, and what cannot be exact is refused."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from torch import nn

from ratchet.errors import TrainingError
from ratchet.training.checkpoint import CheckpointStore, Snapshot
from ratchet.training.checkpoint_shards import StoredWeights, write_tensors
from ratchet.training.model_shards import refuse_shards
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


def test_a_damaged_shard_falls_back_to_the_checkpoint_before(tmp_path: Path) -> None:
    store = stored(tmp_path, 5, 6)
    shard = store.paths()[-1] / "shard-0-of-1.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"\1")
    newest = store.newest()
    assert newest is not None
    assert (newest[1].step, newest[1].state) == (5, {"epoch": 5})
    assert "shard-0-of-1.safetensors" in store.problems[0]


def test_a_checkpoint_without_index_is_none(tmp_path: Path) -> None:
    store = stored(tmp_path, 5, 6)
    (store.paths()[-1] / "index.json").unlink()
    assert store.newest_step() == 5


def test_tensors_are_written_one_by_one_with_the_usual_bytes(tmp_path: Path) -> None:
    types = (torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32)
    tensors = {f"{dtype}".replace("torch", "é"): torch.ones(3, 2).to(dtype).T for dtype in types} | ROWS | EQUAL
    tensors["double"], tensors["empty"] = torch.zeros(1, dtype=torch.float64), torch.zeros(0, 3)
    write_tensors(tmp_path / "a.safetensors", tensors)
    expected = save({name: tensor.contiguous() for name, tensor in tensors.items()})
    assert (tmp_path / "a.safetensors").read_bytes() == expected


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
