"""Error rates of the gate's latency rule on a busy machine.

    python -m bench.latency [--rounds 1000] [--load 4]

Each round compares two models as the register stage does, with the shipped `gate.latency_factor`. It counts how often a
model identical to the champion is refused, and how often one that is six times slower. `--load` other processes run at
the same time; each works and sleeps for random times.
"""

import multiprocessing
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from bench.report import Row, alone, options
from ratchet.evaluation.latency import side_by_side
from ratchet.settings.model import GateSettings

__all__ = ["measure"]

_SLOWER = 6


def measure(rounds: int, *, load: int, quick: bool) -> list[Row]:
    """Return the rows of the table."""
    import torch

    from ratchet.kinds import image_spec
    from ratchet.training import build

    rounds, limit = 2 if quick else rounds, GateSettings().latency_factor
    with torch.random.fork_rng(), torch.inference_mode(), _busy(load):
        torch.manual_seed(1)
        model = build(image_spec("convnet", tuple("abcdefghij"), 1, 8, 8, (0.5,), (0.25,))).eval()
        images = torch.zeros(64, 1, 8, 8, dtype=torch.uint8)

        def ask(rows: int, times: int) -> None:
            for _ in range(times):
                model(images[:rows])

        rows = []
        for name, times, slower in (
            ("identical model refused", 1, False),
            ("model six times slower refused", _SLOWER, True),
        ):
            refused, largest = 0, 0.0
            comparisons = max(1, rounds // 10) if slower else rounds
            for _ in range(comparisons):
                factors = [
                    mine / other
                    for mine, other in (
                        side_by_side(partial(ask, batch, times), partial(ask, batch, 1), limit=limit)
                        for batch in (1, 64)
                    )
                ]
                refused += max(factors) > limit
                largest = max(largest, *factors)
            expected = comparisons if slower else 0
            figure = f"{refused:,} of {comparisons:,}, largest factor {largest:.2f}"
            condition = f"{load} busy processes on {os.cpu_count()} cores"
            claim = f"{expected:,} of {comparisons:,}"
            rows.append(Row(name, condition, figure, claim, refused == expected))
            print(rows[-1], flush=True)
    return rows


@contextmanager
def _busy(load: int) -> Iterator[None]:
    """Run `load` processes that use the machine in bursts."""
    processes = [multiprocessing.get_context("spawn").Process(target=_work, args=(seed,)) for seed in range(load)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def _work(seed: int) -> None:
    chance = random.Random(seed)
    while True:
        end = time.perf_counter() + chance.expovariate(20.0)
        while time.perf_counter() < end:
            sum(range(1000))
        time.sleep(chance.expovariate(40.0))


if __name__ == "__main__":
    parser = options(__doc__, rounds=1000)
    parser.add_argument("--load", type=int, default=4, help="busy processes (default: 4)")
    alone(parser, lambda arguments: measure(arguments.rounds, load=arguments.load, quick=arguments.quick))
