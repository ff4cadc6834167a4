"""A scoring job: its manifest, as it began, and its shards.

A killed job continues at its first unfinished shard, and ends with the same bytes.
"""

import io
import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version as installed
from typing import NamedTuple

from ratchet import files
from ratchet.errors import DataError
from ratchet.serving.batch.answer_files import ParquetAnswers, metadata
from ratchet.serving.batch.input_files import InputFile
from ratchet.serving.batch.output import Output
from ratchet.serving.batch.row_reader import Batch, RowReader
from ratchet.serving.scoring import score
from ratchet.serving.versions.loaded import LoadedVersion
from ratchet.typed_json import STRICT, parse

__all__ = ["Counts", "Job", "ScoringSettings", "begin", "forget", "listing_digest", "read_job", "score_shards"]

_MANIFEST, _INPUTS, _SUMMARY = "manifest.json", "inputs.parquet", "summary.json"
_SHARD = re.compile(r"shard-\d{6,}\.parquet")
_PROGRAMS = ("onnxruntime", "polars", "pyarrow")  # that compute and write answers
_NAMED = 3  # files of each kind of difference
_MIB = 1 << 20


@dataclass(frozen=True)
class ScoringSettings:
    """Settings that decide on the answers and on the shards, beside the version and the inputs.

    Attributes:
        variant, threads: as in `serving` of params.yaml.
        programs: their versions.
    """

    __pydantic_config__ = STRICT
    shard_rows: int
    column: str | None
    variant: str
    threads: int
    programs: dict[str, str]

    @classmethod
    def of(cls, *, shard_rows: int, column: str | None, variant: str, threads: int) -> "ScoringSettings":
        """Return the settings with the installed programs."""
        return cls(shard_rows, column, variant, threads, {name: installed(name) for name in _PROGRAMS})


