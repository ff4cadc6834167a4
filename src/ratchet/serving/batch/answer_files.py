"""Files of answers, written batch by batch."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ratchet.serving.versions.loaded import Identity

if TYPE_CHECKING:
    import polars

__all__ = ["FORMATS", "AnswerFile", "ParquetAnswers", "TextAnswers", "open_answers"]

FORMATS = (".csv", ".parquet", ".jsonl")
_GROUP = 1 << 16  # rows of a row group: the same for the same rows, in whatever batches they come


class TextAnswers:
    """Answers as CSV, with one header, or as JSON Lines."""

    def __init__(self, file: BinaryIO, suffix: str = ".csv") -> None:
        self._file, self._suffix, self._has_header = file, suffix, False

    def write(self, frame: "polars.DataFrame") -> None:
        """Write the next rows."""
        is_csv = self._suffix == ".csv"
        text = frame.write_csv(include_header=not self._has_header) if is_csv else frame.write_ndjson()
        self._file.write(text.encode())
        self._has_header = True


class ParquetAnswers:
    """Answers as Parquet. Equal rows give equal bytes.

    Attributes:
        rows: that were written.
        refused: those without an answer.
    """

    def __init__(self, path: Path, identity: Identity, **about: str | int) -> None:
        """Take the file to write, and its metadata: the version, and `about`."""
        self._path, self._about = path, asdict(identity) | about
        self._writer: Any = None
        self._waiting: list[polars.DataFrame] = []
        self.rows = self.refused = 0

    def write(self, frame: "polars.DataFrame") -> None:
        """Write the next rows."""
        self._waiting.append(frame)
        self.rows += frame.height
        self.refused += int(frame["refused"].count())
        if sum(part.height for part in self._waiting) >= _GROUP:
            self._write(self.rows // _GROUP * _GROUP)

    def close(self) -> None:
        """Write what is left, and the metadata."""
        self._write(self.rows)
        about = self._about | {"rows": self.rows, "refused": self.refused}
        content = {f"ratchet.{name}": str(value) for name, value in about.items() if value is not None}
        self._writer.add_key_value_metadata(content)
        self._writer.close()

    def _write(self, end: int) -> None:
        """Write the waiting rows up to this number of all rows."""
        import polars
        import pyarrow.parquet as pq

        frame = polars.concat(self._waiting, rechunk=True)
        count = end - (self.rows - frame.height)
        table = frame[:count].to_arrow(compat_level=polars.CompatLevel.oldest()).combine_chunks()
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, table.schema, compression="zstd")
        if table.num_rows:
            self._writer.write_table(table, row_group_size=_GROUP)
        self._waiting = [frame[count:]]


AnswerFile = TextAnswers | ParquetAnswers


@contextmanager
def open_answers(path: Path, suffix: str, identity: Identity) -> Iterator[AnswerFile]:
    """Yield the receiver of answers for a file with a suffix of `FORMATS`; close it on leaving without an error."""
    if suffix == ".parquet":
        answers = ParquetAnswers(path, identity)
        yield answers
        answers.close()
    else:
        with path.open("wb") as file:
            yield TextAnswers(file, suffix)
