"""trace: from any of its names to the whole chain, back to the data and on to the versions."""

import argparse
import hashlib
import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ratchet import files, settings
from ratchet.errors import RegistryError
from ratchet.provenance.archive import REFERENCE, Archive, ArchivedRun
from ratchet.provenance.lineage import Acts, Link, data_link
from ratchet.provenance.sealed import SealedReader
from ratchet.registry.ledger import Entry, Ledger
from ratchet.registry.provenance_record import PACKED
from ratchet.reports import chain_page
from ratchet.workspace import Workspace, disk_errors
from tasks.dvc_store import DvcStore, hash_of
from tasks.stage_runner import end_with

__all__ = ["Traced", "trace"]

_DATA = re.compile(r"^[0-9a-f]{32}(\.dir)?$")
_PROVENANCE = re.compile(r"^[0-9a-f]{16}$")
_SHA256 = re.compile(r"^[0-9a-f]{64}$")
_SHORT_RUN = re.compile(r"^(?:run )?([0-9a-f]{8,31})$")
_ACCEPTED = (
    "a version (models:/NAME/VERSION, NAME/VERSION or NAME@ALIAS), the id or name of an MLflow run, a DVC hash, a file "
    "or folder, a provenance id, a commit, the id of a Prefect flow run, the SHA-256 of weights, settings, a lock or a "
    "sample, or the id of a row"
)
_RECORDED = {
    "weights": "the SHA-256 of the weights",
    "settings": "the digest of the settings",
    "lock": "the SHA-256 of requirements.txt",
    "git_uncommitted": "the SHA-256 of the uncommitted changes",
    "git_commit": "the commit",
    "prefect_flow_run": "the Prefect flow run",
    "training": "the training",
}
"""What of a record can be asked for, and what to call it."""


@dataclass(frozen=True)
class Traced:
    """What X is, in sentences, and a chain for each version of the data that it has to do with."""

    words: tuple[str, ...]
    chains: tuple[Link, ...]


def trace(workspace: Workspace, name: str) -> Traced:
    """The chain of whatever `name` names.

    Raises:
        RegistryError: it names nothing that is known here.
    """
    params = settings.load(workspace.params)
    archive = Archive(workspace, params)
    sealed = SealedReader(archive, Ledger.of(workspace, params))
    with DvcStore.open(workspace.root) as stored:
        found = _Search(archive, stored, sealed)
        words, runs = found.named(name)
        if not runs:
            raise RegistryError(f"{name}: nothing known here has this name; accepted: {_ACCEPTED}")
        warnings = [f"! {sealed.warning}"] if sealed.warning else []
        return Traced((*warnings, *words), tuple(found.chains(runs)))


def _acts(entries: Sequence[Entry]) -> Acts:
    acts: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        begin, over = f"{entry.at[:19]}Z {entry.who}: {entry.what}", entry.content.get("over")
        # Why it passed, the verdict above says.
        why = "" if entry.what in ("register", "renew") else f": {entry.why}"
        if entry.version:
            acts.setdefault((entry.model, entry.version), []).append(begin + why)
        if over and entry.what in ("promote", "rollback"):
            acts.setdefault((entry.model, over), []).append(f"{begin}, version {entry.version} in its place{why}")
    return acts


