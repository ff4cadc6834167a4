"""Files of answers, written batch by batch."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from ratchet.serving.versions.loaded import Identity

if TYPE_CHECKING:
    import polars

__all__ = ["FORMATS", "AnswerFile", "ParquetAnswers", "TextAnswers", "metadata", "written"]

FORMATS = (".csv", ".parquet", ".jsonl")
_GROUP = 1 << 16  # rows of a row group: the same for the same rows, in whatever batches they come


class AnswerFile(Protocol):
    """Receiver of answers."""

    def write(self, frame: "polars.DataFrame") -> None:
        """Write the next rows."""

    def close(self) -> None:
        """Write what is left."""


class TextAnswers:
    """Answers as CSV, with one header, or as JSON Lines."""

    def __init__(self, file: BinaryIO, suffix: str = ".csv") -> None:
        self._file, self._suffix, self._begun = file, suffix, False

    def write(self, frame: "polars.DataFrame") -> None:
        csv = self._suffix == ".csv"
        text = frame.write_csv(include_header=not self._begun) if csv else frame.write_ndjson()
        self._file.write(text.encode())
        self._begun = True

    def close(self) -> None:
        self._file.flush()


class ParquetAnswers:
    """Answers as Parquet. Equal rows give equal bytes.

    Attributes:
        rows: that were written.
        refused: those without an answer.
    """

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        """Take the file to write, and the metadata: by name, a text or a number."""
        self._path, self._about = path, dict(about)
        self._writer: Any = None
        self._waiting: list[polars.DataFrame] = []
        self.rows = self.refused = 0

    def write(self, frame: "polars.DataFrame") -> None:
        self._waiting.append(frame)
        self.rows += frame.height
        self.refused += int(frame["refused"].count())
        if sum(part.height for part in self._waiting) >= _GROUP:
            whole = self._whole()
            full = whole.height // _GROUP * _GROUP
            self._write(whole[:full])
            self._waiting = [whole[full:]]

    def close(self) -> None:
        if self._waiting:
            self._write(self._whole())
        about = self._about | {"rows": self.rows, "refused": self.refused}
        self._writer.add_key_value_metadata({f"ratchet.{name}": str(value) for name, value in about.items()})
        self._writer.close()

    def _whole(self) -> "polars.DataFrame":
        import polars

        return polars.concat(self._waiting, rechunk=True)

    def _write(self, frame: "polars.DataFrame") -> None:
        import polars
        import pyarrow
        import pyarrow.parquet as pq

        table = frame.to_arrow(compat_level=polars.CompatLevel.oldest())
        types = {pyarrow.large_string(): pyarrow.string()}
        schema = pyarrow.schema([field.with_type(types.get(field.type, field.type)) for field in table.schema])
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, schema, compression="zstd")
        if table.num_rows:
            self._writer.write_table(table.cast(schema).combine_chunks(), row_group_size=_GROUP)


def metadata(identity: Identity) -> dict[str, str]:
    """Return the metadata of answers by a version."""
    return {name: value for name, value in asdict(identity).items() if value is not None}


@contextmanager
def written(path: Path, suffix: str, identity: Identity) -> Iterator[AnswerFile]:
    """Yield the receiver of answers for a file with a suffix of `FORMATS`; close it on leaving without an error."""
    if suffix == ".parquet":
        answers: AnswerFile = ParquetAnswers(path, metadata(identity))
        yield answers
        answers.close()
        return
    with path.open("wb") as file:
        answers = TextAnswers(file, suffix)
        yield answers
        answers.close()
