"""Everything that a clean-up must keep: DVC hashes, MLflow runs and trainings that something in the project names."""

import json
import os
import re
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ratchet import git
from ratchet.errors import DataError, RegistryError
from ratchet.provenance.archive import Archive, ArchivedRun
from ratchet.registry.ledger import Ledger
from ratchet.registry.provenance_record import PACKED, Provenance
from ratchet.registry.run_trash import RunTrash, has_records
from ratchet.settings.model import Params
from ratchet.workspace import Workspace
from tasks.dvc_store import DvcStore

__all__ = ["Needs", "checkouts"]

_HASH = re.compile(r"\b[0-9a-f]{32}(?![0-9a-f])(?:\.dir\b)?")
_KEY = re.compile(r'"key": "([0-9a-f]{16})"')
_PATHS = (":/*.dvc", ":/*dvc.lock")  # in the whole repository
_PACKED = re.compile(rf"path: {PACKED}\s+hash: md5\s+md5: ([0-9a-f]{{32}}\.dir)")


@dataclass(frozen=True)
class Needs:
    """Runs and trainings that are needed.

    `text`: everything that versions, the ledger and the checkouts name. `keys`: trainings whose results are checked
    out. `records`: of runs with a provenance record, by the run's id; `versions`: runs of versions.
    """

    text: str
    keys: frozenset[str]
    records: Mapping[str, Provenance]
    versions: frozenset[str]

    @classmethod
    def of(cls, project: Workspace, params: Params) -> "Needs":
        """Read versions, ledger and checkouts.

        Raises:
            LedgerBroken: it is not known what the ledger needs.
            RegistryError: the provenance record of a version is damaged.
        """
        ledger = Ledger.of(project, params)
        named, runs = list[str](), list[ArchivedRun]()
        if ledger.is_begun:
            ledger.require_intact()
            named += [json.dumps(entry.content) for entry in ledger.read().entries if entry.what != "judge"]
        if has_records(project.database(params.tracking.uri)):
            named.append(RunTrash(project, params).versions_text())
            archive = Archive(project, params)
            runs = archive.runs()
            named += _uncommitted(archive, runs)
        for run in runs:
            if run.versions and run.doubts:
                raise RegistryError(
                    f"{run.versions[0].uri}: {run.doubts[0]}. So it is not known which data it needs, and nothing was "
                    "moved. Fix: `ratchet audit` shows what to restore"
                )
        here = [_text(path) for place in (project, *checkouts(project)) for path in _state_files(place)]
        text = "\n".join([*named, *here])
        records = {run.run_id: run.record for run in runs if run.record is not None}
        of_versions = frozenset(run.run_id for run in runs if run.versions)
        return cls(text, frozenset(_KEY.findall(text)), records, of_versions)

    def kept_records(self, kept_runs: Collection[str]) -> list[Provenance]:
        """Return the records of the versions and of the runs that stay."""
        return [record for run, record in self.records.items() if run in self.versions or run in kept_runs]

    def hashes(self, project: Workspace, kept_runs: Collection[str], *, since: float) -> frozenset[str]:
        """Return the DVC hashes that are needed.

        `since`: commits from this time on (seconds since 1970) need all that their dvc.lock names; older ones only what
        their .dvc files name, unless a branch, a tag or a stash ends there.

        Raises:
            GitError: git is not installed, or fails.
            DataError: the listing of a folder is damaged, or is in a remote that does not answer.
        """
        hashes = {*_HASH.findall(self.text), *_git_hashes(project.root, since), *_recent(project, since)}
        for record in self.kept_records(kept_runs):
            hashes |= {value for value in (record.dvc.get(PACKED), *record.dvc_inputs.values()) if value}
        with DvcStore.open(project.root) as store:
            return frozenset(
                hashes.union(*(_members(store, value) for value in sorted(hashes) if value.endswith(".dir")))
            )


def checkouts(project: Workspace) -> list[Workspace]:
    """Return the other folders that share the project's records or its cache: worktrees and DVC's experiments."""
    prefix = git.line(project.root, "rev-parse", "--show-prefix") or ""
    listed = git.line(project.root, "worktree", "list", "--porcelain") or ""
    tops = [Path(line.removeprefix("worktree ")) for line in listed.splitlines() if line.startswith("worktree ")]
    tops.append(project.production.root)  # git lists its former place after a move of the project
    experiments = (project.root / ".dvc" / "tmp" / "exps").glob("*/")
    folders = [top / each for top in (*tops, *experiments) for each in (prefix, "")]
    return [
        Workspace(path) for path in dict.fromkeys(folders) if path != project.root and (path / "params.yaml").exists()
    ]


def _state_files(place: Workspace) -> Iterator[Path]:
    """Yield the files of a checkout that name hashes and trainings, of the user's other pipelines, too."""
    yield from (place.registration, place.model / "model.json")
    names = ("*.dvc", "*dvc.lock")
    if git.line(place.root, "rev-parse", "--git-dir") is None:
        paths = [path for name in names for path in place.root.rglob(name)]
    else:
        listed = git.text(place.root, "ls-files", "-z", "--cached", "--others", "--", *names)
        paths = [place.root / name for name in listed.split("\0") if name]
    yield from (path for path in paths if place.mlruns not in path.parents)  # each run there has its dvc.lock


