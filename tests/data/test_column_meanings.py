"""Columns and labels are read as what they hold, or named in a line with a setting that works."""

import datetime
import random
import unicodedata

import pandas as pd
import polars as pl
import pytest
import yaml

from ratchet.data.tables.number_formats import Ambiguous, date_form, number_form, numbers, seconds
from ratchet.errors import DataError
from ratchet.problems import Classes, Labels, Numbers
from ratchet.settings.file import parse_assignments

DRAW = random.Random(5)


def rows(count: int = 400, **columns: list[str]) -> str:
    """Return a table with a column of noise, as CSV."""
    frame = pl.DataFrame({"x": [f"{DRAW.random():.4f}" for _ in range(count)], **columns})
    return frame.write_csv()


def labels(count: int = 400) -> list[str]:
    return ["yes" if row % 3 else "no" for row in range(count)]


def fixes_of(message: str) -> list[dict[str, object]]:
    """Return the settings of each `ratchet set` command in a message."""
    commands = message.replace("`", '"').split("ratchet set ")[1:]
    texts = [[part[1:].split('"')[0]] if part.startswith('"') else part.split('"')[0].split() for part in commands]
    return [
        {key.removeprefix("data."): tuple(value) if isinstance(value, list) else value for key, value in parsed.items()}
        for parsed in map(parse_assignments, texts)
    ]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["$1,250.00", "$5.99", "-$3.50", "($1,250.00)", "$-2"], [1250, 5.99, -3.5, -1250, -2]),
        (["1.250,00 €", "5,99€", "-2,50 €"], [1250, 5.99, -2.5]),
        (["USD 5", "USD 1,250", "usd"], [5, 1250, None]),
        (["(1,250)", "1,300", "(12,000)", "5"], [-1250, 1300, -12000, 5]),
        (["$1,250", "$2,300"], [1250, 2300]),
        (["1.250 EUR", "2.300 EUR"], [1250, 2300]),
        (["5 kg", "6.5 kg", "7"], [5, 6.5, 7]),
        (["1 year", "2 years", "7 years", "1.5 year"], [1, 2, 7, 1.5]),
        (["1 day", "1 day", "3 days"], [1, 1, 3]),
        (["1 Season", "9 Seasons"], [1, 9]),
        (["5 ms", "6 ms", "7 m"], [5, 6, None]),
        (["%5", "%12.5"], [0.05, 0.125]),
        (["12.5%", "3 %", "(1 %)"], [0.125, 0.03, -0.01]),
        (["5 %", "+5 %", "-5 %", "+-5 %", "+ -3 %", "-+3 %"], [0.05, 0.05, -0.05, None, None, None]),
        (["(12.5)", "1,300", "(+12.5)", "(+ -1.5)"], [-12.5, 1300, None, None]),
        (["$5", "+$5", "+$-5", "-$+5"], [5, 5, None, None]),
        (["R$ 1.250,50", "R$ 3,00"], [1250.5, 3]),
        (["\u0e3f1,250.00", "\u0e3f5.00"], [1250, 5]),
        (["\uffe51,250", "\uffe55"], [1250, 5]),
        (["$US 12.50", "$US 3"], [12.5, 3]),
        (["12,50 €/m²", "8,00 €/m²"], [12.5, 8]),
        (["1.250 €/Monat", "900 €/Monat"], [1250, 900]),
        (["1.250 € pro Monat", "900 € pro Monat"], [1250, 900]),
        (["€/m² 12", "€/m² 13"], [12, 13]),
        (["\u22121.5", "2.5", "\u22123e2"], [-1.5, 2.5, -300]),
        (["\u22121,5", "2,5"], [-1.5, 2.5]),
        (["5.362", "694", "-12", "1.250", "87"], [5362, 694, -12, 1250, 87]),
        (["5.362", "694", "12", "1.250", "0.5"], [5.362, 694, 12, 1.25, 0.5]),
        (["5.362", "694", "12", "1.250", "1000"], [5.362, 694, 12, 1.25, 1000]),
        (["5.362", "694", "12", "1.250", "1e2"], [5.362, 694, 12, 1.25, 100]),
        (["0.125", "1.250", "2.500", "7"], [0.125, 1.25, 2.5, 7]),
        (["5.362", "694", "1.251"], [5.362, 694, 1.251]),
        (["1.032", "1.250", "2.500"], [1.032, 1.25, 2.5]),
        (["2,26E-03", "1,50E+02", "7"], [0.00226, 150, 7]),
        (["2,260E-03", "1,500E+02"], [0.00226, 150]),
        (["2,26E-03 kg", "1,50E+02 kg"], [0.00226, 150]),
    ],
)
def test_money_units_and_per_cent_are_numbers(texts: list[str], expected: list[float | None]) -> None:
    series = pl.Series(texts)
    assert numbers(series, number_form(series).form).to_list() == pytest.approx(expected)


@pytest.mark.parametrize("texts", [["A12", "A13"], ["1M", "2K"], ["5 am", "6 am"], ["red", "blue 2"], ["(5", "6)"]])
def test_codes_and_factors_are_no_numbers(texts: list[str]) -> None:
    assert number_form(pl.Series(texts)).matches == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12:30", 45000.0), ("01:00:05", 3605.0), ("1:05 PM", 47100.0),
        ("2024-05", datetime.datetime(2024, 5, 1, tzinfo=datetime.UTC).timestamp()),
        ("05/2024", datetime.datetime(2024, 5, 1, tzinfo=datetime.UTC).timestamp()),
        ("May 2024", datetime.datetime(2024, 5, 1, tzinfo=datetime.UTC).timestamp()),
    ],
)  # fmt: skip
def test_times_and_months_are_dates(table, text: str, expected: float) -> None:
    series = pl.Series([text])
    assert seconds(series, date_form(series).form).to_list() == [expected]
    other = {"12:30": "13:45", "01:00:05": "02:00:00", "1:05 PM": "2:00 AM", "2024-05": "2023-11", "05/2024": "11/2023"}
    table.write(rows(when=[text, other.get(text, "Nov 2023")] * 200, label=labels()))
    table.ingest()
    assert table.types()["when"] == "datetime"


