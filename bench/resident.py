"""The upper limit of speed: forward, backward and optimizer of a built-in model on one batch on the device."""

import time
from collections.abc import Callable

import torch

from bench.project import SIDE
from ratchet.kinds import ModelSpec, image_spec
from ratchet.training import build
from ratchet.training.device import keep_freed_memory
from ratchet.training.precision import Precision

__all__ = ["seconds_of", "spec_of", "step_on_resident_batch"]


def spec_of(model: str, *, side: int = SIDE) -> ModelSpec:
    """Return a model for 10 classes of square colour images."""
    grey = (128.0,) * 3
    return image_spec(model, tuple(map(str, range(10))), 3, side, side, mean=grey, std=(64.0,) * 3)


def step_on_resident_batch(
    spec: ModelSpec, precision: Precision, device: torch.device, *, batch: int, compiled: bool = False
) -> Callable[[], None]:
    """A function that makes one optimizer step: the model's own code, AdamW in one kernel, uint8 pixels as packed.

    What it frees the process keeps, as the train stage has it.
    """
    keep_freed_memory(device)
    torch.manual_seed(0)
    model = build(spec).to(device).train()
    images = torch.randint(0, 256, (batch, *spec.image.shape), dtype=torch.uint8, device=device)
    images = images.permute(0, 3, 1, 2)
    if precision.channels_last:
        model = model.to(memory_format=torch.channels_last)
    else:
        images = images.contiguous()
    labels = torch.randint(0, 10, (batch,), device=device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    network = torch.compile(model) if compiled else model

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with precision.autocast(device):
            logits = network(images)
        torch.nn.functional.cross_entropy(logits.float(), labels, label_smoothing=0.1).backward()
        optimizer.step()

    return step


def seconds_of(step: Callable[[], None], device: torch.device, *, steps: int) -> float:
    """Return the seconds of `steps` steps, including the work of the device."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    wait()
    return time.perf_counter() - began
