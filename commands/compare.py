"""compare: why two runs or versions differ, in the terminal and as a page."""

import argparse
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ratchet import files, git, settings
from ratchet.errors import DataError, RegistryError
from ratchet.evaluation.predictions import Predictions, read_predictions
from ratchet.provenance import comparison
from ratchet.provenance.archive import REFERENCE, Archive, ArchivedRun
from ratchet.provenance.comparison import CodeChange, Comparison, changes, environment_changes, patched_files
from ratchet.provenance.sealed import SealedReader
from ratchet.registry.ledger import Ledger
from ratchet.registry.provenance_record import PACKED, Provenance
from ratchet.workspace import Workspace, disk_errors
from tasks.dvc_store import DvcStore
from tasks.stage_runner import end_with

if TYPE_CHECKING:
    import polars

    from ratchet.data.difference import Difference

__all__ = ["compare"]

T = TypeVar("T")

_READ = {
    "provenance/params.yaml": " among its artifacts: its settings are unknown",
    "provenance/uncommitted.patch": "",  # where nothing was uncommitted there may be none
    "report/predictions.parquet": ": it was not evaluated, or its artifacts are gone",
}
"""What is read of each run, and what to say where it is not there."""


@dataclass(frozen=True)
class Side:
    """One of the two, and what is kept of it."""

    name: str
    made: ArchivedRun
    settings: Mapping[str, Any] | None  # by dotted key
    patch: bytes
    predictions: Predictions | None

    @property
    def record(self) -> Provenance | None:
        """Its provenance, if there is one."""
        return self.made.record


def compare(workspace: Workspace, a: str, b: str) -> Comparison:
    """What differs from A to B, each a version or the id of an MLflow run.

    Raises:
        RegistryError: there is no such version or run.
    """
    params = settings.load(workspace.params)
    archive = Archive(workspace, params)
    sealed = SealedReader(archive, Ledger.of(workspace, params))
    missing: list[str] = []
    doubts: list[str] = []
    with tempfile.TemporaryDirectory(prefix="ratchet-compare-") as folder, DvcStore.open(workspace.root) as stored:
        one, other = (_side(archive, sealed, name, Path(folder), missing, doubts) for name in (a, b))
        indexes = None if _same_data(one, other) else _indexes(stored, one, other, missing)
        return Comparison(
            names=(one.name, other.name),
            code=_code(workspace.root, one, other, missing),
            settings=None if one.settings is None or other.settings is None else changes(one.settings, other.settings),
            data=(one.made.hash_of(PACKED), other.made.hash_of(PACKED)),
            samples=_samples(indexes),
            environment=environment_changes(one.record, other.record) if one.record and other.record else (),
            metrics=comparison.metric_changes(one.made.metrics, other.made.metrics),
            answers=_rows(one, other, indexes),
            missing=tuple(missing),
            doubts=tuple(doubts),
        )


def _side(
    archive: Archive, sealed: SealedReader, reference: str, folder: Path, missing: list[str], doubts: list[str]
) -> Side:
    name, made = _found(archive, reference)
    made = sealed.verify(made)
    doubts += [f"{name}: {doubt}." for doubt in made.doubts]
    if made.record is None:
        missing.append(f"{name} has no provenance record: its code, data and environment are unknown.")
    found: list[Path | None] = []
    for path, why in _READ.items():
        file, doubt = sealed.file(made, path, folder)
        if doubt:
            doubts.append(f"{name}: {doubt}.")
        elif file is None and why:
            missing.append(f"{name} has no {path}{why}.")
        found.append(file)
    params, patch, answers = found
    return Side(
        name,
        made,
        _read(_settings, params, name, doubts),
        patch.read_bytes() if patch else b"",
        _read(read_predictions, answers, name, doubts),
    )


def _read(read: Callable[[Path], T], path: Path | None, name: str, doubts: list[str]) -> T | None:
    """Read a file of a run; None, and a doubt, where it is damaged: the ledger may not know its digest."""
    if path is None:
        return None
    try:
        return read(path)
    except DataError:
        (called,) = (one for one in _READ if Path(one).name == path.name)
        doubts.append(f"{name}: {called} is damaged: it is not read.")
        return None