@pytest.mark.parametrize(
    "end", ["+01", "+01:00", "+0100", " +01", " UTC", "UTC", " GMT", " Z", ".250+01", ".250 UTC", ",250", ",250Z"]
)
@pytest.mark.parametrize("start", ["%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%d.%m.%Y %H:%M:%S"])
def test_zones_of_databases_are_read(table, start: str, end: str) -> None:
    """PostgreSQL writes +01, BigQuery UTC, and Python's logging a comma before milliseconds."""
    first = datetime.datetime(2024, 5, 13, 8, 30, 5, tzinfo=datetime.UTC)
    times = [first + datetime.timedelta(hours=7 * row) for row in range(400)]
    texts = [time.strftime(start) + end for time in times]
    table.write(rows(when=texts, label=labels()))
    manifest = table.ingest()
    (column,) = (each for each in manifest.input.columns if each.name == "when")
    assert column.type == "datetime"
    offset = 3600 if "+01" in end else 0
    part = 0.25 if "250" in end else 0
    expected = [time.timestamp() - offset + part for time in times]
    assert seconds(pl.Series(texts), column.form).to_list() == expected
    assert table.profile()["notes"] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("08:30+01:00", 7.5 * 3600),
        ("2024-05-13 08:30+01", datetime.datetime(2024, 5, 13, 7, 30, tzinfo=datetime.UTC).timestamp()),
        ("2024-05-13 08:30-11:00", datetime.datetime(2024, 5, 13, 19, 30, tzinfo=datetime.UTC).timestamp()),
        ("2024-05-13 08:00-12:00", None),
        ("08:30-11:00", None),
        ("08:30+12", None),
    ],
)
def test_zones_without_seconds_are_read_but_no_ranges(text: str, expected: float | None) -> None:
    form = date_form(pl.Series([text])).form
    assert (seconds(pl.Series([text]), form)[0] if form else None) == expected


def test_months_of_an_older_model_are_still_read() -> None:
    (day,) = seconds(pl.Series(["May 2024"]), "%b %Y")
    assert day == datetime.datetime(2024, 5, 1, tzinfo=datetime.UTC).timestamp()


@pytest.mark.parametrize(
    ("texts", "day"),
    [
        (["25/12/2023 10:00", "13/01/2024 09:30", "28/02/2024 08:00", "03/04/2024"], (2024, 4, 3)),
        (["12/25/2023 10:00", "01/13/2024 09:30", "05/05/2024", "03/04/2024"], (2024, 3, 4)),
        (["31.12.23", "30.12.23", "29.12.23", "28.12.23 10:00", "24.05.21 10:00"], (2021, 5, 24)),
    ],
)
def test_undecided_dates_follow_other_shapes(texts: list[str], day: tuple[int, int, int]) -> None:
    series = pl.Series(texts)
    form = date_form(series)
    assert form.matches == len(texts)
    midnight = datetime.datetime(*day, tzinfo=datetime.UTC).timestamp()
    assert midnight <= seconds(series, form.form)[-1] < midnight + 86400


@pytest.mark.parametrize(
    "texts",
    [
        ["2023-12-25", "2024-01-13", "03/04/2024"],
        ["05/05/2024 10:00", "03/04/2024"],
        ["25/12/2023 10:00", "12/25/2023 10:00:05", "03/04/2024"],
    ],
)
def test_undecided_date_is_refused_if_no_shape_decides(texts: list[str]) -> None:
    with pytest.raises(Ambiguous, match="'03/04/2024' can be 2024-03-04 or 2024-04-03"):
        date_form(pl.Series(texts))


NUMBERS = [DRAW.choice((DRAW.randrange(10), DRAW.randrange(1000), DRAW.randrange(10_000))) for _ in range(1_500)]
"""Of 1 to 4 digits, more of them than the rows that show which columns may be numbers."""


@pytest.mark.parametrize("is_label", [False, True])
@pytest.mark.parametrize("count", [400, 1_500])
@pytest.mark.parametrize("is_sorted", [False, True])
def test_points_between_thousands_are_read_and_named(table, is_label: bool, count: int, is_sorted: bool) -> None:
    values = sorted(NUMBERS[:count]) if is_sorted else NUMBERS[:count]
    texts = [f"{value:,}".replace(",", ".") for value in values]
    roles = {"label_column": "price"} if is_label else {}

    def read() -> tuple[list[float], list[str]]:
        table.write(rows(count=count, price=texts, **({} if is_label else {"label": labels(count)})))
        table.ingest(**roles)
        read = table.array("targets") if is_label else table.array("numbers")[:, 1]
        profile = table.profile()
        return sorted(read.ravel().tolist()), profile["problem"]["notes"] if is_label else profile["notes"]

    first = next(text for text in texts if "." in text)
    note = f"price: the point in {first!r} is read as one between thousands, as the other numbers are below 1,000 and "
    note += f"have no point. If it is a decimal point, write four decimals, as in {first}0"
    numbers, notes = read()
    assert numbers == pytest.approx(sorted(values))
    assert note in notes
    texts = [text + "0" * ("." in text) for text in texts]
    numbers, notes = read()
    assert numbers == pytest.approx(sorted(map(float, texts)))
    assert not any("point in" in note for note in notes)