def _uncommitted(archive: Archive, runs: Sequence[ArchivedRun]) -> Iterator[str]:
    """Yield the uncommitted changes of .dvc files with which versions were made: `ratchet reproduce` needs these."""
    with tempfile.TemporaryDirectory() as folder:
        for run in runs:
            if run.versions and run.record and run.record.git_uncommitted:
                patch = archive.file(run.run_id, "provenance/uncommitted.patch", Path(folder))
                changes = _text(patch).split("\ndiff --git ") if patch else []
                yield from (text for text in changes if text.partition("\n")[0].rstrip('"').endswith(".dvc"))


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _recent(project: Workspace, since: float) -> Iterator[str]:
    """Yield what the run cache of new trainings, and new listings, name. DVC does not write the files in them again."""
    cache = project.root / ".dvc" / "cache"
    for path in (cache / "runs").glob("*/*/*"):
        if path.lstat().st_mtime >= since:
            yield from _HASH.findall(_text(path))
    for store in (cache, project.state / "remote"):
        listings = (store / "files" / "md5").glob("*/*.dir")
        yield from (path.parent.name + path.name for path in listings if path.lstat().st_mtime >= since)


def _members(store: DvcStore, value: str) -> list[str]:
    """Return the hashes of a folder's files; [] if no store has its listing.

    Raises:
        DataError: its listing is damaged, or perhaps in a remote that does not answer.
    """
    listing = store.listing(value)
    if listing is not None:
        return list(listing.values())
    local = store.stores["DVC's cache"]
    if Path(local.oid_to_path(value)).exists() or store.unavailable:
        raise DataError(
            f"{store.missing(value)}. Its listing is damaged, or a remote does not answer, so it is not known which "
            "files it needs, and nothing was moved"
        )
    return []


def _git_hashes(root: Path, since: float) -> Iterator[str]:
    """Yield what the repository's commits name: of new ones and of tips everything, of all their .dvc files.

    The tips are branches, tags, stashes, DVC's experiments and what is checked out; a commit that a registered version
    keeps (refs/ratchet) needs the data alone, because its code is built from git.
    """
    if git.line(root, "rev-parse", "--git-dir") is None:
        if (root / ".git").exists():
            git.run(root, "rev-parse", "--git-dir")  # says what is wrong, such as that git is not installed
        return
    refs = [
        line.split(" ") for line in git.text(root, "for-each-ref", "--format=%(objectname) %(refname)").splitlines()
    ]
    if not refs:
        return  # before the first commit
    ours = {commit for commit, name in refs if name.startswith("refs/ratchet/")}
    tips = {commit for commit, name in refs if not name.startswith("refs/ratchet/")}
    tips |= set(git.text(root, "stash", "list", "--format=%H").split())
    listed = git.text(root, "worktree", "list", "--porcelain").splitlines()
    tips |= {line.removeprefix("HEAD ") for line in listed if line.startswith("HEAD ") and line.strip("HEAD 0")}
    logged = git.text(root, "log", "--all", "--reflog", "--format=%H %ct").splitlines()
    tips |= {commit for commit, time in map(str.split, logged) if float(time) >= since}
    tracked, locks = _history(root)
    index = git.text(root, "ls-files", "--stage", "-z", "--", *_PATHS).split("\0")
    staged = {line.split()[1] for line in index if line}
    whole = _blobs(root, {f"{commit}:{path}" for commit in tips for path in locks})
    yield from _HASH.findall(_content(root, tracked | staged | whole))
    yield from _PACKED.findall(_content(root, _blobs(root, {f"{commit}:{path}" for commit in ours for path in locks})))


def _history(root: Path) -> tuple[set[str], set[str]]:
    """Return git's objects of all .dvc files that there ever were, and the paths of all dvc.lock."""
    log = ("log", "--all", "--reflog", "--full-history", "-m", "-z", "--format=", "--raw", "--no-abbrev")
    fields = iter(git.run(root, *log, "--no-renames", "--", *_PATHS).decode(errors="surrogateescape").split("\0"))
    tracked, locks = set[str](), set[str]()
    for facts in fields:
        if ":" in facts:
            path, blobs = next(fields), facts.split()[2:4]
            if path.endswith(".dvc"):
                tracked |= {blob for blob in blobs if blob.strip("0")}
            else:
                locks.add(path)
    return tracked, locks


def _blobs(root: Path, names: Collection[str]) -> set[str]:
    """Return git's objects by their names, COMMIT:PATH; there is none where the commit does not have the path."""
    names_text = os.fsencode("".join(f"{name}\n" for name in sorted(names)))
    rows = git.run(root, "cat-file", "--batch-check", stdin=names_text).decode(errors="replace").splitlines()
    return {row.split(" ")[0] for row in rows if " blob " in row}


def _content(root: Path, blobs: Collection[str]) -> str:
    """Return the content of git's objects, with their names between."""
    names = "".join(f"{blob}\n" for blob in sorted(blobs)).encode()
    return git.run(root, "cat-file", "--batch", stdin=names).decode(errors="replace")
