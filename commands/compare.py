"""`ratchet compare`: collect and print why two runs or versions differ."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ratchet import files, git, settings
from ratchet.errors import DataError, RegistryError
from ratchet.evaluation.predictions import Predictions, read_predictions
from ratchet.provenance import comparison
from ratchet.provenance.archive import Archive, ArchivedRun
from ratchet.provenance.comparison import (
    Change,
    CodeChange,
    Comparison,
    Flip,
    changes,
    environment_changes,
    patched_files,
)
from ratchet.provenance.sealed import SealedReader
from ratchet.registry.ledger import Ledger
from ratchet.registry.provenance_record import PACKED, Provenance
from ratchet.registry.versions import REFERENCE
from ratchet.reports.number_text import measured, setting
from ratchet.settings.model import Params
from ratchet.terminal_lines import echo, echo_table
from ratchet.workspace import Workspace
from tasks.dvc_store import DvcStore

if TYPE_CHECKING:
    from ratchet.data.difference import Difference

__all__ = ["compare", "print_comparison"]

T = TypeVar("T")
_Row = tuple[str, str, str]  # of a table: name, A, B

_COMPLETED, _PARAMS = "provenance/settings.json", "provenance/params.yaml"
_READ = {
    _COMPLETED: "",  # versions of earlier releases have none
    _PARAMS: " among its artifacts: its settings are unknown",
    "provenance/uncommitted.patch": "",  # missing if nothing was uncommitted
    "report/predictions.parquet": ": it was not evaluated, or its artifacts are gone",
}
"""The files that are read of each run -> the end of the message if one is missing."""


@dataclass(frozen=True)
class Side:
    """One of the two runs, and its files."""

    name: str
    run: ArchivedRun
    settings: Mapping[str, Any] | None  # by dotted key
    patch: bytes
    predictions: Predictions | None

    @property
    def record(self) -> Provenance | None:
        return self.run.record

    @property
    def data(self) -> str | None:
        """DVC hash of the packed data."""
        return self.run.hash_of(PACKED)


def compare(workspace: Workspace, a: str, b: str) -> Comparison:
    """Compare A with B, each a version or the id of an MLflow run."""
    params = settings.load(workspace.params)
    archive = Archive(workspace, params)
    sealed = SealedReader(archive, Ledger.of(workspace, params))
    missing: list[str] = []
    doubts: list[str] = []
    with tempfile.TemporaryDirectory(prefix="ratchet-compare-") as folder, DvcStore.open(workspace.root) as store:
        before, after = (_side(archive, sealed, name, Path(folder), missing, doubts) for name in (a, b))
        samples = None if before.data == after.data else _samples(store, before, after, missing)
        unknown = before.settings is None or after.settings is None
        return Comparison(
            names=(before.name, after.name),
            code=_code(workspace.root, before, after, missing),
            settings=None if unknown else changes(before.settings or {}, after.settings or {}),
            data=(before.data, after.data),
            samples=samples,
            environment=environment_changes(before.record, after.record) if before.record and after.record else (),
            metrics=comparison.metric_changes(before.run.metrics, after.run.metrics),
            answers=_answers(before, after, samples),
            missing=tuple(missing),
            doubts=tuple(doubts),
        )


def _side(
    archive: Archive, sealed: SealedReader, reference: str, folder: Path, missing: list[str], doubts: list[str]
) -> Side:
    name, run = _find(archive, reference)
    run = sealed.verify(run)
    doubts += [f"{name}: {doubt}." for doubt in run.doubts]
    if run.record is None:
        missing.append(f"{name} has no provenance record: its code, data and environment are unknown.")
    paths: list[Path | None] = []
    for path, why in _READ.items():
        file, doubt = sealed.file(run, path, folder)
        if doubt:
            doubts.append(f"{name}: {doubt}.")
        elif file is None and why:
            missing.append(f"{name} has no {path}{why}.")
        paths.append(file)
    completed, params, patch, predictions = paths
    return Side(
        name,
        run,
        _read(_settings, completed or params, f"{name}: {_COMPLETED if completed else _PARAMS}", doubts),
        patch.read_bytes() if patch else b"",
        _read(read_predictions, predictions, f"{name}: report/predictions.parquet", doubts),
    )


def _read(read: Callable[[Path], T], path: Path | None, stored: str, doubts: list[str]) -> T | None:
    """Read a file of a run. If it is damaged, add a doubt and return None: the ledger may not know its digest."""
    try:
        return read(path) if path else None
    except DataError:
        doubts.append(f"{stored} is damaged: it is not read.")
        return None


def _settings(path: Path) -> Mapping[str, Any]:
    from ruamel.yaml.error import YAMLError

    try:
        content = files.read_json(path) if path.suffix == ".json" else files.read_yaml(path)
    except (YAMLError, ValueError) as error:  # also JSON's and Unicode's
        raise DataError(f"{path}: is not text with settings") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: has no settings")
    values = {key: value for key, value in settings.dotted(content).items() if value is not None}
    return settings.dotted(Params().model_dump(mode="json")) | values  # of settings that the file lacks


def _find(archive: Archive, reference: str) -> tuple[str, ArchivedRun]:
    if REFERENCE.match(reference):
        run, release = archive.version(reference)
        return f"{release.name}/{release.number}", run
    found_run = archive.run(reference)
    if found_run is None:
        raise RegistryError(
            f"{reference}: neither a version (models:/NAME/VERSION, NAME/VERSION, NAME@ALIAS) nor the id of a run that "
            f"MLflow at {archive.uri} has"
        )
    return f"run {found_run.run_id[:8]}", found_run


def _code(root: Path, before: Side, after: Side, missing: list[str]) -> CodeChange:
    a, b = commits = tuple(side.record.git_commit if side.record else None for side in (before, after))
    unknown = [
        f"{side.name}: its commit {commit or ''} is unknown to the git repository here. Fix: `git fetch`."
        for side, commit in zip((before, after), commits, strict=True)
        if side.record and not (commit and git.line(root, "rev-parse", "--quiet", "--verify", f"{commit}^{{commit}}"))
    ]
    missing += unknown
    stat: list[str] = []
    if a and b and a != b and not unknown:
        # Settings and data are compared by their content, not as lines of a diff.
        command = ("diff", "--stat=100", "--no-color", a, b, "--", ".", ":(exclude)dvc.lock")
        stat = [line.strip() for line in git.run(root, *command).decode(errors="replace").splitlines()]
    return CodeChange((a, b), tuple(stat), patched_files(before.patch, after.patch))


def _samples(store: DvcStore, before: Side, after: Side, missing: list[str]) -> "Difference | None":
    import polars

    from ratchet.data.difference import COLUMNS, difference

    indexes = []
    for side in (before, after):
        content = store.file(side.data, "index.parquet") if side.data else None
        if content is not None:
            indexes.append(polars.read_parquet(content, columns=list(COLUMNS)))
        elif side.data:
            missing.append(f"{side.name}: its data {store.missing(side.data)}.")
    return difference(*indexes) if len(indexes) == 2 else None


def _answers(before: Side, after: Side, samples: "Difference | None") -> "comparison.AnswerComparison | None":
    if before.predictions is None or after.predictions is None:
        return None
    altered = frozenset(samples.altered["id"].to_list()) if samples else frozenset()
    return comparison.compare_answers(before.predictions, after.predictions, after.settings or {}, altered=altered)


def print_comparison(comparison: Comparison, *, most: int) -> None:
    """Print a comparison with at most `most` samples of each kind (0: all)."""
    echo(f"A {comparison.names[0]}   B {comparison.names[1]}", style="bold")
    for title, content in _sections(comparison, most):
        if content:
            echo(f"\n{title}", style="bold")
        rows = [line for line in content if not isinstance(line, str)]
        if rows:
            echo_table(("", "A", "B"), rows)
        for line in content:
            if isinstance(line, str):
                echo(f"  {line}")


def _sections(comparison: Comparison, most: int) -> Iterator[tuple[str, Sequence[str | _Row]]]:
    """Yield the title and the content of each section; empty content where there is nothing to say."""
    code, samples = comparison.code, comparison.samples
    yield "warnings", comparison.doubts
    patched = [f"uncommitted: {name}: {where}" for name, where in code.patched.items()]
    yield (
        "code",
        [_versions("the same commit", code.commits), *code.stat, *(patched or ["nothing uncommitted differs"])],
    )
    yield "settings", _changes(comparison.settings, "the same")
    yield (
        "data",
        [_versions("the same", comparison.data), *([*samples.lines(most), samples.summary] if samples else [])],
    )
    yield "environment", _changes(comparison.environment, "the same, or not recorded for both")
    yield "test metrics", [(each.name, measured(each.before), measured(each.after)) for each in comparison.metrics]
    if answers := comparison.answers:
        yield "test samples", [answers.summary]
        yield _flips("right -> wrong", answers.worse, most)
        yield _flips("wrong -> right", answers.better, most)
    yield "not compared", comparison.missing


def _versions(same: str, versions: tuple[str | None, str | None]) -> str:
    a, b = (version or "unknown" for version in versions)
    return "unknown for both" if versions == (None, None) else f"{same}, {a}" if a == b else f"{a} -> {b}"


def _changes(changes: Sequence[Change] | None, same: str) -> Sequence[str | _Row]:
    """Return rows of settings or packages; empty content if they are unknown."""
    rows = [(change.name, setting(change.before), setting(change.after)) for change in changes or ()]
    return rows or ([] if changes is None else [same])


def _flips(title: str, flips: Sequence[Flip], most: int) -> tuple[str, list[str]]:
    shown = flips[:most] if most else flips
    lines = [f"{flip.id}: {flip.label}, predicted {flip.before} -> {flip.after}" for flip in shown]
    lines += [f"... and {len(flips) - len(shown):,} more: --most 0 lists all"] if len(shown) < len(flips) else []
    return f"{title}: {len(flips):,}", lines or ["none"]