@pytest.mark.parametrize("is_label", [False, True])
@pytest.mark.parametrize("count", [400, 1_500])
def test_unclear_points_are_decimal_and_named(table, is_label: bool, count: int) -> None:
    texts = [f"{row % 8 + 1}.{row % 9}{row % 7}5" if row % 9 else str(row) for row in range(min(count, 999))]
    texts += [str(row % 900) for row in range(count - len(texts))]
    table.write(rows(count=count, price=texts, **({} if is_label else {"label": labels(count)})))
    table.ingest(**({"label_column": "price"} if is_label else {}))
    profile = table.profile()
    (note,) = profile["problem"]["notes"] if is_label else profile["notes"]
    assert note == (
        "price: the point in '2.115' is read as a decimal point. If it is one between thousands, write the numbers "
        "without it, as in 2115"
    )
    read = table.array("targets") if is_label else table.array("numbers")[:, 1]
    assert sorted(read.ravel().tolist()) == pytest.approx(sorted(map(float, texts)))


LEFT_OUT = {
    "censored": (lambda row: f"{row}.37" if row % 3 else f"<{row}.16", "66% of the values are numbers, and 134 are"),
    "minus": (lambda row: f"{row}.50" + "-" * (row % 3 == 0), "66% of the values are numbers, and 134 are"),
    "dates": (
        lambda row: f"2024-01-{row % 28 + 1:02}T{row % 24:02}:{row % 60:02}" if row % 4 else f"unknown {row}",
        "75% of the values are dates, and 100 are",
    ),
    "ledger": (lambda row: f"{row}.58 {['CR', 'DR', 'XX'][row % 3]}", "texts such as"),
    "degrees": (lambda row: f"{row}.6021{'SNE'[row % 3]}", "texts such as"),
    "about": (lambda row: f"~{row}.1", "texts such as"),
    "tolerance": (lambda row: f"{row}.1 \u00b1 0.{row % 3}", "texts such as"),
    "formula": (lambda row: f'="{row}.94"', "texts such as"),
    "apostrophe": (lambda row: f"'{row}", "texts such as"),
    "minutes": (lambda row: f"{row}:57.43", "texts such as"),
}


@pytest.mark.parametrize("form", LEFT_OUT)
def test_numbers_and_dates_that_are_left_out_are_named(table, form: str) -> None:
    write, start = LEFT_OUT[form]
    table.write(rows(size=[write(row) for row in range(400)], label=labels()))
    table.ingest()
    assert table.types()["size"] == "id"
    (note,) = table.profile()["notes"]
    assert note.startswith(f"size: {start}")
    assert note.endswith(("correct these values in the file, or leave them empty", "write them as 1234.5"))


@pytest.mark.parametrize(
    "code",
    [
        "C{0:05}",
        "INV-{0}",
        "{1:016x}",
        "{0}-{1}",
        "#{0}",
        "{0:03}A",
        "2024-01-05-{0:04}",
        "20240101T{0:04}",
        "1.10.2023 build {0}",
    ],
)
def test_codes_that_are_left_out_have_no_note(table, code: str) -> None:
    table.write(rows(code=[code.format(row, DRAW.getrandbits(64)) for row in range(400)], label=labels()))
    table.ingest()
    assert table.types()["code"] == "id"
    assert table.profile()["notes"] == []


def test_money_is_a_feature_and_a_label(table) -> None:
    prices = [f"${row * 13 + 1000:,.2f}" for row in range(400)]
    table.write(rows(price=prices, label=labels()))
    assert [column.name for column in table.ingest().input.numeric] == ["x", "price"]
    manifest = table.ingest(label_column="price")
    assert isinstance(manifest.target, Numbers)
    assert table.array("targets").max() == 399 * 13 + 1000
    assert table.profile()["problem"]["notes"] == ["price: labels written as $1,234.5 are numbers"]


@pytest.mark.parametrize("share", [7, 15])
def test_texts_among_numbers_are_named_with_a_working_fix(table, share: int) -> None:
    lab = ["ND" if row % 100 < share else f"{DRAW.random():.3f}" for row in range(400)]
    table.write(rows(lab=lab, label=labels()))
    try:
        table.ingest()
        (note,) = table.profile()["notes"]
    except DataError as error:  # nearly all are numbers, and the others are too many bad rows
        note = str(error).split("\n")[1]
    assert note.startswith(f"lab: {100 - share}% of the values are numbers, and {4 * share} are not: 'ND'.")
    (fix,) = fixes_of(note)
    assert fix == {"missing": ("ND",)}
    table.ingest(**fix)
    assert table.types()["lab"] == "numeric"
    assert table.profile()["notes"] == []


def test_texts_among_dates_are_named_with_a_working_fix(table) -> None:
    days = ["it's open" if row % 5 == 0 else f"2024-{row % 12 + 1:02}-{row % 28 + 1:02}" for row in range(400)]
    table.write(rows(closed=days, label=labels()))
    table.ingest()
    (note,) = table.profile()["notes"]
    assert note.startswith("closed: 80% of the values are dates, and 80 are not: ")
    table.ingest(**fixes_of(note)[0])
    assert table.types()["closed"] == "datetime"


def test_categories_with_a_few_numbers_have_no_note(table) -> None:
    table.write(
        rows(children=["0", "1", "2", "3+"] * 100, city=["Bern", "Rome 2", "Oslo", "Bonn"] * 100, label=labels())
    )
    table.ingest()
    assert table.profile()["notes"] == []


@pytest.mark.parametrize("name", ["None", "NA", "null", "nan", "?"])
@pytest.mark.parametrize("every", [2, 50])
def test_a_class_called_none_is_named_and_can_be_kept(table, name: str, every: int) -> None:
    damage = [name if row % every == 0 else ["Minor", "Severe"][row % 3 == 0] for row in range(400)]
    table.write(rows(damage=damage))
    count = damage.count(name)
    try:
        table.ingest(label_column="damage")
        message = table.profile()["problem"]["notes"][0]
        assert len(table.bad()) == count <= 20
    except DataError as error:
        message = str(error)
        assert count > 20
    assert f"{count} of 400 labels are {name!r}, which means no label" in message
    manifest = table.ingest(label_column="damage", **fixes_of(message)[0])
    assert isinstance(manifest.target, Classes)
    assert sorted(manifest.target.names) == sorted(["Minor", "Severe", name])
    assert table.bad() == []


