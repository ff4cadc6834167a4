"""Score rows shard by shard. A killed job continues at its first unfinished shard, and ends with the same bytes."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

from ratchet.errors import DataError
from ratchet.serving.batch.manifest import INPUTS, MANIFEST, SUMMARY, Job
from ratchet.serving.batch.output import Output
from ratchet.serving.batch.reading import Batch, Reader
from ratchet.serving.batch.storage import InputFile
from ratchet.serving.batch.writing import ParquetAnswers, metadata
from ratchet.serving.scoring import score
from ratchet.serving.versions.loaded import LoadedVersion

__all__ = ["Summary", "require_own", "score_shards", "shard_names"]

_SHARD = re.compile(r"shard-\d{6,}\.parquet")
_MIB = 1 << 20


@dataclass(frozen=True)
class Summary:
    """Content of summary.json, which is written when all shards are.

    Attributes:
        rows: of all inputs.
        refused: rows without an answer.
        shards: files of answers.
        job: digest of the manifest.
    """

    model: str
    version: str
    provenance: str | None
    rows: int
    refused: int
    shards: int
    job: str


class Progress(Protocol):
    """Receiver of progress."""

    def progress(self, done: int, total: int, note: str = "") -> None:
        """Report that `done` of `total` MiB of the inputs are scored."""


def shard_names(names: set[str]) -> list[str]:
    """Return the names that are those of shards, in order."""
    return sorted((name for name in names if _SHARD.fullmatch(name)), key=lambda name: (len(name), name))


def require_own(output: Output) -> None:
    """Check that a folder has only files of a scoring job.

    Raises:
        DataError: it has others.
    """
    names = output.names()
    others = sorted(names - {MANIFEST, INPUTS, SUMMARY} - set(shard_names(names)))
    if others:
        raise DataError(
            f"{output.where}: has other files ({', '.join(others[:3])}). Allowed: a new or empty folder. "
            "Fix: choose another folder"
        )


def score_shards(
    loaded: LoadedVersion, reader: Reader, listing: Sequence[InputFile], output: Output, job: Job, watch: Progress
) -> tuple[Summary, int]:
    """Score the rows of the inputs that have no shard yet. Return the summary, and the number of earlier shards.

    Raises:
        DataError: the inputs have no rows, cannot be read or were changed, or the output cannot be written.
    """
    shards, size = _finished(output, job), job.settings.shard_rows
    earlier = len(shards)
    if not shards or shards[-1].rows == size:  # a smaller one is the last
        queue = _Queue(reader.batches(listing, skip=sum(shard.rows for shard in shards)))
        while queue.has_more():
            rows = sum(shard.rows for shard in shards)
            with output.draft(_name(len(shards))) as draft:
                about = metadata(loaded.identity) | {"shard": str(len(shards)), "job": job.digest}
                answers = ParquetAnswers(draft, about)
                for batch in queue.take(size):
                    answers.write(score(loaded, batch))
                    watch.progress(batch.done // _MIB, max(1, job.bytes // _MIB), f"{rows + answers.rows:,} rows")
                answers.close()
            shards.append(_Shard(answers.rows, answers.refused))
    if not shards:
        raise DataError(f"{', '.join(file.path for file in listing[:3])}: has no rows")
    rows, refused = sum(shard.rows for shard in shards), sum(shard.refused for shard in shards)
    summary = Summary(job.model, job.version, job.provenance, rows, refused, len(shards), job.digest)
    if SUMMARY not in output.names():
        output.create(SUMMARY, (json.dumps(asdict(summary), indent=2, ensure_ascii=False) + "\n").encode())
    return summary, earlier


@dataclass(frozen=True)
class _Shard:
    rows: int
    refused: int


def _finished(output: Output, job: Job) -> list[_Shard]:
    """Return the shards of the job up to the first that is missing or damaged."""
    names, shards = output.names(), list[_Shard]()
    while (name := _name(len(shards))) in names:
        about = output.metadata(name)
        if about is None or about.get("ratchet.job") != job.digest:
            break
        shards.append(_Shard(int(about["ratchet.rows"]), int(about["ratchet.refused"])))
    return shards


def _name(number: int) -> str:
    return f"shard-{number:06}.parquet"


class _Queue:
    """Batches, from which any number of rows can be taken."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches = batches
        self._left: Batch | None = None

    def has_more(self) -> bool:
        """Return whether there is another row."""
        while not self._left:
            self._left = next(self._batches, None)
            if self._left is None:
                return False
        return True

    def take(self, rows: int) -> Iterator[Batch]:
        """Yield batches that together have so many rows, or all that are left."""
        while rows and self.has_more():
            batch = self._left
            assert batch is not None
            part, self._left = batch.part(0, rows), batch.part(rows, len(batch))
            rows -= len(part)
            yield part