@dataclass(frozen=True)
class Job:
    """Content of the manifest.

    Attributes:
        reference: of the version, as the user named it; an alias is resolved once.
        model, version, run_id, provenance, variant: of the version that answers.
        inputs: digest of the listing in inputs.parquet: path, size and time of change or ETag.
    """

    __pydantic_config__ = STRICT
    format: int
    reference: str
    model: str
    version: str
    run_id: str
    provenance: str | None
    variant: str
    files: int
    bytes: int
    inputs: str
    settings: ScoringSettings

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the job, which each shard names."""
        return files.digest_json(asdict(self))

    def compared(self) -> dict[str, object]:
        """Return what a repeated command must have in common, by its name for people."""
        settings, called = asdict(self.settings), {"shard_rows": "shard rows"}
        called |= {name: f"serving.{name}" for name in ("variant", "threads")}
        programs: dict[str, object] = settings.pop("programs")
        version: dict[str, object] = {
            "version": f"{self.model}/{self.version}",
            "run": self.run_id,
            "format": self.format,
        }
        return version | {called.get(name, name): value for name, value in settings.items()} | programs


class Counts(NamedTuple):
    """Rows of all inputs, rows without an answer, and shards."""

    rows: int
    refused: int
    shards: int


def read_job(output: Output) -> Job | None:
    """Return the job of an output folder; None if there is none.

    Raises:
        DataError: the manifest is damaged, or the folder has files that no job writes.
    """
    _own_names(output)
    with output.opened(_MANIFEST) as file:
        content = file and file.read()
    try:
        return parse(Job, content) if content else None
    except ValueError as error:
        raise DataError(
            f"{output.where}/{_MANIFEST}: is damaged ({error}). Fix: restore it, or add --again to score all again"
        ) from None


def begin(output: Output, job: Job, listing: Sequence[InputFile], before: Job | None) -> None:
    """Write the manifest and the listing of the inputs, or check that a repeated command means the job as it began.

    Raises:
        DataError: something differs, which the message names; the folder has shards of another job; or another process
            has just begun a job here.
    """
    if before is not None:
        _require_same(output, before, job, listing)
        return
    if shards := _shards(output.names()):
        raise DataError(
            f"{output.where}: has {len(shards):,} shards and no {_MANIFEST}. Fix: restore it, choose another "
            "folder, or add --again to score everything again"
        )
    import polars

    schema = {"path": polars.String, "size": polars.Int64, "stamp": polars.String}
    buffer = io.BytesIO()
    polars.DataFrame([asdict(file) for file in listing], schema=schema).write_parquet(buffer, statistics=False)
    with output.draft(_INPUTS) as draft:
        draft.write_bytes(buffer.getvalue())
    try:
        output.create(_MANIFEST, _json(asdict(job)))
    except FileExistsError:
        raise DataError(
            f"{output.where}: another process has just begun to score into it. Fix: choose another folder"
        ) from None


def forget(output: Output) -> None:
    """Delete the shards, the last first, and then what was recorded of the job.

    Raises:
        DataError: the folder has files that no job writes.
    """
    names = _own_names(output)
    output.delete([name for name in (_SUMMARY, *_shards(names)[::-1], _MANIFEST, _INPUTS) if name in names])


def _own_names(output: Output) -> set[str]:
    names = output.names()
    if others := sorted(names - {_MANIFEST, _INPUTS, _SUMMARY, *_shards(names)}):
        raise DataError(
            f"{output.where}: has other files ({', '.join(others[:3])}). Allowed: a new or empty folder. "
            "Fix: choose another folder"
        )
    return names


def listing_digest(listing: Sequence[InputFile]) -> str:
    """Return the SHA-256 (hex) of a listing."""
    return files.digest_json([[file.path, file.size, file.stamp] for file in listing])


def score_shards(
    loaded: LoadedVersion,
    reader: RowReader,
    listing: Sequence[InputFile],
    output: Output,
    job: Job,
    progress: Callable[..., None],
) -> tuple[Counts, int]:
    """Score the rows of the inputs that have no shard yet. Return counts, and the number of earlier shards.

    Args:
        progress: called with the MiB of the inputs that are scored, all of them, and a note.

    Raises:
        DataError: the inputs have no rows, cannot be read or were changed, or the output cannot be written.
    """
    shards, size = _finished(output, job), job.settings.shard_rows
    earlier, done = len(shards), sum(rows for rows, _ in shards)
    if not shards or shards[-1][0] == size:  # a smaller one is the last
        for parts in _parts(reader.batches(listing, skip=done), size):
            with output.draft(_name(len(shards))) as draft:
                about = metadata(loaded.identity) | {"shard": str(len(shards)), "job": job.digest}
                answers = ParquetAnswers(draft, about)
                for batch in parts:
                    answers.write(score(loaded, batch))
                    note = f"{done + answers.rows:,} rows"
                    progress(batch.done // _MIB, max(1, job.bytes // _MIB), note)
                answers.close()
            shards.append((answers.rows, answers.refused))
            done += answers.rows
    if not shards:
        raise DataError(f"{', '.join(file.path for file in listing[:3])}: has no rows")
    counts = Counts(done, sum(refused for _, refused in shards), len(shards))
    if _SUMMARY not in output.names():
        about_version = {"model": job.model, "version": job.version, "provenance": job.provenance}
        output.create(_SUMMARY, _json(about_version | counts._asdict() | {"job": job.digest}))
    return counts, earlier


def _parts(batches: Iterator[Batch], size: int) -> Iterator[Iterator[Batch]]:
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


def _finished(output: Output, job: Job) -> list[tuple[int, int]]:
    """Return rows and refused rows of the shards of the job up to the first that is missing or damaged."""
    names, shards = output.names(), list[tuple[int, int]]()
    while (name := _name(len(shards))) in names:
        about = output.metadata(name)
        if about is None or about.get("ratchet.job") != job.digest:
            break
        shards.append((int(about["ratchet.rows"]), int(about["ratchet.refused"])))
    return shards


def _name(number: int) -> str:
    return f"shard-{number:06}.parquet"


def _shards(names: set[str]) -> list[str]:
    """Return the names of shards, in order."""
    return sorted((name for name in names if _SHARD.fullmatch(name)), key=lambda name: (len(name), name))


def _json(content: object) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def _require_same(output: Output, before: Job, now: Job, listing: Sequence[InputFile]) -> None:
    first, second = before.compared(), now.compared()
    if first["version"] != second["version"]:
        del first["run"], second["run"]  # another registry may have the same name and number
    differences = [
        f"{name} was {first.get(name)}, is {second.get(name)}"
        for name in {**first, **second}
        if first.get(name) != second.get(name)
    ]
    if before.inputs != now.inputs:
        differences.append(_input_difference(output, listing))
    if differences:
        raise DataError(
            f"{output.where}: its scoring began otherwise: {'; '.join(differences)}. Fix: repeat the first command, "
            "choose another folder, or add --again (again=true of score-flow) to score everything again"
        )


def _input_difference(output: Output, listing: Sequence[InputFile]) -> str:
    """Return which inputs were added, removed or changed."""
    import polars

    with output.opened(_INPUTS) as file:
        if file is None:
            return "the inputs changed"
        before = {path: (size, stamp) for path, size, stamp in polars.read_parquet(file.read()).rows()}
    now = {file.path: (file.size, file.stamp) for file in listing}
    kinds = {
        "added": [path for path in now if path not in before],
        "removed": [path for path in before if path not in now],
        "changed": [path for path in now if path in before and now[path] != before[path]],
    }
    texts = [
        f"{kind}: {', '.join(paths[:_NAMED])}" + (f" and {len(paths) - _NAMED:,} more" if paths[_NAMED:] else "")
        for kind, paths in kinds.items()
        if paths
    ]
    return f"inputs {', '.join(texts)}" if texts else "the order of the inputs changed"
