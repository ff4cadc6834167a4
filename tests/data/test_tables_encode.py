"""Raw rows to arrays: what a served model takes gives the arrays that ingest packed."""

import csv
import datetime
import random
import subprocess
import sys

import numpy as np
import pandas as pd
import polars as pl
import pytest

from ratchet.data.tables.encode import PlainRows, encode
from ratchet.errors import DataError
from ratchet.kinds import Column, TableInput, input_from_json
from ratchet.kinds.protocol import InputError
from ratchet.kinds.registry import kind_of

INPUT = TableInput(
    (
        Column("age", "numeric"),
        Column("price", "numeric", form="1.234,5"),
        Column("day", "datetime", form="%m/%d/%y"),
        Column("share", "numeric", form="1234.5 %"),
        Column("digits", "datetime", form="%Y%m%d"),
        Column("colour", "categorical", categories=("red", "green")),
        Column("open", "categorical", categories=("False", "True")),
        Column("code", "categorical", categories=("1", "2", "007")),
    ),
    missing=("unknown",),
)
DAY = datetime.datetime(2011, 12, 31, tzinfo=datetime.UTC).timestamp()


def row(**changes: object) -> pl.DataFrame:
    """Return one row of texts, as in a CSV file, with these changes."""
    plain = {"age": "41", "price": "1.234,5", "day": "12/31/11", "share": "50%", "digits": "20111231"}
    plain |= {"colour": "green", "open": "True", "code": "007"}
    return pl.DataFrame({**plain, **changes}, strict=False)


def test_texts_are_read_as_the_file_writes_them() -> None:
    numbers, codes = encode(row(), INPUT)
    assert numbers.dtype == np.float32
    assert codes.dtype == np.int64
    np.testing.assert_array_equal(numbers, np.array([[41.0, 1234.5, DAY, 0.5, DAY]], np.float32))
    assert codes.tolist() == [[3, 3, 4]]


@pytest.mark.parametrize("stored", [("true", "false"), ("False", "True"), ("TRUE", "FALSE"), ("true",)])
@pytest.mark.parametrize("value", [True, "True", "true", "TRUE", " True "])
def test_flags_are_the_same_in_each_format(stored: tuple[str, ...], value: object) -> None:
    """Parquet and JSON have booleans; pandas writes them as True into CSV, Excel as TRUE."""
    flag = TableInput((Column("open", "categorical", categories=stored),))
    _, codes = encode(pl.DataFrame({"open": [value]}), flag)
    assert stored[codes[0, 0] - 2].lower() == "true"


def test_whole_numbers_with_a_point_are_the_same_categories() -> None:
    """pandas writes 1 as 1.0 into CSV once a value of its column is missing."""
    codes = TableInput((Column("code", "categorical", categories=("1", "-2", "3", "3.0", "v1")),))
    cells = ["1.0", "1", "-2.0", "3.0", "3", "v1.0", "1.5", "1.00", ""]
    assert encode(pl.DataFrame({"code": cells}), codes)[1].ravel().tolist() == [2, 2, 3, 5, 4, 1, 1, 1, 0]
    codes = TableInput((Column("code", "categorical", categories=("1.0", "-2.0", "v1.0", "1.50")),))
    cells = ["1", "1.0", "-2", "v1", "1.5", "3"]
    assert encode(pl.DataFrame({"code": cells}), codes)[1].ravel().tolist() == [2, 2, 3, 1, 1, 1]


def test_spellings_of_flags_that_are_two_categories_stay_two() -> None:
    flag = TableInput((Column("open", "categorical", categories=("True", "TRUE", "other")),))
    _, codes = encode(pl.DataFrame({"open": ["TRUE", "True", "true"]}), flag)
    assert codes.ravel().tolist() == [3, 2, 1]


