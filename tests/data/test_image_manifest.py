"""A table that lists images: the meaning of its rows, and rows that are wrong."""

import json
import re
import unicodedata
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

from ratchet.data.checks.label_spelling import look_alikes, skeleton
from ratchet.data.packed_set import LABEL_PLACE
from ratchet.errors import DataError, SettingsError
from ratchet.problems import Labels, Numbers
from tests.data.test_column_meanings import fixes_of

KEY = "0123456789abcdef"


def listed(place, rows: list[str] | None = None, *, name: str = "labels.csv", header: str = "path,label", **changes):
    """Ingest 40 images of each of two classes in one flat folder, listed in a table with more `rows`."""
    flat = place.fill("flat", 80)
    lines = [
        f"flat/{path.name},{'cat' if number < 40 else 'dog'}" for number, path in enumerate(sorted(flat.iterdir()))
    ]
    columns = header.count(",") - 1
    lines = [line + "," * columns for line in lines]
    (place.root / "images" / name).write_text("\n".join([header, *lines, *(rows or [])]) + "\n")
    return place.ingest(source="image-manifest", manifest=name, **changes)


def test_labels_splits_groups_and_other_columns_come_from_the_table(place) -> None:
    place.fill("flat", 60)
    names = [f"flat/{number:04d}.png" for number in range(60)]
    table = pl.DataFrame(
        {
            "file": names,
            "kind": [("ant", "bee", "cow")[number % 3] for number in range(60)],
            "part": ["test" if number < 12 else "Val" if number < 24 else "train" for number in range(60)],
            "camera": [f"c{number % 4}" for number in range(60)],
            "weight": [number / 2 for number in range(60)],
        }
    )
    table.write_parquet(place.root / "images" / "table.parquet")
    manifest = place.ingest(
        source="image-manifest", manifest="table.parquet", path_column="file", label_column="kind", split_column="part"
    )
    assert manifest.target.names == ("ant", "bee", "cow")
    assert {split: rows.rows for split, rows in manifest.splits.items()} == {"train": 36, "validation": 12, "test": 12}
    index = place.index().sort("id")
    assert index["id"].to_list() == names
    assert index["class"].to_list() == table["kind"].to_list()
    assert index["camera"].to_list() == table["camera"].to_list()
    assert index["weight"].to_list() == table["weight"].to_list()


@pytest.mark.parametrize("label", ["ab", "0.5 1.25 2.75"])
def test_a_column_called_target_keeps_its_values(place, label: str) -> None:
    values = label.split() if " " in label else list(label)
    place.fill("flat", 60)
    lines = [f"flat/{n:04d}.png,{values[n % len(values)]},t{n % 5}" for n in range(60)]
    (place.root / "images" / "t.csv").write_text("\n".join(["path,label,target", *lines]))
    place.ingest(source="image-manifest", manifest="t.csv")
    index = place.index().sort("id")
    assert index["target"].to_list() == [f"t{n % 5}" for n in range(60)]
    assert LABEL_PLACE not in index.columns


def test_a_group_is_in_one_split_and_stays_there(place) -> None:
    place.fill("flat", 120)
    lines = [f"flat/{n:04d}.png,{'cat' if n % 2 else 'dog'},patient {n // 6}" for n in range(120)]
    (place.root / "images" / "t.csv").write_text("\n".join(["path,label,group", *lines]))
    place.ingest(source="image-manifest", manifest="t.csv")
    splits = dict(place.index().group_by("group").agg(pl.col("split").n_unique()).rows())
    assert len(splits) == 20
    assert set(splits.values()) == {1}
    before = dict(place.index().select("id", "split").rows())
    place.fill("flat", 5, first=900)
    more = [f"flat/{n:04d}.png,cat,patient 3" for n in range(900, 905)]
    (place.root / "images" / "t.csv").write_text("\n".join(["path,label,group", *more, *lines[10:]]))
    place.ingest(source="image-manifest", manifest="t.csv")
    after = dict(place.index().select("id", "split").rows())
    assert {name: after[name] for name in after if name in before} == {
        name: before[name] for name in after if name in before
    }


