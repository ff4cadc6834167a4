"""Cost of a checkpoint every 50 steps, and time spent waiting for data (B3).

    python -m bench.checkpoints [--rounds 5]

Each round is one run of the stage with a checkpoint every 100 steps. The 50 steps after each include its whole
cost (the copy, and the writing during training); the 50 steps before the next include none. Both are only seconds
apart, so the load of the machine affects them equally. The cost is the median over all pairs. Times come from the
journal of the stage after the first 100 steps, and so does the share of time in which a step waits for its batch
(`step/data_wait`, every ten steps).
"""

import statistics

from bench.contenders import BATCH
from bench.project import Project, pack, scratch
from bench.report import Row, alone, options, ratio, spread
from bench.throughput import STAGE

__all__ = ["measure"]

_LOSS, _WAIT = 0.02, 0.02
_HALF = 50  # steps with what a checkpoint costs, and as many without


def measure(rounds: int, *, quick: bool) -> list[Row]:
    """The table's rows."""
    every, pairs = 2 * _HALF, 1 if quick else 8
    steps = every * (1 + pairs)
    after: list[float] = []
    before: list[float] = []
    waits: list[float] = []
    with scratch() as folder:
        pack(folder / "packed", rows=steps * BATCH)
        changes = {**STAGE, "training.max_steps": steps, "training.checkpoint_steps": every}
        project = Project(folder / "project", changes, packed=folder / "packed")
        for number in range(rounds):
            run = project.train(seed=number)
            for start in range(every, steps, every):
                after.append(run.rate(after=start, until=start + _HALF, batch=BATCH))
                before.append(run.rate(after=start + _HALF, until=start + every, batch=BATCH))
            waits.append(statistics.mean(run.values("step/data_wait", after=every)))
            pair = 1 - ratio(after[-pairs:], before[-pairs:])
            print(f"round {number + 1}: {pairs} checkpoints, cost {pair:.2%}, wait {waits[-1]:.2%}", flush=True)
    cost, wait = 1 - ratio(after, before), statistics.median(waits)
    condition = f"ConvNet, batch {BATCH}, median of {len(after)} pairs of {_HALF} steps"
    runs = f"median of {rounds} runs"
    return [
        Row(f"images/s: {_HALF} steps after a checkpoint", condition, spread(after)),
        Row(f"images/s: {_HALF} steps without one", condition, spread(before)),
        Row(f"cost of a checkpoint every {_HALF} steps", condition, f"{cost:.2%}", f"< {_LOSS:.0%}", cost < _LOSS),
        Row("share of time waiting for data", runs, f"{wait:.2%}", f"< {_WAIT:.0%}", wait < _WAIT),
    ]


if __name__ == "__main__":
    alone(options(__doc__), lambda requested: measure(requested.rounds, quick=requested.quick))
