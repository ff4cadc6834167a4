"""`ratchet trace`: the lineage of a version, run, file or hash, from the data to the registered versions."""

import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ratchet import files, settings
from ratchet.errors import RegistryError
from ratchet.provenance.archive import Archive, ArchivedRun
from ratchet.provenance.lineage import Acts, Link, data_link
from ratchet.provenance.sealed import SealedReader
from ratchet.registry.ledger import Ledger, LedgerEntry
from ratchet.registry.provenance_record import PACKED, PROVENANCE_TAG
from ratchet.registry.versions import REFERENCE
from ratchet.terminal_lines import echo
from ratchet.traffic.log_reader import find, log_folder
from ratchet.workspace import Workspace
from tasks.dvc_store import DvcStore, hash_of, md5_of

__all__ = ["Trace", "print_trace", "trace"]

_HASH = re.compile(r"^[0-9a-f]{32}(\.dir)?$")
_ACCEPTED = (
    "a version (models:/NAME/VERSION, NAME/VERSION or NAME@ALIAS), the id or name of an MLflow run, a DVC hash, a file "
    "or folder, a value of a provenance record (commit, weights, settings, lock, Prefect flow run), the id or SHA-256 "
    "of a sample, or the id of a logged answer"
)
_Matches = tuple[list[str], list[ArchivedRun]]


@dataclass(frozen=True)
class Trace:
    """Lineage of X: sentences that say what X is, and a chain for each related version of the data."""

    descriptions: tuple[str, ...]
    chains: tuple[Link, ...]


def print_trace(name: str, workspace: Workspace) -> None:
    """Print the lineage of `name`."""
    lineage = trace(workspace, name)
    echo("\n".join([*lineage.descriptions, *(line for chain in lineage.chains for line in _tree(chain))]))


def trace(workspace: Workspace, name: str) -> Trace:
    """Find what `name` refers to, and its lineage."""
    params = settings.load(workspace.params)
    answered, name = _answered(workspace, name)
    archive = Archive(workspace, params)
    sealed = SealedReader(archive, Ledger.of(workspace, params))
    with DvcStore.open(workspace.root) as store:
        search = _Search(archive, store, sealed)
        descriptions, runs = search.find(name)
        if not runs:
            raise RegistryError(f"{name}: nothing known here has this name. Allowed: {_ACCEPTED}")
        warnings = [f"! {sealed.warning}"] if sealed.warning else []
        return Trace((*warnings, *answered, *descriptions), tuple(search.chains(runs)))


def _answered(workspace: Workspace, name: str) -> tuple[list[str], str]:
    """Return what the request log says of an answer's id, and the version that answered; else nothing, and the name."""
    if not _HASH.match(name) or (rows := find(log_folder(workspace), name)).is_empty():
        return [], name
    first = rows.row(0, named=True)
    by = f" for the key {first['key']}" if first["key"] else ""
    count = f"{len(rows)} rows" if len(rows) > 1 else "one row"
    return [
        f"the answer {name} of {first['model']} version {first['version']} to {count}{by}, "
        f"{first['time']:%Y-%m-%d %H:%M:%S}Z, in {first['seconds'] * 1e3:.1f} ms"
    ], f"models:/{first['model']}/{first['version']}"


def _acts(entries: Sequence[LedgerEntry]) -> Acts:
    acts: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        begin, over = f"{entry.at[:19]}Z {entry.who}: {entry.what}", entry.content.get("over")
        # The reason for registering is the verdict, which is printed above.
        why = "" if entry.what in ("register", "renew") else f": {entry.why}"
        if entry.version:
            acts.setdefault((entry.model, entry.version), []).append(begin + why)
        if over and entry.what in ("promote", "rollback"):
            acts.setdefault((entry.model, over), []).append(f"{begin}, version {entry.version} in its place{why}")
    return acts


