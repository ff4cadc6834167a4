"""Coverage of the confidence intervals, by simulation (E2). tests/simulations/coverage.py describes the method.

python -m bench.coverage [--rounds 1000]
"""

import itertools

from bench.report import Row, alone, options
from tests.simulations.coverage import POPULATIONS, metric_coverage, paired_coverage
from tests.simulations.gate import PAIRS

__all__ = ["measure"]


def measure(rounds: int, *, quick: bool) -> list[Row]:
    """Return the rows of the table."""
    sets, resamples, sizes = (20, 100, (100,)) if quick else (rounds, 400, (300, 1000))
    rows = []
    for size, population in itertools.product(sizes, POPULATIONS[:1] if quick else POPULATIONS):
        held = metric_coverage(population, rows=size, sets=sets, resamples=resamples)
        # The interval of the calibration error is conservative on purpose
        met = all(0.93 <= share <= 0.97 for name, share in held.items() if name != "ece") and held["ece"] >= 0.95
        shares = ", ".join(f"{name} {share:.3f}" for name, share in held.items())
        rows.append(_row(f"{population.name}, {size:,} images", sets, shares, "0.93 to 0.97, ece >= 0.95", met))
    for size in sizes:
        for pair in PAIRS:
            share = paired_coverage(pair, rows=size, sets=sets, resamples=4000)
            rows.append(
                _row(f"{pair.name}, {size:,} images", sets, f"{share:.3f}", "0.93 to 0.97", 0.93 <= share <= 0.97)
            )
    return rows


def _row(condition: str, sets: int, shares: str, claim: str, met: bool) -> Row:
    print(f"{condition}: {shares}", flush=True)
    return Row("share of intervals that contain the true value", f"{condition}, {sets:,} sets", shares, claim, met)


if __name__ == "__main__":
    alone(options(__doc__, rounds=1000), lambda options: measure(options.rounds, quick=options.quick))
