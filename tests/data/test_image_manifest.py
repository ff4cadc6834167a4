"""A table that lists pictures: what its rows mean, and what is wrong with them."""

from pathlib import Path

import polars as pl
import pytest

from ratchet.data.trouble.spelling import look_alikes, skeleton
from ratchet.errors import DataError, SettingsError

KEY = "0123456789abcdef"


def listed(place, rows: list[str] | None = None, *, name: str = "labels.csv", header: str = "path,label", **changes):
    """40 pictures of each of two classes in one flat folder, and a table of them with some more rows."""
    flat = place.fill("flat", 80)
    lines = [
        f"flat/{path.name},{'cat' if number < 40 else 'dog'}" for number, path in enumerate(sorted(flat.iterdir()))
    ]
    columns = header.count(",") - 1
    lines = [line + "," * columns for line in lines]
    (place.root / "pictures" / name).write_text("\n".join([header, *lines, *(rows or [])]) + "\n")
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
    table.write_parquet(place.root / "pictures" / "table.parquet")
    manifest = place.ingest(
        source="image-manifest", manifest="table.parquet", path_column="file", label_column="kind", split_column="part"
    )
    assert manifest.classes == ("ant", "bee", "cow")
    assert {split: rows.rows for split, rows in manifest.splits.items()} == {"train": 36, "validation": 12, "test": 12}
    index = place.index().sort("id")
    assert index["id"].to_list() == names
    assert index["class"].to_list() == table["kind"].to_list()
    assert index["camera"].to_list() == table["camera"].to_list()
    assert index["weight"].to_list() == table["weight"].to_list()


def test_a_group_is_in_one_split_and_stays_there(place) -> None:
    place.fill("flat", 120)
    lines = [f"flat/{n:04d}.png,{'cat' if n % 2 else 'dog'},patient {n // 6}" for n in range(120)]
    (place.root / "pictures" / "t.csv").write_text("\n".join(["path,label,group", *lines]))
    place.ingest(source="image-manifest", manifest="t.csv")
    splits = dict(place.index().group_by("group").agg(pl.col("split").n_unique()).rows())
    assert len(splits) == 20
    assert set(splits.values()) == {1}
    before = dict(place.index().select("id", "split").rows())
    place.fill("flat", 5, first=900)
    more = [f"flat/{n:04d}.png,cat,patient 3" for n in range(900, 905)]
    (place.root / "pictures" / "t.csv").write_text("\n".join(["path,label,group", *more, *lines[10:]]))
    place.ingest(source="image-manifest", manifest="t.csv")
    after = dict(place.index().select("id", "split").rows())
    assert {name: after[name] for name in after if name in before} == {
        name: before[name] for name in after if name in before
    }


@pytest.mark.parametrize(
    ("row", "rule", "source", "value"),
    [
        ("flat/0000.png,dog", "duplicate-id", "flat/0000.png", "again in train, kept in train"),
        (",cat", "no-path", "row 81", ""),
        ("../secret.png,cat", "outside-folder", "../secret.png", "../secret.png"),
        ("flat/../../secret.png,cat", "outside-folder", "flat/../../secret.png", "flat/../../secret.png"),
        ("/etc/passwd,cat", "outside-folder", "/etc/passwd", "/etc/passwd"),
        ("https://example.org/a.png,cat", "outside-folder", "https://example.org/a.png", "https://example.org/a.png"),
        ("flat/gone.png,cat", "missing-file", "flat/gone.png", "flat/gone.png"),
        ("flat/more.png,", "unknown-label", "flat/more.png", "none"),
        ("flat/more.png, cat", "unknown-label", "flat/more.png", " cat"),
        ("flat/more.png,Cat", "unknown-label", "flat/more.png", "Cat"),
        ("flat/more.png,сat", "unknown-label", "flat/more.png", "сat"),  # noqa: RUF001 - a Cyrillic letter
        ("path,label", "repeated-header", "labels.csv", "the header again"),
    ],
)
def test_a_wrong_row_is_quarantined_by_its_rule(place, row: str, rule: str, source: str, value: str) -> None:
    place.fill("flat", 80)
    place.picture(9000).save(place.root / "pictures" / "flat" / "more.png")
    (place.root / "secret.png").write_bytes(b"x")
    lines = [f"flat/{number:04d}.png,{'cat' if number < 40 else 'dog'}" for number in range(80)]
    (place.root / "pictures" / "labels.csv").write_text("\n".join(["path,label", *lines, row]))
    manifest = place.ingest(source="image-manifest", manifest="labels.csv")
    table = pl.read_parquet(place.quarantine)
    assert table.select("source", "row", "rule", "value").rows() == [(source, 81, rule, value)]
    assert manifest.quarantined == 1
    assert place.index().height == 80


