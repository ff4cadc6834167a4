"""The manifest of an output folder: the job as it began, which a repeated command continues."""

import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version as installed
from typing import TYPE_CHECKING

from ratchet import files
from ratchet.errors import DataError
from ratchet.serving.batch.output import Output
from ratchet.serving.batch.storage import InputFile
from ratchet.typed_json import STRICT, parse

if TYPE_CHECKING:
    import polars

__all__ = ["Job", "ScoringSettings", "begin", "forget", "listing_digest", "read_job", "require_same"]

MANIFEST, INPUTS, SUMMARY = "manifest.json", "inputs.parquet", "summary.json"
_PROGRAMS = ("onnxruntime", "polars", "pyarrow")  # that compute and write answers
_NAMED = 3  # files of each kind of difference


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
        programs = {name: installed(name) for name in _PROGRAMS}
        return cls(shard_rows, column, variant, threads, programs)


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


def read_job(output: Output) -> Job | None:
    """Return the job of an output folder; None if there is none.

    Raises:
        DataError: the manifest is damaged.
    """
    with output.opened(MANIFEST) as file:
        content = file and file.read()
    if not content:
        return None
    try:
        return parse(Job, content)
    except ValueError as error:
        raise DataError(
            f"{output.where}/{MANIFEST}: is damaged ({error}). Fix: restore it, or add --again to score all again"
        ) from None


def begin(output: Output, job: Job, listing: Sequence[InputFile]) -> None:
    """Write the manifest and the listing of the inputs into an empty folder.

    Raises:
        DataError: another process has just begun a job here.
    """
    buffer = io.BytesIO()
    _table(listing).write_parquet(buffer, statistics=False)
    with output.draft(INPUTS) as draft:
        draft.write_bytes(buffer.getvalue())
    try:
        output.create(MANIFEST, (json.dumps(asdict(job), indent=2, ensure_ascii=False) + "\n").encode())
    except FileExistsError:
        raise DataError(
            f"{output.where}: another process has just begun to score into it. Fix: choose another folder"
        ) from None


def forget(output: Output, shards: Sequence[str]) -> None:
    """Delete the shards, the last first, and then what was recorded of the job."""
    known = output.names()
    output.delete([name for name in (SUMMARY, *sorted(shards, reverse=True), MANIFEST, INPUTS) if name in known])


def require_same(output: Output, before: Job, now: Job, listing: Sequence[InputFile]) -> None:
    """Check that a repeated command means the job as it began.

    Raises:
        DataError: something differs; the message names it.
    """
    differences = [
        f"{name} was {first}, is {second}" for name, first, second in _settings_of(before, now) if first != second
    ]
    if before.inputs != now.inputs:
        differences.append(_input_difference(output, listing))
    if differences:
        raise DataError(
            f"{output.where}: its scoring began otherwise: {'; '.join(differences)}. Fix: repeat the first command, "
            "choose another folder, or add --again (again=true of score-flow) to score everything again"
        )


def _settings_of(before: Job, now: Job) -> list[tuple[str, object, object]]:
    version = ("version", f"{before.model}/{before.version}", f"{now.model}/{now.version}")
    names = {"shard_rows": "shard rows", "variant": "serving.variant", "threads": "serving.threads"}
    pairs: list[tuple[str, object, object]] = [version]
    if version[1] == version[2]:  # another registry may have the same name and number
        pairs.append(("run", before.run_id, now.run_id))
    pairs += [("format", before.format, now.format)]
    for name, first in asdict(before.settings).items():
        second = asdict(now.settings)[name]
        if name == "programs":
            pairs += [(program, first.get(program), second.get(program)) for program in {**first, **second}]
        else:
            pairs.append((names.get(name, name), first, second))
    return pairs


def listing_digest(listing: Sequence[InputFile]) -> str:
    """Return the SHA-256 (hex) of a listing."""
    return files.digest_json([[file.path, file.size, file.stamp] for file in listing])


def _table(listing: Sequence[InputFile]) -> "polars.DataFrame":
    import polars

    return polars.DataFrame(
        {
            "path": [file.path for file in listing],
            "size": [file.size for file in listing],
            "stamp": [file.stamp for file in listing],
        },
        schema={"path": polars.String, "size": polars.Int64, "stamp": polars.String},
    )


def _input_difference(output: Output, listing: Sequence[InputFile]) -> str:
    """Return which inputs were added, removed or changed."""
    import polars

    with output.opened(INPUTS) as file:
        if file is None:
            return "the inputs changed"
        rows = polars.read_parquet(file.read()).rows()
    before = {path: (size, stamp) for path, size, stamp in rows}
    now = {file.path: (file.size, file.stamp) for file in listing}
    kinds = {
        "added": [path for path in now if path not in before],
        "removed": [path for path in before if path not in now],
        "changed": [path for path in now if path in before and now[path] != before[path]],
    }
    texts = [f"{kind}: {_listed(paths)}" for kind, paths in kinds.items() if paths]
    return f"inputs {', '.join(texts)}" if texts else "the order of the inputs changed"


def _listed(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - _NAMED:,} more" if len(paths) > _NAMED else ""
    return ", ".join(paths[:_NAMED]) + more
