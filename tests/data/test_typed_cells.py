"""Numbers that the CSV reader types: no ingest may differ from that of the same cells as texts."""

import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.data.sources import table_file
from ratchet.data.tables import reading
from ratchet.errors import RatchetError
from tests.data.conftest import TablePlace

ROWS = 60
PLAIN = {
    "whole": lambda draw: str(draw.randrange(-50, 50)),
    "decimal": lambda draw: f"{draw.gauss(0, 100):.3f}",
    "exponent": lambda draw: f"{draw.gauss(0, 1):.2e}",
    "flag": lambda draw: draw.choice("01"),
    "far": lambda draw: draw.choice(["1", "2", "3", "-9999", "+4"]),
    "digits": lambda draw: f"{draw.random()!r}{draw.randrange(10**9)}",
    "large": lambda draw: str(draw.randrange(2**53 - 60, 2**53 + 60)),
    "code": lambda draw: f"{draw.randrange(200):03d}",
    "quoted": lambda draw: f'"{draw.randrange(9)}"',
    "date": lambda draw: f"2020-0{draw.randrange(1, 9)}-{draw.randrange(10, 28)}",
    "comma": lambda draw: f'"{draw.randrange(9)},{draw.randrange(1, 9)}"',
    "percent": lambda draw: f"{draw.randrange(100)}%",
    "constant": lambda draw: "5",
    "word": lambda draw: draw.choice(["True", "False"]),
}
ODD = (
    "", " ", "0", "-0", "00", "007", "-007", "+5", ".5", "5.", "1e5", "1E+05", "1e400", "-1e400", "1e-400", " 12",
    "12 ", "\t5", "\v5", "\f5", "\xa05", " 007", '" 7"', '"007"', '""', "nan", "NaN", "NAN", "-nan", "inf", "-inf",
    "Infinity", "NA", "None", "?", "null", "1_000", "0x1f", "1d5", "--1", "True", "1.5abc", "x", "2020-01-01",
    "9007199254740993", "18446744073709551617", "1" * 40, "0.1e1", "\u0661\u0662", "\uff11", "5-", "1 2", "$5",
    "a,b", '"a\nb"',
)  # fmt: skip
"""Cells among numbers. One of them has two cells, so its row is bad."""


def written(draw: random.Random) -> str:
    """Return a table of numbers in some forms, with some odd cells, missing labels and odd names."""
    forms = draw.sample(sorted(PLAIN), 4)
    names = [draw.choice([form, f"{form} id", "5", "client"]) for form in forms]
    header = [f"{name}{place}" for place, name in enumerate(names)]
    header[draw.randrange(4)] = draw.choice([header[0], "", "NA"])
    lines = [",".join([*header, "label"])]
    columns = [[PLAIN[form](draw) for _ in range(ROWS)] for form in forms]
    for _ in range(draw.choice([0, 0, 0, 1, 2, 5])):
        columns[draw.randrange(4)][draw.randrange(ROWS)] = draw.choice(ODD)
    labels = [draw.choice(["yes", "no"]) for _ in range(ROWS)]
    for _ in range(draw.choice([0, 0, 1])):
        labels[draw.randrange(ROWS)] = ""
    lines += [",".join(cells) for cells in zip(*columns, labels, strict=True)]
    for _ in range(draw.choice([0, 0, 0, 1])):
        lines.insert(draw.randrange(1, ROWS), draw.choice(["", lines[0], lines[-1]]))
    return draw.choice(["\n", "\n", "\r\n"]).join(lines) + "\n"


def outcome(content: str, *, typed: bool, **options: Any) -> tuple[dict[str, str], list[tuple[object, ...]]] | str:
    """Return digests of all files and the quarantine table of an ingest, or its error."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_file, "_SAMPLE", 5)
        patch.setenv("RATCHET_HASH_KEY", "a key of sixteen characters")
        if not typed:
            patch.setattr(reading, "_numeric_names", lambda settings: None)
        table = TablePlace(Path(folder))
        table.write(content)
        try:
            table.ingest(**{"label_column": "label", "max_bad_fraction": 0.5, "min_per_class": 1} | options)
        except RatchetError as error:
            return str(error).replace(folder, "")
        digests = {name: digest for name, digest in table.digests().items() if name != "quarantine.parquet"}
        return digests, pl.read_parquet(table.quarantine).rows()


@settings(max_examples=15, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32))
def test_typed_cells_change_no_ingest(seed: int) -> None:
    draw = random.Random(seed)
    content, missing = written(draw), draw.choice([[], [], ["-9999"]])
    assert outcome(content, typed=True, missing=missing) == outcome(content, typed=False, missing=missing), content


def test_odd_cells_among_numbers_are_read_as_before() -> None:
    """One in each column, and each in a row of its own."""
    rows = [[f"{row % 7}.5"] * len(ODD) + ["yes" if row % 3 else "no"] for row in range(4 * len(ODD))]
    for place, odd in enumerate(ODD):
        rows[2 * place + 7][place] = odd
    header = [*(f"x{place}" for place in range(len(ODD))), "label"]
    content = "".join(f"{','.join(cells)}\n" for cells in (header, *rows))
    typed = outcome(content, typed=True, missing=[])
    assert isinstance(typed, tuple), typed
    assert typed == outcome(content, typed=False, missing=[])


@pytest.mark.parametrize(
    ("first", "options"),
    [
        (",x,label", {}),  # the index that pandas writes
        ("x,,label", {"columns": {"column_2": "categorical"}}),
        ("x,,label", {"group_column": "column_2"}),
        ("x,,label", {"hash": ("column_2",)}),
        ("NA,5.5,yes", {"label_column": "column_3"}),  # a row
        (",5.5,yes", {"label_column": "column_3"}),
    ],
)
def test_column_without_a_name_is_read_as_before(first: str, options: dict[str, Any]) -> None:
    rows = [f"{row * 7 % ROWS}.0,{row % 9}.50,{'yes' if row % 3 else 'no'}" for row in range(ROWS)]
    content = "\n".join([first, *rows]) + "\n"
    typed = outcome(content, typed=True, **options)
    assert isinstance(typed, tuple), typed
    assert typed == outcome(content, typed=False, **options)


def test_plain_numbers_are_typed_by_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_file, "_SAMPLE", 5)
    lines = [
        "x,y,code,gap,label",
        *(f"{row % 7 * row}.5,{row * row},0{row * row},{row if row != 30 else ''},a" for row in range(40)),
    ]
    for body, kinds in ((lines, "SSSSS"), ([line.replace(",0", ",9") for line in lines], "FFFSS")):
        content = ("\n".join(body) + "\n").encode()
        file = table_file.read_table(content, where="FILE", needed=(), may_be_numbers=lambda name: name != "label")
        assert "".join("F" if kind == pl.Float64 else "S" for kind in file.table.dtypes) == kinds


def test_a_space_in_the_header_hides_no_number() -> None:
    assert table_file.Cells(b"age, income\n1,2\n", ",", 2).typed([0, 1]).dtypes == [pl.Float64, pl.Float64]
    assert table_file.Cells(b"age,income\n1, 2\n", ",", 2).typed([0, 1]).dtypes == [pl.String, pl.String]
