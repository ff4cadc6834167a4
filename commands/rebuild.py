"""A recorded training, laid down in a folder of its own and run there: code, settings, data."""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet import files, git
from ratchet.errors import DataError, RegistryError, TrainingError
from ratchet.provenance.archive import Archive, ArchivedRun, ArchivedVersion
from ratchet.provenance.comparison import Change, changes
from ratchet.provenance.record import installed_packages, read_record_file
from ratchet.registry.provenance_record import PACKED, PROVENANCE_TAG, RECORD_TAG, Provenance
from ratchet.workspace import ROOT_VARIABLE, Workspace
from tasks.dvc_store import DvcStore, hash_of

__all__ = ["Rebuild", "Recipe"]

_NOT_OURS = ("RATCHET_", "MLFLOW_", "PREFECT_")  # variables that would lead the rebuild out of its folder


@dataclass(frozen=True)
class Recipe:
    """Everything that a version was made of, known to be there."""

    name: str
    record: Provenance
    model: Path  # the stored model's folder
    params: Path
    patch: Path | None
    place: str  # where the data can be had from

    @classmethod
    def of(
        cls, made: ArchivedRun, release: ArchivedVersion, archive: Archive, stored: DvcStore, into: Path
    ) -> "Recipe":
        """The version's, its files copied into a folder.

        Raises:
            RegistryError: it has no record, its commit is unknown here, or what the record speaks of is not stored.
            DataError: its data is gone.
        """
        name = f"models:/{release.name}/{release.number}"
        record = made.record
        if record is None:
            is_damaged = bool({PROVENANCE_TAG, RECORD_TAG} & made.tags.keys())
            reason = "the one in MLflow is damaged" if is_damaged else "it was made without ratchet"
            raise RegistryError(f"{name}: has no provenance record, so it cannot be rebuilt: {reason}")
        _require_commit(name, record, archive.workspace.root)
        params, patch = (
            archive.file(made.run_id, f"provenance/{one}", into) for one in ("params.yaml", "uncommitted.patch")
        )
        if params is None:
            raise RegistryError(f"{name}: its settings, provenance/params.yaml of run {made.run_id}, are gone")
        patch = _required_patch(name, record, patch)
        data = made.hash_of(PACKED)
        if data is None:
            raise DataError(f"{name}: its record names no data version: DVC had recorded none when it was made")
        place = stored.place_of(data)
        if place is None:
            raise DataError(f"{name}: its data {stored.missing(data)}")
        return cls(name, record, archive.model(release, into), params, patch, place)

    @property
    def data(self) -> str:
        """The DVC hash of the packed data."""
        return str(self.record.dvc[PACKED])

    def other_versions(self) -> list[Change]:
        """Python and libraries that are installed in other versions than it was made with."""
        now = {"Python": platform.python_version(), **installed_packages()}
        return changes({"Python": self.record.python, **self.record.packages}, now)


def _require_commit(name: str, record: Provenance, root: Path) -> None:
    commit = record.git_commit
    if not commit:
        raise RegistryError(f"{name}: its commit is unknown: its record names none, for it was made outside git")
    if git.line(root, "rev-parse", "--quiet", "--verify", f"{commit}^{{commit}}") is None:
        origin = record.git_origin
        raise RegistryError(
            f"{name}: its commit {commit} is unknown to the git repository of {root}: fetch it"
            + (f" from {origin}" if origin else " from wherever it was made")
        )


def _required_patch(name: str, record: Provenance, patch: Path | None) -> Path | None:
    """The patch, if the version was made with an uncommitted change."""
    recorded = record.git_uncommitted
    if recorded is None:
        return None
    if patch is None or hashlib.sha256(patch.read_bytes()).hexdigest() != recorded:
        what = "is gone" if patch is None else "is not the one that was recorded"
        raise RegistryError(f"{name}: the patch of its uncommitted changes, provenance/uncommitted.patch, {what}")
    return patch


