"""A minimal script that trains the same net on the same digits for the same epochs.

The baseline of `ratchet train` in bench/first_model.py. It reads a packed set, so that both use the same samples.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

packed, epochs, batch_size, peak_rate = Path(sys.argv[1]), 30, 64, 2e-3
scale = json.loads((packed / "manifest.json").read_text())["input"]


def read(split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all pixels, normalised, and the labels of a split."""
    images = np.load(packed / split / "images-00000.npy").astype(np.float32)
    pixels = torch.from_numpy((images - scale["mean"]) / scale["std"]).float().permute(0, 3, 1, 2)
    return pixels, torch.from_numpy(np.load(packed / split / "targets.npy"))


def block(inside: int, outside: int) -> list[nn.Module]:
    """One of the three blocks."""
    return [nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(), nn.MaxPool2d(2)]


torch.manual_seed(0)
train_x, train_y = read("train")
test_x, test_y = read("test")
head = [nn.Flatten(), nn.Dropout(0.5), nn.Linear(128, 512), nn.ReLU(), nn.Dropout(0.3), nn.Linear(512, 10)]
model = nn.Sequential(*block(1, 32), *block(32, 64), *block(64, 128), *head)
optimizer = torch.optim.AdamW(model.parameters(), weight_decay=1e-4)
steps = epochs * -(-len(train_x) // batch_size)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, peak_rate, total_steps=steps)
started = time.perf_counter()
for _ in range(epochs):
    model.train()
    for rows in torch.randperm(len(train_x)).split(batch_size):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(train_x[rows]), train_y[rows], label_smoothing=0.1)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
seconds = time.perf_counter() - started
with torch.no_grad():
    accuracy = (model.eval()(test_x).argmax(1) == test_y).float().mean().item()
torch.save(model.state_dict(), sys.argv[2])
print(f"test accuracy {accuracy:.4f}, training alone {seconds:.2f} s")