@pytest.mark.parametrize("separator", [";", "|", ", ", "/", " ; "])
def test_cells_with_several_labels_stop_with_a_working_fix(table, separator: str) -> None:
    tags = [DRAW.choice(["a", "b", f"a{separator}b", f"b{separator}c", f"a{separator}c"]) for _ in range(400)]
    table.write(rows(tags=tags))
    with pytest.raises(
        DataError, match=r"label column 'tags' has several labels in a cell, separated by '[;|,/]'"
    ) as stop:
        table.ingest(label_column="tags")
    several, single = fixes_of(str(stop.value))
    assert table.ingest(label_column="tags", **several).target == Labels(("a", "b", "c"))
    assert table.profile()["problem"]["notes"] == [f"tags: labels are separated by {separator.strip()!r}: a, b, c"]
    assert len(table.ingest(label_column="tags", **single).target.names) == 5


def test_lists_of_python_are_labels(table) -> None:
    table.write(rows(tags=[["['a', 'b']", "['b']", "['a', 'c']", "[]"][row % 4] for row in range(400)]))
    assert table.ingest(label_column="tags", problem="multi-label").target == Labels(("a", "b", "c"))


GENRES = (
    "[{'id': 28, 'name': 'Action'}, {'id': 12, 'name': 'Adventure'}]", "[{'id': 28, 'name': 'Action'}]",
    "[{'id': 12, 'name': 'Adventure'}]", "[]",
)  # fmt: skip
NESTED = ("[['a'], ['b']]", "[['b'], ['a']]", "[['a']]")
FLAGS = ("{'a': 1, 'b': 0}", "{'b': 0, 'a': 1}", "{'a': 1}")
OBJECTS = ('{"a":1,"b":0}', '{"b":0,"a":1}', '{"a":1}')


@pytest.mark.parametrize("problem", ["auto", "multi-label"])
@pytest.mark.parametrize("cells", [GENRES, NESTED, FLAGS, OBJECTS, ("[('a', 0.9)]", "[('b', 0.1), ('a', 0.2)]")])
def test_records_in_a_label_stop_with_a_working_fix(table, cells: tuple[str, ...], problem: str) -> None:
    table.write(rows(tags=[cells[row % len(cells)] for row in range(400)]))
    with pytest.raises(DataError, match=r"inside a cell, such as .*only the names of the labels") as stop:
        table.ingest(label_column="tags", problem=problem)
    assert repr(min(cell for cell in cells if cell != "[]")[:60]) in str(stop.value)
    table.write(rows(tags=["Action|Adventure" if row % 2 else "Drama" for row in range(400)]))
    target = table.ingest(label_column="tags", problem="multi-label").target
    assert target == Labels(("Action", "Adventure", "Drama"))


@pytest.mark.parametrize(
    ("cells", "names"),
    [
        (["{topic:health,topic:diet}", "{topic:diet}", "{topic:work}"], ("topic:diet", "topic:health", "topic:work")),
        (['{"sci-fi: space",drama}', "{drama}", '{"sci-fi: space"}'], ("drama", "sci-fi: space")),
        (["a", "b", "(a, [x])"], ("a", "b", "x")),
        (["[0]", "[1]", "[0, 1]"], ("0", "1")),
        (['["a, [b]", "c"]', "['c']", "['a, {b}', 'c']"], ("a, [b]", "a, {b}", "c")),
    ],
)
def test_arrays_of_postgresql_and_of_indices_are_labels(table, cells: list[str], names: tuple[str, ...]) -> None:
    table.write(rows(tags=[cells[row % 3] for row in range(400)]))
    assert table.ingest(label_column="tags", problem="multi-label").target == Labels(names)


def test_commas_in_quotes_are_of_a_label(table) -> None:
    cells = ["['c, d']", "['a', 'c, d']", "[\"don't\", 'a']", "['a', 'b (x)']"]
    table.write(rows(tags=[cells[row % 4] for row in range(400)]))
    with pytest.raises(DataError, match=r"several labels in a cell, separated by ','"):
        table.ingest(label_column="tags")
    assert table.ingest(label_column="tags", problem="multi-label").target == Labels(("a", "b (x)", "c, d", "don't"))
    assert table.array("targets").sum(axis=0).tolist() == [300, 100, 200, 100]


def test_labels_in_brackets_are_whole(table) -> None:
    cells = ["[a]|[b]", "[b]|(c)", "(c)", "[a [x]|b]"]
    table.write(rows(tags=[cells[row % 4] for row in range(400)]))
    assert table.ingest(label_column="tags", problem="multi-label").target == Labels(("a", "a [x]", "b", "c"))


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "json"])
@pytest.mark.parametrize("several", [100, 4])
def test_lists_in_typed_files_are_labels(table, kind: str, several: int) -> None:
    """`several`: of 400 rows with two labels."""
    cells: list[list[str] | None] = [["a", "c, d"]] * several + [["a"], ["c, d"], ["b|c"], [], None] * 80
    frame = pl.DataFrame({"x": [DRAW.random() for _ in range(400)], "tags": cells[:400]})
    write = {"parquet": frame.write_parquet, "jsonl": frame.write_ndjson, "json": frame.write_json}[kind]
    write(table.root / f"rows.{kind}")
    with pytest.raises(DataError, match=r"'tags' has several labels in a cell.*data\.problem=multi-label") as stop:
        table.ingest(f"rows.{kind}", label_column="tags")
    target = table.ingest(f"rows.{kind}", label_column="tags", **fixes_of(str(stop.value))[0]).target
    assert target == Labels(("a", "b|c", "c, d"))
    expected = [sum(name in (cell or ()) for cell in cells[:400]) for name in target.names]
    assert table.array("targets").sum(axis=0).tolist() == expected


