"""Tables from the file to the packed set: each trap of real files is handled, or refused by name with a fix.

Expected values come from the files as the standard library's csv reads them, or from how this file writes them.
"""

import csv
import datetime
import html
import io
import json
import random
import re
from pathlib import Path

import numpy as np
import pandas
import polars as pl
import pytest

from ratchet.data.manifest import Manifest
from ratchet.data.tables.digests import row_ids
from ratchet.data.tables.encode import encode
from ratchet.errors import DataError, RatchetError, SettingsError
from ratchet.kinds import TableInput
from ratchet.problems import Classes, Labels, Numbers
from ratchet.reports.data_card import card

ROWS = 200


def cells(rows: int = ROWS) -> list[dict[str, str]]:
    """Return rows: numbers, a few categories, and a label that depends on them."""
    draw = random.Random(7)
    plain = []
    for row in range(rows):
        size, colour = round(draw.uniform(1, 99), 2), draw.choice(["red", "green", "blue"])
        plain.append(
            {"size": str(size), "colour": colour, "count": str(row % 7), "label": "big" if size > 50 else "small"}
        )
    return plain


def text(rows: list[dict[str, str]], **keywords: str) -> str:
    """Return rows as CSV."""
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n", **keywords)
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def with_column(name: str, values: list[str]) -> str:
    rows = cells(len(values))
    return text([{**row, name: value} for row, value in zip(rows, values, strict=True)])


def numbers_of(table, manifest: Manifest, name: str) -> list[float | None]:
    """Return the packed values of a column, in the units and the order of the file."""
    place = [column.name for column in manifest.input.numeric].index(name)
    packed = table.array("numbers")[:, place].astype(np.float64) + manifest.input.numeric[place].offset
    values = pl.DataFrame({"id": table.index()["id"], "value": packed})
    return values.sort("id")["value"].fill_nan(None).to_list()


def texts_of(table, manifest: Manifest, name: str) -> list[str | None]:
    """Return the decoded categories of a column in the order of the file."""
    names = [column.name for column in manifest.input.categorical]
    column = manifest.input.categorical[names.index(name)]
    decoded = [None, "?", *column.categories]
    codes = table.array("codes")[:, names.index(name)]
    order = table.index().with_row_index("at").sort("id")["at"]
    return [decoded[codes[at]] for at in order]


def test_a_table_becomes_numbers_codes_and_classes(table) -> None:
    rows = cells()
    table.write(text(rows))
    manifest = table.ingest()
    assert manifest == Manifest.read(table.packed)
    assert manifest.name == "rows"
    assert manifest.target == Classes(("big", "small"))
    assert isinstance(manifest.input, TableInput)
    assert [(column.name, column.type) for column in manifest.input.columns] == [
        ("size", "numeric"), ("colour", "categorical"), ("count", "numeric"),
    ]  # fmt: skip
    assert sum(split.rows for split in manifest.splits.values()) == ROWS
    assert numbers_of(table, manifest, "size") == pytest.approx([float(row["size"]) for row in rows])
    assert texts_of(table, manifest, "colour") == [row["colour"] for row in rows]
    index = table.index()
    assert index.sort("id")["class"].to_list() == [row["label"] for row in rows]
    assert [("big", "small")[place] for place in table.array("targets")] == index["class"].to_list()
    assert index["content"].str.len_chars().unique().to_list() == [64]
    assert len(set(table.array("keys"))) == ROWS
    assert table.array("numbers").dtype == np.float32
    assert table.array("codes").dtype == np.int64


@pytest.mark.parametrize("label", ["label", "count"])
def test_a_column_may_be_called_count(table, label: str) -> None:
    rows = cells()
    far = [{**row, "count": "9e30" if place % 40 == 0 else str(place / 7)} for place, row in enumerate(rows)]
    table.write(text(far))
    manifest = table.ingest(label_column=[label])
    assert sum(split.rows for split in manifest.splits.values()) == ROWS


def test_statistics_and_categories_are_those_of_training_rows(table) -> None:
    table.write(text(cells()))
    manifest = table.ingest()
    size = manifest.input.numeric[0]
    train = np.load(table.packed / manifest.splits["train"].arrays["numbers"][0].file)[:, 0].astype(np.float64)
    assert (size.mean, size.std) == pytest.approx((train.mean(), train.std()))
    np.testing.assert_allclose(size.quantiles, np.quantile(train, np.linspace(0, 1, 129)), rtol=1e-12)
    counts = (
        table.index().filter(split="train")["colour"].value_counts().sort(["count", "colour"], descending=[True, False])
    )
    assert manifest.input.categorical[0].categories == tuple(counts["colour"])


def test_equal_input_gives_equal_bytes(table, tmp_path) -> None:
    table.write(text(cells()))
    table.ingest(workers=1)
    first = table.digests()
    table.ingest(workers=3)
    assert table.digests() == first


