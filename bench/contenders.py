"""Other training loops with the same steps, each timed in its own process: `python -m bench.contenders NAME PACKED`.

textbook    the loop of tutorials: PIL, per-sample transforms, a DataLoader, fp32
resident    the shipped model on one resident batch in fp32, contiguous: the upper limit of the model
resident-auto  the same in the precision and layout of `precision: auto`
accelerate  Hugging Face Accelerate, used as well as possible: memory-mapped data read by the batch, augmented as
            a batch on the device, with the precision and layout of `auto`
lightning   the same under Lightning's Trainer, with its logger, progress bar and checkpoints off

The last two log, show and save nothing, unlike the train stage. They run the built-in model; that of the textbook is
the same function as tutorials write it, with ReLU before pooling.
"""

import argparse
import itertools
import json
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from bench.project import SIDE
from bench.resident import seconds_of, spec_of, step_on_resident_batch
from ratchet.training import build, open_split
from ratchet.training.device import choose_device
from ratchet.training.precision import Precision, choose_precision

__all__ = ["BATCH", "CONTENDERS", "LOADERS"]

BATCH = 256
LOADERS = ("textbook", "accelerate", "lightning")  # whose number of workers can be chosen
_PADDING = 4  # pixels
DEVICE = choose_device("auto")
FP32 = Precision("fp32", False, "")
AUTO = choose_precision("auto", DEVICE)
Timing = Callable[[int, int], float]  # (steps to warm up, steps to time) -> seconds


