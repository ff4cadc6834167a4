"""Check settings against the length of the run, the model, and the free disk space and memory."""

import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ratchet.doctor.findings import RULES, Finding
from ratchet.training.batches import run_steps
from ratchet.training.plan import Plan
from ratchet.training.schedule import learning_rate

__all__ = ["available_memory", "check_disk", "check_memory", "check_settings"]

_POINTS = 1000  # steps whose learning rate is computed
_WITH_WARMUP = ("warmup-cosine", "warmup-linear", "plateau")
_SLOTS = {"sgd": 1, "adam": 2, "adamw": 2, "muon": 1}  # tensors that an optimizer keeps for each parameter
_HALF = ("bf16", "fp16")
# Copies of a checkpoint in the host's memory: a snapshot, and the next one, which waits until this one is on disk. A
# disk that takes longer than two intervals adds a third.
_HOST_COPIES = 2
_GIB = 2**30


def check_settings(model: nn.Module, plan: Plan, *, rows: int) -> Iterator[Finding]:
    """Check schedule and micro-batches of a training on `rows` samples."""
    yield from _schedule(plan, *run_steps(rows, plan))
    norms = sum(isinstance(module, _BatchNorm) for module in model.modules())
    samples = min(plan.batch_size, rows) // plan.accumulation
    if norms and samples < RULES["small-micro-batch"].limit:
        sizes = {"batch_size": plan.batch_size, "accumulation": plan.accumulation}
        yield Finding.of("small-micro-batch", norms=norms, samples=samples, **sizes)


def _schedule(plan: Plan, steps: int, steps_per_epoch: int) -> Iterator[Finding]:
    epochs = steps / steps_per_epoch
    run = {"steps": steps, "epochs": epochs}
    falls = {
        "step": ("training.step_epochs", plan.step_epochs),
        "plateau": ("training.plateau_patience + 1", plan.plateau_patience + 1),
    }.get(plan.schedule)
    points = range(0, steps, max(1, steps // _POINTS))
    if plan.schedule in _WITH_WARMUP and plan.warmup_epochs > RULES["long-warmup"].limit * max(epochs, 1):
        yield Finding.of("long-warmup", warmup=plan.warmup_epochs, **run)
    elif falls is not None and falls[1] >= epochs:
        yield Finding.of("late-decay", falls[0], value=falls[1], **run)
    else:
        low = RULES["low-learning-rate"].limit * plan.learning_rate
        rates = (learning_rate(plan, step=step, total_steps=steps, steps_per_epoch=steps_per_epoch) for step in points)
        share = sum(rate < low for rate in rates) / len(points)
        if share > 0.5:
            yield Finding.of("low-learning-rate", share=share, **run)


def check_disk(model: nn.Module, plan: Plan, folder: Path) -> Iterator[Finding]:
    """Compare the checkpoints to be kept, and the one that is being written, with the free space of `folder`."""
    size, count = _checkpoint(model, plan), plan.keep_last + plan.keep_best + 1
    free = shutil.disk_usage(
        next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    ).free
    if size * count > free:
        space = {"need": size * count / _GIB, "free": free / _GIB}
        yield Finding.of("disk-space", count=count, mib=size / 2**20, folder=str(folder), **space)


def check_memory(
    model: nn.Module, plan: Plan, *, device: torch.device, precision: str, rows: int, activations: int
) -> Iterator[Finding]:
    """Compare the memory that training needs beside the model with the free memory.

    Args:
        rows: of the training split.
        activations: bytes, in fp32, that the backward pass of one sample needs; 0 where they are not known.
    """
    weights = _bytes(model)
    samples = -(-min(plan.batch_size, rows) // plan.accumulation)
    batch = samples * activations // (2 if precision in _HALF else 1)
    optimizer = _SLOTS[plan.optimizer] * weights
    on_device = weights + optimizer + bool(plan.ema_decay) * weights + batch
    on_host = weights + _HOST_COPIES * _checkpoint(model, plan)  # the best weights come first
    needs = {"memory": on_device + on_host} if device.type != "cuda" else {"GPU memory": on_device, "memory": on_host}
    for kind, need in needs.items():
        free = _gpu_memory(device) if kind == "GPU memory" else available_memory()
        if need > free:
            sizes = {"weights": weights, "optimizer": weights + optimizer, "batch": batch, "need": need, "free": free}
            gib = {name: size / _GIB for name, size in sizes.items()}
            yield Finding.of("memory", kind=kind, samples=samples, **gib)


def available_memory() -> int:
    """Return the bytes that this process may still take: those of the machine, or fewer where a limit is set."""
    page = os.sysconf("SC_PAGE_SIZE")
    free = [page * os.sysconf("SC_PHYS_PAGES")]
    meminfo, statm, group = Path("/proc/meminfo"), Path("/proc/self/statm"), Path("/sys/fs/cgroup")
    if meminfo.exists():
        lines = dict(line.split(":") for line in meminfo.read_text().splitlines())
        free.append(int(lines["MemAvailable"].split()[0]) * 1024)
    if (group / "memory.max").exists():
        highest = (group / "memory.max").read_text().strip()
        cached = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        if highest.isdecimal():
            used = int((group / "memory.current").read_text()) - int(cached["inactive_file"])
            free.append(int(highest) - used)
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and statm.exists():
        free.append(limit - page * int(statm.read_text().split()[0]))
    return max(0, min(free))


def _gpu_memory(device: torch.device) -> int:
    kept_by_torch = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + kept_by_torch


def _checkpoint(model: nn.Module, plan: Plan) -> int:
    """Return the bytes of a checkpoint: weights, best weights, the optimizer's tensors, the moving average."""
    return (2 + _SLOTS[plan.optimizer] + bool(plan.ema_decay)) * _bytes(model)


def _bytes(model: nn.Module) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
