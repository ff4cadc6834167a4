"""Rows of a file read in ranges, each from its own place, are those of the whole file."""

import io
import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ratchet.data.reading.input_files import InputFile, Storages
from ratchet.data.sources import table_file
from ratchet.data.sources.table_file import RowStart
from ratchet.kinds import TextInput
from ratchet.serving.batch import job
from ratchet.serving.batch.job import plan
from ratchet.serving.batch.row_reader import RowRange, RowReader

ROWS = 83
RANDOM = random.Random(5)
TEXTS = [
    RANDOM.choice(("plain", "a, b", 'say "no"', "two\nlines", "größer", "", " ")) + f" {row}" * (row % 5 > 0)
    for row in range(ROWS)
]
CSV = pl.DataFrame({"text": TEXTS, "other": range(ROWS)}).write_csv()
FRAME = pl.DataFrame({"text": TEXTS, "other": range(ROWS)})


def parquet() -> bytes:
    content = io.BytesIO()
    FRAME.write_parquet(content, row_group_size=10)
    return content.getvalue()


CONTENTS = {
    "plain.csv": CSV.encode(),
    "mark.csv": b"\xef\xbb\xbf" + CSV.encode(),
    "crlf.csv": CSV.replace("\n", "\r\n").encode(),
    "utf-16.csv": CSV.encode("utf-16"),
    "ragged.csv": (CSV + "1,2,3\n\nx\n" + "last,1").encode(),
    "unquoted.csv": ("text,other\n" + "".join(f'5" {row},{row}\n' for row in range(40)) + "a,1\n" * 40).encode(),
    "lines.jsonl": FRAME.write_ndjson().encode().replace(b"\n", b"\n\n", 9) + b'{"other": 1}\n{\n',
    "list.json": FRAME.write_json().encode(),
    "groups.parquet": parquet(),
}


def rows_of(reader: RowReader, ranges: list[RowRange]) -> list[tuple[int, Any, str]]:
    return [
        (row, None if fault else value, fault)
        for batch in reader.batches(ranges)
        for row, value, fault in zip(batch.rows, batch.values, batch.faults, strict=True)
    ]


@pytest.mark.parametrize("name", CONTENTS)
def test_ranges_have_the_rows_of_the_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_file, "_STREAMED", 65)  # bytes of a block, so that most ranges start inside the file
    (tmp_path / name).write_bytes(CONTENTS[name])
    reader = RowReader(Storages("FILE"), TextInput("hashed", buckets=512, longest=64), column="text")
    (file,) = reader.files([str(tmp_path / name)])
    whole = rows_of(reader, [RowRange(file)])
    assert [row for row, _, _ in whole] == list(range(1, len(whole) + 1))
    assert len(whole) >= 80
    for size in (1, 7, 40, 1000):
        shards = [
            [RowRange(InputFile(*each[:3]), each[3], each[4], RowStart(*each[5:])) for each in shard]
            for shard in plan(reader, [file, file], size)
        ]
        assert [sum(each.rows or 0 for each in shard) for shard in shards[:-1]] == [size] * (len(shards) - 1)
        assert [row for shard in shards for row in rows_of(reader, shard)] == whole + whole
        if name not in ("utf-16.csv", "list.json", "unquoted.csv") and size == 7:  # these are read from the start
            assert any(shard[0].start.position for shard in shards)


@pytest.mark.parametrize("name", ["utf-16.csv", "unquoted.csv", "plain.csv", "groups.parquet"])
def test_a_long_part_without_a_start_is_one_shard(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_file, "_STREAMED", 65)
    monkeypatch.setattr(job, "_LONGEST_PART", 300)
    (tmp_path / name).write_bytes(CONTENTS[name])
    reader = RowReader(Storages("FILE"), TextInput("hashed", buckets=512, longest=64), column="text")
    (file,) = reader.files([str(tmp_path / name)])
    counts = [[rows for _, _, _, _, rows, *_ in shard] for shard in plan(reader, [file, file], 50)]
    rows = reader.count(file)[-1][0]
    split = [[50], [rows - 50, 100 - rows], [50], [2 * rows - 150]]
    assert counts == ([[rows], [rows]] if name.startswith("u") else split)