def test_named_classes_fix_their_order_and_nothing_else_is_let_in(place) -> None:
    manifest = listed(place, ["flat/0000.png,emu"], classes=("dog", "cat"))
    assert manifest.classes == ("dog", "cat")
    assert place.bad() == {"flat/0000.png": {"unknown-label"}}


def test_an_unknown_split_and_a_value_of_another_kind_are_named(place) -> None:
    place.fill("flat", 80)
    lines = [f"flat/{n:04d}.png,{'cat' if n < 40 else 'dog'},,{n},2011-01-{n % 28 + 1:02d}" for n in range(80)]
    lines[3] = "flat/0003.png,cat,holdout,3,2011-01-04"
    lines[5] = "flat/0005.png,cat,,many,2011-01-06"
    lines[7] = "flat/0007.png,cat,,7,1/8/2011"
    (place.root / "pictures" / "labels.csv").write_text("\n".join(["path,label,split,count,day", *lines]))
    place.ingest(source="image-manifest", manifest="labels.csv")
    table = {
        row["source"]: (row["rule"], row["value"]) for row in pl.read_parquet(place.quarantine).iter_rows(named=True)
    }
    assert table == {
        "flat/0003.png": ("unknown-split", "holdout"),
        "flat/0005.png": ("other-type", "count many, where nearly all are whole numbers"),
        "flat/0007.png": ("other-type", "day 1/8/2011, where nearly all are dates as YYYY-MM-DD"),
    }
    assert place.index()["count"].dtype == pl.Int64


def test_dates_in_two_formats_as_a_real_table_has_them_are_told_apart(place, shared) -> None:
    """Of one set the hours were saved anew by a spreadsheet, as 1/1/11, and the days were not, as 2011-01-01."""
    folder = shared("tabular/bike-sharing") / "tabular" / "bike-sharing"
    place.fill("flat", 156)
    rows = [pl.read_csv(folder / name, infer_schema=False) for name in ("hour.csv", "day.csv")]
    joined = pl.concat([rows[0].head(150), rows[1].head(6)], how="diagonal")
    told = {"path": [f"flat/{n:04d}.png" for n in range(156)], "label": ["cat", "dog"] * 78}
    pl.DataFrame(told).hstack(joined).write_csv(place.root / "pictures" / "labels.csv")
    place.ingest(source="image-manifest", manifest="labels.csv", max_bad_fraction=0.1)
    assert place.bad() == {f"flat/{n:04d}.png": {"other-type"} for n in range(150, 156)}
    values = pl.read_parquet(place.quarantine)["value"]
    assert values[0] == "dteday 2011-01-01, where nearly all are dates with slashes"
    assert (place.index()["temp"].dtype, place.index()["cnt"].dtype) == (pl.Float64, pl.Int64)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("file,label\na.png,cat\n", r"no column 'path'; it has file, label: set data.path_column"),
        ("path,lable\na.png,cat\n", r"no column 'label'; .* set data.label_column \(to lable\?\)"),
        ("path,label,label\na.png,cat,dog\n", "column 'label' stands there twice"),
        ("path,label\na.png,cat,7\n", "no readable table"),
        ("path,label,width\na.png,cat,7\n", "column 'width' has a name that the index uses itself"),
        ("path,label\na.png,cat\n", "holds one class only"),
        ("path,label\n", "holds no labels"),
        ("", "no readable table"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused_with_the_way_out(place, content: str, told: str) -> None:
    (place.root / "pictures").mkdir()
    (place.root / "pictures" / "labels.csv").write_text(content)
    with pytest.raises(DataError, match=told):
        place.ingest(source="image-manifest", manifest="labels.csv")
    assert not place.packed.exists()


def test_a_manifest_that_is_not_named_or_not_there_is_told(place) -> None:
    (place.root / "pictures").mkdir()
    with pytest.raises(SettingsError, match=r"data\.manifest: found none"):
        place.ingest(source="image-manifest")
    with pytest.raises(DataError, match=r"labels\.csv: No such file"):
        place.ingest(source="image-manifest", manifest="labels.csv")


def test_dropped_and_hashed_columns_leave_no_trace_in_any_output_byte(place, monkeypatch) -> None:
    monkeypatch.setenv("RATCHET_HASH_KEY", KEY)
    place.fill("flat", 80)
    lines = [
        f"flat/{n:04d}.png,{'cat' if n % 2 else 'dog'},Jane-Roe-{n // 8},{n}@example.org,c{n % 2}" for n in range(80)
    ]
    (place.root / "pictures" / "t.csv").write_text("\n".join(["path,label,group,mail,camera", *lines]))
    settings = {"source": "image-manifest", "manifest": "t.csv", "drop": ("mail",), "hash": ("group",)}
    settings |= {"validation_fraction": 0.3, "test_fraction": 0.3}
    place.memo = place.root / "data" / "memo.parquet"
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
    ("changes", "told"),
    [
        ({"hash": ("group",)}, "RATCHET_HASH_KEY, found none"),
        ({"drop": ("nothing",)}, r"data.drop: found nothing; allowed: .* path, label, group"),
        ({"drop": ("label",)}, "data.drop: found label, which says .* take it off the list"),
    ],
)
def test_privacy_settings_that_cannot_be_kept_are_refused(place, monkeypatch, changes, told: str) -> None:
    monkeypatch.delenv("RATCHET_HASH_KEY", raising=False)
    with pytest.raises(SettingsError, match=told):
        listed(place, header="path,label,group", **changes)