def test_texts_without_a_label_are_named_in_one_order(table) -> None:
    """The order of a set differs between runs."""
    names = ["None", "NA", "null", "NaN", "n/a"]
    table.write(rows(tags=[f"{'ab'[row % 2]}|{names[row % 5]}" for row in range(400)]))
    table.ingest(label_column="tags", problem="multi-label")
    assert "labels are 'NA', 'NaN', 'None', 'n/a', 'null', which" in table.profile()["problem"]["notes"][1]


def test_none_in_a_list_is_no_label(table) -> None:
    cells = ["a|None", "b", "None", "b|a"]
    table.write(rows(tags=[cells[row % 4] for row in range(400)]))
    assert table.ingest(label_column="tags", problem="multi-label").target == Labels(("a", "b"))
    note = table.profile()["problem"]["notes"][1]
    assert note.startswith("tags: 200 of 400 labels are 'None', which means no label: they do not count. If it is a")
    target = table.ingest(label_column="tags", problem="multi-label", **fixes_of(note)[0]).target
    assert target == Labels(("None", "a", "b"))
    assert table.array("targets").sum(axis=0).tolist() == [200, 200, 200]


@pytest.mark.parametrize("typed", [pl.Date, pl.Datetime("us"), pl.Datetime("ns"), pl.Datetime("ms")])
def test_dates_as_labels_are_the_same_in_each_format(table, typed: pl.DataType) -> None:
    days = [datetime.date(2024, 1, 1 + row % 3) for row in range(400)]
    frame = pl.DataFrame({"x": [DRAW.random() for _ in days], "label": pl.Series(days).cast(typed)})
    frame.write_parquet(table.root / "rows.parquet")
    frame.with_columns(pl.Series("label", days)).write_csv(table.root / "rows.csv")
    for name in ("rows.parquet", "rows.csv"):
        assert table.ingest(name).target == Classes(("2024-01-01", "2024-01-02", "2024-01-03"))
        with pytest.raises(
            DataError, match=r"texts such as '2024-01-01', and regression needs numbers. Fix: write num"
        ):
            table.ingest(name, problem="regression")
    numbers = [(day - days[0]).days for day in days]
    frame.with_columns(pl.Series("label", numbers)).write_parquet(table.root / "rows.parquet")
    assert isinstance(table.ingest("rows.parquet", problem="regression").target, Numbers)


def test_times_as_labels_are_texts(table) -> None:
    """More than 20 of them were numbers, the seconds since 1970 as float32."""
    times = [datetime.datetime(2024, 1, 1, 8, 30) + datetime.timedelta(hours=row % 25) for row in range(400)]
    pl.DataFrame({"x": [DRAW.random() for _ in times], "label": times}).write_parquet(table.root / "rows.parquet")
    target = table.ingest("rows.parquet").target
    assert isinstance(target, Classes)
    assert target.names[:2] == ("2024-01-01 08:30:00", "2024-01-01 09:30:00")
    zoned = pl.Series(times).dt.truncate("1d").dt.replace_time_zone("UTC")
    pl.DataFrame({"x": [DRAW.random() for _ in times], "label": zoned}).write_parquet(table.root / "rows.parquet")
    assert table.ingest("rows.parquet").target == Classes(("2024-01-01 00:00:00+00:00", "2024-01-02 00:00:00+00:00"))


@pytest.mark.parametrize("kind", ["csv", "parquet", "csv of pandas"])
def test_dates_with_times_in_digits_are_named_and_read(table, kind: str) -> None:
    """pandas writes 20241022083213.0 if a value of the column is missing."""
    first = datetime.datetime(2024, 10, 22, 8, 32, 13, tzinfo=datetime.UTC)
    times = [first + datetime.timedelta(hours=7 * (row % 300)) for row in range(400)]
    numbers = [int(time.strftime("%Y%m%d%H%M%S")) for time in times]
    frame = pl.DataFrame({"x": [DRAW.random() for _ in times], "when": numbers, "to: end": numbers, "label": labels()})
    if kind == "parquet":
        frame.write_parquet(table.root / "rows.parquet")
    elif kind == "csv":
        frame.write_csv(table.root / "rows.csv")
    else:
        pd.DataFrame(frame.to_dict(as_series=False)).shift(fill_value=None).to_csv(table.root / "rows.csv", index=False)
    name = f"rows.{kind[:3]}" if "csv" in kind else "rows.parquet"
    table.ingest(name)
    first_note, second_note = (note for note in table.profile()["notes"] if "may be dates" in note)
    assert first_note.startswith("when: numbers such as 20241022083213 may be dates")
    columns = {}
    for note in (first_note, second_note):
        columns |= yaml.safe_load(note.split("add ")[1].split(" to data.columns")[0])
    assert columns == {"when": "datetime", "to: end": "datetime"}
    manifest = table.ingest(name, columns=columns)
    (when,) = (column for column in manifest.input.columns if column.name == "when")
    assert (when.type, when.form) == ("datetime", "%Y%m%d%H%M%S")
    texts = (
        pl.read_csv(table.root / name, infer_schema=False)["when"] if "csv" in kind else frame["when"].cast(pl.String)
    )
    assert seconds(texts.drop_nulls(), when.form).to_list() == [time.timestamp() for time in times[: texts.count()]]
    assert when.quantiles[0] + when.offset in {time.timestamp() for time in times[:50]}  # the first of training
    assert table.profile()["notes"] == []


def test_only_test_rows_are_refused_by_their_split(table) -> None:
    table.write(rows(split=["test"] * 400, label=labels()))
    with pytest.raises(DataError, match=r"split train is empty .*Fix: add samples to the source \(with split train,"):
        table.ingest()


