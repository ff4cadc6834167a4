"""score: the answers of a registered version for files, as shards in a folder. No stage of DVC."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ratchet.data.reading.storage import is_url
from ratchet.errors import DataError
from ratchet.registry.models import ModelRegistry
from ratchet.registry.versions import Version
from ratchet.serving.batch import job as jobs
from ratchet.serving.batch.input_files import Storages
from ratchet.serving.batch.job import Job, Scored
from ratchet.serving.batch.output import Output
from ratchet.serving.batch.row_reader import RowReader
from ratchet.serving.process import configured
from ratchet.serving.versions.alias_watcher import load
from ratchet.serving.versions.loaded import LoadedVersion
from ratchet.settings.model import Params
from ratchet.workspace import Workspace
from tasks.progress import StageProgress

__all__ = ["SHARD_ROWS", "Request", "Scored", "absolute", "loaded_version", "new_reader", "score"]

SHARD_ROWS = 100_000
"""Rows of a shard, unless the request has another number."""


@dataclass(frozen=True)
class Request:
    """Files to score, and the folder for the answers.

    Attributes:
        inputs: absolute paths or URLs of files and folders.
        output: absolute path or URL of the folder.
        model: NAME@ALIAS or NAME/VERSION; None: serving.model.
        column: of a table with the texts of a text model.
        shard_rows: rows of each file of answers; None: as the job began, else `SHARD_ROWS`.
        again: forget an earlier job of the folder.
    """

    inputs: tuple[str, ...]
    output: str
    model: str | None = None
    column: str | None = None
    shard_rows: int | None = None
    again: bool = False


def score(params: Params, workspace: Workspace, request: Request, *, progress: StageProgress) -> Scored:
    """Score the files of a request, or continue where an earlier attempt was killed.

    Raises:
        DataError: an input cannot be read or was changed, the folder has something else, or its job began otherwise.
        WorkspaceBusy: another process scores into the folder.
        RegistryError: there is no such version, or its files are damaged.
        StorageUnavailable, TrackingUnavailable: a storage or MLflow does not answer.
    """
    _require_apart(request)
    output, registry = Output(request.output, state=workspace.project.state), ModelRegistry(workspace, params)
    with output.locked():
        if request.again:
            jobs.forget(output)
        before = jobs.read_job(output)
        reference = request.model or configured(workspace, params)
        version = _pinned(registry, reference, before, progress)
        with loaded_version(registry, version, params) as loaded:
            reader = new_reader(loaded, request.column)
            listing = reader.files(request.inputs)
            if reader.ignored.files:
                progress.say(reader.ignored.text)
            job = Job.of(
                loaded,
                listing,
                reference=before.reference if before else reference,
                shard_rows=request.shard_rows or (before.shard_rows if before else SHARD_ROWS),
                column=request.column,
                threads=params.serving.threads,
            )
            job = jobs.begin(output, job, before)
            scored = jobs.score_shards(loaded, reader, listing, output, job, progress.update)
            for note in reader.notes:
                progress.say(f"warning: {note}")
    return scored


@contextmanager
def loaded_version(registry: ModelRegistry, version: Version, params: Params) -> Iterator[LoadedVersion]:
    """Load a version for the time of the context.

    Raises:
        RegistryError: its files are not those that were stored, or it does not answer.
    """
    with tempfile.TemporaryDirectory(prefix="ratchet-predict-") as folder:
        yield load(registry, version, Path(folder), threads=params.serving.threads, variant=params.serving.variant)


def new_reader(loaded: LoadedVersion, column: str | None) -> RowReader:
    """Return the reader of files for a version.

    Raises:
        DataError: the version takes no files.
    """
    try:
        return RowReader(Storages("FILE"), loaded.spec.input, column=column)
    except DataError as error:
        raise DataError(f"{loaded.identity}: {error}") from None


def _pinned(registry: ModelRegistry, reference: str, before: Job | None, progress: StageProgress) -> Version:
    """Return the version that answers: that of the earlier attempt if the same reference is given."""
    version = registry.find(reference)
    if before is None or before.reference != reference or before.run == version.run_id:
        return version
    progress.say(f"{reference} is version {version.number} now; this folder's job continues with {before.version}")
    return registry.find(before.version)


def _require_apart(request: Request) -> None:
    """Check that the output is not among the inputs, where the answers would become inputs."""
    for path in request.inputs:
        top = path.rstrip("/") + "/"
        if f"{request.output.rstrip('/')}/".startswith(top):
            raise DataError(f"--output: {request.output} is inside the input {path}. Fix: choose a folder outside it")


def absolute(paths: Sequence[str], *, base: Path) -> tuple[str, ...]:
    """Return local paths as absolute ones; relative ones are relative to `base`. URLs stay as they are."""
    return tuple(path if is_url(path) else str((base / Path(path).expanduser()).resolve()) for path in paths)