@pytest.mark.parametrize("end", ["", "+02:00", "+02", "Z", " UTC"])
@pytest.mark.parametrize(
    "start", ["2024-05-31T10:30", "2024-05-31 10:30", "2024-05-31 10:30:00", "2024-05-31 10:30:00.000000"]
)
def test_texts_of_typed_dates_are_iso(start: str, end: str) -> None:
    """A model that learned from Parquet scores a CSV file, where pandas writes 2024-05-31 10:30:00+02:00."""
    day = TableInput((Column("day", "datetime"),))
    numbers, _ = encode(pl.DataFrame({"day": [start + end]}), day)
    time = datetime.datetime(2024, 5, 31, 8 if "02" in end else 10, 30, tzinfo=datetime.UTC).timestamp()
    assert numbers[0, 0] == np.float32(time)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("age", 41, 41.0),
        ("age", 41.5, 41.5),
        ("age", True, 1.0),
        ("age", " 41 ", 41.0),
        ("age", None, np.nan),
        ("age", "", np.nan),
        ("age", "?", np.nan),
        ("age", "unknown", np.nan),
        ("age", float("nan"), np.nan),
        ("price", 12.5, 12.5),
        ("price", "12.345,5", 12345.5),
        ("price", "12.345", 12345.0),
        ("share", "12.5 %", 0.125),
        ("share", 0.125, 0.125),
        ("digits", 20111231, DAY),
        ("digits", "20111231", DAY),
        ("digits", "2011-12-31", DAY),
        ("day", "2011-12-31", DAY),
        ("day", "2011-12-31T00:00:00Z", DAY),
        ("day", "2011-12-31T02:00:00+02:00", DAY),
        ("day", datetime.date(2011, 12, 31), DAY),
        ("day", datetime.datetime(2011, 12, 31), DAY),
        ("day", DAY, DAY),
        ("day", None, np.nan),
    ],
)
def test_numbers_and_dates_may_be_texts_or_typed(name: str, value: object, expected: float) -> None:
    numbers, _ = encode(row(**{name: value}), INPUT)
    place = [column.name for column in INPUT.numeric].index(name)
    np.testing.assert_array_equal(numbers[0, place], np.float32(expected))


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("colour", "red", 2), ("colour", " red", 2), ("colour", "violet", 1), ("colour", None, 0), ("colour", "?", 0),
        ("colour", "", 0), ("open", True, 3), ("open", False, 2), ("code", 1, 2), ("code", 2.0, 3), ("code", 7, 4),
        ("code", 7.0, 4), ("code", "7", 1), ("code", 8, 1), ("code", float("nan"), 0),
    ],
)  # fmt: skip
def test_unseen_categories_are_one_and_missing_ones_zero(name: str, value: object, expected: int) -> None:
    _, codes = encode(row(**{name: value}), INPUT)
    place = [column.name for column in INPUT.categorical].index(name)
    assert codes[0, place] == expected


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (row().drop("age", "day"), r"the rows have no column 'age', 'day'\. The model needs age, price, .*Fix: add"),
        (row(age="old"), r"column 'age': 'old' is no number\. Fix: correct it"),
        (row(price="1,234.5"), r"column 'price': '1,234.5' is no number written as 1\.234,5\. Fix: correct it"),
        (row(price="12.5"), r"column 'price': '12.5' is no number written as"),
        (row(share="12.5"), r"column 'share': '12.5' is no number written as 1234\.5 %"),
        (row(day="31/12/11"), r"column 'day': '31/12/11' is no date"),
        (row(age="inf"), r"column 'age' has an infinite number"),
        (row(age=1e300), r"column 'age' has an infinite number"),
        (row(colour=[["red"]]), r"column 'colour' has List values"),
    ],
)
def test_values_that_do_not_fit_are_refused_by_name(frame: pl.DataFrame, message: str) -> None:
    with pytest.raises(DataError, match=message):
        encode(frame, INPUT)


def test_columns_stored_without_offset_keep_their_numbers() -> None:
    stored = {"kind": "table", "columns": [{"name": "day", "type": "datetime", "mean": DAY, "std": 1.0}]}
    numbers, _ = encode(row(day="2011-12-31"), input_from_json(stored))
    assert numbers.tolist() == [[np.float32(DAY)]]
    stored["columns"][0]["offset"] = DAY
    packed = encode(row(day="2011-12-31T00:01:01"), input_from_json(stored))
    assert packed[0].tolist() == [[61.0]]
    table = input_from_json(stored)
    raw = kind_of(table).values(packed, table)  # as the gate sends rows to the stored model
    np.testing.assert_array_equal(kind_of(table).decode(raw, table)[0], packed[0])


