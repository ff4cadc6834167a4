"""A scoring job: its manifest and its shards.

A killed job continues at its first unfinished shard, and ends with the same bytes.
"""

import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version as installed

from ratchet import files
from ratchet.errors import DataError
from ratchet.serving.batch.answer_files import ParquetAnswers
from ratchet.serving.batch.input_files import InputFile
from ratchet.serving.batch.output import Output
from ratchet.serving.batch.row_reader import Batch, RowReader
from ratchet.serving.scoring import score
from ratchet.serving.versions.loaded import Identity, LoadedVersion
from ratchet.typed_json import STRICT, parse

__all__ = ["Job", "Scored", "begin", "forget", "read_job", "score_shards"]

_MANIFEST, _SUMMARY = "manifest.json", "summary.json"
_LISTING = "inputs.parquet"  # of format 1
_FORMAT = 2  # of the manifest and the shards
_PROGRAMS = ("onnxruntime", "polars", "pyarrow")  # that compute and write answers
_MIB = 1 << 20


@dataclass(frozen=True)
class Job:
    """Content of the manifest: what decides the answers and the shards.

    Attributes:
        reference: of the version, as the user named it; an alias is resolved once.
        version: MODEL/NUMBER.
        inputs: digest of the listing: path, size and time of change or ETag.
        threads: as serving.threads.
        programs: their versions.
    """

    __pydantic_config__ = STRICT
    format: int
    reference: str
    version: str
    run: str
    variant: str
    inputs: str
    files: int
    bytes: int
    shard_rows: int
    column: str | None
    threads: int
    programs: dict[str, str]

    @classmethod
    def of(
        cls,
        loaded: LoadedVersion,
        listing: Sequence[InputFile],
        *,
        reference: str,
        shard_rows: int,
        column: str | None,
        threads: int,
    ) -> "Job":
        """Return the job that scores the listed files by a version."""
        return cls(
            _FORMAT,
            reference,
            f"{loaded.identity.model}/{loaded.identity.version}",
            loaded.identity.run_id,
            loaded.identity.variant,
            files.digest_json([[file.path, file.size, file.stamp] for file in listing]),
            len(listing),
            sum(file.size for file in listing),
            shard_rows,
            column,
            threads,
            {name: installed(name) for name in _PROGRAMS},
        )

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the job, which each shard names."""
        return files.digest_json(asdict(self))

    def changes_since(self, before: "Job") -> list[str]:
        """Return what a repeated command has changed."""
        first, second = asdict(before), asdict(self)
        names = ("version", "run", "variant", "shard_rows", "column", "threads", "programs")
        changes = [
            f"{name.replace('_', ' ')} was {first[name]}, is {second[name]}"
            for name in names
            if first[name] != second[name]
        ]
        if before.inputs != self.inputs:
            sizes = (f"{job.files:,} with {job.bytes:,} bytes" for job in (before, self))
            changes.append(f"the input files changed (were {', are '.join(sizes)})")
        return changes


@dataclass(frozen=True)
class Scored:
    """Result of a scoring job.

    Attributes:
        refused: rows without an answer.
        earlier: shards that were finished before.
        seconds: of this attempt.
    """

    output: str
    identity: Identity
    rows: int
    refused: int
    shards: int
    earlier: int
    seconds: float

    @property
    def summary(self) -> str:
        """One line for people."""
        before = f", {self.earlier:,} of them earlier" if self.earlier else ""
        return (
            f"{self.rows - self.refused:,} of {self.rows:,} rows answered by {self.identity}, "
            f"{self.refused:,} refused; {self.shards:,} shards in {self.output}{before}; {self.seconds:.1f} s"
        )


def read_job(output: Output) -> Job | None:
    """Return the job of an output folder; None if there is none.

    Raises:
        DataError: the manifest is damaged, missing or of another format, or the folder has files that no job writes.
    """
    shards = len(_own_names(output) - {_MANIFEST, _SUMMARY, _LISTING})
    with output.opened(_MANIFEST) as file:
        content = file and file.read()
    fix = "choose another folder, or add --again to score everything again"
    if not content:
        if shards:
            raise DataError(f"{output.where}: has {shards:,} shards and no {_MANIFEST}. Fix: restore it, {fix}")
        return None
    try:
        about = json.loads(content)
        if isinstance(about, dict) and about.get("format", _FORMAT) != _FORMAT:
            raise DataError(f"{output.where}: has a job of format {about['format']}; allowed: {_FORMAT}. Fix: {fix}")
        return parse(Job, content)
    except ValueError as error:
        raise DataError(f"{output.where}/{_MANIFEST}: is damaged ({error}). Fix: restore it, {fix}") from None


def begin(output: Output, job: Job, before: Job | None) -> Job:
    """Write the manifest, or check that a repeated command means the job as it began. Return the folder's job.

    Raises:
        DataError: something differs, which the message names.
    """
    if before is None:
        try:
            _write_json(output, _MANIFEST, asdict(job), is_new=True)
        except FileExistsError:  # a process elsewhere has begun in the meantime
            before = read_job(output)
    if before and (changes := job.changes_since(before)):
        raise DataError(
            f"{output.where}: its scoring began otherwise: {'; '.join(changes)}. Fix: repeat the first command, "
            "choose another folder, or add --again (again=true of score-flow) to score everything again"
        )
    return before or job


def forget(output: Output) -> None:
    """Delete the shards, the last first, and then what was recorded of the job.

    Raises:
        DataError: the folder has files that no job writes.
    """
    names = _own_names(output)
    shards = sorted(names - {_MANIFEST, _SUMMARY, _LISTING}, reverse=True)
    output.delete([name for name in (_SUMMARY, *shards, _MANIFEST, _LISTING) if name in names])


def _own_names(output: Output) -> set[str]:
    names = output.names()
    shards = {name for name in names if name.startswith("shard-") and name.endswith(".parquet")}
    if others := sorted(names - shards - {_MANIFEST, _SUMMARY, _LISTING}):
        raise DataError(
            f"{output.where}: has other files ({', '.join(others[:3])}). Allowed: a new or empty folder. "
            "Fix: choose another folder"
        )
    return names


def score_shards(
    loaded: LoadedVersion,
    reader: RowReader,
    listing: Sequence[InputFile],
    output: Output,
    job: Job,
    progress: Callable[..., None],
) -> Scored:
    """Score the rows of the inputs that have no shard yet.

    Args:
        progress: called with the MiB of the inputs that are scored, all of them, and a note.

    Raises:
        DataError: the inputs have no rows, cannot be read or were changed, or the output cannot be written.
    """
    began, shards = time.monotonic(), list(_finished_shards(output, job))
    earlier, done = len(shards), sum(rows for rows, _ in shards)
    if not shards or shards[-1][0] == job.shard_rows:  # a smaller one is the last
        for batches in _batches_of_shards(reader.batches(listing, skip=done), job.shard_rows):
            with output.draft(_name(len(shards))) as draft:
                answers = ParquetAnswers(draft, loaded.identity, shard=len(shards), job=job.digest)
                for batch in batches:
                    answers.write(score(loaded, batch))
                    progress(batch.done // _MIB, max(1, job.bytes // _MIB), f"{done + answers.rows:,} rows")
                answers.close()
            shards.append((answers.rows, answers.refused))
            done += answers.rows
    if not shards:
        raise DataError(f"{', '.join(file.path for file in listing[:3])}: has no rows")
    counts = {"rows": done, "refused": sum(refused for _, refused in shards), "shards": len(shards)}
    _write_json(output, _SUMMARY, {"version": job.version, **counts, "job": job.digest})
    return Scored(output.where, loaded.identity, **counts, earlier=earlier, seconds=time.monotonic() - began)


def _batches_of_shards(batches: Iterator[Batch], size: int) -> Iterator[Iterator[Batch]]:
    """Yield for each shard the batches that together have its rows; the next is asked for when they are taken."""
    waiting: list[Batch] = []  # at most one

    def take(rows: int) -> Iterator[Batch]:
        while rows and (batch := waiting.pop() if waiting else next(batches, None)) is not None:
            if rest := batch.part(rows, len(batch)):
                waiting.append(rest)
            if part := batch.part(0, rows):
                rows -= len(part)
                yield part

    while (first := next(take(size), None)) is not None:
        yield itertools.chain([first], take(size - len(first)))


def _finished_shards(output: Output, job: Job) -> Iterator[tuple[int, int]]:
    """Yield rows and refused rows of the shards of the job up to the first that is missing or damaged."""
    names = output.names()
    for name in itertools.takewhile(names.__contains__, map(_name, itertools.count())):
        about = output.metadata(name)
        if about.get("ratchet.job") != job.digest:
            return
        yield int(about["ratchet.rows"]), int(about["ratchet.refused"])


def _name(number: int) -> str:
    return f"shard-{number:06}.parquet"


def _write_json(output: Output, name: str, content: object, *, is_new: bool = False) -> None:
    with output.draft(name, is_new=is_new) as draft:
        files.write_json(draft, content)