def test_a_row_without_split_gets_that_of_its_group(place) -> None:
    """Drawn by the group alone, half of the patients would be in two splits."""
    place.fill("flat", 120)
    given = ("train", "test", "validation")
    lines = [f"flat/{n:04d}.png,{n % 2},p{n // 6},{given[n // 6 % 3] if n % 3 else ''}" for n in range(120)]
    (place.root / "images" / "t.csv").write_text("\n".join(["path,label,group,split", *lines]))
    place.ingest(source="image-manifest", manifest="t.csv")
    assert place.index().select((pl.col("id").str.slice(5, 4).cast(pl.Int64) // 6 % 3), "split").unique().height == 3


def test_a_group_in_two_given_splits_stops_with_the_fix(place) -> None:
    place.fill("flat", 120)
    lines = [f"flat/{n:04d}.png,{n % 2},p{n // 6},{'train' if n % 6 else 'test'}" for n in range(120)]
    (place.root / "images" / "t.csv").write_text("\n".join(["path,label,group,split", *lines]))
    with pytest.raises(DataError, match=r"group 'p0' .* is in the splits test and train\. .* in data.drop"):
        place.ingest(source="image-manifest", manifest="t.csv")
    assert place.ingest(source="image-manifest", manifest="t.csv", drop=("group",)).splits["test"].rows == 20


WRONG_ROWS = [  # row, rule, source, value
    (
        "flat/0000.png,dog", "duplicate-id", "flat/0000.png",
        "line {line} lists it again, kept is line 2; label dog, kept cat",
    ),
    ("flat/0080.png,NaN", "no-label", "flat/0080.png", ""),
    ("flat/0081.png,None", "no-label", "flat/0081.png", ""),
    ("nan,cat", "no-path", "row {row}", ""),
    ("flat/0082.png,cat,7", "ragged-row", "labels.csv", "line {line} has 3 cells, the header has 2"),
    ("flat/0082.png", "ragged-row", "labels.csv", "line {line} has 1 cell, the header has 2"),
    (",cat", "no-path", "row {row}", ""),
    ("../secret.png,cat", "outside-folder", "../secret.png", "../secret.png"),
    ("flat/../../secret.png,cat", "outside-folder", "flat/../../secret.png", "flat/../../secret.png"),
    ("/etc/passwd,cat", "outside-folder", "/etc/passwd", "/etc/passwd"),
    ("https://example.org/a.png,cat", "outside-folder", "https://example.org/a.png", "https://example.org/a.png"),
    ("flat/gone.png,cat", "missing-file", "flat/gone.png", "flat/gone.png"),
    ("flat/0083.png,", "no-label", "flat/0083.png", ""),
    ("flat/0085.png,Cat", "unknown-label", "flat/0085.png", "Cat"),
    ("flat/0086.png,сat", "unknown-label", "flat/0086.png", "сat"),  # noqa: RUF001 - a Cyrillic letter
    ("path,label", "repeated-header", "labels.csv", "the header again"),
]  # fmt: skip


def test_wrong_rows_are_quarantined_by_their_rules(place) -> None:
    place.fill("flat", 87)
    (place.root / "secret.png").write_bytes(b"x")
    lines = [f"flat/{number:04d}.png,{'cat' if number < 40 else 'dog'}" for number in range(80)]
    rows = [row for row, *_ in WRONG_ROWS]
    (place.root / "images" / "labels.csv").write_text("\n".join(["path,label", *lines, *rows]))
    manifest = place.ingest(source="image-manifest", manifest="labels.csv", max_bad_fraction=0.3)
    expected = [
        (source.format(row=row), row, rule, value.format(line=row + 1))
        for row, (_, rule, source, value) in enumerate(WRONG_ROWS, 81)
    ]
    assert sorted(pl.read_parquet(place.quarantine).select("source", "row", "rule", "value").rows()) == sorted(expected)
    assert manifest.quarantined == len(WRONG_ROWS)
    assert place.index().height == 80
    assert place.problem()["notes"] == [
        "label: 2 of 93 labels are 'NaN', 'None', which means no label: their rows are left out. If it is a class: "
        "ratchet set \"data.classes=['NaN', 'None', 'cat', 'dog']\""
    ]


def test_named_classes_fix_their_order_and_exclude_all_others(place) -> None:
    manifest = listed(place, ["flat/0000.png,emu"], classes=("dog", "cat"))
    assert manifest.target.names == ("dog", "cat")
    assert place.bad() == {"flat/0000.png": {"unknown-label"}}


def test_spaces_after_commas_are_of_no_cell(place) -> None:
    place.fill("flat", 80)
    parts = ("train", "train", "val", "Test")
    lines = [f"flat/{n:04d}.png, {'cat' if n % 2 else 'dog'}, {parts[n // 20]}" for n in range(80)]
    (place.root / "images" / "labels.csv").write_text("\n".join(["path, label, split", *lines]))
    manifest = place.ingest(source="image-manifest", manifest="labels.csv")
    assert manifest.target.names == ("cat", "dog")
    assert {split: rows.rows for split, rows in manifest.splits.items()} == {"train": 40, "validation": 20, "test": 20}


@pytest.mark.parametrize(("cut", "shown"), [
    (r"\.png$", "table['path'] = table['path'].astype(str) + '.png'"),
    (r"^flat/", "table['path'] = 'flat/' + table['path'].astype(str)"),
    (r"^flat/|\.png$", "table['path'] = 'flat/' + table['path'].astype(str) + '.png'"),
    ("upper", ""),
])  # fmt: skip
def test_paths_without_folder_or_ending_name_the_files(place, cut: str, shown: str) -> None:
    """Most of Kaggle's lists have ids, such as 000c14 for train_images/000c14.png."""
    place.fill("flat", 80)
    files = [f"flat/{n:04d}.png" for n in range(80)]
    written = [name.upper() if cut == "upper" else re.sub(cut, "", name) for name in files]
    table = pd.DataFrame({"path": written, "label": ["cat", "dog"] * 40})
    path = place.root / "images" / "labels.csv"
    table.to_csv(path, index=False)
    with pytest.raises(DataError, match=f"{written[0]!r} is not there, and 'flat/0000.png' is") as stop:
        place.ingest(source="image-manifest", manifest="labels.csv")
    table = pd.read_csv(path, dtype=str)
    if shown:
        assert str(stop.value).endswith(f"such as in pandas, after read_csv(..., dtype=str): {shown}")
        exec(shown, {"table": table})
    else:
        table["path"] = files
    table.to_csv(path, index=False)
    assert place.ingest(source="image-manifest", manifest="labels.csv").target.names == ("cat", "dog")


def test_the_start_of_a_path_ends_where_the_path_begins(place) -> None:
    """The last 2 of imgs/2.jp2 is in its ending."""
    place.fill("imgs", 4)
    for number in range(4):
        (place.root / "images" / "imgs" / f"{number:04d}.png").rename(place.root / "images" / "imgs" / f"{number}.jp2")
    (place.root / "images" / "labels.csv").write_text("path,label\n2,cat\n3,dog\n")
    with pytest.raises(DataError, match=r"= 'imgs/' \+ table\['path'\]\.astype\(str\) \+ '\.jp2'$"):
        place.ingest(source="image-manifest", manifest="labels.csv")


def test_lists_in_parquet_are_labels_of_images(place) -> None:
    place.fill("flat", 80)
    cells = [["red", "round"], ["red"], ["blue"], []]
    frame = pl.DataFrame({"path": [f"flat/{n:04d}.png" for n in range(80)], "label": [cells[n % 4] for n in range(80)]})
    frame.write_parquet(place.root / "images" / "t.parquet")
    manifest = place.ingest(source="image-manifest", manifest="t.parquet", problem="multi-label")
    assert manifest.target == Labels(("blue", "red", "round"))


def test_an_unknown_split_is_quarantined_and_numbers_are_typed(place) -> None:
    place.fill("flat", 80)
    lines = [f"flat/{n:04d}.png,{'cat' if n < 40 else 'dog'},,{n},2011-01-{n % 28 + 1:02d}" for n in range(80)]
    lines[3] = "flat/0003.png,cat,holdout,3,2011-01-04"
    (place.root / "images" / "labels.csv").write_text("\n".join(["path,label,split,count,day", *lines]))
    place.ingest(source="image-manifest", manifest="labels.csv")
    table = {
        row["source"]: (row["rule"], row["value"]) for row in pl.read_parquet(place.quarantine).iter_rows(named=True)
    }
    assert table == {
        "flat/0003.png": ("unknown-split", "holdout"),
    }
    assert place.index()["count"].dtype == pl.Int64


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("file,label\na.png,cat\n", r"no column 'path'; it has file, label\. Fix: set data.path_column"),
        ("path,lable\na.png,cat\n", r"no column 'label'; .* set data.label_column \(to lable\?\)"),
        ("path,label,label\na.png,cat,dog\n", "column 'label' is in the header twice"),
        ("path,label,label\na.png,cat\n", "column 'label' is in the header twice"),
        ("path,label\na.png,cat,7\n", "label column 'label' is empty"),
        (
            'path,label\na.png,cat\n"b.png,cat\nc.png,dog\n',
            "not a readable table: a quotation mark in the row of line 3 is not closed",
        ),
        ("path,label,width\na.png,cat,7\n", "column 'width' has a reserved name"),
        ("path,label\na.png,cat\n", "has only one class .* Fix: add rows of another class"),
        ("path,label\n", "label column 'label' is empty"),
        ("", "not a readable table"),
    ],
)
def test_an_unusable_table_is_refused_with_the_fix(place, content: str, message: str) -> None:
    (place.root / "images").mkdir()
    (place.root / "images" / "labels.csv").write_text(content)
    with pytest.raises(DataError, match=message):
        place.ingest(source="image-manifest", manifest="labels.csv")
    assert not place.packed.exists()


