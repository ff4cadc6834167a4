"""Every measurement, one after another, and one table: what `make bench` runs.

    python -m bench.run [--only throughput memory] [--rounds N] [--peers PYTHON] [--json FILE]

Leave the machine alone meanwhile, about two hours on two cores: one busy process makes a step 2.6 times as long, for
the threads of a convolution wait for one another, and every figure meaningless.
"""

import argparse
import sys

from bench import (
    checkpoints,
    coverage,
    first_model,
    first_step,
    flow,
    gate_errors,
    ingest,
    latency,
    manifest,
    memory,
    precision,
    recipe,
    throughput,
)
from bench.report import Row, machine, options, show

_NAMES = (
    "throughput", "checkpoints", "memory", "first_step", "first_model", "flow", "precision", "ingest", "manifest",
    "recipe", "coverage", "gate_errors", "latency",
)  # fmt: skip


def main() -> None:
    """Measure all, or what was asked for, and print."""
    parser = options(__doc__)
    parser.add_argument("--only", nargs="+", choices=_NAMES, default=_NAMES, metavar="NAME", help=", ".join(_NAMES))
    parser.add_argument("--peers", default=sys.executable, help="a Python that has Accelerate or Lightning")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True, help="measure torch.compile")
    asked = parser.parse_args()
    described = machine()
    print(described)
    rows: list[Row] = []
    for name in asked.only:
        print(f"\n{name}", flush=True)
        rows += _measure(name, asked)
    show(rows, described=described, asked=asked)
    sys.exit(not asked.quick and any(row.met is False for row in rows))


def _measure(name: str, asked: argparse.Namespace) -> list[Row]:
    rounds, quick = asked.rounds, asked.quick
    match name:
        case "throughput":
            return throughput.measure(rounds, quick=quick, peers=asked.peers)
        case "checkpoints":
            return checkpoints.measure(rounds, quick=quick)
        case "memory":
            return memory.measure(min(rounds, 3), quick=quick)  # it hardly varies
        case "first_step":
            return first_step.measure(rounds, quick=quick)
        case "first_model":
            return first_model.measure(rounds)
        case "flow":
            return flow.measure(rounds)
        case "ingest":
            return ingest.measure(rounds, quick=quick)
        case "manifest":
            return manifest.measure(rounds, quick=quick)
        case "precision":
            return precision.measure(rounds, quick=quick, compiled=asked.compile)
        case "coverage":
            return coverage.measure(1000, quick=quick)  # sets; nothing of the machine is in it
        case "gate_errors":
            return gate_errors.measure(2000, quick=quick)
        case "latency":
            return latency.measure(100, load=4, quick=quick)
        case _:
            return recipe.measure(min(rounds, 3), quick=quick)


if __name__ == "__main__":
    main()
