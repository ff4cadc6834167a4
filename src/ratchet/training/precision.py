"""The arithmetic of a training: chosen once, with the reason."""

import contextlib
import platform
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

__all__ = ["Precision", "choose_precision"]

_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Precision:
    """The arithmetic of one training."""

    name: str  # fp32, tf32, bf16 or fp16
    channels_last: bool
    why: str  # message for the user; empty where nothing was chosen or replaced

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        half = _HALF.get(self.name)
        return contextlib.nullcontext() if half is None else torch.autocast(device.type, dtype=half)

    def scaler(self, device: torch.device) -> torch.amp.GradScaler:
        """Return the loss scaler that fp16 needs (Micikevicius et al. 2018). It does nothing in other precisions."""
        return torch.amp.GradScaler(device.type, enabled=self.name == "fp16")

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        """Allow tf32 only in precision tf32. PyTorch's default mixes it with fp32 on CUDA."""
        before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        try:
            torch.set_float32_matmul_precision("high" if self.name == "tf32" else "highest")
            torch.backends.cudnn.allow_tf32 = self.name == "tf32"
            yield
        finally:
            torch.set_float32_matmul_precision(before[0])
            torch.backends.cudnn.allow_tf32 = before[1]


def choose_precision(name: str, device: torch.device, *, channels_last: str | bool = "auto") -> Precision:
    """Return precision `name`, or fp32 where the device has no such arithmetic.

    `auto` follows a rule and measures nothing, so equal settings on the same kind of machine train the same. The rule
    comes from bench/precision.py: half precision and channels-last pay off together wherever the device multiplies in
    bf16.
    """
    why = ""
    if name == "auto":
        name, why = _fastest(device)
    elif not _has(name, device):
        why = f"{_kind(device)} has no {name} arithmetic: training in fp32 instead"
        name = "fp32"
    layout = channels_last if isinstance(channels_last, bool) else name in _HALF
    return Precision(name, layout, why)


def _fastest(device: torch.device) -> tuple[str, str]:
    """Choose bf16 or fp32, never fp16: bf16 has the range of fp32, so no training that converges in fp32 overflows."""
    if device.type == "mps":
        return "fp32", "precision auto: fp32; no other was measured on this device"
    if not _has("bf16", device):
        return "fp32", f"precision auto: fp32, because {_kind(device)} has no bf16 arithmetic"
    return "bf16", f"precision auto: bf16, because {_kind(device)} multiplies bf16 fastest"


def _has(name: str, device: torch.device) -> bool:
    if name == "fp32":
        return True
    if device.type == "cuda":
        if name == "bf16":
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
        return name == "fp16" or torch.cuda.get_device_capability(device) >= (8, 0)
    if device.type == "mps":
        return name in _HALF
    native = {
        "bf16": torch.ops.mkldnn._is_mkldnn_bf16_supported,
        "fp16": torch.ops.mkldnn._is_mkldnn_fp16_supported,
    }
    return name in native and bool(native[name]())


def _kind(device: torch.device) -> str:
    names = {"cuda": "this GPU", "mps": "the Apple GPU"}
    return names.get(device.type, f"this CPU ({platform.machine()})")
