"""The model as the ranks of a training hold it: each the whole, or each a share of the rows of every parameter.

Shards are those of PyTorch's FSDP2. Before a block runs, its parameters are gathered; after its backward pass each rank
keeps its rows of their gradients. The sum of the ranks' gradients is that of the tree in `ranks`: of N ranks, rank r
computes the pieces r, r + N, r + 2N and so on, so that the pieces computed at the same time are a subtree.

Whatever is computed after that takes the rows one by one, so that no bit depends on how they are shared: the optimizer
is PyTorch's without a fused kernel, which rounds the last elements of a tensor otherwise, and the squares of a norm are
added within a row, then over all rows.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import distributed, nn
from torch.nn import functional

from ratchet.combinations import shard_fault, shard_obstacles
from ratchet.errors import TrainingError
from ratchet.training.device import precise_type
from ratchet.training.models import Model
from ratchet.training.optim import own_rows, total_norm
from ratchet.training.plan import Plan
from ratchet.training.ranks import Ranks

__all__ = ["ModelShards", "WholeModel", "choose_shards", "refuse_shards"]

_LARGE = 100_000_000  # parameters from which `auto` shards a model
_FEWEST = 4_096  # parameters of a block that is gathered by itself
_CHUNK = 1 << 20  # elements whose squares are added at a time
_CONTAINERS = (nn.Sequential, nn.ModuleList)


def choose_shards(plan: Plan, model: Model, ranks: Ranks, device: torch.device) -> "WholeModel":
    """Return how the model is held. It depends on settings and model alone, never on the machine.

    Raises:
        TrainingError: the settings or the model do not allow `training.shard: fsdp`.
    """
    large = sum(parameter.numel() for parameter in model.parameters()) >= _LARGE
    is_sharded = plan.shard == "fsdp" or (plan.shard == "auto" and large and not _obstacles(plan, model))
    if is_sharded:
        refuse_shards(plan, model)
    return (ModelShards if is_sharded else WholeModel)(plan, ranks, device)


def refuse_shards(plan: Plan, model: Model | None = None) -> None:
    """Check that a model may be sharded.

    Raises:
        TrainingError: `training.shard` is fsdp, and another setting or the model does not allow it.
    """
    if fault := shard_fault(plan, _obstacles(plan, model)):
        raise TrainingError(fault)


def _obstacles(plan: Plan, model: Model | None) -> list[str]:
    parameters = [] if model is None else list(model.named_parameters())
    several = len({each.dtype for _, each in parameters}) > 1
    obstacles = {"the parameters of the model have several types": several}
    for name, parameter in parameters:
        obstacles[f"parameter {name} of the model is a single number without a row"] = parameter.dim() == 0
        obstacles[f"parameter {name} of the model is complex"] = parameter.is_complex()
    return shard_obstacles(plan) + [reason for reason, is_true in obstacles.items() if is_true]


class WholeModel:
    """Each rank has the whole model (`training.shard: none`), and consecutive pieces of a step.

    Attributes:
        is_fast: PyTorch adds the gradients, in an order that depends on the number of ranks.
        together: all ranks take part in every forward or backward pass, so each makes as many passes as the others.
        shapes: whole shapes of the parameters of which this rank has rows, by name.
    """

    is_sharded = False

    def __init__(self, plan: Plan, ranks: Ranks, device: torch.device) -> None:
        self.ranks, self.device = ranks, device
        self.is_fast = plan.reduction == "fast"
        self.together = self.is_fast and ranks.count > 1
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._ddp: nn.parallel.DistributedDataParallel | None = None

    def place(self, model: Model, *, channels_last: bool) -> dict[str, nn.Parameter]:
        """Move the model to the device, and return the parameters that this rank's optimizer changes."""
        model.to(self.device)
        if channels_last:
            model.to(memory_format=torch.channels_last)
        return dict(model.named_parameters())

    def network(self, network: nn.Module) -> nn.Module:
        """Return the module whose forward and backward pass make a step."""
        if not self.together:
            return network
        self._ddp = nn.parallel.DistributedDataParallel(
            _WithUnused(network, self.device), forward_sync_buffers=False, find_unused_parameters=True
        )
        return self._ddp

    def pieces(self, count: int) -> range:
        """Return the numbers of this rank's pieces of `count`."""
        return self.ranks.pieces(count)

    def smallest(self, model: nn.Module) -> int:
        """Return the fewest samples of a micro-batch, as far as that is known before the first step."""
        has_statistics = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())
        return 2 if has_statistics and (self.together or self.is_sharded) else 1

    def begin_pass(self, *, ends_piece: bool, ends_step: bool, is_idle: bool) -> float:
        """Prepare a forward and backward pass; return the factor of its loss. Idle: only the other ranks need it."""
        if self._ddp is not None:
            self._ddp.require_backward_grad_sync = ends_piece and ends_step
            return 0.0 if is_idle else float(self.ranks.count)  # DDP divides by it
        return 1.0

    def take_gradients(self, parameters: Mapping[str, nn.Parameter]) -> set[str]:
        """Give the parameters their gradients; return the names of those that this rank's pass has used."""
        return {name for name, parameter in parameters.items() if parameter.grad is not None}

    def forget_gradients(self) -> None:
        """Delete the gradients that `take_gradients` would give."""

    def add_piece(self, vector: torch.Tensor) -> torch.Tensor:
        """Return the vector of a piece, added to those of the pieces that other ranks computed at the same time."""
        return vector

    def add_step(self, vector: torch.Tensor) -> torch.Tensor:
        """Return the sum of the pieces of all ranks; `vector` is that of this rank's pieces."""
        return self.ranks.add(vector)

    def norm(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the norm of all parameters, or of their gradients."""
        return total_norm(tensors)


class _WithUnused(nn.Module):
    """A network as DDP takes it, to let a step use only some parameters and to keep its buckets as they began.

    Other buckets after the first step would round sums otherwise than a resumed training, whose first step is another.
    DDP warns if it looks for unused parameters and finds none, so there is one.
    """

    def __init__(self, network: nn.Module, device: torch.device) -> None:
        super().__init__()
        self.network, self.unused = network, nn.Parameter(torch.zeros(1, device=device))

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.network(*inputs)


class ModelShards(WholeModel):
    """Each rank has a share of the rows of every parameter (`training.shard: fsdp`), and every N-th piece of a step."""

    is_sharded = True

    def __init__(self, plan: Plan, ranks: Ranks, device: torch.device) -> None:
        super().__init__(plan, ranks, device)
        self.together = ranks.count > 1
        self._scatter = _Scatter(ranks, is_fast=self.is_fast)
        self._model: Any = None  # as FSDP has changed it, if there are several ranks
        self._used: set[str] = set()  # parameters that have a gradient of this rank's piece

    def place(self, model: Model, *, channels_last: bool) -> dict[str, nn.Parameter]:
        self.shapes = {
            name: tuple(parameter.shape) for name, parameter in model.named_parameters(remove_duplicate=False)
        }
        if not self.together:
            return super().place(model, channels_last=False)
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(self.device.type, (self.ranks.count,))
        blocks: list[Any] = [*_blocks(model), model]
        for block in blocks:
            fully_shard(block, mesh=mesh, reshard_after_forward=True)
        for block in blocks:
            block.set_custom_reduce_scatter(self._scatter)
            block.set_custom_all_gather(_Gather(self.ranks, is_fast=self.is_fast))
            block.set_gradient_divide_factor(1.0)
            block.set_force_sum_reduction_for_comms(True)
        model.set_reduce_scatter_unused_params(True)  # type: ignore[operator]  # each rank sends as much
        for block in reversed(blocks):
            block.unshard()
            for name, parameter in model.named_parameters():  # the block's are whole, the same in each step
                if parameter.requires_grad and not hasattr(parameter, "to_local"):
                    parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                        lambda _, name=name: self._used.add(name)
                    )
            block.reshard()
        if self._model is None:  # the first: the other one is the average, which has no gradients
            self._model = model
        return {
            name: nn.Parameter(own_rows(parameter), requires_grad=parameter.requires_grad)
            for name, parameter in model.named_parameters()
        }

    def network(self, network: nn.Module) -> nn.Module:
        return network

    def pieces(self, count: int) -> range:
        return range(self.ranks.rank, count, self.ranks.count)

    def begin_pass(self, *, ends_piece: bool, ends_step: bool, is_idle: bool) -> float:
        if self.together:
            self._model.set_requires_gradient_sync(ends_piece)
            self._scatter.is_idle = is_idle
        return 1.0

    def take_gradients(self, parameters: Mapping[str, nn.Parameter]) -> set[str]:
        if not self.together:
            return super().take_gradients(parameters)
        for name, sharded in self._model.named_parameters():
            if name in parameters:
                parameters[name].grad = None if sharded.grad is None else own_rows(sharded.grad)
            if not self.is_fast:  # which adds that of the next piece to it
                sharded.grad = None
        used, self._used = self._used, set()
        return used

    def forget_gradients(self) -> None:
        if self.together:
            for sharded in self._model.parameters():
                sharded.grad = None

    def add_piece(self, vector: torch.Tensor) -> torch.Tensor:
        return self.ranks.add(vector)

    def add_step(self, vector: torch.Tensor) -> torch.Tensor:
        return vector

    def norm(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        count, whole = self.ranks.count, [self.shapes[name][0] for name in tensors]
        squares = [
            functional.pad(own := _row_squares(tensor), (0, -(-rows // count) - len(own)))
            for rows, tensor in zip(whole, tensors.values(), strict=True)
        ]
        gathered = self.ranks.in_turn(torch.cat(squares)[None]).split_with_sizes([len(each) for each in squares], dim=1)
        in_order = [each.reshape(-1)[:rows] for rows, each in zip(whole, gathered, strict=True)]
        return torch.cat(in_order).sum().sqrt().float()


class _Scatter:
    """Adds the gradients of the ranks in the tree; each gets its rows. It takes the place of FSDP's own."""

    def __init__(self, ranks: Ranks, *, is_fast: bool) -> None:
        self.ranks, self.is_fast, self.is_idle = ranks, is_fast, False

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, **_: Any) -> None:
        if self.is_idle:
            input_tensor.zero_()
        if self.is_fast:
            self.ranks.wait(lambda: distributed.reduce_scatter_tensor(output_tensor, input_tensor, async_op=True))
        else:
            output_tensor.copy_(self.ranks.scatter(input_tensor))