def _settings(path: Path) -> Mapping[str, Any]:
    from ruamel.yaml.error import YAMLError

    try:
        content = files.read_yaml(path)
    except (YAMLError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: is not YAML") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: has no settings")
    return settings.dotted(content)


def _found(archive: Archive, reference: str) -> tuple[str, ArchivedRun]:
    if REFERENCE.match(reference):
        made, version = archive.version(reference)
        return f"{version.name}/{version.number}", made
    run = archive.run(reference)
    if run is None:
        raise RegistryError(
            f"{reference}: neither a version (models:/NAME/VERSION, NAME/VERSION, NAME@ALIAS) nor the id of a run that "
            f"MLflow at {archive.uri} has"
        )
    return f"run {run.run_id[:8]}", run


def _code(root: Path, one: Side, other: Side, missing: list[str]) -> CodeChange:
    a, b = (side.record.git_commit if side.record else None for side in (one, other))
    commits = (a, b)
    stat: list[str] = []
    for side, commit in zip((one, other), commits, strict=True):
        if side.record and not (commit and git.line(root, "cat-file", "-t", f"{commit}^{{commit}}")):
            missing.append(
                f"{side.name}: its commit {commit or ''} is unknown to the git repository here: `git fetch`."
            )
            break
    else:
        if None not in commits and commits[0] != commits[1]:
            # Only the code: dvc.lock and settings are compared by what they say.
            command = ("diff", "--stat=100", "--no-color", *map(str, commits), "--", ".", ":(exclude)dvc.lock")
            stat = [line.strip() for line in git.run(root, *command).decode(errors="replace").splitlines()]
    return CodeChange(commits, tuple(stat), patched_files(one.patch, other.patch))


def _same_data(one: Side, other: Side) -> bool:
    return one.made.hash_of(PACKED) == other.made.hash_of(PACKED)


def _indexes(
    stored: DvcStore, one: Side, other: Side, missing: list[str]
) -> "tuple[polars.DataFrame, polars.DataFrame] | None":
    import polars

    from ratchet.data.difference import COLUMNS

    found = []
    for side in (one, other):
        value = side.made.hash_of(PACKED)
        content = stored.file(value, "index.parquet") if value else None
        if content is not None:
            found.append(polars.read_parquet(content, columns=list(COLUMNS)))
        elif value:
            missing.append(f"{side.name}: its data {stored.missing(value)}.")
    return (found[0], found[1]) if len(found) == 2 else None


def _samples(indexes: "tuple[polars.DataFrame, polars.DataFrame] | None") -> "Difference | None":
    from ratchet.data.difference import difference

    return difference(*indexes) if indexes else None


def _rows(
    one: Side, other: Side, indexes: "tuple[polars.DataFrame, polars.DataFrame] | None"
) -> "comparison.AnswerComparison | None":
    if one.predictions is None or other.predictions is None:
        return None
    found = _samples(indexes)
    altered = frozenset(found.altered["id"].to_list()) if found else frozenset()
    return comparison.compare_answers(one.predictions, other.predictions, other.settings or {}, altered=altered)


def _write_page(found: Comparison, asked: tuple[str, str], workspace: Workspace, path: str | None) -> Path:
    from ratchet.reports.comparison_page import page

    a, b = (re.sub(r"[^\w.-]+", "-", one.removeprefix("models:/")) for one in asked)
    place = Path(path) if path else workspace.reports / f"compare-{a}-{b}.html"
    if place.is_dir():
        raise DataError(f"{place}: is a folder: --html takes the path of a file")
    files.write_text(place, page(found))
    return place


def _main() -> int:
    from commands.comparison_table import show

    parser = argparse.ArgumentParser(prog="ratchet compare")
    parser.add_argument("a")
    parser.add_argument("b")
    parser.add_argument("--most", type=int, default=20)
    parser.add_argument("--html")
    asked = parser.parse_args()
    workspace = Workspace.find()
    with disk_errors(workspace.root):
        found = compare(workspace, asked.a, asked.b)
        place = _write_page(found, (asked.a, asked.b), workspace, asked.html)
    show(found, most=asked.most, place=place)
    return 0


if __name__ == "__main__":
    end_with("compare", _main)
