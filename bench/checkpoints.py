"""What a checkpoint every 50 steps costs, and how long training waits for data (B3).

    python -m bench.checkpoints [--rounds 5]

Each round trains twice, one after the other, with a checkpoint every 50 steps and with none but the last; which comes
first alternates. Rates are read off the stage's journal after the first 100 steps, and so is the share of time in
which a step waits for its batch (`step/data_wait`, of every ten steps).
"""

import statistics

from bench.contenders import BATCH
from bench.project import Project, pack, scratch
from bench.report import Row, alone, options, ratio, spread
from bench.throughput import STAGE

__all__ = ["measure"]

_LOSS, _WAIT = 0.02, 0.02


def measure(rounds: int, *, quick: bool) -> list[Row]:
    """The table's rows."""
    warm, steps = (10, 50) if quick else (100, 200)
    rates: dict[int, list[float]] = {50: [], 0: []}
    waits: list[float] = []
    with scratch() as folder:
        pack(folder / "packed", rows=(warm + steps) * BATCH)
        project = Project(folder / "project", {**STAGE, "training.max_steps": warm + steps}, packed=folder / "packed")
        project.train(seed=0)  # makes MLflow's database, and everything that is made but once
        for number in range(rounds):
            for every in sorted(rates, reverse=bool(number % 2)):
                project.set({"training.checkpoint_steps": every})
                run = project.train(seed=number + 1)
                rates[every].append(run.rate(after=warm, batch=BATCH))
                if every:
                    waits.append(statistics.mean(run.values("step/data_wait", after=warm)))
            print(f"round {number + 1}: every 50 {rates[50][-1]:,.0f}, none {rates[0][-1]:,.0f}, wait {waits[-1]:.2%}")
    cost, wait = 1 - ratio(rates[50], rates[0]), statistics.median(waits)
    condition = f"ConvNet, batch {BATCH}, {steps} steps, median of {rounds} rounds"
    return [
        Row("images/s: a checkpoint every 50 steps", condition, spread(rates[50])),
        Row("images/s: none inside the epoch", condition, spread(rates[0])),
        Row("cost of the checkpoints", condition, f"{cost:.2%}", f"< {_LOSS:.0%}", cost < _LOSS),
        Row("share of time waiting for data", condition, f"{wait:.2%}", f"< {_WAIT:.0%}", wait < _WAIT),
    ]


if __name__ == "__main__":
    alone(options(__doc__), lambda asked: measure(asked.rounds, quick=asked.quick))