def test_a_missing_manifest_is_reported(place) -> None:
    (place.root / "images").mkdir()
    with pytest.raises(SettingsError, match=r"data\.manifest: found none"):
        place.ingest(source="image-manifest")
    with pytest.raises(DataError, match=r"labels\.csv: No such file"):
        place.ingest(source="image-manifest", manifest="labels.csv")


def test_dropped_and_hashed_columns_leave_no_trace_in_outputs(place, monkeypatch) -> None:
    monkeypatch.setenv("RATCHET_HASH_KEY", KEY)
    place.fill("flat", 80)
    lines = [
        f"flat/{n:04d}.png,{'cat' if n % 2 else 'dog'},Jane-Roe-{n // 8},{n}@example.org,c{n % 2}" for n in range(80)
    ]
    (place.root / "images" / "t.csv").write_text("\n".join(["path,label,group,mail,camera", *lines]))
    settings = {"source": "image-manifest", "manifest": "t.csv", "drop": ("mail",), "hash": ("group",)}
    settings |= {"validation_fraction": 0.3, "test_fraction": 0.3}
    place.cache = place.root / "data" / "cache.parquet"
    place.ingest(**settings)
    index = place.index()
    assert "mail" not in index.columns
    assert index["group"].n_unique() == 10
    assert index["group"].str.contains("^[0-9a-f]{32}$").all()
    assert index.group_by("group").agg(pl.col("split").n_unique())["split"].to_list() == [1] * 10
    for path in (place.root / "data").rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        if path.suffix == ".parquet":
            content += str(pl.read_parquet(path).rows()).encode()
        assert b"Jane" not in content, path
        assert b"example.org" not in content, path
    first = dict(index.select("id", "group").rows())
    monkeypatch.setenv("RATCHET_HASH_KEY", KEY[::-1])
    place.ingest(**settings)
    assert not set(first.values()) & set(place.index()["group"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hash": ("group",)}, "RATCHET_HASH_KEY, found none"),
        ({"drop": ("nothing",)}, r"data.drop: found nothing; allowed: .* path, label, group"),
        ({"drop": ("label",)}, "data.drop: found label, which has .* remove it from the list"),
    ],
)
def test_impossible_privacy_settings_are_refused(place, monkeypatch, changes, message: str) -> None:
    monkeypatch.delenv("RATCHET_HASH_KEY", raising=False)
    with pytest.raises(SettingsError, match=message):
        listed(place, header="path,label,group", **changes)