@pytest.mark.parametrize(
    "text", ["mail jane@roe.example", "call +49 30 1234567", "4111 1111 1111 1111", "(030) 123 4567", "tel 030/1234567"]
)
def test_what_looks_personal_is_refused_and_not_shown(place, text: str) -> None:
    place.picture(9000).save(place.fill("own", 0) / "more.png")
    listed(place, [f"own/more.png,cat,{text}"], header="path,label,note", refuse_personal=True)
    table = pl.read_parquet(place.quarantine)
    assert table.select("source", "rule", "value").rows() == [
        ("own/more.png", "personal-data", "note looks like a person's address or number")
    ]
    assert text.encode() not in place.quarantine.read_bytes()


@pytest.mark.parametrize(
    "text", ["a cat on 2024-05-17", "size 640 x 480", "version 1.2.3", "42", "12:30:15", "1234567890123"]
)
def test_ordinary_notes_do_not_look_personal(place, text: str) -> None:
    place.picture(9000).save(place.fill("own", 0) / "more.png")
    listed(place, [f"own/more.png,cat,{text}"], header="path,label,note", refuse_personal=True)
    assert place.bad() == {}


def test_labels_that_only_differ_to_a_machine_are_found() -> None:
    counts = {"cat": 100, "Cat": 2, "cat ": 1, "с\u0430t": 3, "dog": 100, "a": 50, "A": 40, "ﬁsh": 1, "fish": 60}  # noqa: RUF001
    assert look_alikes(counts) == {"Cat": "cat", "cat ": "cat", "с\u0430t": "cat", "ﬁsh": "fish"}  # noqa: RUF001
    assert skeleton("zero\u200bwidth") == "zerowidth"


def test_a_path_with_backslashes_and_dots_is_the_same_file(place) -> None:
    folder: Path = place.fill("flat", 80)
    lines = [f".\\flat\\{path.name},{'cat' if n % 2 else 'dog'}" for n, path in enumerate(sorted(folder.iterdir()))]
    (place.root / "pictures" / "t.csv").write_text("\n".join(["path,label", *lines]))
    place.ingest(source="image-manifest", manifest="t.csv")
    assert place.index()["id"].str.starts_with("flat/").all()