class _Gather(_Scatter):
    """Gathers the parameters of a block. Unlike FSDP's own it looks after the other ranks while it waits."""

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, *_: Any, **__: Any) -> None:
        self.ranks.wait(lambda: distributed.all_gather_into_tensor(output_tensor, input_tensor, async_op=True))


def _row_squares(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of the squares of each row, (rows,). The order depends on its length alone."""
    rows = tensor.detach().reshape(len(tensor), -1) if len(tensor) else tensor.detach().new_zeros(0, 1)
    sums = []
    for block in torch.split(rows, max(1, _CHUNK // rows.shape[1])):
        squares = block.to(precise_type(tensor.device)).square()
        while (width := squares.shape[1]) > 1:
            half = (width + 1) // 2
            squares[:, : width - half] += squares[:, half:]
            squares = squares[:, :half]
        sums.append(squares[:, 0])
    return torch.cat(sums)


def _blocks(model: nn.Module) -> list[nn.Module]:
    """Return the blocks that are gathered one after another: the outermost members of lists and sequences of modules.

    A parameter that a block shares with another module belongs to the model.
    """
    held = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    blocks: list[nn.Module] = []

    def visit(module: nn.Module, *, is_member: bool) -> None:
        own = Counter(id(parameter) for _, parameter in module.named_parameters(remove_duplicate=False))
        is_large = sum(parameter.numel() for parameter in module.parameters()) >= _FEWEST
        if is_member and not isinstance(module, _CONTAINERS) and is_large and own.items() <= held.items():
            blocks.append(module)
            return
        for child in module.children():
            visit(child, is_member=isinstance(module, _CONTAINERS))

    visit(model, is_member=False)
    return blocks