PERSONAL = ["mail jane@roe.example", "call +49 30 1234567", "4111 1111 1111 1111", "(030) 123 4567", "tel 030/1234567"]
ORDINARY = ["a cat on 2024-05-17", "size 640 x 480", "version 1.2.3", "42", "12:30:15", "1234567890123"]


def test_personal_data_is_quarantined_and_not_repeated(place) -> None:
    """Ordinary notes do not look personal."""
    place.fill("own", len(PERSONAL + ORDINARY), first=9000)
    rows = [f"own/{number}.png,cat,{text}" for number, text in enumerate(PERSONAL + ORDINARY, 9000)]
    listed(place, rows, header="path,label,note", refuse_personal=True, max_bad_fraction=0.1)
    table = pl.read_parquet(place.quarantine).sort("row")
    assert table.select("source", "rule", "value").rows() == [
        (f"own/{number}.png", "personal-data", "note looks like a personal address or number")
        for number in range(9000, 9000 + len(PERSONAL))
    ]
    assert not [text for text in PERSONAL if text.encode() in place.quarantine.read_bytes()]


def test_labels_that_differ_only_in_spelling_are_found() -> None:
    counts = {"cat": 100, "Cat": 2, "cat ": 1, "с\u0430t": 3, "dog": 100, "a": 50, "A": 40, "ﬁsh": 1, "fish": 60}  # noqa: RUF001
    assert look_alikes(counts) == {"Cat": "cat", "cat ": "cat", "с\u0430t": "cat", "ﬁsh": "fish"}  # noqa: RUF001
    assert skeleton("zero\u200bwidth") == "zerowidth"


