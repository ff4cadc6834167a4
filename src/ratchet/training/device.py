"""The device of a training, its memory, and the random state."""

import contextlib
import ctypes
import os
import platform
import random
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ratchet.errors import TrainingError
from ratchet.hardware import processor

__all__ = [
    "any_implementation",
    "arithmetic",
    "choose_device",
    "describe",
    "keep_freed_memory",
    "moved",
    "precise_type",
    "ran_out_of_memory",
    "reproducible",
    "seed_step",
]

_NO_MEMORY = ("can't allocate memory", "not enough memory", "std::bad_alloc", "out of memory", "create a memory object")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4  # mallopt's names, from glibc's malloc.h
_LARGE_BLOCK, _MOST_BLOCKS = 1 << 18, 1 << 16  # bytes from which a block has pages of its own; glibc's limit of them


def choose_device(wanted: str, *, rank: int = 0, ranks: int = 1) -> torch.device:
    """Return the device `wanted`. `auto` is CUDA, or MPS, or the CPU. Each of several ranks has a GPU of its own.

    Raises:
        TrainingError: this machine has no such device.
    """
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if wanted == "auto":
        wanted = next(kind for kind in ("cuda", "mps", "cpu") if present[kind])
    device = torch.device("cuda", rank) if ranks > 1 and wanted == "cuda" else torch.device(wanted)
    if not present.get(device.type, False) or (device.index or 0) >= max(1, torch.cuda.device_count()):
        here = ", ".join(kind for kind, is_here in present.items() if is_here)
        raise TrainingError(f"training.device: {wanted} is not on this machine, which has {here}. Fix: set it to auto")
    return device


def precise_type(device: torch.device) -> torch.dtype:
    """Return the most precise type of numbers that the device has."""
    return torch.float32 if device.type == "mps" else torch.float64


def describe(device: torch.device) -> str:
    """Return the name and memory of the device, for people."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    name = "Apple GPU" if device.type == "mps" else f"CPU ({platform.machine()}, {torch.get_num_threads()} threads)"
    return f"{name}, {memory:.0f} GiB"


def arithmetic(device: torch.device) -> dict[str, Any]:
    """Return what decides how sums are rounded, beside data, settings and code."""
    return {
        "threads": torch.get_num_threads(),
        "processor": processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "cuDNN": torch.backends.cudnn.version() if device.type == "cuda" else None,  # type: ignore[no-untyped-call]
        "PyTorch": torch.__version__,
        "NumPy": np.__version__,
    }


def moved(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Return the array as a tensor on the device, which a CPU shares. Nothing waits for the copy to a GPU."""
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)  # from other memory it waits for all queued steps


def keep_freed_memory(device: torch.device, *, keep: bool = True) -> None:
    """Let a process that computes on the CPU keep the memory it frees, for its next allocation, or return large blocks.

    It does nothing for another device, or without glibc. A step on the CPU frees hundreds of MiB that the next step
    allocates again. By default glibc returns large blocks to the kernel, which clears every page again: 17,000 page
    faults and a quarter of the time of a step of the reference ConvNet (batch 256, bf16, two cores).

    Processes with a sharded model free gathered blocks between shares: these holes would be more than all in use.
    """
    if device.type != "cpu" or sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0 if keep else _MOST_BLOCKS)  # 0: large blocks come from the heap too,
        mallopt(_M_TRIM_THRESHOLD, -1 if keep else _LARGE_BLOCK)  # and the heap never shrinks
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK)  # otherwise it rises to the size of the largest freed block


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out. On a CPU only the message of the error shows it."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in _NO_MEMORY)


@contextlib.contextmanager
def any_implementation() -> Iterator[None]:
    """Allow operations that have no deterministic implementation inside; of the others it is still used."""
    mode = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("warn" if mode else "default")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*does not have a deterministic implementation")
            yield
    finally:
        torch.set_deterministic_debug_mode(mode)


@contextlib.contextmanager
def reproducible(seed: int, *, deterministic: bool) -> Iterator[None]:
    """Seed Python, NumPy and PyTorch inside. Restore their states and PyTorch's settings afterwards."""
    python, numpy = random.getstate(), np.random.get_state()
    # Not use_deterministic_algorithms, which imports torch's compiler and takes a second at every start.
    was_deterministic = torch.get_deterministic_debug_mode()
    was_benchmark = torch.backends.cudnn.benchmark
    filling: Any = torch.utils.deterministic
    was_filled = filling.fill_uninitialized_memory
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS needs it to be repeatable
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            torch.set_deterministic_debug_mode("error" if deterministic else "default")
            torch.backends.cudnn.benchmark = not deterministic
            # Fills new tensors to find reads of uninitialized memory; takes 8 % of a small step.
            filling.fill_uninitialized_memory = False
            random.seed(seed)
            np.random.seed(seed % 2**32)
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_deterministic_debug_mode(was_deterministic)
        if compiler := sys.modules.get("torch._inductor.config"):
            compiler.deterministic = was_deterministic != 0  # type: ignore[attr-defined]
        torch.backends.cudnn.benchmark = was_benchmark
        filling.fill_uninitialized_memory = was_filled
        random.setstate(python)
        np.random.set_state(numpy)


def seed_step(seed: int, step: int, device: torch.device, *, piece: int | None = None) -> None:
    """Seed Python, NumPy and PyTorch for one step, or a piece of it: the numbers depend only on (seed, step, piece).

    So a checkpoint needs no generator state, and random numbers drawn elsewhere in the process (jitter of a progress
    bar, backoff of a tracker) cannot change a training. It takes under 20 microseconds. torch.manual_seed alone takes
    130, because it looks for every kind of device.
    """
    entropy = [seed, step] if piece is None else [seed, step, piece]
    drawn = int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> np.uint64(1))
    random.seed(drawn)
    np.random.seed(drawn % 2**32)
    torch.default_generator.manual_seed(drawn)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(drawn)
    elif device.type == "mps":
        torch.mps.manual_seed(drawn)
