"""Which device, which precision, and how repeatable: chosen once, said once."""

import contextlib
import os
import platform
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager

import numpy as np
import torch

from ratchet.errors import TrainingError

__all__ = [
    "autocast",
    "choose_device",
    "choose_precision",
    "describe",
    "random_state",
    "reproducible",
    "set_random_state",
]


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


def choose_precision(wanted: str, device: torch.device) -> tuple[str, str | None]:
    """The precision to use, and a sentence when it is not the one wanted."""
    if wanted == "bf16" and not _has_bf16(device):
        return "fp32", f"{describe(device)} has no bf16 arithmetic: training in fp32 instead"
    return wanted, None


def _has_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "mps":
        return True
    native: bool = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return native


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """The context a forward pass runs in."""
    if precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext()


@contextlib.contextmanager
def reproducible(seed: int, *, deterministic: bool) -> Iterator[None]:
    """Seed Python, NumPy and PyTorch inside; put their states and PyTorch's settings back on leaving."""
    before = random_state()
    # Not use_deterministic_algorithms, which imports torch's compiler: a second of every start.
    was_deterministic = torch.get_deterministic_debug_mode()
    was_benchmark = torch.backends.cudnn.benchmark
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS needs it to be repeatable
    torch.set_deterministic_debug_mode("error" if deterministic else "default")
    torch.backends.cudnn.benchmark = not deterministic
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(was_deterministic)
        torch.backends.cudnn.benchmark = was_benchmark
        set_random_state(before)


def random_state() -> dict[str, torch.Tensor]:
    """The state of every global random generator, as tensors by name."""
    version, words, gauss = random.getstate()
    assert version == 3
    _, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state = {
        "python": torch.tensor(words, dtype=torch.int64),
        "python-gauss": torch.tensor([] if gauss is None else [gauss], dtype=torch.float64),
        "numpy": torch.from_numpy(np.asarray(keys).astype(np.int64)),
        "numpy-rest": torch.tensor([position, has_gauss, cached], dtype=torch.float64),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state |= {f"cuda-{index}": value for index, value in enumerate(torch.cuda.get_rng_state_all())}
    if torch.backends.mps.is_available():
        state["mps"] = torch.mps.get_rng_state()
    return state


def set_random_state(state: dict[str, torch.Tensor]) -> None:
    """Put back what `random_state` took."""
    gauss = state["python-gauss"].tolist()
    random.setstate((3, tuple(state["python"].tolist()), gauss[0] if gauss else None))
    position, has_gauss, cached = state["numpy-rest"].tolist()
    np.random.set_state(("MT19937", state["numpy"].numpy().astype(np.uint32), int(position), int(has_gauss), cached))
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available():
        devices = [state[f"cuda-{index}"] for index in range(torch.cuda.device_count()) if f"cuda-{index}" in state]
        torch.cuda.set_rng_state_all(devices)
    if torch.backends.mps.is_available() and "mps" in state:
        torch.mps.set_rng_state(state["mps"])
