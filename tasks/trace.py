"""trace: from any of its names to the whole chain, back to the data and on to the versions."""

import argparse
import hashlib
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet import files, settings
from ratchet.errors import RegistryError
from ratchet.lineage import chain_page
from ratchet.lineage.archive import REFERENCE, Archive, Made
from ratchet.lineage.chain import PACKED, Acts, Link, data_link
from ratchet.registry.ledger import Entry, Ledger
from ratchet.workspace import Workspace, disk_errors
from tasks.command import end_with
from tasks.stored import Stored, hash_of

__all__ = ["Traced", "trace"]

_DATA = re.compile(r"^[0-9a-f]{32}(\.dir)?$")
_PROVENANCE = re.compile(r"^[0-9a-f]{16}$")
_ACCEPTED = (
    "a version (models:/NAME/VERSION, NAME/VERSION or NAME@ALIAS), the id of an MLflow run, a DVC hash, a file or "
    "folder, or a provenance id"
)


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
    entries = Ledger(workspace, params.registry.ledger).entries()
    with Stored.open(workspace.root) as stored:
        found = _Search(archive, stored, _acts(entries))
        words, runs = found.named(name)
        if not runs:
            raise RegistryError(f"{name}: nothing known here has this name; accepted: {_ACCEPTED}")
        return Traced(tuple(words), tuple(found.chains(runs)))


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

    def __init__(self, archive: Archive, stored: Stored, acts: Acts) -> None:
        self.archive, self.stored, self.acts = archive, stored, acts
        self.runs = archive.runs()
        self._listings: dict[str, Mapping[str, str]] = {}  # of folders, by their hash

    def named(self, name: str) -> tuple[list[str], list[Made]]:
        """What a name stands for, and the runs it has to do with; none where it stands for nothing."""
        path = Path(name)
        if REFERENCE.match(name) and (name.startswith("models:/") or not path.exists()):
            made, release = self.archive.version(name)
            return [f"{release.words}"], [made]
        if path.exists():
            return self._file(path)
        if _DATA.match(name):
            made_of = [run for run in self.runs if run.run_id == name]
            return ([f"the MLflow run {name}"], made_of) if made_of else self._hash(name)
        if _PROVENANCE.match(name):
            made_of = [run for run in self.runs if self._has_record(run, name)]
            return [f"the provenance record {name}"], made_of
        return [], []

    def chains(self, runs: Sequence[Made]) -> Iterator[Link]:
        """One for each data version, in the order of the runs."""
        by_data: dict[str | None, list[Made]] = {}
        for run in runs:
            by_data.setdefault(run.hash_of(PACKED), []).append(run)
        for value, made in by_data.items():
            all_of_it = [run for run in self.runs if value and run.hash_of(PACKED) == value]
            yield data_link(made, kept=self._kept(value), others=max(0, len(all_of_it) - len(made)), acts=self.acts)

    def _kept(self, value: str | None) -> str:
        if value is None:
            return "where its content is cannot be told without its hash"
        place = self.stored.place_of(value)
        return f"kept in {place}" if place else str(self.stored.missing(value))

    def _has_record(self, run: Made, id: str) -> bool:
        tagged = [run.tags, *(release.tags for release in run.releases)]
        return any(tags.get("ratchet.provenance") == id for tags in tagged)

    def _hash(self, value: str, whose: str = "") -> tuple[list[str], list[Made]]:
        """An output of runs, or a file inside one, or what they were made of."""
        words: dict[str, None] = {}
        found = []
        for run in self.runs:
            if places := list(self._places(run, value)):
                found.append(run)
                words |= dict.fromkeys(f"{whose or value} is {place}" for place in places)
        return list(words), found

    def _places(self, run: Made, value: str) -> Iterator[str]:
        record: Mapping[str, Any] = run.record or {}
        for path, one in record.get("dvc_inputs", {}).items():
            if one == value:
                yield f"{path}, which went in"
        for path, one in record.get("dvc", {}).items():
            if one == value:
                yield path
            elif one.endswith(".dir"):
                inside = self._listing(one)
                yield from (f"{path}/{name}" for name, its in inside.items() if its == value)

    def _listing(self, value: str) -> Mapping[str, str]:
        if value not in self._listings:
            self._listings[value] = self.stored.listing(value) or {}
        return self._listings[value]

    def _file(self, path: Path) -> tuple[list[str], list[Made]]:
        """By its content: an output of a run, a file inside one, or a sample of the data."""
        if path.is_dir():
            return self._hash(hash_of(path), str(path))
        with path.open("rb") as file:
            md5 = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        words, found = self._hash(md5, str(path))
        return (words, found) if found else self._sample(path)

    def _sample(self, path: Path) -> tuple[list[str], list[Made]]:
        import polars

        content = files.digest_file(path)
        words, found = [], []
        versions = dict.fromkeys(value for run in self.runs if (value := run.hash_of(PACKED)))
        for value in versions:
            index = self.stored.file(value, "index.parquet")
            if index is None:
                continue
            rows = polars.read_parquet(io.BytesIO(index)).filter(polars.col("content") == content)
            for row in rows.iter_rows(named=True):
                words.append(f"{path} is sample {row['id']} of data version {value}: {row['split']}, {row['class']}")
            if rows.height:
                found += [run for run in self.runs if run.hash_of(PACKED) == value]
        return words, found


def _drawn(link: Link, *, before: str = "", under: str = "") -> Iterator[str]:
    """The tree as lines, however long: a hash that is cut off helps nobody."""
    below = "│   " if link.made else "    "
    yield f"{before}{link.title}"
    yield from (f"{under}{below}{line}" for line in link.lines)
    for one in link.made:
        last = one is link.made[-1]
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
