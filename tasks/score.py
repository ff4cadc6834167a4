"""score: the answers of a registered version for files, as shards in a folder. No stage of DVC."""

import functools
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ratchet import files, scale, settings
from ratchet.data.reading.input_files import InputFile, Storages
from ratchet.data.reading.storage import is_url
from ratchet.errors import DataError
from ratchet.kinds.protocol import InputError
from ratchet.registry.models import ModelRegistry
from ratchet.registry.versions import Version
from ratchet.scale.result_folder import ResultFolder
from ratchet.serving.batch import job as jobs
from ratchet.serving.batch.job import Job, Scored
from ratchet.serving.batch.row_reader import RowReader
from ratchet.serving.process import configured
from ratchet.serving.versions.additions import AnswerOptions
from ratchet.serving.versions.alias_watcher import load
from ratchet.serving.versions.loaded import LoadedVersion
from ratchet.settings.model import Params, ScaleSettings, ServingSettings
from ratchet.workspace import Workspace
from tasks.progress import StageProgress

__all__ = [
    "SHARD_ROWS",
    "Request",
    "Scored",
    "absolute",
    "loaded_version",
    "new_reader",
    "options_of",
    "require_apart",
    "score",
    "score_shard",
]

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
        interval: level of prediction intervals or sets, such as 0.9; None: without them.
        abstain: error rate among the answered rows, such as 0.02; None: every row is answered.
        novelty: add how unusual each row is.
    """

    inputs: tuple[str, ...]
    output: str
    model: str | None = None
    column: str | None = None
    shard_rows: int | None = None
    again: bool = False
    interval: float | None = None
    abstain: float | None = None
    novelty: bool = False


def score(
    params: Params, workspace: Workspace, request: Request, *, progress: StageProgress, forgotten: Path | None = None
) -> Scored:
    """Score the files of a request, or continue where an earlier attempt was killed.

    Args:
        forgotten: file that says that the answers of an earlier job are deleted. While it exists, a request to
            score everything again continues: it is an attempt after the first.

    Raises:
        DataError: an input cannot be read or was changed, the folder has something else, or its job began otherwise.
        WorkspaceBusy: another process scores into the folder.
        RegistryError: there is no such version, or its files are damaged.
        StorageUnavailable, TrackingUnavailable: a storage or MLflow does not answer.
        PlatformError: the engine of scale.engine cannot work.
    """
    require_apart("--output", request.output, request.inputs)
    if forgotten and forgotten.exists():
        request = replace(request, again=False)
    output, registry, serving = ResultFolder(request.output), ModelRegistry(workspace, params), params.serving
    with output.locked(workspace.project.state):
        before = _job_before(output, request)
        reference = request.model or configured(workspace, params)
        version = _pinned(registry, reference, before, progress)
        name = f"{version.name}/{version.number}"
        with loaded_version(workspace, name, serving) as loaded:
            reader, listing = _listed(loaded, request, progress)
            job = _new_job(loaded, listing, request, before, reference=reference, threads=serving.threads)
            if before:
                job = jobs.require_same(output, job, before)  # before rows are counted, which can take hours
            ranges = list(jobs.plan(reader, listing, job.shard_rows))
            if request.again:
                _forget(output, forgotten)  # by now version and inputs are read: no answers are lost to a wrong name
            job = before or jobs.begin(output, job)
            shards = _shards(ranges, job, workspace, output, serving.variant)
            began = time.monotonic()
            results, earlier = _score_shards(params.scale, workspace.state, shards, output, progress)
            counts = jobs.write_summary(output, job, results)
            return Scored(output.where, loaded.identity, **counts, earlier=earlier, seconds=time.monotonic() - began)


def _job_before(output: ResultFolder, request: Request) -> Job | None:
    """Return the job that a request continues."""
    if request.again:
        jobs.require_own(output)
        return None
    return jobs.read_job(output)


def _forget(output: ResultFolder, forgotten: Path | None) -> None:
    jobs.forget(output)
    if forgotten:
        files.write_text(forgotten, output.where)


def _new_job(
    loaded: LoadedVersion,
    listing: Sequence[InputFile],
    request: Request,
    before: Job | None,
    *,
    reference: str,
    threads: int,
) -> Job:
    """Return the job of a request. What it leaves open is as the job before it began."""
    return Job.of(
        loaded,
        listing,
        reference=before.reference if before else reference,
        shard_rows=request.shard_rows or (before.shard_rows if before else SHARD_ROWS),
        column=request.column,
        threads=threads,
        options=options_of(loaded, request),
    )


def _listed(loaded: LoadedVersion, request: Request, progress: StageProgress) -> tuple[RowReader, Sequence[InputFile]]:
    """Return the reader of files for a version, and the files of a request. Say which are left out."""
    reader = new_reader(loaded, request.column)
    listing = reader.files(request.inputs)
    for text in reader.left_out:
        progress.say(text)
    return reader, listing


def _shards(
    ranges: Iterable[list[list[Any]]], job: Job, workspace: Workspace, output: ResultFolder, variant: str
) -> list[dict[str, Any]]:
    """Return the shards as `score_shard` takes them."""
    about: dict[str, Any] = {"project": str(workspace.root), "version": job.version, "variant": variant}
    about |= {"threads": job.threads, "column": job.column, "output": output.where, "job": job.digest}
    about |= job.options.given  # a job without them is as one of a ratchet that had none
    return [{**about, "shard": number, "ranges": each} for number, each in enumerate(ranges)]


def _score_shards(
    settings: ScaleSettings, state: Path, shards: list[dict[str, Any]], output: ResultFolder, progress: StageProgress
) -> tuple[list[Any], int]:
    """Score the shards that are not finished. Return the results of all, and how many were finished before."""
    earlier = rows = 0
    sizes, total = output.sizes(), sum(each[4] for shard in shards for each in shard["ranges"])

    def note(place: int, result: Any, is_earlier: bool) -> None:
        nonlocal earlier, rows
        earlier, rows = earlier + is_earlier, rows + result["rows"]
        progress.update(rows, total, f"shard {place:,}")

    results = scale.map(
        "tasks.score:score_shard",
        shards,
        folder=jobs.results_of(output).where,
        settings=settings,
        state=state,
        is_whole=lambda result: sizes.get(result["name"]) == result["size"],
        on_result=note,
    )
    for text in dict.fromkeys(text for result in results for text in result["notes"]):
        progress.say(f"warning: {text}")
    return results, earlier


def score_shard(shard: Mapping[str, Any]) -> dict[str, Any]:
    """Score the rows of one shard, as the function of `scale.map`.

    The project folder must be at the same path on every machine, because MLflow's address and settings come from it.
    """
    loaded = _loaded(shard["project"], shard["version"], shard["variant"], shard["threads"])
    reader = new_reader(loaded, shard["column"])
    output = ResultFolder(shard["output"])
    about = {"shard": shard["shard"], "job": shard["job"]}
    options = AnswerOptions(*map(shard.get, AnswerOptions._fields))
    return jobs.score_ranges(loaded, reader, shard["ranges"], output, options, **about)


@functools.lru_cache(maxsize=1)
def _loaded(project: str, name: str, variant: str, threads: int) -> LoadedVersion:
    """Return a version, loaded once in this process. Its files are deleted when nothing uses it any more."""
    workspace = Workspace(Path(project))
    registry = ModelRegistry(workspace, settings.load(workspace.params))
    folder = tempfile.mkdtemp(prefix="ratchet-predict-")
    try:
        loaded = load(registry, registry.find(name), Path(folder), threads=threads, variant=variant)
    except BaseException:
        shutil.rmtree(folder)
        raise
    weakref.finalize(loaded, shutil.rmtree, folder)
    return loaded


@contextmanager
def loaded_version(workspace: Workspace, name: str, serving: ServingSettings) -> Iterator[LoadedVersion]:
    """Load NAME/VERSION, and forget it at the end of the context.

    Raises:
        RegistryError: its files are not those that were stored, or it does not answer.
    """
    _loaded.cache_clear()
    try:
        yield _loaded(str(workspace.root), name, serving.variant, serving.threads)
    finally:
        _loaded.cache_clear()


def new_reader(loaded: LoadedVersion, column: str | None) -> RowReader:
    """Return the reader of files for a version.

    Raises:
        DataError: the version takes no files.
    """
    try:
        return RowReader(Storages("FILE"), loaded.spec.input, column=column)
    except DataError as error:
        raise DataError(f"{loaded.identity}: {error}") from None


def options_of(loaded: LoadedVersion, request: Request) -> AnswerOptions:
    """Return what a request asks for beside the predictions.

    Raises:
        DataError: an option is not allowed, or the version cannot answer it.
    """
    try:
        given = {"interval": request.interval, "abstain": request.abstain, "novelty": request.novelty or None}
        return loaded.additions.read(given, "--")
    except InputError as error:
        raise DataError(str(error)) from None


def _pinned(registry: ModelRegistry, reference: str, before: Job | None, progress: StageProgress) -> Version:
    """Return the version that answers: that of the earlier attempt if the same reference is given."""
    version = registry.find(reference)
    if before is None or before.reference != reference or before.run == version.run_id:
        return version
    progress.say(f"{reference} is version {version.number} now; this folder's job continues with {before.version}")
    return registry.find(before.version)


def require_apart(option: str, output: str, inputs: Sequence[str]) -> None:
    """Check that an output is neither an input nor inside one, where the answers would become inputs.

    Raises:
        DataError: it is.
    """
    for path in inputs:
        if f"{_place(output)}/".startswith(f"{_place(path)}/"):
            raise DataError(f"{option}: {output} is inside the input {path}. Fix: choose a place outside it")


def _place(path: str) -> str:
    """Return a path without links, or a URL, without a / at its end."""
    scheme, is_address, inside = path.partition("://")
    if is_address and scheme not in ("file", "local"):  # fsspec's names of this machine's disks; it decodes no %20
        return path.rstrip("/")
    return str(Path(inside if is_address else path).resolve()).rstrip("/")


def absolute(paths: Sequence[str], *, base: Path) -> tuple[str, ...]:
    """Return local paths as absolute ones; relative ones are relative to `base`. URLs stay as they are."""
    return tuple(path if is_url(path) else str((base / Path(path).expanduser()).resolve()) for path in paths)