class _Search:
    """Search in MLflow, the ledger and DVC. Each method returns descriptions and runs; both empty: no match."""

    def __init__(self, archive: Archive, store: DvcStore, sealed: SealedReader) -> None:
        self.archive, self.store, self.sealed = archive, store, sealed
        self.acts = _acts(sealed.chain.valid)
        self.runs = archive.runs()
        self._listings: dict[str, Mapping[str, str]] = {}  # of folders, by their hash

    def find(self, name: str) -> _Matches:
        """Search by all kinds of names."""
        if not name:
            return [], []
        is_path = os.path.exists(name)  # unlike Path.exists, False for a name that is too long for a file
        if REFERENCE.match(name) and (name.startswith("models:/") or not is_path):
            return self._version(name)
        if is_path:
            return self._file(Path(name))
        named = [(run, description) for run in self.runs if (description := self._describe(run, name))]
        if named:
            return list(dict.fromkeys(description for _, description in named)), [run for run, _ in named]
        return self._hash(name, name) if _HASH.match(name) else self._samples(name, name)

    def _version(self, name: str) -> _Matches:
        try:
            run, release = self.archive.version(name)
        except RegistryError:
            descriptions, runs = self._samples(name, name)  # a sample's id can look like a version's name
            if not runs:
                raise
            return descriptions, runs
        version = (release.name, release.number)
        versions = self.sealed.verify(run).versions
        labels = [archived.label for archived in versions if (archived.name, archived.number) == version]
        children = [each.run_name for each in self.runs if each.record and each.record.parent == release.uri]
        return [*labels, *(f"{release.uri} was continued by the run {child}" for child in children)], [run]

    def _describe(self, run: ArchivedRun, name: str) -> str | None:
        """Return what `name` is of a run: its id or name, or a value of its record."""
        if name in (run.run_id, run.run_name):
            return f"the MLflow run {name}"
        if any(tags.get(PROVENANCE_TAG) == name for tags in (run.tags, *(version.tags for version in run.versions))):
            return f"the provenance record {name}"
        values = vars(run.record).items() if run.record else ()
        return next((f"{key} {name} of a provenance record" for key, value in values if value == name), None)

    def chains(self, runs: Sequence[ArchivedRun]) -> Iterator[Link]:
        """Yield one chain for each data version, in the order of the runs."""
        by_data: dict[str | None, list[ArchivedRun]] = {}
        for run in map(self.sealed.verify, runs):
            by_data.setdefault(run.hash_of(PACKED), []).append(run)
        for value, users in by_data.items():
            all_users = [run for run in self.runs if value and run.hash_of(PACKED) == value]
            others = max(0, len(all_users) - len(users))
            yield data_link(users, storage=self._storage(value), others=others, acts=self.acts)

    def _storage(self, value: str | None) -> str:
        if value is None:
            return "its storage is unknown without its hash"
        stores = self.store.place_of(value)
        return f"kept in {stores}" if stores else str(self.store.missing(value))

    def _hash(self, value: str, name: str) -> _Matches:
        """Search by a DVC hash: of an output of a run, of a file in one, or of an input."""
        descriptions: dict[str, None] = {}
        runs = []
        for run in self.runs:
            if places := list(self._places(run, value)):
                runs.append(run)
                descriptions |= dict.fromkeys(f"{name} is {place}" for place in places)
        return list(descriptions), runs

    def _places(self, run: ArchivedRun, value: str) -> Iterator[str]:
        if run.record is None:
            return
        for path, recorded in run.record.dvc_inputs.items():
            if recorded == value:
                yield f"{path}, an input"
        for path, recorded in run.record.dvc.items():
            if recorded == value:
                yield path
            elif recorded.endswith(".dir"):
                listing = self._listing(recorded)
                yield from (f"{path}/{file}" for file, file_hash in listing.items() if file_hash == value)

    def _listing(self, value: str) -> Mapping[str, str]:
        if value not in self._listings:
            self._listings[value] = self.store.listing(value) or {}
        return self._listings[value]

    def _file(self, path: Path) -> _Matches:
        """Search by a file's content: an output of a run, a file in one, or a sample of the data."""
        if path.is_dir():
            from dvc_data.hashfile.build import IgnoreInCollectedDirError

            try:
                return self._hash(hash_of(path), str(path))
            except IgnoreInCollectedDirError:  # the project folder itself, which is no run's output
                return [], []
        descriptions, runs = self._hash(md5_of(path), str(path))
        return (descriptions, runs) if runs else self._samples(files.digest_file(path), str(path))

    def _samples(self, value: str, name: str) -> _Matches:
        """Search the index of every data version for samples with this id or content."""
        import polars

        matches = (polars.col("id") == value) | (polars.col("content") == value)
        descriptions, runs = [], []
        for version in dict.fromkeys(data for run in self.runs if (data := run.hash_of(PACKED))):
            index = self.store.file(version, "index.parquet")
            if index is None:
                continue
            samples = polars.read_parquet(io.BytesIO(index)).filter(matches)
            descriptions += [
                f"{name} is sample {sample['id']} of data version {version}: {sample['split']}, {sample['class']}"
                for sample in samples.iter_rows(named=True)
            ]
            if samples.height:
                runs += [run for run in self.runs if run.hash_of(PACKED) == version]
        return descriptions, runs


def _tree(link: Link, *, before: str = "", under: str = "") -> Iterator[str]:
    """Draw the chain as a tree. Lines are never cut, because they contain hashes."""
    below = "│   " if link.children else "    "
    yield f"{before}{link.title}"
    yield from (f"{under}{below}{line}" for line in link.lines)
    for child in link.children:
        last = child is link.children[-1]
        yield from _tree(
            child, before=f"{under}{'└' if last else '├'}── ", under=f"{under}{'    ' if last else '│   '}"
        )