def test_a_path_with_backslashes_and_dots_is_the_same_file(place) -> None:
    folder: Path = place.fill("flat", 80)
    lines = [f".\\flat\\{path.name},{'cat' if n % 2 else 'dog'}" for n, path in enumerate(sorted(folder.iterdir()))]
    (place.root / "images" / "t.csv").write_text("\n".join(["path,label", *lines]))
    place.ingest(source="image-manifest", manifest="t.csv")
    assert place.index()["id"].str.starts_with("flat/").all()


def write_table(place, table: pl.DataFrame, name: str) -> None:
    path = place.root / "images" / name
    csv = table.write_csv()
    contents = {
        "semicolon.csv": csv.replace(",", ";").encode(),
        "excel.csv": ("sep=;\n" + csv.replace(",", ";")).encode(),
        "tab.csv": csv.replace(",", "\t").encode(),
        "bar.txt": csv.replace(",", "|").encode(),
        "marked.csv": csv.encode("utf-8-sig"),
        "utf16.csv": csv.encode("utf-16"),
        "utf16-unmarked.csv": csv.encode("utf-16-le"),
        "utf32.csv": csv.encode("utf-32"),
        "windows.csv": csv.replace("\n", "\r\n").encode(),
        "old-mac.csv": csv.replace("\n", "\r").encode(),
        "list.json": table.write_json().encode(),
        "lines.jsonl": table.write_ndjson().encode(),
    }
    path.write_bytes(contents[name])


@pytest.mark.parametrize(
    "name",
    ["semicolon.csv", "excel.csv", "tab.csv", "bar.txt", "marked.csv", "utf16.csv", "utf16-unmarked.csv", "utf32.csv",
     "windows.csv", "old-mac.csv", "list.json", "lines.jsonl"],
)  # fmt: skip
def test_tables_in_every_common_form_are_read(place, name: str) -> None:
    place.fill("flat", 20)
    labels = ["cat" if number < 10 else "dög" for number in range(20)]
    table = pl.DataFrame({"path": [f"flat/{n:04d}.png" for n in range(20)], "label": labels})
    write_table(place, table, name)
    manifest = place.ingest(source="image-manifest", manifest=name)
    assert manifest.target.names == ("cat", "dög")
    assert place.index().height == 20


@pytest.mark.parametrize("name", ["list.json", "lines.jsonl"])
def test_a_key_that_only_late_objects_have_is_read(place, name: str) -> None:
    """A split, a text label and a line separator inside a text come only after the first hundred objects."""
    place.fill("flat", 140)
    objects = [{"path": f"flat/{n:04d}.png", "label": n % 2} for n in range(139)]
    objects.append({"path": "flat/0139.png", "label": "1", "split": "test", "note": "one\u2028two"})
    texts = [json.dumps(each, ensure_ascii=False) for each in objects]
    text = "\n".join(texts) if name == "lines.jsonl" else f"[{','.join(texts)}]"
    (place.root / "images" / name).write_text(text)
    manifest = place.ingest(source="image-manifest", manifest=name)
    assert manifest.target.names == ("0", "1")
    assert place.index().filter(pl.col("split") == "test")["id"].to_list() == ["flat/0139.png"]


@pytest.mark.parametrize("last", ["", "x"])
def test_a_cell_of_any_length_is_read(place, last: str) -> None:
    """Longer than the limit of Python's csv module, both for reading the table and for counting lines."""
    long = "wrod " * 40_000
    listed(place, [f"flat/0000.png,cat,{long},{last}"], header="path,label,note,more")
    duplicates = pl.read_parquet(place.quarantine).select("source", "rule", "value").rows()
    assert duplicates == [("flat/0000.png", "duplicate-id", "line 82 lists it again, kept is line 2")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\x03\x04\x14\0\x06\0\x08\0\0\0!\0[Content_Types].xml", "an Excel workbook, not a table"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(512), "an old Excel or Office document, not a table"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "a Git LFS pointer.*`git lfs pull`"),
        (b"outs:\n- md5: 0\n  size: 9\n  hash: md5\n  path: labels.csv\n", "a DVC pointer.*`dvc pull`"),
        (b"\x1f\x8b\x08\0", "a gzip archive, not a table"),
        (b'{"images": [\n1], "annotations": []}', "one JSON object, not a table"),
        (b"PAR1 and no more", "damaged Parquet"),
        (b"path,label\na.png,caf\xe9\n", "line 2 is not UTF-8 .byte 0xe9.*Fix: save it as UTF-8 CSV"),
        (bytes(100), "only zero bytes"),
    ],
)  # fmt: skip
def test_a_file_of_another_kind_is_named(place, content: bytes, message: str) -> None:
    (place.root / "images").mkdir()
    (place.root / "images" / "labels.csv").write_bytes(content)
    with pytest.raises(DataError, match=message):
        place.ingest(source="image-manifest", manifest="labels.csv")


