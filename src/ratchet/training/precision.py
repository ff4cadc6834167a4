"""Which arithmetic: chosen once, for a reason that is said."""

import contextlib
import platform
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from ratchet.training.plan import Plan

__all__ = ["Precision", "choose_precision"]

_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Precision:
    """The arithmetic of one training."""

    name: str  # fp32, tf32, bf16 or fp16
    channels_last: bool
    why: str  # a sentence for the person who watches; empty where all is as it was asked for

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """The context a forward pass runs in."""
        half = _HALF.get(self.name)
        return contextlib.nullcontext() if half is None else torch.autocast(device.type, dtype=half)

    def scaler(self, device: torch.device) -> torch.amp.GradScaler:
        """The loss scaling that fp16 needs (Micikevicius et al. 2018); it does nothing in any other precision."""
        return torch.amp.GradScaler(device.type, enabled=self.name == "fp16")

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        """fp32 that is fp32, and tf32 only where it was asked for: PyTorch's own default mixes them on CUDA."""
        before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        try:
            torch.set_float32_matmul_precision("high" if self.name == "tf32" else "highest")
            torch.backends.cudnn.allow_tf32 = self.name == "tf32"
            yield
        finally:
            torch.set_float32_matmul_precision(before[0])
            torch.backends.cudnn.allow_tf32 = before[1]


def choose_precision(plan: Plan, device: torch.device) -> Precision:
    """What `plan` asks for, or the nearest that the device has.

    `auto` follows a rule and measures nothing, so that the same settings on the same kind of machine always train the
    same. The rule is what bench/precision.py found: half precision and channels-last pay together wherever the device
    multiplies in bf16.
    """
    name, why = plan.precision, ""
    if name == "auto":
        name, why = _fastest(device)
    elif not _has(name, device):
        why = f"{_kind(device)} has no {name} arithmetic: training in fp32 instead"
        name = "fp32"
    channels_last = plan.channels_last if isinstance(plan.channels_last, bool) else name in _HALF
    return Precision(name, channels_last, why)


def _fastest(device: torch.device) -> tuple[str, str]:
    """Only bf16 is taken unasked: it has fp32's range, so no training that converges in fp32 overflows in it."""
    if device.type == "mps":
        return "fp32", "precision auto: fp32; others were not measured on this device"
    if not _has("bf16", device):
        return "fp32", f"precision auto: fp32, for {_kind(device)} has no bf16 arithmetic"
    return "bf16", f"precision auto: bf16 with channels-last, for {_kind(device)} multiplies bf16 fastest"


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