@pytest.mark.parametrize("name", ["CustomerNo", "EmployeeNumber", "orderNr", "CustomerId"])
def test_ids_in_camel_case_are_no_features(table, name: str) -> None:
    ids = [str(7 * row + 13) for row in range(400)]
    table.write(rows(**{name: ids, "label": labels()}))
    table.ingest()
    assert table.types()[name] == "id"
    table.ingest(columns={name: "numeric"})
    assert table.types()[name] == "numeric"
    table.write(rows(**{name: [str(row % 50) for row in range(400)], "label": labels()}))
    table.ingest()
    assert table.types()[name] == "numeric"


def test_names_in_single_quotes_stop_with_a_working_fix(table) -> None:
    path = table.write("'x','y','label'\n" + "".join(f"'{row}','{row % 7}','{'ab'[row % 2]}'\n" for row in range(400)))
    with pytest.raises(DataError, match=r"are in single quotation marks\. Fix: .*quotechar=\"'\"\)\.to_csv"):
        table.ingest()
    pd.read_csv(path, quotechar="'").to_csv(path, index=False)
    assert table.ingest().target == Classes(("a", "b"))


def test_an_unknown_split_names_what_is_allowed(table) -> None:
    folds = [str(row % 3) for row in range(400)]
    table.write(rows(fold=folds, label=list("aabb" * 100)))
    with pytest.raises(
        DataError, match=r"unknown-split \(found fold 0\): write train, validation or test, or leave it"
    ):
        table.ingest(split_column="fold")
    table.write(rows(fold=[("train", "validation", "test")[int(fold)] for fold in folds], label=list("aabb" * 100)))
    table.ingest(split_column="fold")


@pytest.mark.parametrize("line", [" , ", "\t,  ", ","])
def test_lines_of_spaces_are_no_rows(table, line: str) -> None:
    """Excel writes them for cells that were cleared by a space."""
    good = rows(label=labels())
    table.write(good)
    before = table.ingest().splits
    table.write(good + 100 * f"{line}\n")
    manifest = table.ingest()
    assert manifest.splits == before
    assert manifest.quarantined == 0


@pytest.mark.parametrize(
    ("form", "problem"),
    [
        *[(form, "auto") for form in ("[{}, {}, {}]", "[{}.0, {}.0, {}.0]", "{},{},{}", "{}|{}|{}")],
        ("[{1}, {0}]", "multi-label"),
        *[(form, "multi-label") for form in ("[{}, {}, {}]", "[{} {} {}]", "{},{},{}", "{}|{}|{}", "[{}., {}., {}.]")],
    ],
)
def test_flags_of_labels_in_a_cell_stop_with_fix(table, form: str, problem: str) -> None:
    cells = ["101", "010", "110" if "{1}" not in form else "101"]
    table.write(rows(tags=[form.format(*cells[row % 3]) for row in range(400)]))
    with pytest.raises(DataError, match=r"has 0 and 1 for each label in one cell.*list these in data\.label_column"):
        table.ingest(label_column="tags", problem=problem)
    columns = {name: [cells[row % 3][at] for row in range(400)] for at, name in enumerate("ab")}
    table.write(rows(**columns))
    assert table.ingest(label_column=["a", "b"]).target == Labels(("a", "b"))


@pytest.mark.parametrize("yes", ["1", "yes", "True"])
def test_empty_cells_that_mean_no_are_named_with_the_fix(table, yes: str) -> None:
    flags = [yes if row % 3 == 0 else "" for row in range(400)]
    others = ["1" if row % 2 else "0" for row in range(400)]
    table.write(rows(red=others, round=flags))
    with pytest.raises(DataError, match=r"'round' has no value in 266 of 400 rows, .*write 0 there, if that means no"):
        table.ingest(label_column=["red", "round"])
    table.write(rows(red=others, round=[flag or "0" for flag in flags]))
    assert table.ingest(label_column=["red", "round"]).target == Labels(("red", "round"))
    assert table.array("targets").sum(axis=0).tolist() == [200, 134]


def test_spellings_of_several_labels_are_named(table) -> None:
    cells = ["Red|round", "red|square", "round", "square|red"]
    table.write(rows(tags=[cells[row % 4] for row in range(400)]))
    table.ingest(label_column="tags", problem="multi-label")
    (_, note) = table.profile()["problem"]["notes"]
    assert note.startswith("tags: 'Red' and 'red' differ only in spelling, and they are 2 labels.")
    table.write(rows(tags=[cells[row % 4].lower() for row in range(400)]))
    assert table.ingest(label_column="tags", problem="multi-label").target == Labels(("red", "round", "square"))
    assert len(table.profile()["problem"]["notes"]) == 1


@pytest.mark.parametrize(
    "names",
    [
        ["Washington, DC", "New York, NY", "Albany, NY"], ["animal/cat", "animal/dog", "plant/oak", "plant/rose"],
        ["<=50K", ">50K"], ["M/F", "other"],
    ],
)  # fmt: skip
def test_single_labels_with_a_separator_are_classes(table, names: list[str]) -> None:
    table.write(rows(label=[names[row % len(names)] for row in range(400)]))
    assert table.ingest().target == Classes(tuple(sorted(names)))


@pytest.mark.parametrize("count", [40, 200])
@pytest.mark.parametrize("numbers", [("0", "1"), ("1", "2"), ("-1", "1.0")])
def test_two_whole_numbers_are_classes(table, numbers: tuple[str, str], count: int) -> None:
    table.write(rows(late=[numbers[row < count] for row in range(400)]))
    assert table.ingest(label_column="late").target == Classes(tuple(number.removesuffix(".0") for number in numbers))


def test_a_flag_with_three_ones_is_no_number_to_predict(table) -> None:
    table.write(rows(late=["1" if row < 3 else "0" for row in range(400)]))
    assert table.ingest(label_column="late").target == Classes(("0", "1"))


