"""Input files of batch scoring are read by the rules of ingest and of the server."""

import errno
import os
import unicodedata
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from PIL import Image

from ratchet.data.reading.input_files import Storages
from ratchet.errors import DataError, StorageUnavailable
from ratchet.kinds import Column, ImageInput, TableInput, TextInput
from ratchet.serving.batch.row_reader import RowRange, RowReader
from tests.data.conftest import no_free_descriptor

TEXTS = TextInput("hashed", buckets=512, longest=64)
ACCENTS = TableInput(
    (Column("Größe", "numeric", 1.0, 1.0, (1.0, 2.0)), Column("sex", "categorical", categories=("female", "male")))
)


def read_all(path: Path) -> tuple[list[object], list[str]]:
    """Return the sizes of all rows of a file, and the reasons of those that are refused."""
    reader = RowReader(Storages("FILE"), ACCENTS, column=None)
    values, faults = list[Any](), list[str]()
    for batch in reader.batches(list(map(RowRange, reader.files([str(path)])))):
        values += batch.values.to_dicts() if isinstance(batch.values, pl.DataFrame) else batch.values
        faults += batch.faults
    return [value and value["Größe"] for value in values], faults


def test_a_file_that_cannot_be_read_now_is_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its row would be refused in the answers for good. It is named, and no other file of its batch is left out."""
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(f"text {name}")
    reader, errors, opened = RowReader(Storages("FILE"), TEXTS, column=None), list[DataError](), Path.open
    ranges = list(map(RowRange, reader.files([str(tmp_path)])))

    def fails(path: Path, *mode: Any, **options: Any) -> Any:
        if path.name == "b.txt":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return opened(path, *mode, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", fails)
        (batch,) = reader.batches(ranges, on_fault=errors.append)
        assert (batch.values, batch.faults) == (["text a", "text c"], ["", ""])
        (error,) = errors
        assert str(error).startswith(f"{tmp_path / 'b.txt'}: cannot be read now (Input/output error); it may be good")
        with pytest.raises(StorageUnavailable, match=r"b\.txt: cannot be read now"):  # score-flow tries it again
            list(reader.batches(ranges))
    (batch,) = reader.batches(ranges)
    assert batch.faults == ["", "", ""]


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl", "json"])
def test_columns_match_in_any_unicode_form(tmp_path: Path, form: Any, ending: str) -> None:
    frame = pl.DataFrame({"more": [7, 8], unicodedata.normalize(form, "Größe"): [3, 4], "sex": ["male", "female"]})
    path = tmp_path / f"rows.{ending}"
    {"csv": frame.write_csv, "parquet": frame.write_parquet, "jsonl": frame.write_ndjson, "json": frame.write_json}[
        ending
    ](path)
    assert read_all(path) == ([*("34" if ending == "csv" else (3, 4))], ["", ""])


def test_nan_in_json_is_a_missing_value(tmp_path: Path) -> None:
    row = '{"Größe": %s, "sex": "male"}'
    rows = [row % value for value in ("NaN", "2", "NaN")]
    (tmp_path / "a.jsonl").write_text("\n".join([*rows, row % "Infinity"]))
    values, faults = read_all(tmp_path / "a.jsonl")
    assert values == [None, 2, None, None]
    assert faults == ["", "", "", "line 4 is no JSON object with finite numbers"]
    (tmp_path / "a.json").write_text(f"[{', '.join(rows)}]")
    assert read_all(tmp_path / "a.json") == ([None, 2, None], ["", "", ""])


def test_deeply_nested_json_is_refused(tmp_path: Path) -> None:
    deep = "[" * 100_000
    (tmp_path / "a.json").write_text(deep)
    with pytest.raises(DataError, match=r"a\.json is not JSON: .*\. Fix: save it again"):
        read_all(tmp_path / "a.json")
    row = '{"Größe": 1, "sex": "male"}\n'
    (tmp_path / "a.jsonl").write_text(f'{row}{{"sex": NaN, "Größe": {deep}}}\n{row}')
    assert read_all(tmp_path / "a.jsonl")[1] == ["", "line 2 is no JSON object with finite numbers", ""]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_marked_texts_are_read_as_by_ingest(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.txt").write_bytes("good film".encode(encoding))
    (tmp_path / "b.txt").write_bytes(b"\x89PNG\r\n\x1a\n")
    reader = RowReader(Storages("FILE"), TEXTS, column=None)
    (batch,) = reader.batches(list(map(RowRange, reader.files([str(tmp_path)]))))
    assert batch.values == ["good film", None]
    assert batch.faults == ["", "is no text (a PNG image). Fix: save it as text in UTF-8"]


def png(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (4, 4)).save(path, "PNG")


def test_a_folder_is_listed_as_by_ingest(tmp_path: Path) -> None:
    for name in ("a/1.png", "a/2.jfif", "a/3.JPE", "a/4", "a/5.avif", "a/notes.md", "a/.hidden.png"):
        png(tmp_path / "top" / name)
    png(tmp_path / "other" / "6.png")
    (tmp_path / "top" / "b").symlink_to(tmp_path / "other")
    (tmp_path / "top" / "gone.png").symlink_to(tmp_path / "nowhere")
    (tmp_path / "top" / "lost").symlink_to(tmp_path / "nowhere")
    reader = RowReader(Storages("FILE"), ImageInput(4, 4, 1, (0.0,), (1.0,)), column=None)
    listing = reader.files([str(tmp_path / "top")])
    (batch,) = reader.batches(list(map(RowRange, listing)))
    reasons = {
        Path(file).relative_to(tmp_path / "top").as_posix(): why
        for file, why in zip(batch.files, batch.faults, strict=True)
    }
    refused = "cannot be read (cannot be reached: No such file or directory)"
    assert reasons == {
        **dict.fromkeys(("a/1.png", "a/2.jfif", "a/3.JPE", "a/4", "b/6.png"), ""),
        "gone.png": refused,
        "lost": refused,
    }
    assert reader.left_out == [
        "ignored 1 file that systems write or hide, such as a/.hidden.png",
        f"ignored 2 files with other endings, such as {tmp_path}/top/a/5.avif",
    ]


def test_a_folder_that_cannot_be_listed_now_is_not_refused(tmp_path: Path) -> None:
    png(tmp_path / "a" / "1.png")
    reader = RowReader(Storages("FILE"), ImageInput(4, 4, 1, (0.0,), (1.0,)), column=None)
    before = reader.files([str(tmp_path)])
    with no_free_descriptor(), pytest.raises(StorageUnavailable, match=r"now \(Too many open files\).*`ulimit -n`"):
        reader.files([str(tmp_path)])
    assert reader.files([str(tmp_path)]) == before


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="file permissions as POSIX has them")
def test_a_folder_that_cannot_be_listed_stops(open_folder: Path) -> None:
    png(open_folder / "a" / "1.png")
    (open_folder / "b").mkdir(mode=0)
    reader, me = RowReader(Storages("FILE"), ImageInput(4, 4, 1, (0.0,), (1.0,)), column=None), os.geteuid()
    os.seteuid(me or 65534)  # the superuser may read everything
    try:
        with pytest.raises(DataError, match=r"/b: cannot be listed \(Permission denied\)\. Fix: give this user read"):
            reader.files([str(open_folder)])
    finally:
        os.seteuid(me)
    (open_folder / "b").chmod(0o755)
    assert [Path(file.path).name for file in reader.files([str(open_folder)])] == ["1.png"]


def test_a_broken_link_among_tables_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").symlink_to(tmp_path / "nowhere")
    (tmp_path / "b.csv").write_text("Größe,sex\n3,male\n")
    reader, errors = RowReader(Storages("FILE"), ACCENTS, column=None), list[DataError]()
    (batch,) = reader.batches(list(map(RowRange, reader.files([str(tmp_path)]))), on_fault=errors.append)
    assert batch.files == [str(tmp_path / "b.csv")]
    assert list(map(str, errors)) == [
        f"{tmp_path / 'a.csv'}: cannot be reached: No such file or directory. Fix: make it readable for this user, or "
        "remove it"
    ]
