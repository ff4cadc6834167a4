"""Damaged tables: seeded mutations of real CSV files, two of each sort.

Each is packed or refused by an error of ratchet.errors. Rows are counted again here, by lines, and every reason of the
quarantine table is checked against the line that it names.
"""

import random
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from ratchet.errors import RatchetError

pytestmark = pytest.mark.system  # many seconds

FILES = {
    "titanic.csv": ("survived", 891),
    "penguins.csv": ("species", 344),
    "adult.data": ("column_15", 1500),
    "bike-sharing/day.csv": ("cnt", 731),
    "bike-sharing/hour.csv": ("cnt", 1500),
    "elec.csv": ("class", 1500),
}
MISSING = {"", "NA", "NaN", "nan", "null", "NULL", "None", "?", "N/A", "n/a", "#N/A", "<NA>", "-nan", "-NaN"}
JUNK = (
    "inf", "-inf", "nan", "?", "NA", " ", "1e999", "1,5", "12%", "2020-13-45", "1/2/3", "x", "é", "日本", "0x1f", "007",
    "-", ".", "1.2.3", "True", "\t", "|", "a|b", "=1+1", "9" * 400, "\x00", "1_000", "\uff11\uff12",
)  # fmt: skip
Mutation = Callable[[random.Random, list[str]], list[str] | bytes]


def cell(draw: random.Random, lines: list[str]) -> list[str]:
    at = draw.randrange(len(lines))
    cells = lines[at].split(",")
    cells[draw.randrange(len(cells))] = draw.choice(JUNK)
    return [*lines[:at], ",".join(cells), *lines[at + 1 :]]


def cells(draw: random.Random, lines: list[str]) -> list[str]:
    for _ in range(draw.randrange(2, 30)):
        lines = cell(draw, lines)
    return lines


def column(draw: random.Random, lines: list[str]) -> list[str]:
    place, junk, share = draw.randrange(lines[0].count(",") + 1), draw.choice(JUNK), draw.choice([0.02, 0.3, 1.0])
    rows = [line.split(",") for line in lines]
    for row in rows[1:]:
        if draw.random() < share:
            row[place] = junk
    return [",".join(row) for row in rows]


def character(draw: random.Random, lines: list[str]) -> list[str]:
    text = "\n".join(lines)
    at = draw.randrange(len(text))
    return (text[:at] + draw.choice(['"', ",", ";", "\n", "'", " ", "%", ""]) + text[at + draw.randrange(2) :]).split(
        "\n"
    )


def repeated_header(draw: random.Random, lines: list[str]) -> list[str]:
    at = draw.randrange(1, len(lines))
    return [*lines[:at], lines[0], *lines[at:]]


def repeated_lines(draw: random.Random, lines: list[str]) -> list[str]:
    return [*lines, *draw.choices(lines[1:], k=draw.randrange(1, 50))]


def shuffled(draw: random.Random, lines: list[str]) -> list[str]:
    return [lines[0], *draw.sample(lines[1:], len(lines) - 1)]


def cut(draw: random.Random, lines: list[str]) -> list[str]:
    text = "\n".join(lines)
    return text[: draw.randrange(1, len(text))].split("\n")


def no_header(draw: random.Random, lines: list[str]) -> list[str]:
    return lines[1:]


def equal_names(draw: random.Random, lines: list[str]) -> list[str]:
    names = lines[0].split(",")
    names[draw.randrange(len(names))] = draw.choice(names)
    return [",".join(names), *lines[1:]]


def ragged(draw: random.Random, lines: list[str]) -> list[str]:
    at = draw.randrange(len(lines))
    line = lines[at] + "," * draw.randrange(1, 4) if draw.random() < 0.5 else lines[at].rsplit(",", 1)[0]
    return [*lines[:at], line, *lines[at + 1 :]]


def spaces(draw: random.Random, lines: list[str]) -> list[str]:
    return [line.replace(",", draw.choice([" ,", ", ", ",\t"])) for line in lines]