UNREAD_NUMBERS = {
    "factor": lambda row: f"{row % 90 + 1}.5{'kM'[row % 2]}",
    "lakh": lambda row: f"\u20b91,{10 + row % 80},{100 + row % 800}.00",
    "apostrophe": lambda row: f"CHF 1\u2019{100 + row % 800}.50",
    "per mille": lambda row: f"{row % 90}.5\u2030",
    "arabic": lambda row: "".join(chr(0x660 + int(digit)) for digit in str(row * 7)),
    "exponent": lambda row: f"{row / 7:.3E}".replace("E", "D"),
    "fraction": lambda row: f"{row % 9 + 1}/{row % 7 + 2}",
    "duration": lambda row: f"{row % 5}h {row % 60}m",
    "feet": lambda row: f"{4 + row % 3}'{row % 12}",
}


@pytest.mark.parametrize("form", UNREAD_NUMBERS)
def test_numbers_in_a_form_that_is_not_read_are_named(table, form: str) -> None:
    texts = [UNREAD_NUMBERS[form](row) for row in range(400)]
    table.write(rows(size=texts, label=labels()))
    table.ingest()
    expected = f"size: texts such as {texts[0]!r} may be numbers. If so, write them as 1234.5"
    assert expected in table.profile()["notes"]
    table.ingest(columns={"size": "categorical"})
    assert not table.profile()["notes"]


@pytest.mark.parametrize(
    "form",
    [
        "%a, %d %b %Y %H:%M:%S GMT", "%d/%b/%Y:%H:%M:%S", "%Y\u5e74%m\u6708%d\u65e5", "%G-W%V-%u", "%Y%m%dT%H%M%SZ",
        "%d-%b-%y %I.%M.%S.000000 %p", "%b %d %Y %I:%M%p", "%Y-%m-%d %H:%M CET", "%Y-%m-%d %H:%M:%S +0000 UTC",
        "%d.%m.%Y %H:%M Uhr", "%d.%m.%Y %H.%M", "%Y-%m-%d at %H:%M", "%Y-%m-%d-%H:%M", "%d%b%Y", "%d%b%Y:%H:%M:%S",
        "%b %d, %Y, %I:%M %p", "%dth %B %Y", "%Y-%m-%dT%H:%M:%S+01:00[Europe/Berlin]",
    ],
)  # fmt: skip
def test_dates_of_mails_and_logs_are_named(table, form: str) -> None:
    first = datetime.datetime(2023, 1, 1, tzinfo=datetime.UTC)
    texts = [(first + datetime.timedelta(days=row)).strftime(form) for row in range(400)]
    table.write(rows(day=texts, label=labels()))
    table.ingest()
    assert any(note.startswith(f"day: texts such as {texts[0]!r} may be dates") for note in table.profile()["notes"])


@pytest.mark.parametrize(
    "codes",
    [
        ["12A", "3F", "7C"],
        ["S", "M", "XL"],
        ["10.0.0.1", "10.0.0.7"],
        ["18-25", "26-40"],
        ["08:00-16", "9:30-17"],
        ["10:30+12", "09:00+12"],
        ["08:00-16:00", "9:30-17:00"],
    ],
)
def test_codes_are_not_taken_for_numbers(table, codes: list[str]) -> None:
    table.write(rows(code=[codes[row % len(codes)] for row in range(400)], label=labels()))
    table.ingest()
    assert table.types()["code"] == "categorical"
    assert not table.profile()["notes"]


def test_opening_hours_of_a_day_are_no_dates() -> None:
    assert not date_form(pl.Series(["2024-05-13 08:00-16", "2024-05-14 09:00-17"])).form


def test_labels_that_all_mean_no_label_name_their_fix(table) -> None:
    table.write(rows(label=["None" if row % 3 else "NA" for row in range(400)]))
    with pytest.raises(DataError, match="has only 'None', 'NA', which means no label") as raised:
        table.ingest()
    (fix,) = fixes_of(str(raised.value))
    table.ingest(**fix)
    assert table.profile()["classes"]["train"].keys() == {"None", "NA"}


@pytest.mark.parametrize("mark", [" ", "\n"])
def test_several_labels_without_a_known_separator_are_named(table, mark: str) -> None:
    table.write(rows(label=[f"a{mark}b" if row % 3 else f"b{mark}c" for row in range(400)]))
    table.ingest(problem="multi-label")
    assert any(note.startswith("label: no row has two labels") for note in table.profile()["problem"]["notes"])


def test_a_class_without_training_rows_names_no_setting_that_fails(table) -> None:
    table.write(
        rows(day=[f"{row}" for row in range(400)], label=["c" if row > 380 else "ab"[row % 2] for row in range(400)])
    )
    with pytest.raises(
        DataError, match=r"class 'c' has 0; .*Fix: add training samples, or remove the class, whose other"
    ):
        table.ingest(order_by="day", min_per_class=1)
    table.write(rows(380, day=[f"{row}" for row in range(380)], label=["ab"[row % 2] for row in range(380)]))
    assert table.ingest(order_by="day").target.names == ("a", "b")


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_groups_than_splits_name_no_share(table, count: int) -> None:
    names = [f"p{row % count}" for row in range(400)]
    table.write(rows(group=names, label=labels()))
    with pytest.raises(DataError, match=f"in {count} groups? of 'group' that stay whole") as stop:
        table.ingest()
    assert "_fraction" not in str(stop.value)
    table.ingest(drop=("group",))
    table.write(rows(group=[name if row < 40 else "" for row, name in enumerate(names)], label=labels()))
    with pytest.raises(DataError, match=r"or raise data\.(test|validation)_fraction"):
        table.ingest(test_fraction=1e-6, validation_fraction=1e-6)
    table.ingest(test_fraction=0.4, validation_fraction=0.4)


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl"])
@pytest.mark.parametrize(("stored", "written"), [("NFD", "NFC"), ("NFC", "NFD"), ("NFD", "NFD")])
def test_names_of_columns_match_in_any_unicode_form(table, kind: str, stored: str, written: str) -> None:
    """macOS and some exports write letters with separate accents; keyboards do not."""
    names = ["gr\u00f6\u00dfe", "jahr\u00e9", "gel\u00f6scht", "klass\u00eb", "t\u00e4glich"]
    there, written_names = ([unicodedata.normalize(form, name) for name in names] for form in (stored, written))
    count = range(400)
    columns = [
        [f"{row % 7}" for row in count],
        [str(row % 5) for row in count],
        ["x"] * 400,
        labels(),
        list(map(str, count)),
    ]
    frame = pl.DataFrame(dict(zip(there, columns, strict=True)))
    write = {"csv": frame.write_csv, "parquet": frame.write_parquet, "jsonl": frame.write_ndjson}[kind]
    write(table.root / f"rows.{kind}")
    options = {
        "columns": {written_names[1]: "categorical"},
        "drop": (written_names[2],),
        "label_column": written_names[3],
        "order_by": written_names[4],
    }
    manifest = table.ingest(f"rows.{kind}", **options)
    assert [(column.name, column.type) for column in manifest.input.columns] == [
        (names[0], "numeric"), (names[1], "categorical"),
    ]  # fmt: skip
    assert manifest.target.names == ("no", "yes")


