"""The cost of searching.

    python -m bench.search [--rounds 3] [--quick]

A search by two workers needs at most 5 % more processor time than its trainings in two bare processes. The start of the
processes is counted by itself. Elapsed time is only shown: it depends on what else runs.
"""

from argparse import Namespace

import numpy as np

from bench.project import scratch
from bench.report import Row, alone, options, spread
from bench.search_overhead import overhead

__all__ = ["measure"]

_COST = 1.05  # limit of the claim


def measure(rounds: int, *, quick: bool) -> list[Row]:
    """Return the rows of the table."""
    rounds, epochs = (1, 1) if quick else (rounds, 30)
    cpu, wall, starts, plain_starts = [], [], [], []
    for _ in range(rounds):
        with scratch() as folder:
            ours, plain, start, plain_start = overhead(folder, epochs=epochs)
        cpu.append((ours - start).cpu / (plain - plain_start).cpu)
        wall.append((ours - start).wall / (plain - plain_start).wall)
        starts.append(start.cpu)
        plain_starts.append(plain_start.cpu)
    condition = f"12 trials of {epochs} epochs, 2 workers, {rounds} rounds"
    limit = float(np.median(cpu))
    return [
        Row("processor time of a search / of its trainings", condition, spread(cpu, form=".3f"), f"<= {_COST}",
            limit <= _COST),
        Row("elapsed time of a search / of its trainings", condition, spread(wall, form=".3f")),
        Row("processor seconds of a start: search", condition, spread(starts, form=".1f")),
        Row("processor seconds of a start: two bare processes", condition, spread(plain_starts, form=".1f")),
    ]  # fmt: skip


def _alone(arguments: Namespace) -> list[Row]:
    return measure(arguments.rounds, quick=arguments.quick)


if __name__ == "__main__":
    alone(options(__doc__, rounds=3), _alone)
