"""Speed of the train stage, compared with other training loops (B1).

    python -m bench.throughput [--rounds 5] [--peers PYTHON]

Each round runs every contender once, one after another, each in its own process, on the same packed images:
reference ConvNet, batch 256, 32x32x3, random crops and mirror images. The rates are images per second over 150 steps
after a warm-up. Values are medians over rounds; ratios are medians of the ratios of the rounds.

stage is `python -m tasks.train` as shipped, with everything on: augmentation, metrics, journal and MLflow, a progress
bar on a terminal, a checkpoint every 50 steps, `precision: auto`. Its rate comes from the time stamps of its own
journal, after 100 steps, because in the first seconds another thread imports MLflow (see bench/first_step.py).
bench/contenders.py describes the others. Accelerate and Lightning are not dependencies: --peers names the Python of an
environment with torch and one or both of them.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from bench.contenders import AUTO, BATCH, LOADERS
from bench.project import ROOT, Project, pack, scratch
from bench.report import Row, alone, options, ratio, spread

__all__ = ["STAGE", "best_workers", "measure", "rate_of"]

STAGE: dict[str, object] = {
    "training.batch_size": BATCH,
    "training.learning_rate": 1.0e-3,
    "training.schedule": "cosine",
    "training.flip": "random",
    "training.crop_padding": 4,
    "training.checkpoint_steps": 50,
    "training.epochs": 1,
}
_PEERS = {"accelerate": "accelerate", "lightning": "pytorch_lightning"}
_CLAIMS = {"resident-auto": 0.95, "textbook": 3.0, "accelerate": 1.0, "lightning": 1.0}


def measure(rounds: int, *, quick: bool, peers: str) -> list[Row]:
    """The table's rows: the rates, then the ratios that are claimed."""
    warm, steps, stage_warm = (2, 10, 10) if quick else (40, 150, 100)  # the stage logs every tenth step
    present = {name for name, package in _PEERS.items() if _imports(peers, package)}
    names = ["textbook", "resident", "resident-auto", *sorted(present)]
    rates: dict[str, list[float]] = {name: [] for name in ["stage", *names]}
    with scratch() as folder:
        source = pack(folder / "packed", rows=(stage_warm + steps) * BATCH)
        project = Project(
            folder / "project", {**STAGE, "training.max_steps": stage_warm + steps}, packed=folder / "packed"
        )
        workers = dict.fromkeys(names, 0)
        for name in sorted(set(names) & set(LOADERS)):
            workers[name] = best_workers(peers, name, folder / "packed", warm // 2, max(5, steps // 4))
        project.train(seed=0)  # makes MLflow's database, and everything that is made but once
        for number in range(rounds):
            for name in names:
                rates[name].append(rate_of(peers, name, folder / "packed", warm, steps, workers[name]))
            rates["stage"].append(project.train(seed=number + 1).rate(after=stage_warm, batch=BATCH))
            print(f"round {number + 1}: " + ", ".join(f"{name} {rate[-1]:,.0f}" for name, rate in rates.items()))
    condition = f"{source}, batch {BATCH}, {steps} steps, median of {rounds} rounds (least to greatest)"
    kinds = {"stage": f"{AUTO.name}, all on", "resident-auto": AUTO.name, "resident": "fp32"}
    rows = [
        Row(f"images/s: {name}", kinds.get(name, f"{workers.get(name)} workers"), spread(values))
        for name, values in rates.items()
    ]
    for name, claim in _CLAIMS.items():
        if name not in rates:
            how = f"pip install {_PEERS[name].replace('_', '-')}, or name a Python that has it with --peers"
            rows.append(Row(f"stage / {name}", f"not installed: {how}", "not measured", f">= {claim:.2f}"))
            continue
        figure = ratio(rates["stage"], rates[name])
        rows.append(Row(f"stage / {name}", condition, f"{figure:.3f}", f">= {claim:.2f}", figure >= claim))
    gained = ratio(rates["resident-auto"], rates["resident"])
    return [*rows, Row("resident-auto / resident", f"{AUTO.name} against fp32, the model alone", f"{gained:.2f}")]


def rate_of(python: str, name: str, packed: Path, warm: int, steps: int, workers: int) -> float:
    """Images per second of one contender, in a process of its own."""
    command = [python if name in _PEERS else sys.executable, "-m", "bench.contenders", name, str(packed)]
    sizes = ["--warm", str(warm), "--steps", str(steps), "--workers", str(workers)]
    done = subprocess.run([*command, *sizes], capture_output=True, text=True, env=_environment(), check=False)
    if done.returncode:
        raise RuntimeError(f"{name}, {workers} workers, ended with {done.returncode}:\n{done.stderr}")
    return float(json.loads(done.stdout.splitlines()[-1])["rate"])


def best_workers(python: str, name: str, packed: Path, warm: int, steps: int) -> int:
    """The number of data-loading processes that a contender is fastest with."""
    tried = {workers: rate_of(python, name, packed, warm, steps, workers) for workers in (0, 1, 2)}
    best = max(tried, key=lambda workers: tried[workers])
    print(f"{name} takes {best} workers: {', '.join(f'{n}: {rate:,.0f}' for n, rate in tried.items())}", flush=True)
    return best


def _imports(python: str, package: str) -> bool:
    find = f"import importlib.util as u, sys; sys.exit(u.find_spec({package!r}) is None)"
    return subprocess.run([python, "-c", find], env=_environment(), check=False).returncode == 0


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}


def main() -> None:
    """Measure and print."""
    parser = options(__doc__)
    parser.add_argument("--peers", default=sys.executable, help="a Python that has Accelerate or Lightning")
    alone(parser, lambda requested: measure(requested.rounds, quick=requested.quick, peers=requested.peers))


if __name__ == "__main__":
    main()