def test_a_column_name_like_a_pattern_is_refused(table) -> None:
    content = rows(label=labels())
    table.write(content.replace("x,", "^x.*$,", 1))
    with pytest.raises(DataError, match=r"column '\^x\.\*\$' begins with \^ and ends with \$"):
        table.ingest()
    table.write(content.replace("x,", "*,", 1))
    table.ingest()
    assert table.types() == {"*": "numeric"}


@pytest.mark.parametrize("number", ["{0:.3f}", "2{1}"])
def test_texts_among_numbers_of_a_label_name_working_fixes(table, number: str) -> None:
    table.write(rows(lab=["ND" if row % 7 == 3 else number.format(row / 7, row % 73) for row in range(400)]))
    with pytest.raises(
        DataError, match=r"label column lab: 86% of the values are numbers, and 57 are not: 'ND'"
    ) as stop:
        table.ingest(label_column="lab")
    regression, *classes = fixes_of(str(stop.value))
    assert regression == {"problem": "regression", "max_bad_fraction": 0.16}
    assert classes == ([{"problem": "classification"}] if number == "2{1}" else [])  # 344 texts in 400 rows are none
    for fix in classes:
        assert len(table.ingest(label_column="lab", **fix).target.names) == 74
    with pytest.raises(DataError, match=r"(?s)label-not-a-number 57.*57 are not: 'ND'") as stop:
        table.ingest(label_column="lab", problem="regression")
    assert fixes_of(str(stop.value).partition("\n")[2]) == [{"max_bad_fraction": 0.16}]
    target = table.ingest(label_column="lab", **regression).target
    assert isinstance(target, Numbers)
    assert target.names == ("lab",)
    assert len(table.bad()) == 57
    assert table.profile()["problem"]["notes"] == [
        "lab: 86% of the values are numbers, and 57 are not: 'ND'. Their rows are left out"
    ]


@pytest.mark.parametrize("labels", ["2D 3D 2", "10x 20x 40x", "5A 6A", "$5 $10"])
def test_classes_keep_their_units(table, labels: str) -> None:
    names = labels.split()
    table.write(rows(count=100 * len(names), label=names * 100))
    assert set(table.ingest().target.names) == set(names)


def test_named_classes_that_are_numbers_are_classes(table) -> None:
    table.write(rows(count=300, size=["0.5", "1.0", "1.5"] * 100))
    classes = ("1.5", "0.5", "1.0")
    assert table.ingest(label_column="size", classes=classes).target == Classes(classes)
    assert table.profile()["problem"]["why"] == "data.classes"


def test_few_whole_numbers_and_a_text_are_classes(table) -> None:
    table.write(rows(grade=["ND" if row % 7 == 3 else str(row % 5 + 1) for row in range(400)]))
    assert table.ingest(label_column="grade").target == Classes(("1", "2", "3", "4", "5", "ND"))
    (note,) = table.profile()["problem"]["notes"]
    assert note.startswith("grade: 86% of the values are numbers, and 57 are not: 'ND'. To leave their rows out")
    assert isinstance(table.ingest(label_column="grade", **fixes_of(note)[0]).target, Numbers)
    table.ingest(label_column="grade", problem="classification")
    assert table.profile()["problem"]["notes"] == []


def test_a_label_in_an_unread_form_is_named(table) -> None:
    table.write(rows(price=[f"{row % 15 + 1}.5k" for row in range(400)]))
    table.ingest(label_column="price")
    assert table.profile()["problem"]["notes"] == [
        "price: texts such as '1.5k' may be numbers. If so, write them as 1234.5"
    ]
    table.write(rows(price=[f"{row}.5k" for row in range(400)]))
    with pytest.raises(
        DataError, match=r"400 different values .*'0\.5k' may be numbers\. If so, write them as 1234\.5"
    ):
        table.ingest(label_column="price")


def test_none_among_several_labels_is_named_and_can_be_kept(table) -> None:
    cells = ["a|b", "b", "None", "a|c", "NA", ""]
    table.write(rows(tags=[cells[row % 6] for row in range(400)]))
    assert table.ingest(label_column="tags", problem="multi-label").target == Labels(("a", "b", "c"))
    note = table.profile()["problem"]["notes"][1]
    assert note.startswith("tags: 133 of 400 labels are 'None', 'NA', which means no label: they do not count.")
    (fix,) = fixes_of(note)
    target = table.ingest(label_column="tags", problem="multi-label", **fix).target
    assert target == Labels(("NA", "None", "a", "b", "c"))
    assert table.array("targets").sum(axis=0).tolist() == [66, 67, 134, 134, 67]
