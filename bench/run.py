"""Run every benchmark and print one table: the program behind `make bench`.

    python -m bench.run [--only throughput memory] [--rounds N] [--peers PYTHON] [--json FILE]

It takes about two hours on two cores, without `drift` and `wrong_labels`. Leave the machine idle meanwhile: one busy
process makes a step 2.6 times as long, because the threads of a convolution wait for each other, and the results are
meaningless.
"""

import argparse
import sys
import traceback

from bench import (
    checkpoints,
    coverage,
    drift,
    first_model,
    first_step,
    flow,
    gate_errors,
    ingest,
    intervals,
    latency,
    manifest,
    memory,
    novelty,
    precision,
    processes,
    recipe,
    search,
    serving,
    serving_overload,
    serving_processes,
    table_steps,
    tables,
    tabular,
    texts,
    throughput,
    tokens,
    wrong_labels,
)
from bench.report import Row, end_in_order, machine, options, show

_NAMES = (
    "throughput", "checkpoints", "memory", "first_step", "first_model", "flow", "precision", "ingest", "manifest",
    "processes", "recipe", "coverage", "gate_errors", "latency", "tokens", "texts", "tables", "tabular", "table_steps",
    "serving", "serving_overload", "serving_processes", "search", "wrong_labels", "drift", "intervals", "novelty",
)  # fmt: skip


def main() -> None:
    """Run all benchmarks, or those of `--only`, and print the table."""
    parser = options(__doc__)
    parser.add_argument("--only", nargs="+", choices=_NAMES, default=_NAMES, metavar="NAME", help=", ".join(_NAMES))
    parser.add_argument("--peers", default=sys.executable, help="a Python that has Accelerate or Lightning")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True, help="measure torch.compile")
    arguments = parser.parse_args()
    end_in_order()
    described = machine()
    print(described)
    rows: list[Row] = []
    failed: list[Row] = []
    for name in arguments.only:
        print(f"\n{name}", flush=True)
        try:
            rows += _measure(name, arguments)
        except Exception as error:  # the results of the others are hours of work
            traceback.print_exc()
            failed.append(Row(name, "the whole", f"{type(error).__name__}: {error}", "ends without an error", False))
    show(rows, described=described, arguments=arguments, failed=failed)
    sys.exit(bool(failed) or (not arguments.quick and any(row.met is False for row in rows)))


def _measure(name: str, arguments: argparse.Namespace) -> list[Row]:
    rounds, quick = arguments.rounds, arguments.quick
    match name:
        case "throughput":
            return throughput.measure(rounds, quick=quick, peers=arguments.peers)
        case "checkpoints":
            return checkpoints.measure(rounds, quick=quick)
        case "memory":
            return memory.measure(min(rounds, 3), quick=quick)  # results hardly vary
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
            return precision.measure(rounds, quick=quick, compiled=arguments.compile)
        case "processes":
            return processes.measure(rounds, kills=20, quick=quick)
        case "coverage":
            return coverage.measure(1000, quick=quick)  # sets; independent of the machine
        case "gate_errors":
            return gate_errors.measure(2000, quick=quick)
        case "latency":
            return latency.measure(100, load=4, quick=quick)
        case "intervals":
            return intervals.measure(min(rounds, 3), quick=quick)
        case "novelty":
            return novelty.measure(1, quick=quick)
        case "tables":
            return tables.measure(min(rounds, 3), quick=quick)
        case "texts":
            return texts.measure(min(rounds, 3), quick=quick)
        case "tabular":
            return tabular.measure(min(rounds, 3), quick=quick)
        case "table_steps":
            return table_steps.measure(rounds, quick=quick)
        case "serving":
            return serving.measure(min(rounds, 5), quick=quick)  # beside other servers: `python -m bench.serving`
        case "search":
            return search.measure(min(rounds, 3), quick=quick)
        case "serving_overload":
            return serving_overload.measure(quick=quick)
        case "serving_processes":
            return serving_processes.measure(min(rounds, 5), quick=quick)
        case "tokens":
            return tokens.measure(min(rounds, 3), quick=quick)
        case "wrong_labels":
            return wrong_labels.measure(10_000, quick=quick)
        case "drift":
            return drift.measure(20, quick=quick)
        case _:
            return recipe.measure(min(rounds, 3), quick=quick)


if __name__ == "__main__":
    main()