class _Search:
    """One look at everything that MLflow, the ledger and DVC hold."""

    def __init__(self, archive: Archive, stored: DvcStore, sealed: SealedReader) -> None:
        self.archive, self.stored, self.sealed = archive, stored, sealed
        self.acts = _acts(sealed.chain.valid)
        self.runs = archive.runs()
        self._listings: dict[str, Mapping[str, str]] = {}  # of folders, by their hash

    def named(self, name: str) -> tuple[list[str], list[ArchivedRun]]:
        """What a name stands for, and the runs it has to do with; none where it stands for nothing."""
        path = Path(name)
        if not name:
            return [], []
        is_path = os.path.exists(name)  # unlike Path.exists, False for a name that is too long for a file
        if REFERENCE.match(name) and (name.startswith("models:/") or not is_path):
            try:
                made, release = self.archive.version(name)
            except RegistryError:
                words, runs = self._row(name)  # a row's id can look like a version's name
                if not runs:
                    raise
                return words, runs
            shown = self.sealed.verify(made).versions
            return [one.label for one in shown if (one.name, one.number) == (release.name, release.number)], [made]
        if is_path:
            return self._file(path)
        if _DATA.match(name):
            made_of = [run for run in self.runs if run.run_id == name]
            return ([f"the MLflow run {name}"], made_of) if made_of else self._hash(name)
        if _PROVENANCE.match(name):
            made_of = [run for run in self.runs if self._has_record(run, name)]
            if made_of:
                return [f"the provenance record {name}"], made_of
        return self._recorded(name)

    def _recorded(self, name: str) -> tuple[list[str], list[ArchivedRun]]:
        """By a value of a run's record, by a run's name, or by a row of the data."""
        for key, called in _RECORDED.items():
            found = [run for run in self.runs if run.record and getattr(run.record, key) == name]
            if found:
                return [f"{called} {name}"], found
        if _SHA256.match(name):
            found = [run for run in self.runs if name in (self.sealed.evidence(run)[0] or {}).values()]
            if found:
                files_of = {
                    path for run in found for path, one in (self.sealed.evidence(run)[0] or {}).items() if one == name
                }
                return [f"the SHA-256 of {path}" for path in sorted(files_of)], found
            return self._rows("content", name, name)
        short = _SHORT_RUN.match(name)
        found = [run for run in self.runs if short and run.run_id.startswith(short[1])]
        if found:
            return [f"the MLflow run {run.run_id}" for run in found], found
        found = [
            run for run in self.runs if len(name) >= 7 and run.record and str(run.record.git_commit).startswith(name)
        ]
        if found:
            return [f"the commit {name}"], found
        found = [run for run in self.runs if run.run_name == name]
        return ([f"the MLflow run named {name}"], found) if found else self._row(name)

    def _row(self, id: str) -> tuple[list[str], list[ArchivedRun]]:
        return self._rows("id", id, id)

    def chains(self, runs: Sequence[ArchivedRun]) -> Iterator[Link]:
        """One for each data version, in the order of the runs."""
        by_data: dict[str | None, list[ArchivedRun]] = {}
        for run in map(self.sealed.verify, runs):
            by_data.setdefault(run.hash_of(PACKED), []).append(run)
        for value, made in by_data.items():
            all_of_it = [run for run in self.runs if value and run.hash_of(PACKED) == value]
            yield data_link(made, storage=self._kept(value), others=max(0, len(all_of_it) - len(made)), acts=self.acts)

    def _kept(self, value: str | None) -> str:
        if value is None:
            return "where its content is cannot be told without its hash"
        place = self.stored.place_of(value)
        return f"kept in {place}" if place else str(self.stored.missing(value))

    def _has_record(self, run: ArchivedRun, id: str) -> bool:
        tagged = [run.tags, *(version.tags for version in run.versions)]
        return any(tags.get("ratchet.provenance") == id for tags in tagged)

    def _hash(self, value: str, whose: str = "") -> tuple[list[str], list[ArchivedRun]]:
        """An output of runs, or a file inside one, or what they were made of."""
        words: dict[str, None] = {}
        found = []
        for run in self.runs:
            if places := list(self._places(run, value)):
                found.append(run)
                words |= dict.fromkeys(f"{whose or value} is {place}" for place in places)
        return list(words), found

    def _places(self, run: ArchivedRun, value: str) -> Iterator[str]:
        if run.record is None:
            return
        for path, one in run.record.dvc_inputs.items():
            if one == value:
                yield f"{path}, which went in"
        for path, one in run.record.dvc.items():
            if one == value:
                yield path
            elif one.endswith(".dir"):
                inside = self._listing(one)
                yield from (f"{path}/{name}" for name, its in inside.items() if its == value)

    def _listing(self, value: str) -> Mapping[str, str]:
        if value not in self._listings:
            self._listings[value] = self.stored.listing(value) or {}
        return self._listings[value]

    def _file(self, path: Path) -> tuple[list[str], list[ArchivedRun]]:
        """By its content: an output of a run, a file inside one, or a sample of the data."""
        if path.is_dir():
            from dvc_data.hashfile.build import IgnoreInCollectedDirError

            try:
                return self._hash(hash_of(path), str(path))
            except IgnoreInCollectedDirError:  # the project's own folder, which no run made
                return [], []
        with path.open("rb") as file:
            md5 = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        words, found = self._hash(md5, str(path))
        return (words, found) if found else self._sample(path)

    def _sample(self, path: Path) -> tuple[list[str], list[ArchivedRun]]:
        return self._rows("content", files.digest_file(path), str(path))

    def _rows(self, column: str, value: str, called: str) -> tuple[list[str], list[ArchivedRun]]:
        """Samples of all data versions that have a value in a column of the index, and the runs made of them."""
        import polars

        words, found = [], []
        for version in dict.fromkeys(one for run in self.runs if (one := run.hash_of(PACKED))):
            index = self.stored.file(version, "index.parquet")
            if index is None:
                continue
            rows = polars.read_parquet(io.BytesIO(index)).filter(polars.col(column) == value)
            for row in rows.iter_rows(named=True):
                words.append(
                    f"{called} is sample {row['id']} of data version {version}: {row['split']}, {row['class']}"
                )
            if rows.height:
                found += [run for run in self.runs if run.hash_of(PACKED) == version]
        return words, found


def _drawn(link: Link, *, before: str = "", under: str = "") -> Iterator[str]:
    """The tree as lines, however long: a hash that is cut off helps nobody."""
    below = "│   " if link.children else "    "
    yield f"{before}{link.title}"
    yield from (f"{under}{below}{line}" for line in link.lines)
    for one in link.children:
        last = one is link.children[-1]
        yield from _drawn(one, before=f"{under}{'└' if last else '├'}── ", under=f"{under}{'    ' if last else '│   '}")


def _main() -> int:
    parser = argparse.ArgumentParser(prog="ratchet trace")
    parser.add_argument("name")
    parser.add_argument("--html")
    asked = parser.parse_args()
    workspace = Workspace.find()
    with disk_errors(workspace.root):
        found = trace(workspace, asked.name)
        if asked.html:
            files.write_text(Path(asked.html), chain_page.render(asked.name, found.words, found.chains))
    print("\n".join([*found.words, *(line for chain in found.chains for line in _drawn(chain))]))
    if asked.html:
        print(f"\npage: {asked.html}")
    return 0


if __name__ == "__main__":
    end_with("trace", _main)
