"""Rows of CSV files: none vanishes, none becomes text inside a cell, and no valid file is refused.

Python's csv in strict mode is the reference for the grammar; the files are made here from known rows.
"""

import contextlib
import csv
import datetime
import io
import json
import random
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.data.reading.input_files import Storages
from ratchet.data.sources import csv_records, table_file
from ratchet.data.sources.table_file import TableFile, read_table, stream_csv
from ratchet.errors import DataError
from ratchet.kinds import Column, TableInput, TextInput, input_from_json, to_json
from ratchet.serving.batch.row_reader import RowRange, RowReader

WORDS = (
    "good",
    "bad, they say",
    'a "fine" one',
    "two\nlines",
    "three\n\nlines, here",
    "مطعم جيد، طعام",
    "",
    "5 inch",
    "x;y",
)


def table_of(draw: random.Random, rows: int = 60) -> list[list[str]]:
    body = [[str(draw.randrange(90)), draw.choice(WORDS), draw.choice(("pos", "neg"))] for _ in range(rows)]
    return [["number", "text", "label"], *body]


def written(rows: list[list[str]], separator: str = ",", *, quoting: int = csv.QUOTE_MINIMAL) -> str:
    text = io.StringIO()
    csv.writer(text, delimiter=separator, lineterminator="\n", quoting=quoting).writerows(rows)
    return text.getvalue()


FORMS: dict[str, Callable[[list[list[str]]], bytes]] = {
    "plain": lambda rows: written(rows).encode(),
    "all-quoted": lambda rows: written(rows, quoting=csv.QUOTE_ALL).encode(),
    "crlf": lambda rows: written(rows).replace("\n", "\r\n").encode(),
    "cr": lambda rows: written(rows).replace("\n", "\r").encode(),
    "mixed-ends": lambda rows: written(rows).replace("pos\n", "pos\r\n").encode(),
    "bom": lambda rows: written(rows).encode("utf-8-sig"),
    "utf-16": lambda rows: written(rows).encode("utf-16"),
    "utf-16-be-cr": lambda rows: written(rows).replace("\n", "\r").encode("utf-16-be"),
    "utf-32": lambda rows: written(rows).replace("\n", "\r\n").encode("utf-32"),
    "semicolons": lambda rows: written(rows, ";").encode(),
    "tabs": lambda rows: written(rows, "\t").encode(),
    "no-last-end": lambda rows: written(rows).rstrip("\n").encode(),
    "blank-lines": lambda rows: written(rows).replace("pos\n", "pos\n\n").encode(),
    "excel": lambda rows: ("sep=;\n" + written(rows, ";")).encode(),
}


def parts(content: bytes) -> list[TableFile]:
    return list(stream_csv(io.BytesIO(content), where="FILE", needed=(), is_header=lambda cells: True))


def rows_of(files: list[TableFile]) -> list[list[str]]:
    rows = [[cell or "" for cell in row] for file in files for row in file.table.rows() if set(row) != {None}]
    return [list(files[0].header), *rows]


def streamed(content: bytes) -> list[list[str]]:
    return rows_of(parts(content))


def whole(content: bytes) -> list[list[str]]:
    return rows_of([read_table(content, where="FILE", needed=())])


