"""Results of the benchmarks: rows of one table, and a description of the machine."""

import argparse
import importlib.metadata
import json
import os
import platform
import signal
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

__all__ = ["Row", "alone", "end_in_order", "machine", "options", "print_table", "ratio", "show", "spread"]

_PACKAGES = ("torch", "numpy", "mlflow", "prefect", "dvc")


@dataclass(frozen=True)
class Row:
    """One result. `met` is whether it meets the claim; None without a claim."""

    measured: str
    condition: str
    figure: str
    claim: str = ""
    met: bool | None = None


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the median of the rounds' ratios. Both runs of a round are consecutive, so slow phases cancel out."""
    return statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))


def spread(values: Sequence[float], *, form: str = ",.0f") -> str:
    """Return median, minimum and maximum as text."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def machine() -> str:
    """Return processor, threads, load, device and versions as text."""
    import torch

    from ratchet.hardware import processor
    from ratchet.training.device import choose_device, describe

    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in _PACKAGES)
    return (
        f"{processor() or platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, "
        f"load {load} before the start; "
        f"trains on {describe(choose_device('auto'))}; Python {platform.python_version()}, {versions}"
    )


def options(about: str | None, *, rounds: int = 5) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds, help=f"default: {rounds}")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: only checks that it runs")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    return parser


def end_in_order() -> None:
    """Let SIGTERM and SIGHUP end this process as Ctrl-C does, so that it ends the servers that it started."""

    def end(number: int, _: object) -> None:
        sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)


def alone(parser: argparse.ArgumentParser, measure: Callable[[argparse.Namespace], Sequence[Row]]) -> None:
    """Run a benchmark as a command: parse the command line, measure, print."""
    arguments = parser.parse_args()
    end_in_order()
    described = machine()
    show(measure(arguments), described=described, arguments=arguments)


def show(rows: Sequence[Row], *, described: str, arguments: argparse.Namespace, failed: Sequence[Row] = ()) -> None:
    """Print the table and the claims that do not hold; write it with the machine to the file of `--json`, if any.

    `failed` has a row for each benchmark that raised, which counts with `--quick` too.
    """
    if arguments.quick:
        described = f"NOT A MEASUREMENT: --quick only shows that it runs. {described}"
        rows = [replace(row, met=None) for row in rows]
    rows = [*rows, *failed]
    print_table(rows)
    print(f"\n{described}")
    unmet = [
        f"  {row.measured} ({row.condition}): {row.figure}; claim: {row.claim}" for row in rows if row.met is False
    ]
    if any(row.met is not None for row in rows):
        print("\n".join([f"\nClaims that do not hold: {len(unmet) or 'none'}", *unmet]))
    if arguments.json is not None:
        content = {"machine": described, "rows": [asdict(row) for row in rows]}
        arguments.json.write_text(json.dumps(content, indent=2) + "\n")


def print_table(rows: Sequence[Row]) -> None:
    """Print an empty line, and rows under a head, in columns."""
    table = [("measured", "condition", "figure", "claim", "met"), *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in table) for column in range(5)]
    print()
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _cells(row: Row) -> tuple[str, ...]:
    met = "" if row.met is None else "yes" if row.met else "NO"
    return row.measured, row.condition, row.figure, row.claim, met