def textbook(packed: Path, workers: int) -> Timing:
    """The loop of the tutorials, with persistent workers and pinned memory as a careful engineer sets them."""
    from PIL import Image
    from torchvision import transforms

    class PilImages(Dataset[Any]):
        """Pixels in memory and a PIL image for each sample, like torchvision's CIFAR10."""

        def __init__(self) -> None:
            split = open_split(packed, "train")
            self.images, self.labels = split.images(np.arange(len(split))), np.asarray(split.targets)
            self.transform = transforms.Compose(
                [
                    transforms.RandomCrop(SIDE, padding=_PADDING),
                    transforms.RandomHorizontalFlip(),
                    transforms.ToTensor(),
                    transforms.Normalize((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
                ]
            )

        def __len__(self) -> int:
            return len(self.labels)

        def __getitem__(self, row: int) -> tuple[Any, int]:
            return self.transform(Image.fromarray(self.images[row])), int(self.labels[row])

    blocks: list[nn.Module] = []
    for inside, outside in ((3, 32), (32, 64), (64, 128)):
        blocks += [nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(), nn.MaxPool2d(2)]
    head = [nn.Flatten(), nn.Dropout(0.5), nn.Linear(2048, 512), nn.ReLU(), nn.Dropout(0.3), nn.Linear(512, 10)]
    model = nn.Sequential(*blocks, *head).to(DEVICE).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    loader = DataLoader(
        PilImages(), BATCH, shuffle=True, drop_last=True, num_workers=workers, persistent_workers=workers > 0,
        pin_memory=DEVICE.type == "cuda",
    )  # fmt: skip
    batches = _endless(loader)

    def step() -> None:
        images, labels = next(batches)
        images, labels = images.to(DEVICE, non_blocking=True), labels.to(DEVICE, non_blocking=True)
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()

    return _timing(step)


def resident(_packed: Path, _workers: int, *, precision: Precision = FP32) -> Timing:
    """The model alone."""
    return _timing(step_on_resident_batch(spec_of("convnet"), precision, DEVICE, batch=BATCH))


def resident_auto(packed: Path, workers: int) -> Timing:
    """The model alone, as `precision: auto` runs it."""
    return resident(packed, workers, precision=AUTO)


class Batched(Dataset[Any]):
    """Memory-mapped images, fetched a whole batch at a time."""

    def __init__(self, packed: Path) -> None:
        self.split = open_split(packed, "train")

    def __len__(self) -> int:
        return len(self.split)

    def __getitems__(self, rows: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = np.array(rows)
        return torch.from_numpy(self.split.images(chosen)), torch.from_numpy(self.split.host_targets(chosen))


def _batched_loader(packed: Path, workers: int) -> DataLoader[Any]:
    return DataLoader(
        Batched(packed), BATCH, shuffle=True, drop_last=True, num_workers=workers, persistent_workers=workers > 0,
        pin_memory=DEVICE.type == "cuda", collate_fn=_as_it_is,
    )  # fmt: skip


def _as_it_is(batch: Any) -> Any:
    return batch


def _augmented(images: torch.Tensor) -> torch.Tensor:
    """Random crops and mirror images of a batch at once: uint8 (n, h, w, c) -> (n, c, h, w)."""
    count, device = len(images), images.device
    padded = nn.functional.pad(images, (0, 0, _PADDING, _PADDING, _PADDING, _PADDING))
    side = torch.arange(SIDE, device=device)
    rows = torch.randint(0, 2 * _PADDING + 1, (count, 1), device=device) + side
    columns = torch.randint(0, 2 * _PADDING + 1, (count, 1), device=device) + side
    mirrored = torch.rand(count, 1, device=device) < 0.5
    columns = torch.where(mirrored, columns.flip(1), columns)  # so that the mirroring costs nothing
    sample = torch.arange(count, device=device)[:, None, None]
    return padded[sample, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def _peers_model() -> tuple[nn.Module, torch.optim.Optimizer]:
    model: nn.Module = build(spec_of("convnet")).train()
    if AUTO.channels_last:
        model = model.to(memory_format=torch.channels_last)
    model = model.to(DEVICE)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)


def accelerate(packed: Path, workers: int) -> Timing:
    """A loop with Accelerate."""
    from accelerate import Accelerator

    mixed = AUTO.name if AUTO.name in ("bf16", "fp16") else "no"
    accelerator = Accelerator(mixed_precision=mixed, cpu=DEVICE.type == "cpu")
    model, optimizer, loader = accelerator.prepare(*_peers_model(), _batched_loader(packed, workers))
    batches = _endless(loader)

    def step() -> None:
        images, labels = next(batches)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(_augmented(images)), labels, label_smoothing=0.1)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return _timing(step)


def lightning(packed: Path, workers: int) -> Timing:
    """Lightning's Trainer, with all that costs time and can be turned off turned off."""
    import pytorch_lightning as pl

    class Module(pl.LightningModule):
        """The model, its loss and its optimizer."""

        def __init__(self) -> None:
            super().__init__()
            self.model, self._optimizer = _peers_model()

        def training_step(self, batch: Any, _index: int) -> torch.Tensor:
            images, labels = batch
            return nn.functional.cross_entropy(self.model(_augmented(images)), labels, label_smoothing=0.1)

        def configure_gradient_clipping(self, *_: Any, **__: Any) -> None:
            # Its own refuses a fused optimizer under mixed precision, though bf16 has no scaling to undo.
            nn.utils.clip_grad_norm_(self.parameters(), 1.0)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return self._optimizer

    class Watch(pl.Callback):
        """When each step was over."""

        def __init__(self, warm: int, steps: int) -> None:
            self.ends: list[float] = []
            self.edges = (warm - 1, warm + steps - 1)

        def on_train_batch_end(self, *_: Any, **__: Any) -> None:
            if DEVICE.type == "cuda" and len(self.ends) in self.edges:
                torch.cuda.synchronize()
            self.ends.append(time.perf_counter())

    def timing(warm: int, steps: int) -> float:
        watch = Watch(warm, steps)
        mixed: Any = f"{AUTO.name}-mixed" if AUTO.name in ("bf16", "fp16") else "32-true"
        trainer = pl.Trainer(
            accelerator="gpu" if DEVICE.type == "cuda" else "cpu", devices=1, precision=mixed, max_steps=warm + steps,
            max_epochs=-1, callbacks=[watch], logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(Module(), _batched_loader(packed, workers))
        first, last = (watch.ends[edge] for edge in watch.edges)
        return last - first

    return timing


CONTENDERS: dict[str, Callable[[Path, int], Timing]] = {
    "textbook": textbook,
    "resident": resident,
    "resident-auto": resident_auto,
    "accelerate": accelerate,
    "lightning": lightning,
}


def _endless(loader: Any) -> Iterator[Any]:
    return (batch for _ in itertools.count() for batch in loader)


def _timing(step: Callable[[], None]) -> Timing:
    def timing(warm: int, steps: int) -> float:
        seconds_of(step, DEVICE, steps=warm)
        return seconds_of(step, DEVICE, steps=steps)

    return timing


def main() -> None:
    """Time one contender; the last line printed is JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=CONTENDERS)
    parser.add_argument("packed", type=Path)
    parser.add_argument("--warm", type=int, default=40)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--workers", type=int, default=0)
    requested = parser.parse_args()
    warnings.filterwarnings("ignore", module="pytorch_lightning|lightning_fabric|accelerate|torch")
    torch.manual_seed(0)
    with AUTO.in_force() if requested.name != "textbook" else FP32.in_force():
        seconds = CONTENDERS[requested.name](requested.packed, requested.workers)(requested.warm, requested.steps)
    print(json.dumps({"rate": BATCH * requested.steps / seconds}))


if __name__ == "__main__":
    main()
