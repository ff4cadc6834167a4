"""Comparison of two runs as tables in the terminal."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from commands.app import new_console
from commands.data import difference_lines
from ratchet.provenance.comparison import Change, Comparison, Flip
from ratchet.reports.numbers import measured, setting

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["print_comparison"]


def print_comparison(comparison: Comparison, *, most: int, page: Path) -> None:
    """Print a comparison with at most `most` samples of each kind (0: all), and the path of its page."""
    console = new_console()
    a, b = comparison.names
    console.print(f"[bold]A[/] {a}   [bold]B[/] {b}")
    if comparison.doubts:
        _plain(console, "warnings", comparison.doubts)
    _code(console, comparison)
    _settings(console, comparison)
    _data(console, comparison, most)
    if comparison.environment:
        _table(console, "environment", _rows(comparison.environment))
    else:
        _plain(console, "environment", ["the same, or not recorded for both"])
    metrics = [(metric.name, measured(metric.before), measured(metric.after)) for metric in comparison.metrics]
    _table(console, "test metrics", metrics)
    if comparison.answers is not None:
        _plain(console, "test samples", [comparison.answers.summary])
        _flips(console, "right -> wrong", comparison.answers.worse, most)
        _flips(console, "wrong -> right", comparison.answers.better, most)
    if comparison.missing:
        _plain(console, "not compared", comparison.missing)
    console.print(f"\npage: {page}", markup=False)


def _code(console: "Console", comparison: Comparison) -> None:
    a, b = comparison.code.commits
    lines = [f"the same commit, {a}" if a == b else f"{a} -> {b}", *comparison.code.stat]
    lines += [f"uncommitted: {name}: {where}" for name, where in comparison.code.patched.items()]
    _plain(console, "code", lines if comparison.code.patched else [*lines, "nothing uncommitted differs"])


def _settings(console: "Console", comparison: Comparison) -> None:
    if comparison.settings:
        _table(console, "settings", _rows(comparison.settings))
    elif comparison.settings is not None:
        _plain(console, "settings", ["the same"])


def _data(console: "Console", comparison: Comparison, most: int) -> None:
    a, b = comparison.data
    lines = [f"the same, {a}" if a == b else f"{a} -> {b}"]
    if comparison.samples is not None:
        lines += [*difference_lines(comparison.samples, most), comparison.samples.summary]
    _plain(console, "data", lines)


def _rows(changes: Sequence[Change]) -> list[tuple[str, str, str]]:
    return [(change.name, setting(change.before), setting(change.after)) for change in changes]


def _flips(console: "Console", title: str, flips: Sequence[Flip], most: int) -> None:
    shown = flips[:most] if most else flips
    lines = [f"{flip.id}: {flip.label}, predicted {flip.before} -> {flip.after}" for flip in shown]
    if len(shown) < len(flips):
        lines.append(f"... and {len(flips) - len(shown):,} more: --most 0 lists all")
    if lines:
        _plain(console, f"{title}: {len(flips):,}", lines)


def _table(console: "Console", title: str, lines: Iterable[tuple[str, str, str]]) -> None:
    from rich.table import Table

    table = Table("", "A", "B", box=None, padding=(0, 2), show_edge=False)
    for line in lines:
        table.add_row(*line)
    console.print(f"\n[bold]{title}[/]")
    console.print(table, soft_wrap=False)


def _plain(console: "Console", title: str, lines: Iterable[str]) -> None:
    console.print(f"\n[bold]{title}[/]")
    for line in lines:
        console.print(f"  {line}", markup=False)