@pytest.mark.parametrize(
    ("column", "message"),
    [("label", "'label' has List.*one text or number"), ("boxes", r"'boxes' has List.*data\.drop=")],
)
def test_columns_of_lists_are_refused_by_name(place, column: str, message: str) -> None:
    place.fill("flat", 4)
    table = {
        "path": [f"flat/{n:04d}.png" for n in range(4)],
        "label": ["cat", "dog"] * 2,
        column: [[{"name": "cat"}], [{"name": "dog"}]] * 2,
    }
    pl.DataFrame(table).write_parquet(place.root / "images" / "t.parquet")
    with pytest.raises(DataError, match=message):
        place.ingest(source="image-manifest", manifest="t.parquet")


def test_nan_is_neither_group_nor_class(place) -> None:
    place.fill("flat", 120)
    path, groups = [f"flat/{n:04d}.png" for n in range(120)], ["NaN", "None", "nan"] * 40
    labels = [float("nan") if n < 3 else n % 2 for n in range(120)]
    pl.DataFrame({"path": path, "label": labels, "group": groups}, strict=False).write_parquet(
        place.root / "images" / "t.parquet"
    )
    manifest = place.ingest(source="image-manifest", manifest="t.parquet")
    assert manifest.target.names == ("0", "1")
    assert place.bad() == {f"flat/{n:04d}.png": {"no-label"} for n in range(3)}
    assert "group" not in place.index().columns
    assert {split: files.rows > 0 for split, files in manifest.splits.items()} == dict.fromkeys(manifest.splits, True)


def test_a_class_called_none_can_be_named(place) -> None:
    place.fill("flat", 80)
    lines = [f"flat/{n:04d}.png,{'None' if n < 40 else 'scratch'}" for n in range(80)]
    (place.root / "images" / "t.csv").write_text("\n".join(["path,label", *lines]))
    manifest = place.ingest(source="image-manifest", manifest="t.csv", classes=("scratch", "None"))
    assert (manifest.target.names, place.bad()) == (("scratch", "None"), {})


@pytest.fixture
def ingest_with_cache(place, monkeypatch):
    """Function that ingests 80 images with a cache; its arguments are more rows of the table."""
    monkeypatch.setattr("ratchet.data.reading.storage._FRESH", 0)
    place.cache = place.root / "cache.parquet"
    place.fill("flat", 80)
    lines = [f"flat/{n:04d}.png,{'cat' if n < 40 else 'dog'}" for n in range(80)]

    def again(*rows: str) -> dict[str, str]:
        (place.root / "images" / "labels.csv").write_text("\n".join(["path,label", *lines, *rows]))
        place.ingest(source="image-manifest", manifest="labels.csv")
        return place.bytes()

    return again


def test_a_path_listed_twice_breaks_no_later_run(place, ingest_with_cache) -> None:
    """The cache is joined by id, so a sample that is in it twice would make every later ingest fail."""
    twice = ("flat/0000.png,cat", ".\\flat\\0001.png,cat")
    expected = ingest_with_cache(*twice)
    duplicates = pl.read_parquet(place.quarantine).select("source", "rule", "value").rows()
    assert duplicates == [
        ("flat/0000.png", "duplicate-id", "line 82 lists it again, kept is line 2"),
        ("flat/0001.png", "duplicate-id", "line 83 lists it again, kept is line 3"),
    ]
    ingest_with_cache(twice[0])
    ingest_with_cache()
    assert place.bad() == {}
    assert ingest_with_cache(*twice) == expected


def test_a_cache_with_a_sample_twice_is_harmless(place, ingest_with_cache) -> None:
    expected = ingest_with_cache()
    damaged, header = pl.read_parquet(place.cache), pl.read_parquet_metadata(place.cache)["ratchet"]
    pl.concat([damaged, damaged.head(5)]).write_parquet(place.cache, metadata={"ratchet": header})
    (place.packed / "profile.json").write_text("{}")  # so that the packed set is written again
    assert ingest_with_cache() == expected