FORMS = {
    "windows": lambda plain: plain.replace("\n", "\r\n").encode(),
    "old-mac": lambda plain: plain.replace("\n", "\r").encode(),
    "byte-order-mark": lambda plain: plain.encode("utf-8-sig"),
    "byte-order-mark-twice": lambda plain: ("\ufeff" + plain).encode("utf-8-sig"),
    "utf-16": lambda plain: plain.encode("utf-16"),
    "utf-16-le": lambda plain: plain.encode("utf-16-le"),
    "semicolons": lambda plain: plain.replace(",", ";").encode(),
    "tabs": lambda plain: plain.replace(",", "\t").encode(),
    "spaces": lambda plain: plain.replace(",", " , ").encode(),
    "quotes": lambda plain: text(list(csv.DictReader(io.StringIO(plain))), quoting=csv.QUOTE_ALL).encode(),
    "empty-lines": lambda plain: (plain.replace("\n", "\n\n") + "\n\n").encode(),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_common_form_gives_the_same_arrays(table, form: str) -> None:
    table.write(text(cells()))
    columns = table.ingest().input
    plain = {name: table.array(name) for name in ("numbers", "codes", "targets")}
    table.write(FORMS[form](text(cells())))
    assert table.ingest().input == columns
    for name, values in plain.items():
        np.testing.assert_array_equal(table.array(name), values)
    assert table.bad() == []


def test_parquet_gives_the_same_arrays_as_csv(table) -> None:
    table.write(text(cells()))
    table.ingest()
    plain = {name: table.array(name) for name in ("numbers", "codes", "targets")}
    content = io.BytesIO()
    pl.read_csv(io.StringIO(text(cells()))).write_parquet(content)
    table.write(content.getvalue(), "rows.parquet")
    table.ingest("rows.parquet")
    for name, values in plain.items():
        np.testing.assert_array_equal(table.array(name), values)


@pytest.mark.parametrize(
    ("written", "number", "form"),
    [
        (lambda value: f"{value:.2f}".replace(".", ","), None, "1234,5"),
        (lambda value: f"{value:,.2f}", None, "1,234.5"),
        (lambda value: f"{value:,.2f}".translate(str.maketrans(",.", ".,")), None, "1.234,5"),
        (lambda value: f"{value:,.2f}".replace(",", " "), None, "1 234.5"),
        (lambda value: f"{value:,.2f}".replace(",", "\u202f").replace(".", ","), None, "1 234,5"),
        (lambda value: f"{value:,.2f}".replace(",", "'"), None, "1'234.5"),
        (lambda value: f"{value:.2f}%", lambda value: value / 100, "1234.5 %"),
        (lambda value: f"{value:.2f} %".replace(".", ","), lambda value: value / 100, "1234,5 %"),
    ],
)
def test_numbers_in_other_forms_are_read(table, written, number, form: str) -> None:
    draw = random.Random(1)
    values = [round(draw.uniform(-3e6, 3e6), 2) for _ in range(ROWS)]
    table.write(with_column("price", [written(value) for value in values]))
    manifest = table.ingest()
    expected = [value if number is None else number(value) for value in values]
    assert numbers_of(table, manifest, "price") == pytest.approx(expected, rel=1e-6)
    assert next(column.form for column in manifest.input.columns if column.name == "price") == form


def test_thousands_or_decimals_are_refused_if_nothing_decides(table) -> None:
    table.write(with_column("price", [f"1,{row:03d}" for row in range(ROWS)]))
    with pytest.raises(
        DataError, match=r"column 'price': '1,000' can be 1000 or 1\.000\. Fix: write the numbers without"
    ):
        table.ingest()
    table.write(with_column("price", [f"1,{row:03d}" if row % 2 else str(row) for row in range(ROWS)]))
    assert numbers_of(table, table.ingest(), "price")[:4] == [0.0, 1001.0, 2.0, 1003.0]


START = datetime.datetime(2011, 1, 1, tzinfo=datetime.UTC)
DATES = {
    "%Y-%m-%d": "%Y-%m-%d", "%m/%d/%y": "%m/%d/%y", "%d/%m/%Y": "%d/%m/%Y", "%d.%m.%Y": "%d.%m.%Y",
    "%Y/%m/%d %H:%M": "%Y/%m/%d %H:%M", "%Y-%m-%dT%H:%M:%SZ": "%Y-%m-%dT%H:%M:%S%#z",
    "%Y-%m-%d %H:%M:%S.%f": "%Y-%m-%d %H:%M:%S%.f", "%d-%b-%Y": "%d-%B-%Y", "%m/%d/%Y %I:%M %p": "%m/%d/%Y %I:%M %p",
    "%b %d, %Y": "%B %d, %Y", "%B %d, %Y": "%B %d, %Y", "%d %B %Y": "%d %B %Y",
}  # fmt: skip


def test_a_name_of_several_lines_is_read(table) -> None:
    table.write(text(cells()).replace("size,", '"size\n\nin mm",', 1))
    assert table.ingest().input.numeric[0].name == "size\n\nin mm"


@pytest.mark.parametrize("written", DATES)
def test_dates_become_seconds(table, written: str) -> None:
    days = [START + datetime.timedelta(days=3 * row) for row in range(ROWS)]
    table.write(with_column("day", [day.strftime(written) for day in days]))
    manifest = table.ingest()
    column = next(column for column in manifest.input.columns if column.name == "day")
    assert (column.type, column.form) == ("datetime", DATES[written])
    assert numbers_of(table, manifest, "day") == pytest.approx([day.timestamp() for day in days], rel=1e-7)


def test_dates_keep_their_seconds_and_large_numbers_their_digits(table) -> None:
    rows = cells()
    moments = [START + datetime.timedelta(seconds=977 * row) for row in range(ROWS)]
    orders = [10**12 + 3 * row % 1000 for row in range(ROWS)]
    incomes = [10**10 if row == 5 else row / 8 for row in range(ROWS)]
    more = {"time": [moment.strftime("%Y-%m-%d %H:%M:%S") for moment in moments], "order": orders, "income": incomes}
    table.write(text([{**row, **{name: str(more[name][at]) for name in more}} for at, row in enumerate(rows)]))
    manifest = table.ingest()
    assert numbers_of(table, manifest, "time") == [moment.timestamp() for moment in moments]
    assert numbers_of(table, manifest, "order") == orders
    assert numbers_of(table, manifest, "income") == incomes  # one large number takes no digits from the others
    listed = {column["name"]: column for column in table.profile()["columns"]}
    train = table.index().filter(split="train")["id"].str.slice(4).cast(pl.Int64).sort().to_list()
    assert listed["time"]["mean"] == pytest.approx(np.mean([moments[row - 1].timestamp() for row in train]), abs=0.01)
    assert listed["order"]["min"] == min(orders[row - 1] for row in train)


def _first_day(row: int, months: int) -> str:
    return f"{2019 + row * months // 12}-{row * months % 12 + 1:02d}-01"


@pytest.mark.parametrize(
    ("written", "first_day"),
    [
        (lambda row: f"{datetime.date(2000, row % 12 + 1, 1):%b}-{19 + row // 12}", lambda row: _first_day(row, 1)),
        (lambda row: f"{2019 + row // 4}-Q{row % 4 + 1}", lambda row: _first_day(row, 3)),
        (lambda row: f"{2019 + row // 4}Q{row % 4 + 1}", lambda row: _first_day(row, 3)),
        (
            lambda row: f"{datetime.date(2020, 1, 27) + datetime.timedelta(weeks=row):%G-W%V}",
            lambda row: str(datetime.date(2020, 1, 27) + datetime.timedelta(weeks=row)),
        ),
    ],
)
def test_months_quarters_and_weeks_are_their_first_days(table, written, first_day) -> None:
    table.write(with_column("period", [written(row % 40) for row in range(ROWS)]))
    manifest = table.ingest(order_by="period", columns={"period": "datetime"})
    days = [datetime.datetime.fromisoformat(f"{first_day(row % 40)}T00:00+00:00") for row in range(ROWS)]
    assert numbers_of(table, manifest, "period") == pytest.approx([day.timestamp() for day in days], abs=130)
    table.ingest()
    assert table.types()["period"] == "datetime"


@pytest.mark.parametrize("month", ["Mai 2020", "3. März 2021", "févr. 2020", "ene-20", "Q3 2021", "2020/W07"])
def test_dates_that_are_not_read_are_noted(table, month: str) -> None:
    table.write(with_column("period", [month if row % 2 else f"Dez. {2000 + row % 9}" for row in range(ROWS)]))
    table.ingest()
    assert table.profile()["notes"] == [
        "period: texts such as 'Dez. 2000' may be dates. If so, write them as YYYY-MM-DD"
    ]


def test_two_forms_of_dates_in_one_column_are_read(table) -> None:
    days = [START + datetime.timedelta(days=row) for row in range(ROWS)]
    table.write(with_column("day", [day.strftime("%Y-%m-%d" if at % 3 else "%m/%d/%y") for at, day in enumerate(days)]))
    values = numbers_of(table, table.ingest(), "day")
    assert values == pytest.approx([day.timestamp() for day in days], rel=1e-7)


@pytest.mark.parametrize(
    ("dates", "message"),
    [
        ([f"{1 + row % 12}/{1 + row % 11}/2020" for row in range(ROWS)], "can be 2020-.* or 2020-"),
        (
            [f"{1 + row % 25}/{1 + row % 28}/2020" for row in range(ROWS)],
            "have day, month and year in different orders",
        ),
        ([f"0{1 + row % 3}-11-0{1 + row % 4}" for row in range(ROWS)], "can be 20.* or 20"),
        ([f"{20 + row % 10}.11.{20 + row % 9}" for row in range(ROWS)], "'29.11.20' can be 2020-11-29 or 2029-11-20"),
    ],
)
def test_ambiguous_days_and_months_are_refused(table, dates: list[str], message: str) -> None:
    table.write(with_column("day", dates))
    with pytest.raises(DataError, match=rf"column 'day'.*(?:{message}).*Fix: write dates as YYYY-MM-DD"):
        table.ingest()
    table.ingest(columns={"day": "ignored"})


@pytest.mark.parametrize(
    ("written", "first", "step"),
    [
        ("%m/%d/%y", 2011, 3),
        ("%d/%m/%y", 2024, 1),
        ("%y/%m/%d", 2024, 1),
        ("%d.%m.%y", 1968, 40),
        ("%y-%m-%d", 1998, 5),
    ],
)
def test_years_of_two_digits_are_1970_to_2069(table, written: str, first: int, step: int) -> None:
    days = [
        datetime.datetime(first, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(days=step * row) for row in range(ROWS)
    ]
    table.write(with_column("day", [day.strftime(written) for day in days]))
    manifest = table.ingest()
    assert next(column.form for column in manifest.input.columns if column.name == "day") == written
    expected = [day if day.year >= 1970 else day.replace(year=day.year + 100) for day in days]
    assert numbers_of(table, manifest, "day") == pytest.approx([day.timestamp() for day in expected], abs=130)


@pytest.mark.parametrize("missing", ["", "NA", "NaN", "nan", "null", "None", "?", " ? ", "N/A", "#N/A"])
def test_missing_values_are_nan_and_zero(table, missing: str) -> None:
    rows = cells()
    for row in (3, 50, 77):
        rows[row]["size"] = rows[row]["colour"] = missing
    table.write(text(rows))
    manifest = table.ingest()
    assert [row for row, value in enumerate(numbers_of(table, manifest, "size")) if value is None] == [3, 50, 77]
    assert [row for row, value in enumerate(texts_of(table, manifest, "colour")) if value is None] == [3, 50, 77]
    assert {column["name"]: column["missing"] for column in table.profile()["columns"]} == {
        "size": 3, "colour": 3, "count": 0,
    }  # fmt: skip


def test_further_texts_can_mean_missing(table) -> None:
    rows = cells()
    rows[5]["size"], rows[6]["size"], rows[7]["colour"] = "-999", "unknown", "unknown"
    table.write(text(rows))
    manifest = table.ingest(missing=["-999", "unknown"])
    assert numbers_of(table, manifest, "size")[5:7] == [None, None]
    assert texts_of(table, manifest, "colour")[7] is None
    assert manifest.input.missing == ("-999", "unknown")


def test_a_file_without_header_has_numbered_columns(table) -> None:
    body = text(cells()).split("\n", 1)[1]
    table.write(body)
    with pytest.raises(DataError, match=r"no column 'label'\. Its first line is no header \('[\d.]+'"):
        table.ingest()
    manifest = table.ingest(label_column="column_4")
    assert [column.name for column in manifest.input.columns] == ["column_1", "column_2", "column_3"]
    assert sum(split.rows for split in manifest.splits.values()) == ROWS


def test_a_repeated_header_is_quarantined(table) -> None:
    lines = text(cells()).splitlines()
    table.write("\n".join([*lines[:100], lines[0], *lines[100:]]))
    manifest = table.ingest()
    assert table.bad() == [("line 101", "repeated-header", "the header again")]
    assert sum(split.rows for split in manifest.splits.values()) == ROWS
    assert table.types()["size"] == "numeric"


def test_equal_names_are_refused(table) -> None:
    table.write(text(cells()).replace("size,colour", "size,size", 1))
    with pytest.raises(DataError, match=r"column 'size' is in the header twice\. Fix: rename one"):
        table.ingest()


def test_ragged_rows_are_quarantined(table) -> None:
    lines = text(cells()).splitlines()
    lines[10] += ",more"
    lines[20] = lines[20].rsplit(",", 1)[0]
    table.write("\n".join(lines) + "\n")
    manifest = table.ingest()
    assert table.bad() == [
        ("line 11", "ragged-row", "line 11 has 5 cells, the header has 4"),
        ("line 21", "ragged-row", "line 21 has 3 cells, the header has 4"),
    ]
    assert sum(split.rows for split in manifest.splits.values()) == ROWS - 2


def test_json_lines_of_other_shapes_are_quarantined(table) -> None:
    """An empty object is a row without a label, not an empty line."""
    rows = [json.dumps(row) for row in cells()]
    rows[10] = json.dumps(cells()[10] | {"colour": ["red", "blue"]})
    rows[20] = "{}"
    table.write("\n".join(rows) + "\n\n")
    manifest = table.ingest()
    assert table.bad() == [("line 11", "nested-value", "a list as 'colour'"), ("line 21", "no-label", "")]
    assert sum(split.rows for split in manifest.splits.values()) == ROWS - 2


def test_few_bad_cells_are_quarantined_many_make_categories(table) -> None:
    rows = cells()
    rows[8]["size"] = "twelve"
    rows[9]["size"] = "inf"
    table.write(text(rows))
    table.ingest()
    assert table.bad() == [("line 10", "not-a-number", "size twelve"), ("line 11", "infinite-number", "size inf")]
    for row in range(0, ROWS, 4):
        rows[row]["size"] = "low"
    table.write(text(rows))
    table.ingest(columns={"count": "categorical"}, max_bad_fraction=0.0)
    assert table.types()["size"] in ("categorical", "text")
    assert table.types()["count"] == "categorical"


def test_a_bad_date_is_quarantined(table) -> None:
    days = [(START + datetime.timedelta(days=row)).strftime("%Y-%m-%d") for row in range(ROWS)]
    days[4] = "2011-02-30"
    table.write(with_column("day", days))
    table.ingest()
    assert table.bad() == [("line 6", "not-a-date", "day 2011-02-30")]


def test_too_many_bad_rows_stop_and_the_table_lists_them(table) -> None:
    rows = cells()
    for row in range(15):
        rows[row]["size"] = "bad"
    table.write(text(rows))
    with pytest.raises(DataError, match=r"15 of 200 samples are bad \(7\.5%, data\.max_bad_fraction allows 5\.0%\)"):
        table.ingest()
    assert len(table.bad()) == 15


@pytest.mark.parametrize("missing", ["", "NA", "?"])
def test_a_row_without_label_is_quarantined(table, missing: str) -> None:
    rows = cells()
    rows[30]["label"] = missing
    table.write(text(rows))
    table.ingest()
    assert table.bad() == [("line 32", "no-label", "")]


TYPES = {
    "zip": ([f"{row * 37 % 100:05d}" for row in range(ROWS)], "categorical", "leading zeros"),
    "customer_id": ([str(1000 + 3 * row) for row in range(ROWS)], "id", "name is that of an id"),
    "position": ([str(row) for row in range(ROWS)], "id", "row numbers"),
    "name": ([f"person {row}" for row in range(ROWS)], "id", "all values are different"),
    "badge": ([f"{row:06d}" for row in range(ROWS)], "id", "all values are different"),
    "note": ([f"{'a long note with many words ' * 4}{row % 60}" for row in range(ROWS)], "text", "long texts"),
    "street": ([f"street {row % 150}" for row in range(ROWS)], "text", "most values occur once"),
    "country": (["here"] * ROWS, "ignored", "all values are equal"),
    "nothing": ([""] * ROWS, "ignored", "all values are missing"),
    "rooms": ([str(row % 4) for row in range(ROWS)], "numeric", "numbers"),
    "garden": ([str(row % 3 == 0) for row in range(ROWS)], "categorical", "texts"),
    "level": ([f"L{row % 5}" for row in range(ROWS)], "categorical", "texts"),
    "price": ([str(row * 1.5) for row in range(ROWS)], "numeric", "numbers"),
}  # fmt: skip


@pytest.mark.parametrize("name", TYPES)
def test_types_are_inferred_and_the_reason_is_shown(table, name: str) -> None:
    values, kind, why = TYPES[name]
    table.write(with_column(name, values))
    manifest = table.ingest()
    entry = next(column for column in table.profile()["columns"] if column["name"] == name)
    assert entry["type"] == kind
    assert why in entry["why"]
    assert (name in {column.name for column in manifest.input.columns}) == (kind in ("numeric", "categorical"))


@pytest.mark.parametrize(
    ("kind", "packed"), [("categorical", True), ("numeric", True), ("ignored", False), ("id", False)]
)
def test_types_can_be_set(table, kind: str, packed: bool) -> None:
    table.write(with_column("zip", TYPES["zip"][0]))
    manifest = table.ingest(columns={"zip": kind})
    assert table.types()["zip"] == kind
    assert ("zip" in {column.name for column in manifest.input.columns}) == packed


def test_problems_are_inferred_from_the_label(table) -> None:
    draw = random.Random(0)
    plain = {
        "word": [draw.choice(["a", "b"]) for _ in range(ROWS)],
        "flag": [draw.choice(["True", "False"]) for _ in range(ROWS)],
        "grade": [str(draw.randrange(5)) for _ in range(ROWS)],
        "money": [f"{draw.uniform(0, 9):.3f}" for _ in range(ROWS)],
        "number": [str(draw.randrange(1000)) for _ in range(ROWS)],
        "wet": [draw.choice("01") for _ in range(ROWS)],
        "hot": [draw.choice("01") for _ in range(ROWS)],
    }
    rows = [{**row, **{name: values[at] for name, values in plain.items()}} for at, row in enumerate(cells())]
    table.write(text(rows))
    for column, target in {
        "word": Classes(("a", "b")),
        "flag": Classes(("False", "True")),
        "grade": Classes(tuple("01234")),
    }.items():
        assert table.ingest(label_column=column).target == target
    for columns in (["money"], ["number"], ["money", "number"]):
        target = table.ingest(label_column=columns).target
        assert isinstance(target, Numbers)
        assert target.names == tuple(columns)
        assert table.array("targets").shape == (ROWS, len(columns))
        train = table.array("targets")[: table.profile()["rows"]["train"]].astype(np.float64)
        np.testing.assert_allclose(target.mean, train.mean(0))
        np.testing.assert_allclose(target.std, train.std(0))
    assert table.ingest(label_column=["wet", "hot"]).target == Labels(("wet", "hot"))
    assert table.array("targets").dtype == np.float32
    assert table.profile()["problem"] == {"chosen": "multi-label", "why": "2 label columns with 0 and 1", "notes": []}
    assert isinstance(table.ingest(label_column="grade", problem="regression").target, Numbers)


@pytest.mark.parametrize("problem", ["auto", "multi-label"])
@pytest.mark.parametrize("other", [("T", "F"), ("x", "")])
def test_the_label_column_without_flags_is_named(table, problem: str, other: tuple[str, str]) -> None:
    pairs = [("FALSE", other[0]) if row % 3 else ("TRUE", other[1]) for row in range(ROWS)]
    rows = [{**row, "y1": first, "y2": second} for row, (first, second) in zip(cells(), pairs, strict=True)]
    table.write(text(rows))
    with pytest.raises(DataError, match=r"label column 'y2' has .* needs? .*0 and 1. Fix: write them in 'y2'"):
        table.ingest(label_column=["y1", "y2"], problem=problem)
    table.write(text([{**row, "y2": str(int(row["y2"] == other[0]))} for row in rows]))
    assert table.ingest(label_column=["y1", "y2"], problem=problem).target == Labels(("y1", "y2"))


def test_labels_of_one_column_are_separated_by_a_bar(table) -> None:
    tags = [["red|round", "round", "red | big", ""][row % 4] for row in range(ROWS)]
    table.write(with_column("tags", tags))
    assert table.ingest(label_column="tags", problem="multi-label").target == Labels(("big", "red", "round"))
    expected = {"red|round": [0, 1, 1], "round": [0, 0, 1], "red | big": [1, 1, 0], "": [0, 0, 0]}
    for shown, row in zip(table.index()["class"], table.array("targets"), strict=True):
        assert row.tolist() == expected[shown]


def test_whole_numbers_beyond_float64_are_different_labels(table) -> None:
    ids = [str(2**53 + row % 3) for row in range(ROWS)]
    table.write(with_column("owner", ids))
    assert table.ingest(label_column="owner").target == Classes(tuple(sorted(set(ids))))
    table.write(text([{**row, "owner": name + "0"} for row, name in zip(cells(), ids, strict=True)]))
    assert len(table.ingest(label_column="owner").target.names) == 3
    file = io.BytesIO()
    pl.read_csv(with_column("owner", ids).encode()).write_parquet(file)
    table.write(file.getvalue(), "rows.parquet")
    assert table.ingest("rows.parquet", label_column="owner").target == Classes(tuple(sorted(set(ids))))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_whole_numbers_that_float64_merges_are_noted(table, kind: str) -> None:
    plain, file = with_column("code", [str(10**18 + row % 5) for row in range(ROWS)]), io.BytesIO()
    pl.read_csv(plain.encode()).write_parquet(file)
    table.write(plain if kind == "csv" else file.getvalue(), f"rows.{kind}")
    table.ingest(f"rows.{kind}")
    (note,) = table.profile()["notes"]
    assert note.startswith("code: 5 different whole numbers become 1 as float64")
    manifest = table.ingest(f"rows.{kind}", columns={"code": "categorical"})
    assert texts_of(table, manifest, "code")[:2] == [str(10**18), str(10**18 + 1)]


def test_classes_of_the_settings_may_end_in_a_point(table) -> None:
    table.write(text([{**row, "label": row["label"] + "."} for row in cells()]))
    assert table.ingest(classes=["small.", "big."]).target == Classes(("small.", "big."))
    assert table.ingest(classes=["small", "big"]).target == Classes(("small", "big"))


def test_frequent_spellings_of_a_label_are_noted(table) -> None:
    table.write(text([{**row, "label": ("yes", "Yes ", "no")[at % 3]} for at, row in enumerate(cells())]))
    assert table.ingest().target == Classes(("Yes", "no", "yes"))
    (note,) = table.profile()["problem"]["notes"]
    assert note.startswith("label: 'Yes' and 'yes' differ only in spelling, and they are 2 classes")
    assert note in html.unescape(card(table.packed, table.quarantine, changed=None))


@pytest.mark.parametrize("every", [True, False])
def test_a_final_point_of_labels_is_removed(table, every: bool) -> None:
    rows = [{**row, "label": row["label"] + ("." if every or at % 2 else "")} for at, row in enumerate(cells())]
    table.write(text(rows))
    assert table.ingest().target == Classes(("big", "small"))
    assert table.profile()["problem"]["notes"] == ["label: the final point is removed, as in 'big.'"]


def test_rows_are_sorted_by_order_and_ties_are_never_divided(table) -> None:
    draw = random.Random(3)
    days = [(START + datetime.timedelta(days=draw.randrange(30))).strftime("%Y-%m-%d") for _ in range(ROWS)]
    days[7] = ""
    table.write(with_column("day", days))
    manifest = table.ingest(order_by="day")
    assert table.bad() == [("line 9", "no-order", "day ")]
    days_of = {split: set(table.index().filter(split=split)["day"]) for split in manifest.splits}
    assert max(days_of["train"]) < min(days_of["validation"])
    assert max(days_of["validation"]) < min(days_of["test"])
    assert 0.6 < manifest.splits["train"].rows / ROWS < 0.8
    assert "day" not in {column.name for column in manifest.input.columns}
    kept = table.ingest(order_by="day", columns={"day": "datetime"})
    assert "day" in {column.name for column in kept.input.columns}


def test_splits_of_the_file_are_kept_and_copies_are_refused(table) -> None:
    rows = [{**row, "split": ["train", "train", "val", "test"][at % 4]} for at, row in enumerate(cells())]
    rows[3] = {**rows[0], "split": "test"}
    rows[5]["split"] = "holdout"
    table.write(text(rows))
    manifest = table.ingest()
    assert {split: files.rows for split, files in manifest.splits.items()} == {
        "train": 98,
        "validation": 50,
        "test": 50,
    }
    assert table.bad() == [
        ("row 0000001", "duplicate-across-splits", "in train, as row 0000004 in test"),
        ("line 7", "unknown-split", "split holdout"),
    ]


def test_a_feature_called_split_with_one_known_word_stays(table) -> None:
    table.write(with_column("split", ["dev" if row % 4 == 0 else ["prod", "ops"][row % 2] for row in range(ROWS)]))
    manifest = table.ingest()
    assert "split" in {column.name for column in manifest.input.columns}
    assert table.bad() == []
    assert "split: a column like others" in table.profile()["notes"][0]


def test_other_names_beside_train_and_test_are_no_feature(table) -> None:
    table.write(
        with_column("split", [["train", "test", "extra", "unlabeled", "extra"][row % 5] for row in range(ROWS)])
    )
    with pytest.raises(DataError, match="unknown-split"):
        table.ingest()
    assert "split" not in {column.name for column in table.ingest(max_bad_fraction=0.7).input.columns}
    assert {rule for _, rule, _ in table.bad()} == {"unknown-split"}


def test_rows_without_a_group_can_be_divided(table) -> None:
    table.write(with_column("group", ["a" if row % 2 else "" for row in range(ROWS)]))
    with pytest.raises(DataError, match=r"split test is empty .*, or raise data\.test_fraction"):
        table.ingest(test_fraction=0.0)
    assert table.ingest(test_fraction=0.2).splits["test"].rows


def test_groups_stay_in_one_split(table) -> None:
    table.write(with_column("group", [f"patient {row % 40}" for row in range(ROWS)]))
    manifest = table.ingest()
    assert table.index().group_by("group").agg(pl.col("split").n_unique())["split"].unique().to_list() == [1]
    assert "group" not in {column.name for column in manifest.input.columns}


def test_folds_share_the_test_rows_and_divide_the_others(table) -> None:
    table.write(text(cells()))
    tests, validations = set(), []
    for fold in range(4):
        table.ingest(folds=4, fold=fold)
        index = table.index()
        tests.add(tuple(index.filter(split="test")["id"]))
        validations += index.filter(split="validation")["id"].to_list()
    assert len(tests) == 1
    assert len(validations) == len(set(validations)) == ROWS - len(next(iter(tests)))


def test_folds_divide_given_train_and_validation_rows(table) -> None:
    table.write(with_column("split", [["train", "train", "val", "test"][row % 4] for row in range(ROWS)]))
    table.ingest()
    test = table.index().filter(split="test")["id"].to_list()
    validations = []
    for fold in range(2):
        table.ingest(folds=2, fold=fold)
        assert table.index().filter(split="test")["id"].to_list() == test
        validations += table.index().filter(split="validation")["id"].to_list()
    assert len(validations) == len(set(validations)) == ROWS - len(test)


def test_folds_move_no_given_validation_row_without_given_test(table) -> None:
    """The drawn test rows would be others."""
    table.write(with_column("split", [["train", "train", "val"][row % 3] for row in range(ROWS)]))
    table.ingest()
    before = table.index()
    table.ingest(folds=2, fold=1)
    assert table.index().equals(before)


def test_more_rows_move_few_rows_at_the_borders(table) -> None:
    table.write(text(cells(300)))
    table.ingest()
    before = dict(table.index().select("id", "split").rows())
    table.write(text(cells(400)))
    table.ingest()
    after = dict(table.index().select("id", "split").rows())
    assert 0 < sum(after[name] != split for name, split in before.items()) <= 30
    shares = table.index().group_by("class").agg(pl.len(), test=(pl.col("split") == "test").sum())
    assert ((shares["test"] - 0.15 * shares["len"]).abs() < 1).all()


def test_more_rows_with_numbers_as_target_move_none(table) -> None:
    splits = []
    for count in (300, 400):
        table.write(text(cells(count)))
        table.ingest(label_column="size", drop=["label"])
        splits.append(dict(table.index().select("id", "split").rows()))
    assert splits[0].items() <= splits[1].items()


def test_identical_rows_share_a_split_and_conflicts_are_reported(table) -> None:
    rows = cells()
    rows[100:120] = [dict(rows[0]) for _ in range(20)]
    rows[150] = {**rows[1], "label": "small" if rows[1]["label"] == "big" else "big"}
    table.write(text(rows))
    table.ingest()
    profile = table.profile()
    assert (profile["copies_within_splits"], profile["copies_across_splits"]) == (20, 0)
    assert profile["label_conflicts"]["groups"] == 1
    assert profile["label_conflicts"]["first"][0]["ids"] == ["row 0000002", "row 0000151"]


def test_one_group_is_refused_by_name(table) -> None:
    table.write(with_column("group", ["all"] * ROWS))
    with pytest.raises(DataError, match=r"split \w+ is empty .*in 1 group of 'group' that stay whole"):
        table.ingest()
    table.ingest(drop=["group"])


def test_few_different_rows_are_refused_by_name(table) -> None:
    table.write(text([{"colour": row["label"][0], "label": row["label"]} for row in cells()]))
    with pytest.raises(DataError, match=r"only 2 different rows, and equal rows share a split, so split \w+ is empty"):
        table.ingest()


def test_leaks_and_constant_columns_are_reported_and_kept(table) -> None:
    rows = [{**row, "answer": row["label"][0], "same": "x", "noise": str(at % 9)} for at, row in enumerate(cells(600))]
    table.write(text(rows))
    manifest = table.ingest()
    leaks = table.profile()["telling"]
    assert leaks["constant"] == ["same"]
    assert {entry["column"] for entry in leaks["class"]} == {"size", "answer"}
    assert "answer" in {column.name for column in manifest.input.columns}
    table.ingest(label_column="size", columns={"count": "categorical"})
    assert table.profile()["telling"]["class"] == []


@pytest.mark.parametrize("written", ["%Y%m%d", "seconds", "milliseconds", "microseconds", "nanoseconds"])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_numbers_can_be_set_to_dates(table, written: str, kind: str) -> None:
    days = [START + datetime.timedelta(days=row % 90) for row in range(ROWS)]
    digits = 3 * ("seconds", "milliseconds", "microseconds", "nanoseconds").index(written) if "%" not in written else 0
    numbers = [day.strftime(written) if "%" in written else f"{day.timestamp():.0f}{'0' * digits}" for day in days]
    plain = with_column("day", numbers)
    file = io.BytesIO()
    pl.read_csv(plain.encode()).write_parquet(file)
    table.write(plain if kind == "csv" else file.getvalue(), f"rows.{kind}")
    manifest = table.ingest(f"rows.{kind}", columns={"day": "datetime"})
    assert next(column.form for column in manifest.input.columns if column.name == "day") == written
    assert numbers_of(table, manifest, "day") == [day.timestamp() for day in days]
    rows = pl.DataFrame({"day": [int(numbers[3])], "size": [1.0], "colour": ["red"], "count": [1]})
    served = encode(rows, manifest.input)[0][0, [column.name for column in manifest.input.numeric].index("day")]
    offset = next(column.offset for column in manifest.input.columns if column.name == "day")
    assert served + offset == days[3].timestamp()


def test_years_are_no_dates(table) -> None:
    table.write(with_column("built", [str(1950 + row % 60) for row in range(ROWS)]))
    with pytest.raises(
        DataError, match=r"column 'built': '\d+' is a year.*Fix: call the column numeric in data.columns"
    ):
        table.ingest(columns={"built": "datetime"})


def test_a_duration_of_the_index_stays_a_duration(table) -> None:
    frame = pl.read_csv(text(cells()).encode()).with_columns(waited=pl.duration(minutes=pl.int_range(pl.len())))
    frame.write_parquet(table.root / "rows.parquet")
    table.ingest("rows.parquet", order_by="waited")
    index = table.index()
    assert index["waited"].to_list() == [datetime.timedelta(minutes=row) for row in range(ROWS)]
    assert index["colour"].dtype == pl.String


def test_names_of_the_index_are_allowed_as_columns(table) -> None:
    names = ["id", "row", "class", "content", "count", "value", "place"]
    rows = [dict.fromkeys(names, row["colour"]) | {"size": row["size"], "label": row["label"]} for row in cells()]
    table.write(text(rows))
    manifest = table.ingest()
    assert [column.name for column in manifest.input.columns] == [*names, "size"]
    assert texts_of(table, manifest, "class") == [row["class"] for row in rows]
    assert table.index()["class"].unique().sort().to_list() == ["big", "small"]
    assert table.index()["class (column)"].unique().sort().to_list() == ["blue", "green", "red"]


def test_boolean_labels_of_parquet_keep_their_names(table) -> None:
    content = io.BytesIO()
    frame = pl.read_csv(io.StringIO(text(cells())))
    frame.with_columns(pl.col("label") == "big").write_parquet(content)
    table.write(content.getvalue(), "rows.parquet")
    assert table.ingest("rows.parquet").target == Classes(("false", "true"))


def test_private_columns_are_dropped_or_hashed(table, monkeypatch) -> None:
    monkeypatch.setenv("RATCHET_HASH_KEY", "k" * 20)
    mails = [f"p{row}@example.com" for row in range(ROWS)]
    table.write(with_column("mail", mails))
    table.ingest(hash=["mail"])
    assert not set(mails) & set(table.index()["mail"])
    table.ingest(drop=["mail"])
    assert "mail" not in table.types()
    with pytest.raises(DataError, match="200 of 200 samples are bad"):
        table.ingest(refuse_personal=True)
    with pytest.raises(SettingsError, match=r"data\.drop: found label, which has"):
        table.ingest(drop=["label"])


REFUSED = {
    "type of the label": ({"columns": {"label": "text"}}, r"found label, which data.label_column names too"),
    "type of a dropped one": ({"columns": {"size": "id"}, "drop": ["size"]}, r"found size, which data.drop names too"),
    "no such column": ({"label_column": "lable"}, r"no column 'lable'; it has size.*data.label_column \(to label\?\)"),
    "unknown column type": ({"columns": {"sise": "numeric"}}, r"no column 'sise'.*Fix: set data.columns \(to size\?\)"),
    "unknown order": ({"order_by": "date"}, r"no column 'date'.*set data.order_by"),
    "order of texts": ({"order_by": "colour"}, r"column 'colour' has no numbers or dates \(texts, such as"),
    "gap without order": ({"gap": 5.0}, r"data.gap: found 5.0, and data.order_by is none"),
    "gap of time in numbers": ({"order_by": "size", "gap": "7d"}, r"'size' of data.order_by has numbers.*gap=NUMBER"),
    "text regression": ({"problem": "regression"}, r"label column 'label' has texts such as 'big|small'"),
    "classes of numbers": ({"label_column": "size", "problem": "classification"}, r"they are no classes.*regression"),
    "several classes": (
        {"label_column": ["label", "colour"], "problem": "classification"}, "classification with 2 label columns",
    ),
    "several texts": ({"label_column": ["size", "colour"]}, r"label column 'colour' has texts such as"),
    "no label": ({"label_column": []}, r"data.label_column: found \[\]; allowed: one or several columns"),
    "order by label": ({"label_column": "size", "order_by": "size"}, r"not that of data.order_by \(size\)"),
    "no feature": (
        {"columns": {"size": "ignored", "colour": "id", "count": "text"}}, r"no column to learn from.*count \(data",
    ),
    "missing file": ({"path": "row.csv"}, r"does not exist\. Fix: .*\(rows.csv\?\)"),
    "a folder": ({"path": "."}, r"is a folder\. Fix: set it to a file, such as .*rows\.csv"),
    "small classes": ({"min_per_class": 150}, r"too few training examples: class 'big' has"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_settings_that_do_not_fit_are_refused_with_a_fix(table, case: str) -> None:
    changes, message = REFUSED[case]
    table.write(text(cells()))
    with pytest.raises(RatchetError, match=message) as refusal:
        table.ingest(**changes)
    assert "\n" not in str(refusal.value)
    assert "Fix: " in str(refusal.value)
    assert not table.packed.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"size,label\n", "has a header and no rows"),
        (b"\x89PNG\r\n\x1a\n" + b"0" * 50, "is a PNG image, not a table"),
        (b"size,label\n1,caf\xe9\n", "line 2 is not UTF-8"),
        (b'size,label\n1,"a\n2,b\n', "line 2 is not closed"),
        (b"PAR1" + b"0" * 40, "damaged Parquet"),
    ],
)
def test_files_that_are_no_tables_are_refused(table, content: bytes, message: str) -> None:
    table.write(content)
    with pytest.raises(DataError, match=message):
        table.ingest()


HEADS = {
    "a title": (
        "Report 2024",
        "",
        r"the first line \('Report 2024'\) has 1 of the 4 cells of the rest. Fix: delete a",
    ),
    "two titles": ("Report 2024\nof May", "", r"has 1 of the 4 cells"),
    "a title in cells": (
        "Report 2024,,,",
        "",
        r"the first line has one name \('Report 2024'\) for 4 columns. Fix: delete",
    ),
    "caret": ("", "^", r"separated by '\^'; allowed are comma.*sep='\\\\\^'"),
    "spaces": ("", "  ", r"separated by ' '; allowed"),
    "colons": ("", "::", r"separated by '::'; allowed"),
}


@pytest.mark.parametrize("case", HEADS)
def test_other_layouts_are_refused_by_name(table, case: str) -> None:
    title, separator, message = HEADS[case]
    plain = text(cells()).replace(",", separator or ",")
    table.write(f"{title}\n{plain}" if title else plain)
    with pytest.raises(DataError, match=message):
        table.ingest()


@pytest.mark.parametrize("cell", [' "{}, {}"', "'{}, {}'", " '{}, {}'"])
@pytest.mark.parametrize("share", [1, 20])
def test_the_fix_for_other_quotation_marks_works(table, cell: str, share: int) -> None:
    places = ["here" if row % share else cell.format("ab"[row % 2], "there") for row in range(ROWS)]
    lines = [f"{row['size']},{place}, {row['label']}" for row, place in zip(cells(), places, strict=True)]
    file = table.write("size,place,label\n" + "\n".join(lines) + "\n")
    with pytest.raises(DataError, match="has 4 cells, the header has 3: a cell with ','") as refusal:
        table.ingest()
    (options,) = re.findall(r"read_csv\(FILE, (.*)\)\.to_csv", str(refusal.value))
    pandas.read_csv(file, **eval(f"dict({options})")).to_csv(file, index=False)
    manifest = table.ingest()
    assert texts_of(table, manifest, "place")[0] == "a, there"


def test_joined_files_with_byte_order_marks_are_read(table) -> None:
    first, second = text(cells()[:100]), text(cells()[100:])
    table.write(first.encode("utf-8-sig") + second.encode("utf-8-sig"))
    table.ingest()
    assert table.bad() == [("line 102", "repeated-header", "the header again")]
    assert table.types()["size"] == "numeric"


def test_titanic(table, tabular) -> None:
    path = tabular("titanic.csv")
    manifest = table.ingest(path, label_column="survived")
    assert manifest.target == Classes(("0", "1"))
    assert {split: files.rows for split, files in manifest.splits.items()} == {
        "train": 623,
        "validation": 134,
        "test": 134,
    }
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert numbers_of(table, manifest, "age") == pytest.approx(
        [float(row["age"]) if row["age"] else None for row in rows]
    )
    assert texts_of(table, manifest, "deck") == [row["deck"] or None for row in rows]
    assert [entry["column"] for entry in table.profile()["telling"]["class"]] == ["alive"]


def test_penguins(table, tabular) -> None:
    manifest = table.ingest(tabular("penguins.csv"), label_column="species")
    assert manifest.target == Classes(("Adelie", "Chinstrap", "Gentoo"))
    assert {column["name"]: column["missing"] for column in table.profile()["columns"]}["sex"] == 11


def test_adult_has_no_header_and_question_marks(table, tabular) -> None:
    path = tabular("adult.data")
    with pytest.raises(DataError, match=r"Its first line is no header \('39', 'State-gov', '77516', ...\).*column_15"):
        table.ingest(path)
    manifest = table.ingest(path, label_column="column_15")
    assert manifest.target == Classes(("<=50K", ">50K"))
    assert sum(split.rows for split in manifest.splits.values()) == 32_561
    missing = {column["name"]: column["missing"] for column in table.profile()["columns"] if column["missing"]}
    assert missing == {"column_2": 1836, "column_7": 1843, "column_14": 583}


def test_bike_sharing_is_split_by_its_dates(table, tabular) -> None:
    rows = list(csv.DictReader(tabular("bike-sharing/hour.csv").read_text().splitlines()))
    manifest = table.ingest(tabular("bike-sharing/hour.csv"), label_column="cnt", order_by="dteday")
    assert isinstance(manifest.target, Numbers)
    index = table.index()
    dates = [datetime.datetime.strptime(day, "%m/%d/%y") for day in index["dteday"]]
    by_split = {
        split: [day for day, name in zip(dates, index["split"], strict=True) if name == split]
        for split in manifest.splits
    }
    assert max(by_split["train"]) < min(by_split["validation"]) <= max(by_split["validation"]) < min(by_split["test"])
    assert table.types()["instant"] == "id"
    assert sorted(table.array("targets")[:, 0].tolist()) == sorted(float(row["cnt"]) for row in rows)
    daily = table.ingest(tabular("bike-sharing/day.csv"), label_column="cnt")
    assert next(column.form for column in daily.input.columns if column.name == "dteday") == "%Y-%m-%d"


def test_elec_is_classified(table, tabular) -> None:
    manifest = table.ingest(tabular("elec.csv"), label_column="class")
    assert manifest.target == Classes(("0", "1"))
    assert len(manifest.input.numeric) == 6
    assert table.array("codes").shape == (45_312, 0)


def test_a_trial_takes_few_rows_of_every_class(table, tabular) -> None:
    manifest = table.ingest(tabular("adult.data"), label_column="column_15", sample=True)
    assert 1000 < sum(split.rows for split in manifest.splits.values()) < 2500


def test_a_url_gives_the_same_set(table, tabular, tmp_path: Path) -> None:
    path = tabular("titanic.csv")
    local = table.ingest(path, label_column="survived")
    remote = table.ingest(f"file://{path}", label_column="survived")
    assert remote.digest == local.digest


@pytest.mark.parametrize(
    ("first", "second"),
    [('"5\\" pipe"', '"5\\" pipe"'), ('"begins', 'ends"'), ('5" wide', '6" wide')],
    ids=["escaped", "not closed", "inner"],
)
def test_no_row_is_lost_in_a_quotation_mark(table, first: str, second: str) -> None:
    """Each row is packed, or a warning names the cell with several lines, or the file is refused."""
    lines = text(cells(80)).splitlines()
    lines = [f"{line},{'note' if number == 0 else 'plain'}" for number, line in enumerate(lines)]
    lines = [",".join([line.rpartition(",")[2], line.rpartition(",")[0]]) for line in lines]
    lines[12] = f"{first},{lines[12].partition(',')[2]}"
    lines[52] = f"{second},{lines[52].partition(',')[2]}"
    table.write("\n".join(lines))
    try:
        manifest = table.ingest(max_bad_fraction=0.9)
    except DataError as error:
        assert "Fix:" in str(error)  # noqa: PT017
    else:
        total = sum(split.rows for split in manifest.splits.values()) + manifest.quarantined
        notes = [note for note in table.profile()["problem"]["notes"] if "row of line 13 holds 41 whole lines" in note]
        assert (total, len(notes)) == ((40, 1) if first == '"begins' else (80, 0))


def test_one_wrong_date_does_not_decide_day_and_month(table) -> None:
    days = [f"{row % 12 + 1:02d}/{row % 9 + 1:02d}/2024" for row in range(ROWS)]
    table.write(with_column("day", [*days[:-1], "32/01/2024"]))
    with pytest.raises(DataError, match="'10/01/2024' can be 2024-10-01 or 2024-01-10"):
        table.ingest(max_bad_fraction=0.5)


def test_one_text_does_not_decide_the_decimal_comma(table) -> None:
    amounts = [f"{row % 9 + 1},{100 + row}" for row in range(ROWS)]
    table.write(with_column("amount", [*amounts[:-1], "abc"]))
    with pytest.raises(DataError, match="can be"):
        table.ingest(max_bad_fraction=0.5)


def test_group_with_two_given_splits_is_refused(table) -> None:
    rows = [
        {**row, "group": f"g{number % 20}", "split": ("train", "validation", "test")[number % 3]}
        for number, row in enumerate(cells())
    ]
    table.write(text(rows))
    with pytest.raises(DataError, match="group 'g0' of column 'group' is in the splits test and train and validation"):
        table.ingest()


def test_number_that_is_always_the_same_is_refused(table) -> None:
    table.write(with_column("score", ["7"] * ROWS))
    with pytest.raises(DataError, match="has only the value 7"):
        table.ingest(label_column="score", problem="regression")


def test_classes_of_another_table_name_the_setting(table) -> None:
    table.write(text(cells()))
    message = r"data\.classes: found \[cat, dog\], .* none of these labels.*Fix: run `ratchet set data\.classes=auto`"
    with pytest.raises(SettingsError, match=message):
        table.ingest(classes=["cat", "dog"])


def test_a_column_of_persons_gets_a_hint(table) -> None:
    table.write(with_column("patient_id", [str(row // 3) for row in range(ROWS)]))
    table.ingest()
    notes = table.profile()["problem"]["notes"]
    assert f"column 'patient_id' has {-(-ROWS // 3)} values in {ROWS} rows" in notes[-1]
    assert "data.group_column=patient_id" in notes[-1]
    table.ingest(group_column="patient_id")
    assert table.profile()["problem"]["notes"] == []


@pytest.mark.parametrize("rows", [[1, 20, 9_999_999], [3, 10_000_000, 4_294_967_295], []])
def test_ids_of_rows_have_at_least_seven_digits(rows: list[int]) -> None:
    assert row_ids(np.array(rows, np.int64)).to_pylist() == [f"row {row:07d}" for row in rows]
