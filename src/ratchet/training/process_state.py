"""State of the process that code between two steps could change for the next: random numbers, PyTorch's settings."""

import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch.nn.modules import module
from torch.optim import optimizer
from torch.utils import _python_dispatch

__all__ = ["kept_process_state"]

NO_RESULT = "it puts back what it found"


def _flushes_denormal() -> bool:
    """Return whether numbers below the smallest normal one count as 0. PyTorch has no function that says so."""
    return bool((torch.full((), sys.float_info.min / 2, dtype=torch.float64, device="cpu") * 1.0 == 0.0).item())


def _autocast_depth() -> int:
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def _leave_autocast() -> None:
    torch.autocast_decrement_nesting()
    torch.clear_autocast_cache()  # copies of weights, which the outermost block would have deleted


_OVERRIDES: Any = torch.overrides
_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (os.getcwd, os.chdir),
    (random.getstate, random.setstate),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    (_flushes_denormal, torch.set_flush_denormal),
)
_MODES: tuple[tuple[Callable[[], int], Callable[[], Any]], ...] = (  # how many are entered, and how to leave one
    (lambda: len(_OVERRIDES._get_current_function_mode_stack()), _OVERRIDES._pop_mode),
    (lambda: len(_python_dispatch._get_current_dispatch_mode_stack()), _python_dispatch._pop_mode),
    (_autocast_depth, _leave_autocast),
)
_BACKENDS: Any = torch.backends
_CUDA: Any = torch.cuda
_FLAGS: tuple[tuple[Any, str], ...] = (
    (torch.utils.deterministic, "fill_uninitialized_memory"),
    *((_BACKENDS.cudnn, name) for name in ("enabled", "benchmark", "deterministic")),
    *((_BACKENDS.mkldnn, name) for name in ("enabled", "deterministic")),
    *((_BACKENDS.cuda.matmul, f"allow_{name}_reduced_precision_reduction") for name in ("fp16", "bf16")),
)
_PRECISIONS: tuple[Any, ...] = (
    _BACKENDS, _BACKENDS.cuda.matmul, _BACKENDS.cudnn, _BACKENDS.cudnn.conv, _BACKENDS.cudnn.rnn,
    _BACKENDS.mkldnn, _BACKENDS.mkldnn.matmul, _BACKENDS.mkldnn.conv, _BACKENDS.mkldnn.rnn,
)  # fmt: skip


@contextmanager
def kept_process_state() -> Iterator[None]:
    """Restore afterwards what is changed inside: random states, global settings of PyTorch and NumPy, working folder.

    Hooks that PyTorch calls for every module or optimizer are removed if they are registered inside.
    """
    settings = [(get(), set_) for get, set_ in _SETTINGS]
    flags = [getattr(owner, name) for owner, name in _FLAGS]
    precisions, legacy = _precisions(), (torch.get_float32_matmul_precision(), _BACKENDS.cudnn.allow_tf32)
    registries = [(each, dict(each)) for each in _registries()]
    try:
        with _thread_state():
            yield
    finally:
        for (get, _), (value, set_) in zip(_SETTINGS, settings, strict=True):
            if _now(get) != value:
                set_(value)
        for (owner, name), value in zip(_FLAGS, flags, strict=True):
            if getattr(owner, name) != value:
                setattr(owner, name, value)
        if _precisions() != precisions:
            _set_precisions(precisions, *legacy)
        for registry, content in registries:
            registry.clear()
            registry.update(content)


@contextmanager
def _thread_state() -> Iterator[None]:
    """Restore afterwards what has a context manager, or belongs to the thread."""
    numpy, errors, device = np.random.get_state(), np.geterr(), torch.get_default_device()
    modes = [entered() for entered, _ in _MODES]
    gpus = list(range(torch.cuda.device_count())) if _CUDA.is_initialized() else []  # to ask another would start it
    try:
        with ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            stack.enter_context(torch.random.fork_rng(gpus))
            stack.enter_context(torch.autocast("cpu", enabled=False, dtype=torch.bfloat16))
            stack.enter_context(torch.inference_mode(False))  # leaving it restores the gradient mode, too
            if gpus:
                stack.enter_context(torch.autocast("cuda", enabled=False, dtype=torch.bfloat16))
                stack.enter_context(torch.cuda.device(torch.cuda.current_device()))
                stack.enter_context(torch.cuda.stream(torch.cuda.current_stream()))
            yield
    finally:
        for (entered, leave), count in zip(_MODES, modes, strict=True):  # those that were not left
            for _ in range(count, entered()):
                leave()
        if torch.get_default_device() != device:
            torch.set_default_device(None)
        np.random.set_state(numpy)
        np.seterr(**errors)


def _now(get: Callable[[], Any]) -> Any:
    try:
        return get()
    except FileNotFoundError:  # the working folder was deleted
        return None


def _precisions() -> list[str]:
    return [each.fp32_precision for each in _PRECISIONS]


def _set_precisions(values: list[str], matmul: str, allow_tf32: bool) -> None:
    """Set the precisions of all operations. The older settings are set last: PyTorch keeps them beside the newer."""
    for each, value in zip(_PRECISIONS, values, strict=True):
        each.fp32_precision = value
    torch.set_float32_matmul_precision(matmul)
    _BACKENDS.cudnn.allow_tf32 = allow_tf32


def _registries() -> Iterator[dict[Any, Any]]:
    """Yield PyTorch's dictionaries of hooks of all modules and optimizers."""
    for owner in (module, optimizer):
        for name, value in vars(owner).items():
            if name.startswith("_global_") and isinstance(value, dict):
                yield value