def empty_lines(draw: random.Random, lines: list[str]) -> list[str]:
    for _ in range(draw.randrange(1, 20)):
        lines = [*(place := lines[: draw.randrange(1, len(lines))]), "", *lines[len(place) :]]
    return lines


def separators(draw: random.Random, lines: list[str]) -> list[str]:
    return [line.replace(",", draw.choice(";")) for line in lines]


def encoded(draw: random.Random, lines: list[str]) -> bytes:
    text = "\n".join(lines).replace("male", "mâle")
    return text.encode(draw.choice(["utf-16", "utf-16-be", "utf-32", "latin-1", "utf-8-sig", "cp037"]), "replace")


def bytes_changed(draw: random.Random, lines: list[str]) -> bytes:
    content = bytearray("\n".join(lines).encode())
    for _ in range(draw.randrange(1, 20)):
        content[draw.randrange(len(content))] = draw.randrange(256)
    return bytes(content)


def line_ends(draw: random.Random, lines: list[str]) -> bytes:
    return draw.choice(["\r\n", "\r", "\n\r\n"]).join(lines).encode()


MUTATIONS: tuple[Mutation, ...] = (
    cell, cells, column, character, repeated_header, repeated_lines, shuffled, cut, no_header, equal_names, ragged,
    spaces, empty_lines, separators, encoded, bytes_changed, line_ends,
)  # fmt: skip


def check_rows(lines: list[str], table, label: str, *, header: bool) -> None:
    """Check that every line is packed or quarantined."""
    known = {at for at, line in enumerate(lines, start=1) if line.strip(",; \t")}
    rows = len(known) - header
    quarantined = pl.read_parquet(table.quarantine)
    packed = table.index()
    assert packed.height + quarantined["row"].n_unique() == rows
    separator = max(",;\t|", key=lines[0].count)
    names = [name.strip() for name in lines[0].split(separator)] if header else []
    for source, rule, value in quarantined.select("source", "rule", "value").rows():
        line = lines[int(source.removeprefix("line ")) - 1]
        parts = [part.strip() for part in line.split(separator)]
        if rule == "ragged-row":
            assert len(parts) != lines[0].count(separator) + 1, line
        elif rule == "repeated-header":
            assert parts == names
        elif rule == "no-label":
            assert parts[names.index(label) if header else int(label.removeprefix("column_")) - 1] in MISSING
        else:
            assert rule in (
                "not-a-number",
                "infinite-number",
                "not-a-date",
                "label-not-a-number",
                "unknown-label",
                "infinite-label",
            )
            shown = value.split(" ", 1)[-1].strip()
            assert shown in parts, (value, line)
            if rule in ("not-a-number", "label-not-a-number"):
                assert not re.fullmatch(r"[+-]?[0-9]+(\.[0-9]+)?", shown)
            if rule == "infinite-number":
                assert abs(float(shown)) > float(np.finfo(np.float32).max)


@pytest.mark.parametrize("seed", range(2 * len(MUTATIONS)))
def test_a_damaged_table_is_packed_or_refused(table, tabular, seed: int) -> None:
    draw = random.Random(seed)
    name = draw.choice(list(FILES))
    label, count = FILES[name]
    lines = Path(tabular(name)).read_text().splitlines()[: count + 1]
    changed = MUTATIONS[seed % len(MUTATIONS)](draw, lines)
    content = changed if isinstance(changed, bytes) else "\n".join(changed).encode()
    table.write(content)
    try:
        table.ingest(label_column=label, max_bad_fraction=draw.choice([0.05, 0.5]))
    except RatchetError as error:
        refusal = str(error)
    else:
        refusal = None
    if refusal is not None:
        assert "\n" not in refusal
        assert "Fix: " in refusal
    elif isinstance(changed, list) and not any('"' in line for line in changed):
        header = label in [cell.strip() for cell in re.split("[,;]", changed[0])]
        check_rows("\n".join(changed).replace("\r", "\n").split("\n"), table, label, header=header)
