"""Which device, and how repeatable: chosen once, said once."""

import contextlib
import ctypes
import os
import platform
import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from ratchet.errors import TrainingError

__all__ = ["choose_device", "describe", "keep_freed_memory", "ran_out_of_memory", "reproducible", "seed_step"]

_NO_MEMORY = ("can't allocate memory", "not enough memory", "std::bad_alloc", "out of memory", "create a memory object")
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # mallopt's names, from glibc's malloc.h


def choose_device(wanted: str) -> torch.device:
    """`auto` takes CUDA, then MPS, then the CPU; a device named but absent is refused."""
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if wanted == "auto":
        return torch.device(next(kind for kind in ("cuda", "mps", "cpu") if present[kind]))
    device = torch.device(wanted)
    if not present.get(device.type, False) or (device.index or 0) >= max(1, torch.cuda.device_count()):
        here = ", ".join(kind for kind, is_here in present.items() if is_here)
        raise TrainingError(f"training.device: {wanted} is not on this machine, which has {here}; set it to auto")
    return device


def describe(device: torch.device) -> str:
    """The device in words: name and memory."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    name = "Apple GPU" if device.type == "mps" else f"CPU ({platform.machine()}, {torch.get_num_threads()} threads)"
    return f"{name}, {memory:.0f} GiB"


def keep_freed_memory(device: torch.device) -> None:
    """Let a process that computes on the CPU keep the memory it frees, for what it allocates next.

    Nothing is done for another device, or where the C library is not glibc. A step on the CPU frees hundreds of MiB
    that the next one asks for again. Left alone, glibc hands large blocks back to the kernel, which clears every page
    anew: 17,000 page faults and a quarter of the time of the reference ConvNet's step (batch 256, bf16, two cores).
    """
    if device.type != "cpu" or sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)  # large blocks, too, come from the heap,
        mallopt(_M_TRIM_THRESHOLD, -1)  # and the heap is never cut


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that there was not memory enough. CPUs have no class of their own for it, only words."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)


@contextlib.contextmanager
def reproducible(seed: int, *, deterministic: bool) -> Iterator[None]:
    """Seed Python, NumPy and PyTorch inside; put their states and PyTorch's settings back on leaving."""
    python, numpy = random.getstate(), np.random.get_state()
    # Not use_deterministic_algorithms, which imports torch's compiler: a second of every start.
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
            # A help to find reads of memory nobody wrote; writes each new tensor twice, 8 % of a small step.
            filling.fill_uninitialized_memory = False
            random.seed(seed)
            np.random.seed(seed % 2**32)
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_deterministic_debug_mode(was_deterministic)
        torch.backends.cudnn.benchmark = was_benchmark
        filling.fill_uninitialized_memory = was_filled
        random.setstate(python)
        np.random.set_state(numpy)


def seed_step(seed: int, step: int, device: torch.device) -> None:
    """Seed Python, NumPy and PyTorch for one optimizer step, so that what is drawn in it depends on (seed, step) alone.

    So a checkpoint needs no generator's state, and nothing drawn elsewhere in the process (a progress bar's jitter, a
    tracker's back-off) can change a training. It costs under 20 microseconds; torch.manual_seed alone, which looks for
    every kind of device, costs 130.
    """
    drawn = int(np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0] >> np.uint64(1))
    random.seed(drawn)
    np.random.seed(drawn % 2**32)
    torch.default_generator.manual_seed(drawn)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(drawn)
    elif device.type == "mps":
        torch.mps.manual_seed(drawn)
