"""A comparison in the terminal."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from commands.data_diff import listed
from ratchet.provenance.comparison import Change, Comparison, Flip
from ratchet.reports.comparison_page import interval_words, said

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["show"]


def show(found: Comparison, *, most: int, place: Path) -> None:
    """Print it, at most so many of each kind of sample and row (0: all), and where the page is."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    a, b = found.names
    console.print(f"[bold]A[/] {a}   [bold]B[/] {b}")
    if found.doubts:
        _plain(console, "warnings", found.doubts)
    _code(console, found)
    _settings(console, found)
    _data(console, found, most)
    _table(console, "environment", _rows(found.environment)) if found.environment else _plain(
        console, "environment", ["the same, or not recorded of both"]
    )
    _table(
        console,
        "test figures",
        [(one.name, interval_words(one.before), interval_words(one.after)) for one in found.metrics],
    )
    if found.answers is not None:
        _plain(console, "test rows", [found.answers.summary])
        _flips(console, "right -> wrong", found.answers.worse, most)
        _flips(console, "wrong -> right", found.answers.better, most)
    if found.missing:
        _plain(console, "not compared", found.missing)
    console.print(f"\npage: {place}", markup=False)


def _code(console: "Console", found: Comparison) -> None:
    a, b = found.code.commits
    lines = [f"the same commit, {a}" if a == b else f"{a} -> {b}", *found.code.stat]
    lines += [f"uncommitted: {name}: {where}" for name, where in found.code.patched.items()]
    _plain(console, "code", lines if found.code.patched else [*lines, "nothing uncommitted differs"])


def _settings(console: "Console", found: Comparison) -> None:
    if found.settings:
        _table(console, "settings", _rows(found.settings))
    elif found.settings is not None:
        _plain(console, "settings", ["the same"])


def _data(console: "Console", found: Comparison, most: int) -> None:
    a, b = found.data
    lines = [f"the same, {a}" if a == b else f"{a} -> {b}"]
    if found.samples is not None:
        lines += [*listed(found.samples, most), found.samples.words]
    _plain(console, "data", lines)


def _rows(changes: Sequence[Change]) -> list[tuple[str, str, str]]:
    return [(one.name, said(one.before), said(one.after)) for one in changes]


def _flips(console: "Console", title: str, flips: Sequence[Flip], most: int) -> None:
    shown = flips[:most] if most else flips
    lines = [f"{one.id}: {one.label}, answered {one.before} -> {one.after}" for one in shown]
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