@pytest.fixture(params=[4 << 20, 64], ids=["one-part", "many-parts"])
def part_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are read in parts of so many bytes, and of a few rows where quotation marks are not as in RFC 4180."""
    monkeypatch.setattr(table_file, "_STREAMED", request.param)
    monkeypatch.setattr(table_file, "_STREAMED_ROWS", 7)


@pytest.mark.usefixtures("part_bytes")
@pytest.mark.parametrize("form", FORMS)
def test_valid_files_give_every_row_on_both_paths(form: str) -> None:
    for seed in range(5):
        rows = table_of(random.Random(seed))
        content = FORMS[form](rows)
        assert whole(content) == rows
        assert streamed(content) == rows


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-32"])
def test_every_encoding_is_read_in_parts(encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_file, "_STREAMED", 65)  # which splits characters
    content = written(table_of(random.Random(3))).encode(encoding)
    assert len(parts(content)) > 10
    path, values = tmp_path / "rows.jsonl", [f"{row} é 𝄞" for row in range(60)]
    path.write_bytes("".join(f'{{"text": "{value}"}}\n' for value in values).encode(encoding))
    reader = RowReader(Storages("FILE"), TextInput("hashed", buckets=512, longest=64), column=None)
    read = [batch.values for batch in reader.batches(list(map(RowRange, reader.files([str(path)]))))]
    assert [row["text"] for part in read for row in part] == values
    with pytest.raises(DataError, match=rf"line 61 is not {encoding[:6].upper()}"):
        streamed(written(table_of(random.Random(3))[:1] + [["1", "a", "pos"]] * 60)[:-1].encode(encoding) + b"\xd8")


def faults(draw: random.Random, text: str) -> str:
    """Return a file with one to three characters changed, where a quotation mark is often one of them."""
    for _ in range(draw.randrange(1, 4)):
        at = draw.randrange(len(text))
        text = text[:at] + draw.choice(('"', '"', '\\"', ",", "\n", "", "\0", '" ')) + text[at + draw.randrange(2) :]
    return text


@pytest.mark.usefixtures("part_bytes")
@pytest.mark.parametrize("seed", range(100))
def test_both_paths_find_the_same_rows_or_refuse(seed: int) -> None:
    draw = random.Random(seed)
    text = faults(draw, written(table_of(draw), quoting=draw.choice((csv.QUOTE_MINIMAL, csv.QUOTE_ALL))))
    try:
        file = read_table(text.encode(), where="FILE", needed=("label",))
    except DataError:
        with pytest.raises(DataError, match="Fix: "):
            streamed(text.encode())
        return
    reference = list(csv.reader(io.StringIO(text), strict=True))
    while not reference[0]:
        reference.pop(0)
    width = len(reference[0])
    while not reference[-1]:
        reference.pop()
    assert file.table.height == len(reference) - 1
    wrong = [place for place, cells in enumerate(reference[1:], start=1) if cells and len(cells) != width]
    assert file.ragged["row"].to_list() == wrong
    split = parts(text.encode())
    assert [fault for part in split for fault in part.faults()] == file.faults()
    assert rows_of(split) == rows_of([file])


@settings(max_examples=300, deadline=None, derandomize=True)
@given(text=st.text(alphabet='",\nab ', max_size=40), block=st.sampled_from([1, 2, 3, 7, 1 << 22]))
def test_the_scan_agrees_with_the_strict_parser(text: str, block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_records, "_BLOCK", block)
        try:
            layouts = list(csv_records.layouts([text.encode()], ",", "FILE"))
        except DataError:
            with pytest.raises(csv.Error):
                list(csv.reader(io.StringIO(text), strict=True))
            return
    records = list(csv_records.strict_records(io.StringIO(text), ",", "FILE"))
    while records and not records[-1].cells:
        records.pop()
    assert [count for layout in layouts for count in layout.cells.tolist()] == [len(record.cells) for record in records]
    assert [line for layout in layouts for line in layout.lines.tolist()] == [record.line for record in records]


def broken_rows() -> str:
    names = {20: '"5 inch', 30: '7"'}
    rows = (f"{row % 4},{names.get(row, f'n{row % 7}')},{'' if row == 5 else row * 1.5}" for row in range(100))
    return "x,name,z\n" + "\n".join(rows) + "\n"


REFUSED = {
    "header": ('"id","y\n' + "1,2\n" * 50, r"quotation mark in the row of line 1 is not closed.*quoting=3"),
    "last-row": ("a,b\n" + "1,x\n" * 50 + '2,"y\n', r"quotation mark in the row of line 52 is not closed"),
    "text-after": ('a,b\n1,"x" y\n', r"line 2: a text follows a closing quotation mark \('1,\"x\" y'\)"),
    "backslash": ('a,b\n1,"say \\"hi\\", you"\n', r"line 2.*twice, not with a backslash.*escapechar"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_broken_quotation_mark_stops_with_its_line(name: str) -> None:
    content, message = REFUSED[name]
    for read in (whole, streamed):
        with pytest.raises(DataError, match=message):
            read(content.encode())


def test_quotation_marks_inside_plain_cells_are_text() -> None:
    content = "size,label\n" + '7",a\n5" wide,b\n' * 3
    assert whole(content.encode())[1:3] == [['7"', "a"], ['5" wide', "b"]]
    assert streamed(content.encode()) == whole(content.encode())


def test_a_review_with_commas_like_rows_is_one_row() -> None:
    review = '"Good, food.\nNice, friendly staff.\nWill, return.",pos\n'
    content = "text,label\n" + review + "".join(f"film {row},{'neg' if row % 2 else 'pos'}\n" for row in range(60))
    assert len(whole(content.encode())) == len(streamed(content.encode())) == 62
    assert read_table(content.encode(), where="FILE", needed=()).notes == ()


def test_a_review_that_quotes_rows_gets_a_warning() -> None:
    plain = "".join(f"film {row},{'neg' if row % 2 else 'pos'}\n" for row in range(60))
    content = "text,label\n" + plain + '"good film,pos\nbad film,neg\nlast film",pos\n'
    file = read_table(content.encode(), where="FILE", needed=())
    assert file.table.row(-1) == ("good film,pos\nbad film,neg\nlast film", "pos")
    assert whole(content.encode()) == streamed(content.encode())
    (note,) = file.notes
    assert note.startswith("the row of line 62 holds 3 whole lines of the table, from '\"good film,pos' on.")
    assert "quoting=3" in note


def saved_as(message: str, source: Path, *, has_header: bool = True) -> bytes:
    """Return a file as the call of pandas in a message saves it."""
    (options,) = re.findall(r"read_csv\(FILE, (.*?)\)\.to_csv", message)
    header = {} if has_header else {"header": None}
    return pd.read_csv(source, **eval(f"dict({options})"), **header).to_csv(None, index=False, **header).encode()


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("has_header", [True, False])
def test_rows_inside_a_cell_are_named_and_freed_by_hint(tmp_path: Path, separator: str, has_header: bool) -> None:
    content = broken_rows().replace("\n2,n6,", "\n02,None,").replace(",", separator)
    source = tmp_path / "broken.csv"
    source.write_text(content if has_header else content.partition("\n")[2])
    layout = {"where": "FILE", "needed": (), "is_header": lambda cells: has_header}
    (file,) = stream_csv(io.BytesIO(source.read_bytes()), **layout)
    line = 21 + has_header
    assert (file.table.height, file.notes[0][:48]) == (90, f"the row of line {line} holds 11 whole lines of the t")
    saved = saved_as(file.notes[0], source, has_header=has_header)
    (repaired,) = stream_csv(io.BytesIO(saved), **layout)
    assert (repaired.table.height, repaired.notes) == (100, ())
    assert [repaired.table.row(row)[1] for row in (20, 30)] == ['"5 inch', '7"']
    assert repaired.table.row(6)[:2] == ("02", "None")


def test_a_backslash_before_quotation_marks_is_repaired_by_hint(tmp_path: Path) -> None:
    source = tmp_path / "broken.csv"
    source.write_text('a;b\n007;"say \\"hi\\"; you"\n')
    with pytest.raises(DataError, match="not with a backslash") as stop:
        whole(source.read_bytes())
    assert whole(saved_as(str(stop.value), source)) == [["a", "b"], ["007", 'say "hi"; you']]


def test_lines_that_nothing_decides_get_a_warning() -> None:
    content = 'a,b\n"one, two\nthree four",x\n' + "".join(f"w{row},v{row}\n" for row in range(60))
    file = read_table(content.encode(), where="FILE", needed=())
    assert file.table.height == 61
    assert file.notes[0].startswith("the row of line 2 holds 2 whole lines of the table, from '\"one, two' on.")


JSON_LINES = '{"a": 1}\n\n{"a": 2}\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (JSON_LINES + '{"a": 3, "lab', r"line 4 is no JSON object \('\{\"a\": 3, \"lab', it is cut off\)"),
        (JSON_LINES + "{a}\n[1]\n" + JSON_LINES, "lines 4, 5 are no JSON objects"),
        (JSON_LINES + '{"a": NaN}\n', "line 4 is no JSON object"),
        ('{"images": [\n1]}', "is one JSON object, not a table"),
        (JSON_LINES + '{"u": ' + "[" * 500 + "]" * 500 + "}", "line 4 has lists or objects in more than 16 levels"),
        ('[{"a": 1}, 2]', "element 2 of the JSON list is not an object"),
        ('[{"a": 1}', "damaged JSON .*line 1 column 10"),
        ('[{"a": 1}, {"a": true}, {"a": 7}]', "element 2 of the JSON list has true as 'a', and others have numbers"),
        ('[{"a": 1.5, "b": "true"}, {"a": false, "b": ""}]', "element 2 of the JSON list has false as 'a'"),
        ('[{"a": 1, "b": 2}, {"a": 1, "b": 2, "a": 9}]', "element 2 of the JSON list has the key 'a' twice"),
        (JSON_LINES + '{"a": 1, "b": 2, "a": 9}\n', "line 4 has the key 'a' twice. Fix: remove one"),
        (JSON_LINES + '{"a" :null,"a":9}\n', "line 4 has the key 'a' twice"),
        (JSON_LINES + '{"a":9,"\\u0061":null}\n', "line 4 has the key 'a' twice"),
        (JSON_LINES + '{"c":"x\\":", "b":2, "b":3}\n', "line 4 has the key 'b' twice"),
        ('[{"a": 9, "u": {"b": 1, "b": 1}}]', "element 1 of the JSON list has the key 'b' twice"),
    ],
)
def test_damaged_json_names_its_lines(content: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_table(content.encode(), where="FILE", needed=())


@pytest.mark.parametrize("is_list", [False, True])
def test_a_key_that_looks_doubled_is_read(is_list: bool) -> None:
    rows = [{"a": 1, "b": True, "c": 'x": "c": "a":'}, {"a": 2, "b": False, "c": "true"}, {"c": '" : "c"'}]
    lines = [json.dumps(row) for row in rows]
    content = f"[{', '.join(lines)}]" if is_list else "\n".join(lines)
    table = read_table(content.encode(), where="FILE", needed=()).table
    assert table.rows(named=True) == [{"a": None, "b": None} | row for row in rows]


@pytest.mark.parametrize("is_list", [False, True])
def test_a_doubled_key_is_refused_in_prediction(tmp_path: Path, is_list: bool) -> None:
    lines = [
        '{"text": "a", "text": "b"}',
        '{"text": "good"}',
        '{"text"\t:"a","text":"b"}',
        '{"text": "is \\"text\\": "}',
    ]
    (tmp_path / "rows.json").write_text(f"[{', '.join(lines)}]" if is_list else "\n".join(lines))
    reader = RowReader(Storages("FILE"), TextInput("hashed", buckets=512, longest=64), column="text")
    (file,) = reader.files([str(tmp_path / "rows.json")])
    (batch,) = reader.batches([RowRange(file)])
    places = [""] * 4 if is_list else ["line 1 ", "", "line 3 ", ""]
    fault = "has the key 'text' twice. Fix: remove one"
    assert batch.faults == [places[0] + fault, "", places[2] + fault, ""]


def parquet(table: pa.Table) -> bytes:
    content = io.BytesIO()
    pq.write_table(table, content)
    return content.getvalue()


def test_damaged_parquet_is_refused_at_every_byte() -> None:
    content = parquet(pa.table({"a": list(range(200)), "b": [f"t{row % 9}" for row in range(200)]}))
    draw = random.Random(1)
    for _ in range(150):
        changed = bytearray(content)
        changed[draw.randrange(4, len(changed))] = draw.randrange(256)
        with contextlib.suppress(DataError):
            assert read_table(bytes(changed), where="FILE", needed=()).table.height <= 200


def test_geometries_are_named_as_what_they_are() -> None:
    geo = '{"version": "1.0.0", "primary_column": "shape", "columns": {"shape": {"encoding": "WKB"}}}'
    table = pa.table({"a": [1, 2], "shape": [b"\x01", b"\x02"]}).replace_schema_metadata({"geo": geo})
    with pytest.raises(DataError, match=r"is GeoParquet: column 'shape' has geometries.*drop\(columns='shape'\)"):
        read_table(parquet(table), where="FILE", needed=())


def test_a_dropped_column_may_have_geometries(table: Any) -> None:
    geo = '{"version": "1.0.0", "primary_column": "shape", "columns": {"shape": {"encoding": "WKB"}}}'
    kinds = pa.array([["a"], ["b"]] * 200, pa.list_(pa.dictionary(pa.int8(), pa.string())))
    columns = {"a": range(400), "shape": [b"\x01"] * 400, "kinds": kinds, "label": ["x", "y", "y", "x"] * 100}
    pq.write_table(pa.table(columns).replace_schema_metadata({"geo": geo}), table.root / "rows.parquet")
    with pytest.raises(DataError, match=r"column 'shape' has geometries, not single values. Fix: list it in data.drop"):
        table.ingest("rows.parquet", drop=["kinds"])
    manifest = table.ingest("rows.parquet", drop=["kinds", "shape"], columns={"a": "numeric"})
    assert [column.name for column in manifest.input.columns] == ["a"]


def test_types_that_polars_lacks_are_converted() -> None:
    day = datetime.datetime(2020, 1, 1, 12, tzinfo=datetime.UTC)
    table = pa.table({
        "offset": pa.array([day], pa.timestamp("us", "+05:30")),
        "wide": pa.array([Decimal("2.5")], pa.decimal256(60, 2)),
        "json": pa.array(["{}"], pa.json_(pa.string())),
    })  # fmt: skip
    assert read_table(parquet(table), where="FILE", needed=()).table.row(0) == (day, 2.5, "{}")


@pytest.mark.parametrize(("label", "allowed"), [(2, (4,)), (4, (3, 4))])
def test_files_without_header_have_the_width_of_training(table: Any, label: int, allowed: tuple[int, ...]) -> None:
    rows = [[f"{row}", "ab"[row % 2], f"{row * 7 % 90}.5", f"{row * 3 % 80}.25"] for row in range(90)]
    cells = [row[:1] + row[2:] for row in rows]
    table.write(
        written([[*row[: label - 1], name[1], *row[label - 1 :]] for row, name in zip(cells, rows, strict=True)])
    )
    spec = table.ingest(label_column=f"column_{label}", columns={"column_1": "numeric"}).input
    assert spec.widths == tuple(reversed(allowed))
    reader = RowReader(Storages("FILE"), input_from_json(to_json(spec)), column=None)
    path = table.root / "score.csv"
    for width in (3, 4, 5):
        body = [[str(cell) for cell in range(1, width + 1)]] * 3
        path.write_text(written(body))
        if width in allowed:
            (batch,) = reader.batches(list(map(RowRange, reader.files([str(path)]))))
            assert batch.values.rows() == [tuple(str(place) for place in range(1, 5) if place != label)] * 3
            continue
        with pytest.raises(DataError, match=f"no header, and {width} cells in a row, .* has 4;") as stop:
            list(reader.batches(list(map(RowRange, reader.files([str(path)])))))
        if width == 3:
            header = str(stop.value).partition("header line that names each cell in order, with ")[2]
            path.write_text(header.replace(" ", "") + "\n" + written(body))
            (batch,) = reader.batches(list(map(RowRange, reader.files([str(path)]))))
            assert batch.values.rows() == [("1", "2", "3")] * 3


def test_a_header_for_many_cells_is_described(tmp_path: Path) -> None:
    columns = tuple(Column(f"column_{place}", "numeric") for place in range(2, 27))
    reader = RowReader(Storages("FILE"), TableInput(columns, widths=(28, 27)), column=None)
    path = tmp_path / "score.csv"
    path.write_text(written([[str(place) for place in range(1, 27)]] * 3))
    message = "names each cell in order, with column_2, column_3, column_4, ..., column_26$"
    with pytest.raises(DataError, match=message):
        list(reader.batches(list(map(RowRange, reader.files([str(path)])))))
    path.write_text(",".join(f"column_{place}" for place in range(1, 27)) + "\n" + path.read_text())
    (batch,) = reader.batches(list(map(RowRange, reader.files([str(path)]))))
    assert batch.values.row(0) == tuple(str(place) for place in range(2, 27))


def test_a_numbered_model_scores_files_without_header(tmp_path: Path) -> None:
    described = TableInput((Column("column_1", "numeric"), Column("column_3", "numeric")))
    reader = RowReader(Storages("FILE"), described, column=None)
    bodies = {"plain.csv": "1,a,3\n4,b,6\n1,c,1\n", "semicolons.csv": "1;a;3\n4;b;6\n1;c;1\n"}
    bodies["named.csv"] = "column_3,column_1\n3,1\n6,4\n1,1\n"
    for name, content in bodies.items():
        (tmp_path / name).write_text(content)
        (batch,) = reader.batches(list(map(RowRange, reader.files([str(tmp_path / name)]))))
        assert batch.values.rows() == [("1", "3"), ("4", "6"), ("1", "1")]
        assert batch.faults == [""] * 3
