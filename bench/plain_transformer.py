"""The usual small language model and its loop, as a tutorial's script trains it: `python -m bench.plain_transformer`.

It follows the published command of nanoGPT for a CPU: 4 blocks of 4 heads and 128 numbers, context 64, batch 12,
learned positions, GELU, AdamW at a rate of .001 with betas .9 and .99 and weight decay .1, 100 steps of warm-up, then
half a cosine down to .0001, clipping at 1, fp32. Windows begin at random places. The code is our own. It prints the
CPU-seconds of its steps, and the loss over the whole validation text, the last tenth.
"""

import argparse
import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

__all__ = ["CONTEXT", "ids_of_text", "loss_of", "windows"]

BLOCKS, HEADS, WIDTH, CONTEXT, BATCH = 4, 4, 128, 64, 12
RATE, LAST_RATE, WARMUP = 1e-3, 1e-4, 100


def ids_of_text() -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return the ids of the training and of the validation text, and the number of characters."""
    text = (Path(os.environ["RATCHET_DATASETS"]) / "tinyshakespeare.txt").read_text(encoding="utf-8")
    places = {character: place for place, character in enumerate(sorted(set(text)))}
    ids = torch.tensor([places[character] for character in text])
    cut = int(0.9 * len(ids))
    return ids[:cut], ids[cut:], len(places)


def windows(ids: torch.Tensor, starts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return windows and their targets, each int64 (n, CONTEXT)."""
    pieces = ids[starts[:, None] + torch.arange(CONTEXT + 1)]
    return pieces[:, :-1], pieces[:, 1:]


class Block(nn.Module):
    """Attention and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH, bias=False) for _ in range(2))
        self.mixed = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.attended = nn.Linear(WIDTH, WIDTH, bias=False)
        self.hidden = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.out = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        parts = self.mixed(self.norms[0](x)).split(WIDTH, 2)
        queries, keys, values = (part.view(rows, length, HEADS, -1).transpose(1, 2) for part in parts)
        attended = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.attended(attended.transpose(1, 2).reshape(rows, length, WIDTH))
        return x + self.out(functional.gelu(self.hidden(self.norms[1](x))))


class Transformer(nn.Module):
    """Ids (n, t) -> logits (n, t, tokens)."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(tokens, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.norm = nn.LayerNorm(WIDTH, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                ends_branch = name.endswith(("attended.weight", "out.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * BLOCKS) if ends_branch else 0.02)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids) + self.positions(torch.arange(ids.shape[1]))
        return functional.linear(self.norm(self.blocks(x)), self.embedding.weight)


def loss_of(model: Callable[[torch.Tensor], torch.Tensor], ids: torch.Tensor) -> float:
    """Return the mean loss over a text, each of whose characters is predicted once."""
    total, count = 0.0, (len(ids) - 1) // CONTEXT
    with torch.no_grad():
        for first in range(0, count, 256):
            seen, targets = windows(ids, CONTEXT * torch.arange(first, min(first + 256, count)))
            total += float(functional.cross_entropy(model(seen).flatten(0, 1), targets.flatten(), reduction="sum"))
    return total / (count * CONTEXT)


def train(steps: int, seed: int) -> tuple[float, float]:
    """Return the CPU-seconds of the steps, and the validation loss after them."""
    torch.manual_seed(seed)
    text, held_out, tokens = ids_of_text()
    model = Transformer(tokens)
    weights = {dim: [p for p in model.parameters() if (p.dim() > 1) is dim] for dim in (True, False)}
    groups = [{"params": weights[True], "weight_decay": 0.1}, {"params": weights[False], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.99))
    began = time.process_time()
    for step in range(steps):
        done = (step - WARMUP) / max(1, steps - WARMUP)
        falling = LAST_RATE + 0.5 * (1 + math.cos(math.pi * done)) * (RATE - LAST_RATE)
        for group in optimizer.param_groups:
            group["lr"] = RATE * (step + 1) / (WARMUP + 1) if step < WARMUP else falling
        seen, targets = windows(text, torch.randint(len(text) - CONTEXT, (BATCH,)))
        loss = functional.cross_entropy(model(seen).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    seconds = time.process_time() - began
    return seconds, loss_of(model.eval(), held_out)


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    seconds, loss = train(arguments.steps, arguments.seed)
    print(json.dumps({"seconds": seconds, "loss": loss}))


if __name__ == "__main__":
    main()