@dataclass(frozen=True)
class Rebuild:
    """A clone of the project in which the recipe is followed."""

    recipe: Recipe
    project: Workspace  # where the version was made, or a clone of that
    workspace: Workspace  # where it is made again

    @classmethod
    def lay_down(cls, recipe: Recipe, project: Workspace, folder: Path, stored: DvcStore) -> "Rebuild":
        """Clone the code, apply the patch, write the settings, bring the data.

        Raises:
            RegistryError: the patch does not apply.
            DataError: the data is not what the record says, or what it needs besides is gone.
        """
        top = Path(git.line(project.root, "rev-parse", "--show-toplevel") or project.root)
        _git(recipe, project.root, "clone", "--quiet", "--no-checkout", str(top), str(folder))
        _git(recipe, folder, "checkout", "--quiet", "--detach", str(recipe.record.git_commit))
        if recipe.patch is not None:
            _git(recipe, folder, "apply", "--binary", "--whitespace=nowarn", str(recipe.patch.resolve()))
        made = cls(recipe, project, Workspace(folder / (git.line(project.root, "rev-parse", "--show-prefix") or "")))
        made._write_settings()
        made._bring_data(stored)
        return made

    def run(self, *program: str) -> None:
        """Run a program of the clone's own code in the clone, with as many threads as the version was made with.

        Raises:
            TrainingError: it fails; what it said is on the terminal.
        """
        root = self.workspace.root
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_OURS)}
        threads = str(self.recipe.record.hardware.threads)
        own = {"PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}", ROOT_VARIABLE: str(root)}
        done = subprocess.run(
            [sys.executable, "-m", *program],
            cwd=root,
            env=kept | own | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
            check=False,
        )
        if done.returncode:
            raise TrainingError(
                f"{self.recipe.name}: `python -m {program[0]}` ended with code {done.returncode} in {root}"
            )

    @property
    def record(self) -> Provenance:
        """The record of the rebuilt training."""
        return read_record_file(next((self.workspace.mlruns / "journal").glob("*/provenance.json")))

    def _write_settings(self) -> None:
        """Those recorded, but for the place where runs are told, which is not the real one, and for the budget."""
        shutil.copyfile(self.recipe.params, self.workspace.params)
        unlimited = [f"budget.{name}=0" for name in self._read_settings().get("budget", ())]
        own = ("tracking.uri=sqlite:///mlruns/mlflow.db", "tracking.tensorboard=false", *unlimited)
        self.run("commands.cli", "set", *own)

    def _bring_data(self, stored: DvcStore) -> None:
        packed = self.workspace.root / PACKED
        stored.bring(self.recipe.data, packed)
        manifest = files.read_json(packed / "manifest.json")
        expected = (self.recipe.record.inputs or {}).get("data")
        if expected not in (None, manifest["digest"]):
            raise DataError(
                f"{self.recipe.name}: its data {self.recipe.data} is not what it was trained on: dvc.lock was not up "
                "to date when it was made"
            )
        if manifest.get("factory"):
            self._bring(self._settings("data", "path"), stored)
        pretrained = self._settings("model", "pretrained")
        if pretrained != "none":
            self._bring_pretrained(pretrained, stored)
        for path in (self.recipe.model / "code").rglob("*"):  # what git ignores of the user's own model
            place = self.workspace.root / path.relative_to(self.recipe.model / "code")
            if path.is_file() and not place.exists():
                files.write_bytes(place, path.read_bytes())

    def _settings(self, section: str, key: str) -> str:
        return str(self._read_settings()[section].get(key, "none"))

    def _read_settings(self) -> dict[str, Any]:
        """As they stand: another version of ratchet may know other keys."""
        content: dict[str, Any] = files.read_yaml(self.workspace.params)
        return content

    def _bring(self, path: str, stored: DvcStore) -> None:
        """What the user's own Dataset reads: from DVC, or the project's own if it is what it was."""
        value = self.recipe.record.dvc_inputs.get(path)
        place = self.workspace.root / path
        if value is None or Path(path).is_absolute() or "://" in path:
            return  # read where it is; each sample is checked against what it was
        if place.exists() and hash_of(place) == value:
            return
        if stored.place_of(value) is not None:
            stored.bring(value, place)
        elif (self.project.root / path).exists() and hash_of(self.project.root / path) == value:
            shutil.copytree(self.project.root / path, place, dirs_exist_ok=True)
        else:
            raise DataError(
                f"{self.recipe.name}: its source data {path} is gone: DVC does not keep {value}, and what lies there "
                "now is other data"
            )

    def _bring_pretrained(self, name: str, stored: DvcStore) -> None:
        """The weights that the training began with: the project's file if it is the recorded one, else DVC's."""
        expected = (self.recipe.record.inputs or {}).get("pretrained")
        there, place = (one.pretrained / name for one in (self.project, self.workspace))
        if _is(there, expected):
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(there, place)
            return
        if (tracked := place.with_name(f"{place.name}.dvc")).exists():
            value = files.read_yaml(tracked)["outs"][0]["md5"]
            stored.bring(value, place)
        if not _is(place, expected):
            raise DataError(
                f"{self.recipe.name}: the weights it began with, data/pretrained/{name}, are gone: neither the project "
                f"nor DVC has the file with SHA-256 {expected}"
            )


def _is(path: Path, digest: str | None) -> bool:
    """Whether a file is there, and the one that was recorded, where any was."""
    return path.exists() and digest in (None, files.digest_file(path))


def _git(recipe: Recipe, root: Path, *arguments: str) -> None:
    try:
        git.run(root, *arguments)
    except git.GitError as error:
        raise RegistryError(f"{recipe.name}: its code cannot be checked out: {error}") from error
