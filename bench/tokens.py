"""Loss and time of a small language model on tinyshakespeare, compared with a script that is widely used (B5).

    RATCHET_DATASETS=FOLDER python -m bench.tokens [--rounds 3] [--peer NANOGPT]

NANOGPT is a copy of github.com/karpathy/nanoGPT. Its train.py runs with the command that its README gives for a CPU,
from a folder with the data that its prepare.py would write. Without --peer, bench/plain_transformer.py takes its place.
Each round trains, with its own seed and each in its own process: the script (2,000 steps of 12 windows), the decoder
with half of its steps, and with all. All three have 4 blocks of 4 heads, 128 numbers and a context of 64 characters,
learn from the first nine tenths of the text, and are measured on the whole last tenth, of which each character is
predicted once. The CPU-seconds are those of the training, without imports and this measurement. They include what each
loop does besides: the script's estimates of its loss, and our checkpoints and validation. Ratios are medians of the
ratios of the rounds.
"""

import argparse
import contextlib
import json
import os
import pickle
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from bench.plain_transformer import CONTEXT, ids_of_text, loss_of
from bench.project import ROOT, scratch
from bench.report import Row, alone, options, ratio, spread

__all__ = ["measure"]

_STEPS = {"half": 400, "whole": 800}
_LOSSES = {"half": 1.88, "whole": 1.75}  # the script's own after 2,000 steps, and the goal
_SHARES = {"half": 0.5, "whole": 1.0}  # of the script's CPU-seconds
_COMMAND = (  # of the script's README, for a CPU
    "config/train_shakespeare_char.py", "--device=cpu", "--compile=False", "--eval_iters=20", "--log_interval=1",
    "--block_size=64", "--batch_size=12", "--n_layer=4", "--n_head=4", "--n_embd=128", "--dropout=0.0",
)  # fmt: skip


def measure(rounds: int, *, quick: bool, peer: Path | None = None) -> list[Row]:
    """Return the rows of the table. `peer` is the folder with the script."""
    path = Path(os.environ.get("RATCHET_DATASETS", "")) / "tinyshakespeare.txt"
    if not path.is_file():
        return [Row("loss: decoder", "no tinyshakespeare.txt in the folder RATCHET_DATASETS names", "not measured")]
    seconds: dict[str, list[float]] = {"script": [], **{name: [] for name in _STEPS}}
    losses: dict[str, list[float]] = {name: [] for name in seconds}
    for seed in range(rounds):
        steps = {"script": 20 if quick else 2000, **{name: 4 if quick else count for name, count in _STEPS.items()}}
        for name, count in steps.items():
            module = "bench.plain_transformer" if name == "script" and peer is None else "bench.tokens"
            script = ["--peer", str(peer)] if name == "script" and peer is not None else []
            result = _run(module, "--steps", str(count), "--seed", str(seed), *script)
            seconds[name].append(result["seconds"])
            losses[name].append(result["loss"])
        print(
            f"seed {seed}: "
            + ", ".join(f"{name} {losses[name][-1]:.3f} in {seconds[name][-1]:.0f} s" for name in seconds),
            flush=True,
        )
    rows = [
        Row(f"CPU-s, {name}", f"{rounds} seeds, median (least to greatest)", spread(values))
        for name, values in seconds.items()
    ]
    rows.append(Row("validation loss, script", f"{rounds} seeds", spread(losses["script"], form=".3f")))
    for name in _STEPS:
        loss, share = statistics.median(losses[name]), ratio(seconds[name], seconds["script"])
        figures = f"{_STEPS[name]} steps of 32 windows"
        reached = spread(losses[name], form=".3f")
        rows.append(Row(f"validation loss, {name}", figures, reached, f"<= {_LOSSES[name]}", loss <= _LOSSES[name]))
        rows.append(
            Row(f"CPU-s, {name} / script", figures, f"{share:.2f}", f"<= {_SHARES[name]}", share <= _SHARES[name])
        )
    return rows


def train(steps: int, seed: int) -> tuple[float, float]:
    """Train the decoder of examples/language-model.yaml. Return its CPU-seconds and its validation loss at the end."""
    from ratchet import settings
    from ratchet.kinds import ModelSpec
    from ratchet.problems import NextToken
    from ratchet.settings.example_files import Example, compose
    from ratchet.tokens.token_ids import encode, tokens
    from ratchet.tokens.token_ids import fit as fit_tokenizer
    from ratchet.training import CheckpointStore, TrainingInputs, fit
    from ratchet.training.streams import StreamSplit
    from tasks.training_job import make_plan

    text = (Path(os.environ["RATCHET_DATASETS"]) / "tinyshakespeare.txt").read_text(encoding="utf-8")
    cut = int(0.9 * len(text))
    described = fit_tokenizer(text[:cut], "characters", context=CONTEXT)
    target = NextToken(tokens(described))
    splits = (
        StreamSplit.of(name, encode(part, described), CONTEXT)
        for name, part in (("train", text[:cut]), ("validation", text[cut:]))
    )
    with scratch() as folder:
        (folder / "params.yaml").write_text(compose(Example(ROOT / "examples" / "language-model.yaml")))
        recipe = settings.load(folder / "params.yaml").training.model_copy(
            update={"device": "cpu", "max_steps": steps, "checkpoint_steps": 200}
        )
        plan = make_plan(recipe, target, seed=seed, kind="tokens")
        inputs = TrainingInputs(*splits, ModelSpec("decoder", described, target), plan)
        began = time.process_time()
        *_, finished = fit(inputs, store=CheckpointStore(folder / "checkpoints"))
        return time.process_time() - began, finished.history[-1]["validation/loss"]


def train_peer(script: Path, steps: int, seed: int) -> tuple[float, float]:
    """Run the script as it is, with another seed. Return its CPU-seconds and its loss over the validation text."""
    import torch

    held_out = ids_of_text()[1]
    original, arguments = torch.manual_seed, [*_COMMAND, f"--max_iters={steps}", f"--lr_decay_iters={steps}"]
    torch.manual_seed = lambda number: original(number + seed)  # the script has one seed, and no setting for it
    with tempfile.TemporaryDirectory() as folder:
        _prepare(Path(folder), script)
        os.chdir(folder)  # from there it reads its files
        sys.path.insert(0, str(script))
        sys.argv = ["train.py", *arguments]
        began = time.process_time()
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            model = runpy.run_path(str(script / "train.py"))["model"]
        seconds = time.process_time() - began
    # The script's model returns the logits of all places only where targets are given.
    return seconds, loss_of(lambda seen: model.eval()(seen, torch.zeros_like(seen))[0], held_out)


def _prepare(folder: Path, script: Path) -> None:
    """Write the files that the script's prepare.py writes, and link the files that the script reads from there."""
    train, held_out, tokens = ids_of_text()
    data = folder / "data" / "shakespeare_char"
    data.mkdir(parents=True)
    for name, ids in (("train", train), ("val", held_out)):
        ids.numpy().astype(np.uint16).tofile(data / f"{name}.bin")
    (data / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": tokens}))
    for name in ("configurator.py", "config"):
        (folder / name).symlink_to(script / name)


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
    parser.add_argument("--peer", type=Path, help="folder with nanoGPT")
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.steps:
        if arguments.peer is None:
            seconds, loss = train(arguments.steps, arguments.seed)
        else:
            seconds, loss = train_peer(arguments.peer.absolute(), arguments.steps, arguments.seed)
        print(json.dumps({"seconds": seconds, "loss": loss}))
        return
    alone(parser, lambda requested: measure(requested.rounds, quick=requested.quick, peer=requested.peer))


if __name__ == "__main__":
    main()