@pytest.mark.parametrize(("stored", "written"), [("NFD", "NFC"), ("NFC", "NFD")])
def test_paths_and_labels_in_another_unicode_form_are_found(place, stored: str, written: str) -> None:
    folder = place.fill(unicodedata.normalize(stored, "größe-é"), 80)
    lines = [
        unicodedata.normalize(written, f"größe-é/{path.name},{'café' if n < 40 else 'thé'}")
        for n, path in enumerate(sorted(folder.iterdir()))
    ]
    lines[5:20] = [unicodedata.normalize(stored, line) for line in lines[5:20]]
    (place.root / "images" / unicodedata.normalize(stored, "é.csv")).write_text("\n".join(["path,label", *lines]))
    manifest = place.ingest(source="image-manifest", manifest=unicodedata.normalize(written, "é.csv"))
    assert place.bad() == {}
    assert manifest.target.names == tuple(unicodedata.normalize("NFC", name) for name in ("café", "thé"))
    assert place.index()["id"].str.starts_with(folder.name).all()
    place.ingest(
        source="image-manifest", manifest=unicodedata.normalize(written, "é.csv"), classes=("the\u0301", "cafe\u0301")
    )
    assert place.bad() == {}


def test_a_group_in_two_forms_shares_one_split(place) -> None:
    forms = [unicodedata.normalize("NFC", "José {}"), unicodedata.normalize("NFD", "José {}"), " José {} "]
    groups = [forms[n % 3].format(n // 3 % 12) for n in range(80)]
    lines = [f"flat/{n:04d}.png,{'cat' if n < 40 else 'dog'},{group}" for n, group in enumerate(groups)]
    place.fill("flat", 80)
    (place.root / "images" / "t.csv").write_text("\n".join(["path,label,group", *lines]))
    place.ingest(source="image-manifest", manifest="t.csv")
    splits = place.index().group_by("group").agg(pl.col("split").n_unique())
    assert sorted(splits["group"]) == sorted(f"José {n}" for n in range(12))
    assert set(splits["split"]) == {1}


def ingest_labels(
    place, labels: list[str], *, name: str = "label", further: dict[str, list[str]] | None = None, **changes
):
    """Ingest one image for each label, with further columns."""
    if not (place.root / "images").exists():
        place.fill("flat", len(labels))
    paths = [f"flat/{row:04d}.png" for row in range(len(labels))]
    table = pl.DataFrame({"path": paths, name: labels, **(further or {})})
    table.write_csv(place.root / "images" / "t.csv")
    return place.ingest(source="image-manifest", manifest="t.csv", label_column=name, **changes)


@pytest.mark.parametrize(("form", "written"), [("${0}", "$1234.5"), ("{0}.50 kg", "1234.5 kg"), ("{0},5", "1234,5")])
def test_amounts_are_numbers_as_in_tables(place, form: str, written: str) -> None:
    manifest = ingest_labels(place, [form.format(row + 5) for row in range(60)], name="price")
    assert isinstance(manifest.target, Numbers)
    assert place.problem()["why"] == "60 different numbers in 'price'"
    assert place.problem()["notes"] == [f"price: labels written as {written} are numbers"]
    added = {"$": 5.0, "{": 5.5}[form[0]]
    index = place.index()
    values = np.concatenate([np.load(place.packed / split.targets.file) for split in manifest.splits.values()])
    assert values[:, 0].tolist() == [int(name[5:9]) + added for name in index["id"]]


def test_several_labels_in_a_cell_stop_as_in_tables(place) -> None:
    tags = [("sunny", "beach", "sunny;beach", "city;night", "sunny;city")[row % 5] for row in range(100)]
    with pytest.raises(DataError, match=r"'tags' has several labels in a cell, separated by ';'") as stop:
        ingest_labels(place, tags, name="tags")
    several, single = fixes_of(str(stop.value))
    assert ingest_labels(place, tags, name="tags", **several).target == Labels(("beach", "city", "night", "sunny"))
    assert len(ingest_labels(place, tags, name="tags", **single).target.names) == 5


def test_ages_stop_and_class_numbers_are_classes(place) -> None:
    classes = [str(row % 30) for row in range(90)]
    assert ingest_labels(place, classes, min_per_class=1).target.names == tuple(map(str, range(30)))
    assert place.problem()["why"] == "30 different whole numbers in 'label'"
    ages = [str(row % 50 + row % 3) for row in range(89)] + ["97"]
    with pytest.raises(DataError, match="'label' has 52 different whole numbers, some of them in fewer than 2") as stop:
        ingest_labels(place, ages, min_per_class=2)
    (regression,) = fixes_of(str(stop.value))  # too many for classes
    assert isinstance(ingest_labels(place, ages, **regression).target, Numbers)
    rare = [*classes, "97"]
    with pytest.raises(DataError, match=r"each class that has only one, such as '97'$") as stop:
        ingest_labels(place, rare)
    regression, classification = fixes_of(str(stop.value))
    assert isinstance(ingest_labels(place, rare, **regression).target, Numbers)
    place.fill("flat", 2, first=90)
    assert ingest_labels(place, [*rare, "97"], **classification).target.names == (*map(str, range(30)), "97")


def test_few_images_of_many_named_persons_are_classes(place) -> None:
    labels = [f"person {row // 2}" if row < 20 else f"person {row - 10}" for row in range(50)]
    with pytest.raises(DataError, match=r"40 different values in 50 rows.*or list them in data\.classes"):
        ingest_labels(place, labels, problem="classification", min_per_class=1)
    splits = {"split": ["train" if row % 2 or row >= 20 else "val" for row in range(47)] + ["test"] * 3}
    labels = [*labels[:47], *labels[:3]]
    names = tuple(f" {name}" for name in dict.fromkeys(labels))  # spaces around names do not count
    target = ingest_labels(place, labels, classes=names, min_per_class=1, further=splits).target
    assert target.names == tuple(name.strip() for name in names)


@pytest.mark.parametrize("names", ["1.5 0.5 1.0", "3D 2D 2"])
def test_named_classes_are_kept_as_they_are_written(place, names: str) -> None:
    classes = tuple(names.split())
    labels = [classes[row % 3] for row in range(90)]
    assert ingest_labels(place, labels, classes=classes).target.names == classes
    assert place.problem()["why"] == "data.classes"
    assert place.problem()["notes"] == []


def test_texts_among_amounts_name_a_working_fix(place) -> None:
    labels = ["ND" if row % 7 == 3 else f"{row / 7:.2f}" for row in range(70)]
    with pytest.raises(
        DataError, match=r"label column label: 86% of the values are numbers, and 10 are not: 'ND'"
    ) as stop:
        ingest_labels(place, labels)
    (regression,) = fixes_of(str(stop.value))  # 61 texts in 70 rows are no classes
    with pytest.raises(DataError, match=r"(?s)label-not-a-number 10.*10 are not: 'ND'"):
        ingest_labels(place, labels, problem="regression")
    assert isinstance(ingest_labels(place, labels, **regression).target, Numbers)
    assert set(map(frozenset, place.bad().values())) == {frozenset({"label-not-a-number"})}


def test_classes_of_another_table_name_the_setting(place) -> None:
    labels = ["cat" if row % 2 else "dog" for row in range(60)]
    with pytest.raises(SettingsError, match=r"data\.classes: found \[mole, wart\].*none of these labels, but cat, dog"):
        ingest_labels(place, labels, classes=("mole", "wart"))
    assert ingest_labels(place, labels, classes="auto").target.names == ("cat", "dog")


def test_persons_and_rows_inside_a_cell_are_named(place) -> None:
    labels = ["cat" if row % 2 else "dog" for row in range(120)]
    persons = {"patient_id": [f"p{row // 4}" for row in range(120)]}
    ingest_labels(place, labels, further=persons)
    assert place.problem() == {
        "chosen": "classification",
        "why": "texts in 'label'",
        "notes": [
            "column 'patient_id' has 30 values in 120 rows, so rows of one value may be in several splits. If they "
            "belong together: ratchet set data.group_column=patient_id"
        ],
    }
    ingest_labels(place, labels, further=persons, group_column="patient_id")
    assert place.problem()["notes"] == []
    assert place.index().group_by("group").agg(pl.col("split").n_unique())["split"].unique().to_list() == [1]
    content = (
        (place.root / "images" / "t.csv").read_text().replace("p10\n", '"begins\n', 1).replace("p20\n", 'ends"\n', 1)
    )
    (place.root / "images" / "t.csv").write_text(content)
    place.ingest(source="image-manifest", manifest="t.csv")
    assert place.problem()["notes"][0].startswith("the row of line 42 holds 41 whole lines of the table")


def test_a_trial_run_has_samples_of_each_class(place, monkeypatch) -> None:
    monkeypatch.setattr("ratchet.data.reading.subset.PER_CLASS", 10)
    labels = ["rare" if row < 8 else "common" for row in range(120)]
    table = pl.DataFrame({"path": [f"flat/{row:04d}.png" for row in range(120)], "label": labels})
    place.fill("flat", 120)
    table.write_csv(place.root / "images" / "t.csv")
    settings = {"source": "image-manifest", "manifest": "t.csv", "min_per_class": 1}
    place.ingest(sample=True, **settings)
    assert place.index()["class"].value_counts().sort("class").rows() == [("common", 10), ("rare", 8)]