def test_no_rows_and_no_columns_give_empty_arrays() -> None:
    assert [values.shape for values in encode(row().clear(), INPUT)] == [(0, 5), (0, 3)]
    assert [values.shape for values in encode(row(), TableInput(()))] == [(1, 0), (1, 0)]


@pytest.mark.parametrize(
    ("name", "label"), [("titanic.csv", "survived"), ("penguins.csv", "species"), ("bike-sharing/hour.csv", "cnt")]
)
def test_the_texts_of_a_file_give_the_packed_arrays(table, tabular, name: str, label: str) -> None:
    manifest = table.ingest(tabular(name), label_column=label)
    rows = list(csv.DictReader(tabular(name).read_text().splitlines()))
    order = [int(text.removeprefix("row ")) - 1 for text in table.index()["id"]]
    frame = pl.DataFrame([rows[at] for at in order], infer_schema_length=None)
    numbers, codes = encode(frame, manifest.input)
    np.testing.assert_array_equal(numbers, table.array("numbers"))
    np.testing.assert_array_equal(codes, table.array("codes"))


def test_encoding_imports_no_torch() -> None:
    code = "import sys, ratchet.data.tables.encode; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_plain_rows_have_the_bits_of_encode() -> None:
    """Of a few random rows; where a value is not plain, `encode` is needed."""
    described = TableInput(
        (
            Column("age", "numeric", offset=0.1),
            Column("price", "numeric", form="1.234,5"),
            Column("colour", "categorical", categories=("red", "green", " blue", "?", "unknown", "7")),
            Column("code", "categorical", categories=("1", "2", "007")),
        ),
        missing=("unknown",),
    )
    usual = {
        "age": [0, -3, 1.5, 0.1, -0.0, 2**53 - 1, None, float("nan")],
        "price": [7, 12.5, None],
        "colour": ["red", "green", None],
        "code": ["1", "007", None],
    }
    others = [2**53 + 1, 10**30, 1e300, True, 7, 7.0, "4", "1,5", "?", "unknown", "", " blue", " red ", "pink", "7"]
    chance, plain, known = random.Random(0), PlainRows(described), 0
    for _ in range(1000):
        rows, odd = chance.randint(1, 3), chance.choice([*usual, ""])
        columns = {
            name: [chance.choice(others if name == odd else values) for _ in range(rows)]
            for name, values in usual.items()
        }
        if (given := plain.encode(columns)) is None:
            continue
        known += 1
        expected = encode(
            pl.DataFrame([pl.Series(name, cells, strict=False) for name, cells in columns.items()]), described
        )
        assert [(array.dtype, array.shape, array.tobytes()) for array in given] == [
            (array.dtype, array.shape, array.tobytes()) for array in expected
        ], columns
    assert 200 < known < 900


@pytest.mark.parametrize("described", [
    TableInput((Column("day", "datetime"),)),
    TableInput((Column("age", "numeric"),), missing=("-1",)),
])  # fmt: skip
def test_dates_and_named_missing_numbers_are_not_plain(described: TableInput) -> None:
    assert PlainRows(described).encode({described.columns[0].name: [1.0]}) is None


def test_a_row_that_is_no_object_is_named() -> None:
    """A message about the list would be wrong: it is one."""
    spec = TableInput((Column("a", "numeric"),))
    with pytest.raises(InputError, match=r"input\[1\]: found a number; allowed: an object with the columns of a row"):
        kind_of(spec).read([{"a": 1}, 7], spec, "input")


def test_numbers_and_texts_in_one_column_are_texts() -> None:
    rows = pd.DataFrame({"a": [1, "x", "2", None], "b": ["x", 7, 7.0, None]})
    described, numeric = (
        TableInput((column,)) for column in (Column("b", "categorical", categories=("7", "x")), Column("a", "numeric"))
    )
    assert kind_of(described).decode(rows, described)[1].ravel().tolist() == [3, 2, 2, 0]
    with pytest.raises(InputError, match=r"column 'a': 'x' is no number\. Fix: "):
        kind_of(numeric).decode(rows, numeric)


def test_values_that_no_column_holds_name_the_column() -> None:
    table = TableInput((Column("a", "numeric"),))
    for value in ([1], b"1", object(), True):
        with pytest.raises(InputError, match=r"column 'a' has values of the types .*Fix: convert them to one type"):
            kind_of(table).decode(pd.DataFrame({"a": ["1", value]}), table)
