"""A scoring job: its manifest, and its shards, which are planned before the first one is scored.

A killed job continues with its unfinished shards, and ends with the same bytes.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version as installed
from typing import Any

from ratchet import files
from ratchet.data.reading.input_files import InputFile
from ratchet.data.sources.table_file import RowStart
from ratchet.errors import DataError
from ratchet.scale.result_folder import ResultFolder
from ratchet.serving.batch.answer_files import ParquetAnswers
from ratchet.serving.batch.row_reader import RowRange, RowReader
from ratchet.serving.scoring import score
from ratchet.serving.versions.additions import PLAIN, AnswerOptions
from ratchet.serving.versions.loaded import Identity, LoadedVersion
from ratchet.typed_json import STRICT, parse

__all__ = [
    "Job",
    "Scored",
    "begin",
    "forget",
    "plan",
    "read_job",
    "require_same",
    "results_of",
    "score_ranges",
    "write_summary",
]

_MANIFEST, _SUMMARY = "manifest.json", "summary.json"
_LISTING = "inputs.parquet"  # of format 1
_FORMAT = 3  # of the manifest, and of the rows of each shard
_PROGRAMS = ("onnxruntime", "polars", "pyarrow")  # that compute and write answers
_LONGEST_PART = 64 << 20  # bytes of a file without a place to start inside, which several shards may read
_RESULTS = ".results"  # folder in the output: the counts of each finished shard


@dataclass(frozen=True)
class Job:
    """Content of the manifest: what decides the answers and the shards.

    Attributes:
        reference: of the version, as the user named it; an alias is resolved once.
        version: MODEL/NUMBER.
        inputs: digest of the listing: path, size and time of change or ETag.
        threads: as serving.threads.
        programs: their versions.
        interval, abstain, novelty: as `AnswerOptions`.
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
    interval: int | None = None
    abstain: float | None = None
    novelty: bool | None = None

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
        options: AnswerOptions = PLAIN,
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
            *options,
        )

    @property
    def content(self) -> dict[str, Any]:
        """Content of the manifest. A job without options has that of a ratchet that had none."""
        optional = AnswerOptions._fields
        return {name: value for name, value in asdict(self).items() if name not in optional or value is not None}

    @property
    def options(self) -> AnswerOptions:
        """Additions to the predictions."""
        return AnswerOptions(self.interval, self.abstain, self.novelty)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the job, which each shard names."""
        return files.digest_json(self.content)

    def changes_since(self, before: "Job") -> list[str]:
        """Return what a repeated command has changed."""
        first, second = asdict(before), asdict(self)
        names = ("version", "run", "variant", "shard_rows", "column", "threads", "programs")
        changes = [
            f"{name.replace('_', ' ')} was {first[name]}, is {second[name]}"
            for name in (*names, *AnswerOptions._fields)
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


def read_job(output: ResultFolder) -> Job | None:
    """Return the job of an output folder; None if there is none.

    Raises:
        DataError: the manifest is damaged, missing or of another format, or the folder has files that no job writes.
    """
    shards = len(_shards(output))
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


def begin(output: ResultFolder, job: Job) -> Job:
    """Write the manifest of a new job. Return the folder's job.

    Raises:
        DataError: a process elsewhere has begun another one in the meantime.
    """
    try:
        output.write_json(_MANIFEST, job.content, is_new=True)
    except FileExistsError:
        return require_same(output, job, read_job(output) or job)
    return job


def require_same(output: ResultFolder, job: Job, before: Job) -> Job:
    """Check that a repeated command means the job as it began, and return that one.

    Raises:
        DataError: something differs, which the message names.
    """
    if changes := job.changes_since(before):
        raise DataError(
            f"{output.where}: its scoring began otherwise: {'; '.join(changes)}. Fix: repeat the first command, "
            "choose another folder, or add --again (again=true of score-flow) to score everything again"
        )
    return before


def require_own(output: ResultFolder) -> None:
    """Check that a folder has nothing that no job writes.

    Raises:
        DataError: it has.
    """
    _shards(output)


def forget(output: ResultFolder) -> None:
    """Delete the shards, the last first, and then what was recorded of the job.

    Raises:
        DataError: the folder has files that no job writes.
    """
    shards, results = sorted(_shards(output), reverse=True), results_of(output)
    names = output.sizes()
    results.delete(list(results.sizes()))
    output.delete([name for name in (_SUMMARY, *shards, _MANIFEST, _LISTING) if name in names])


def results_of(output: ResultFolder) -> ResultFolder:
    """Return the folder with the counts of each finished shard."""
    return ResultFolder(f"{output.where}/{_RESULTS}")


def _shards(output: ResultFolder) -> set[str]:
    """Return the names of the shards in a folder.

    Raises:
        DataError: the folder has files that no job writes.
    """
    names = output.sizes().keys()
    shards = {name for name in names if name.startswith("shard-") and name.endswith(".parquet")}
    if others := sorted(names - shards - {_MANIFEST, _SUMMARY, _LISTING}):
        raise DataError(
            f"{output.where}: has other files ({', '.join(others[:3])}). Allowed: a new or empty folder. "
            "Fix: choose another folder"
        )
    return shards


def plan(reader: RowReader, listing: Sequence[InputFile], size: int) -> Iterator[list[list[Any]]]:
    """Yield the rows of each shard, as the plain data of row ranges: `size` rows, of one file or several.

    A long part of a text file without a place to start reading (UTF-16, for example) is one shard, however many rows it
    has: several would each read it from its beginning.

    Raises:
        DataError: the inputs have no rows, cannot be read or were changed.
    """
    shard, room, is_empty = list[list[Any]](), size, True
    for file in listing:
        *starts, (total, _) = reader.count(file)
        done = 0
        while done < total:
            while len(starts) > 1 and starts[1][0] <= done:
                starts.pop(0)
            before, start = starts[0]
            end, position = (starts[1][0], starts[1][1].position) if len(starts) > 1 else (total, file.size)
            is_split = position - start.position <= _LONGEST_PART
            rows = min(room, total - done) if is_split else end - done
            shard.append([file.path, file.size, file.stamp, done + 1, rows, start.position, start.line, done - before])
            done, room, is_empty = done + rows, room - rows, False
            if room <= 0:
                yield shard
                shard, room = [], size
    if shard:
        yield shard
    if is_empty:
        raise DataError(f"{', '.join(file.path for file in listing[:3])}: has no rows")


def score_ranges(
    loaded: LoadedVersion,
    reader: RowReader,
    ranges: Sequence[Sequence[Any]],
    output: ResultFolder,
    options: AnswerOptions,
    **about: Any,
) -> dict[str, Any]:
    """Write the shard of these row ranges, and return its name and counts. `about`: shard and job, for its metadata.

    Raises:
        DataError: the folder has another job by now; nothing is written.
    """
    chosen = [
        RowRange(InputFile(path, size, stamp), first, rows, RowStart(*start))
        for path, size, stamp, first, rows, *start in ranges
    ]
    name = f"shard-{about['shard']:06}.parquet"
    with output.draft(name) as draft:
        answers = ParquetAnswers(draft, loaded.identity, **about)
        for batch in reader.batches(chosen):
            answers.write(score(loaded, batch, options))
        answers.close()
        size = draft.stat().st_size
        if files.digest_json(output.read_json(_MANIFEST)) != about["job"]:  # this process outlived its job
            raise DataError(f"{output.where}: has another job by now. Fix: choose another folder for one of them")
    return {"name": name, "size": size, "rows": answers.rows, "refused": answers.refused, "notes": reader.notes}


def write_summary(output: ResultFolder, job: Job, shards: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Write the summary of a finished job, and return its counts."""
    counts = {name: sum(shard[name] for shard in shards) for name in ("rows", "refused")} | {"shards": len(shards)}
    output.write_json(_SUMMARY, {"version": job.version, **counts, "job": job.digest})
    return counts
