"""Loss and time of a small language model on tinyshakespeare, compared with the usual script (B5).

    RATCHET_DATASETS=FOLDER python -m bench.tokens [--rounds 3]

Each round trains, with its own seed and each in its own process: the usual script (bench/plain_transformer.py, 2,000
steps of 12 windows), the decoder with half of its steps, and with all. All three have 4 blocks of 4 heads, 128 numbers
and a context of 64 characters, learn from the first nine tenths of the text, and are measured on the whole last tenth,
of which each character is predicted once. The seconds are those of the training; ours includes checkpoints and
validation. Ratios are medians of the ratios of the rounds.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.plain_transformer import CONTEXT
from bench.project import ROOT
from bench.report import Row, alone, options, ratio, spread

__all__ = ["RECIPE", "measure"]

RECIPE: dict[str, Any] = {
    "epochs": 2, "batch_size": 32, "optimizer": "muon", "learning_rate": 0.007, "momentum": 0.95, "betas": (0.9, 0.95),
    "weight_decay": 0.1, "decay_all": False, "clip_norm": 0.0, "label_smoothing": 0.0, "schedule": "warmup-linear",
    "warmup_epochs": 0.08, "final_rate": 0.0, "precision": "auto", "device": "cpu", "checkpoint_steps": 200,
}  # fmt: skip
_STEPS = {"half": 400, "whole": 800}
_LOSSES = {"half": 1.88, "whole": 1.75}  # the script's own after 2,000 steps, and the goal
_SHARES = {"half": 0.5, "whole": 1.0}  # of the script's seconds


def measure(rounds: int, *, quick: bool) -> list[Row]:
    """The table's rows."""
    path = Path(os.environ.get("RATCHET_DATASETS", "")) / "tinyshakespeare.txt"
    if not path.is_file():
        return [Row("loss: decoder", "no tinyshakespeare.txt in the folder RATCHET_DATASETS names", "not measured")]
    seconds: dict[str, list[float]] = {"script": [], **{name: [] for name in _STEPS}}
    losses: dict[str, list[float]] = {name: [] for name in seconds}
    for seed in range(rounds):
        steps = {"script": 20 if quick else 2000, **{name: 4 if quick else count for name, count in _STEPS.items()}}
        for name, count in steps.items():
            module = "bench.plain_transformer" if name == "script" else "bench.tokens"
            result = _run(module, "--steps", str(count), "--seed", str(seed))
            seconds[name].append(result["seconds"])
            losses[name].append(result["loss"])
        print(
            f"seed {seed}: "
            + ", ".join(f"{name} {losses[name][-1]:.3f} in {seconds[name][-1]:.0f} s" for name in seconds),
            flush=True,
        )
    rows = [
        Row(f"s, {name}", f"{rounds} seeds, median (least to greatest)", spread(values))
        for name, values in seconds.items()
    ]
    rows.append(Row("validation loss, script", f"{rounds} seeds", spread(losses["script"], form=".3f")))
    for name in _STEPS:
        loss, share = statistics.median(losses[name]), ratio(seconds[name], seconds["script"])
        figures = f"{_STEPS[name]} steps of {RECIPE['batch_size']} windows"
        reached = spread(losses[name], form=".3f")
        rows.append(Row(f"validation loss, {name}", figures, reached, f"<= {_LOSSES[name]}", loss <= _LOSSES[name]))
        rows.append(Row(f"s, {name} / script", figures, f"{share:.2f}", f"<= {_SHARES[name]}", share <= _SHARES[name]))
    return rows


def train(steps: int, seed: int) -> tuple[float, float]:
    """Train the decoder by the shipped loop. Return its seconds and its validation loss at the end."""
    from ratchet.kinds import NextToken
    from ratchet.settings.model import TrainingSettings
    from ratchet.training import CheckpointStore, ModelSpec, TrainingInputs, fit
    from ratchet.training.streams import StreamSplit
    from ratchet.training.token_ids import encode, tokens
    from ratchet.training.token_ids import fit as fit_tokenizer
    from tasks.training_job import make_plan

    text = (Path(os.environ["RATCHET_DATASETS"]) / "tinyshakespeare.txt").read_text(encoding="utf-8")
    cut = int(0.9 * len(text))
    described = fit_tokenizer(text[:cut], "characters", context=CONTEXT)
    target = NextToken(tokens(described))
    plan = make_plan(TrainingSettings(**RECIPE, max_steps=steps), target, seed=seed)
    splits = (
        StreamSplit.of(name, encode(part, described), CONTEXT)
        for name, part in (("train", text[:cut]), ("validation", text[cut:]))
    )
    with tempfile.TemporaryDirectory() as folder:
        inputs = TrainingInputs(*splits, ModelSpec("decoder", described, target), plan)
        began = time.perf_counter()
        *_, finished = fit(inputs, store=CheckpointStore(Path(folder)))
        return time.perf_counter() - began, finished.history[-1]["validation/loss"]


def _run(module: str, *arguments: str) -> dict[str, float]:
    """Run a training in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{module} {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    """Measure and print; with --steps, train once."""
    parser = options(__doc__, rounds=3)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.steps:
        seconds, loss = train(arguments.steps, arguments.seed)
        print(json.dumps({"seconds": seconds, "loss": loss}))
        return
    alone(parser, lambda requested: measure(requested.rounds, quick=requested.quick))


if __name__ == "__main__":
    main()
