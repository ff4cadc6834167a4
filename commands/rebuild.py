"""Rebuild of a recorded training in a separate folder: code, settings and data."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet import files, git, settings
from ratchet.errors import DataError, RegistryError, TrainingError
from ratchet.provenance.archive import Archive, ArchivedRun
from ratchet.provenance.comparison import Change, changes
from ratchet.provenance.record import installed_packages, read_record_file
from ratchet.provenance.submodules import update_submodules
from ratchet.registry.models import ModelRegistry
from ratchet.registry.parents import place_parent
from ratchet.registry.provenance_record import PACKED, PROVENANCE_TAG, RECORD_TAG, Provenance
from ratchet.registry.versions import Version
from ratchet.weights_sources import keep
from ratchet.workspace import ROOT_VARIABLE, SAFE_PATH, Workspace
from tasks.code import other_ratchet
from tasks.dvc_store import DvcStore, hash_of

__all__ = ["Rebuild", "Recipe"]

_EXCLUDED = ("RATCHET_", "MLFLOW_", "PREFECT_")  # variables that would make the rebuild write outside its folder


@dataclass(frozen=True)
class Recipe:
    """Everything that a version was made from, checked to be available."""

    name: str
    record: Provenance
    model: Path  # the stored model's folder
    params: Path
    patch: Path | None
    place: str  # the DVC stores that have the data

    @classmethod
    def of(cls, run: ArchivedRun, release: Version, archive: Archive, store: DvcStore, into: Path) -> "Recipe":
        """Collect the recipe of a version, and copy its files to `into`."""
        name = release.uri
        record = run.record
        if record is None:
            is_damaged = bool({PROVENANCE_TAG, RECORD_TAG} & run.tags.keys())
            reason = "the one in MLflow is damaged" if is_damaged else "it was made without ratchet"
            raise RegistryError(f"{name}: has no provenance record, so it cannot be rebuilt: {reason}")
        _require_commit(name, record, archive.workspace.root)
        params, patch = (
            archive.file(run.run_id, f"provenance/{file}", into) for file in ("params.yaml", "uncommitted.patch")
        )
        if params is None:
            raise RegistryError(f"{name}: its settings, provenance/params.yaml of run {run.run_id}, are missing")
        _require_patch(name, record, patch)
        data = run.hash_of(PACKED)
        if data is None:
            raise DataError(f"{name}: its record names no data version: DVC had recorded none when it was made")
        place = store.place_of(data)
        if place is None:
            raise DataError(f"{name}: its data {store.missing(data)}")
        return cls(name, record, archive.model(release, into), params, patch if record.git_uncommitted else None, place)

    @property
    def data(self) -> str:
        """The DVC hash of the packed data."""
        return str(self.record.dvc[PACKED])

    def other_versions(self) -> list[Change]:
        """Return Python and the recorded libraries whose installed version differs.

        A record has no version of a library that was not installed, or that earlier releases did not record.
        """
        now = {"Python": platform.python_version(), **installed_packages()}
        before = {"Python": self.record.python, **self.record.packages}
        return changes(before, {name: version for name, version in now.items() if name in before})


def _require_commit(name: str, record: Provenance, root: Path) -> None:
    commit = record.git_commit
    if not commit:
        raise RegistryError(f"{name}: its commit is unknown, because it was made outside git")
    if git.line(root, "rev-parse", "--quiet", "--verify", f"{commit}^{{commit}}") is None:
        origin = record.git_origin
        raise RegistryError(
            f"{name}: its commit {commit} is unknown to the git repository of {root}. Fix: fetch it from "
            f"{origin or 'the repository in which it was made'}"
        )


def _require_patch(name: str, record: Provenance, patch: Path | None) -> None:
    """Refuse a missing or changed patch, if the version was made with uncommitted changes."""
    recorded = record.git_uncommitted
    if recorded and (patch is None or files.digest_file(patch) != recorded):
        fault = "is missing" if patch is None else "differs from the recorded one"
        raise RegistryError(f"{name}: the patch of its uncommitted changes, provenance/uncommitted.patch, {fault}")


@dataclass(frozen=True)
class Rebuild:
    """A clone of the project in which a version is trained again."""

    recipe: Recipe
    project: Workspace  # where the version was made, or a clone of that
    workspace: Workspace  # the clone

    @classmethod
    def checkout_revision(
        cls, recipe: Recipe, project: Workspace, folder: Path, store: DvcStore, *, anyway: bool
    ) -> "Rebuild":
        """Clone the code, apply the patch, write the settings, fetch the data. `anyway`: on another Ratchet, too."""
        top = Path(git.line(project.root, "rev-parse", "--show-toplevel") or project.root)
        kept = "remote.origin.fetch=+refs/ratchet/*:refs/ratchet/*"  # a shallow project sends only what a ref has
        with _git_errors(recipe):
            git.run(project.root, "clone", "--quiet", "--no-checkout", "--config", kept, str(top), str(folder))
            git.run(folder, "checkout", "--quiet", "--detach", str(recipe.record.git_commit))
            if recipe.patch is not None:  # to the index, too, which has the commits of submodules
                git.run(folder, "apply", "--index", "--binary", "--whitespace=nowarn", str(recipe.patch.resolve()))
            update_submodules(folder, top)
        rebuild = cls(recipe, project, Workspace(folder / (git.line(project.root, "rev-parse", "--show-prefix") or "")))
        if (other := other_ratchet(rebuild.workspace)) and not anyway:
            shutil.rmtree(folder)
            raise RegistryError(
                f"{recipe.name}: its ratchet.lock {other}. Fix: install that Ratchet, or use --anyway; the weights may "
                "then differ"
            )
        if recipe.record.parent:  # settings that name it are refused where it is not
            rebuild._fetch_parent(recipe.record.parent)
        rebuild._write_settings()
        rebuild._fetch_data(store)
        return rebuild

    def run(self, *program: str, stdout: int | None = None) -> None:
        """Run a program of the clone's own code in the clone, with as many threads as the version was made with."""
        root = self.workspace.root
        environment = {name: value for name, value in os.environ.items() if not name.startswith(_EXCLUDED)}
        threads = str(self.recipe.record.hardware.threads)
        own = {"PYTHONPATH": self.workspace.import_path(), ROOT_VARIABLE: str(root)} | SAFE_PATH
        done = subprocess.run(
            [sys.executable, "-m", *program],
            cwd=root,
            env=environment | own | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
            stdout=stdout,
            check=False,
        )
        if done.returncode:
            raise TrainingError(
                f"{self.recipe.name}: `python -m {program[0]}` ended with code {done.returncode} in {root}"
            )

    @property
    def record(self) -> Provenance:
        """Provenance record of the rebuilt training."""
        return read_record_file(next((self.workspace.mlruns / "journal").glob("*/provenance.json")))

    def _write_settings(self) -> None:
        """Write the recorded settings, but log to an MLflow store in the clone, without a budget or hooks."""
        shutil.copyfile(self.recipe.params, self.workspace.params)
        unlimited = [f"budget.{name}=0" for name in self._read_settings().get("budget", ())]
        has_hooks = self._read_settings().get("training", {}).get("hooks")  # no input: git may not have their code
        quiet = ["training.hooks=[]"] if has_hooks else []  # an earlier Ratchet has no such setting
        own = ("tracking.uri=sqlite:///mlruns/mlflow.db", "tracking.tensorboard=false", *unlimited, *quiet)
        self.run("commands", "set", *own, stdout=subprocess.DEVNULL)

    def _fetch_data(self, store: DvcStore) -> None:
        packed = self.workspace.root / PACKED
        store.fetch(self.recipe.data, packed)
        manifest = files.read_json(packed / "manifest.json")
        expected = (self.recipe.record.inputs or {}).get("data")
        if expected not in (None, manifest["digest"]):
            raise DataError(
                f"{self.recipe.name}: its data {self.recipe.data} is not what it was trained on: dvc.lock was not up "
                "to date when it was made"
            )
        if any(split["own"] for split in manifest["splits"].values()):  # training reads the samples
            self._fetch_source(self._setting("data", "path"), store)
        source, named = self.recipe.record.pretrained, self._setting("model", "pretrained")
        if named != "none":
            self._fetch_pretrained(source.file if source else named, "pretrained", store)
        if source:
            keep(self.workspace.pretrained, named, source)
        if (teacher := self._setting("training", "teacher")) != "none":
            self._fetch_pretrained(teacher, "teacher", store)
        for path in (self.recipe.model / "code").rglob("*"):  # files of the user's own model that git ignores
            place = self.workspace.root / path.relative_to(self.recipe.model / "code")
            if path.is_file() and not place.exists():
                files.write_bytes(place, path.read_bytes())

    def _setting(self, section: str, key: str) -> str:
        return str(self._read_settings().get(section, {}).get(key, "none"))

    def _read_settings(self) -> dict[str, Any]:
        """Read params.yaml without validation: another version of ratchet may have other keys."""
        content: dict[str, Any] = files.read_yaml(self.workspace.params)
        return {name: value for name, value in content.items() if value is not None}  # a section may have no line

    def _fetch_source(self, path: str, store: DvcStore) -> None:
        """Fetch what the user's own kind reads: from DVC, or from the project if it is unchanged there."""
        value = self.recipe.record.dvc_inputs.get(path)
        place = self.workspace.root / path
        if value is None or Path(path).is_absolute() or "://" in path:
            return  # read in place; training compares samples with those that ingest read
        if place.exists() and hash_of(place) == value:
            return
        if store.place_of(value) is not None:
            store.fetch(value, place)
        elif (self.project.root / path).exists() and hash_of(self.project.root / path) == value:
            _copy(self.project.root / path, place)
        else:
            raise DataError(
                f"{self.recipe.name}: its source data {path} is gone: DVC does not have {value}, and the folder "
                "now has other data"
            )

    def _fetch_parent(self, parent: str) -> None:
        """Fetch the files of the parent: the project's if they are the recorded ones, else the registry's."""
        folder = parent.removeprefix("models:/")
        source = self.project.pretrained / folder
        if _is(source / "model.safetensors", (self.recipe.record.inputs or {}).get("pretrained")):
            _copy(source, self.workspace.pretrained / folder)
        else:
            registry = ModelRegistry(self.project, settings.load(self.project.params))
            place_parent(registry, parent, self.workspace)

    def _fetch_pretrained(self, name: str, part: str, store: DvcStore) -> None:
        """Fetch a file or folder of data/pretrained: the project's if it is the recorded one, else from DVC.

        `part` is its name in the record: pretrained or teacher.
        """
        expected = (self.recipe.record.inputs or {}).get(part)
        if part == "pretrained" and self.recipe.record.parent:
            name = f"{name}/model.safetensors"
        place = self.workspace.pretrained / name
        fetched = self.project.pretrained.glob("*.safetensors")  # `ratchet weights` may give another name than a cache
        for source in (self.project.pretrained / name, *(fetched if expected else ())):
            if _is(source, expected):
                _copy(source, place)
                return
        if (tracked := place.with_name(f"{place.name}.dvc")).exists():
            value = files.read_yaml(tracked)["outs"][0]["md5"]
            store.fetch(value, place)
        if not _is(place, expected):
            raise DataError(
                f"{self.recipe.name}: its {part}, data/pretrained/{name}, is gone: neither the project nor DVC has it "
                f"with SHA-256 {expected}{self._weights_fix(part)}"
            )

    def _weights_fix(self, part: str) -> str:
        source = self.recipe.record.pretrained
        return f". Fix: `ratchet weights {source.address}`" if source and part == "pretrained" else ""


def _copy(source: Path, place: Path) -> None:
    """Copy a file or folder."""
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(source, place, dirs_exist_ok=True) if source.is_dir() else shutil.copyfile(source, place)


def _is(path: Path, digest: str | None) -> bool:
    """Return whether a file or folder exists and has the recorded digest, if there is one."""
    if not path.exists():
        return False
    return digest is None or digest == (files.digest_tree(path) if path.is_dir() else files.digest_file(path))


@contextmanager
def _git_errors(recipe: Recipe) -> Iterator[None]:
    try:
        yield
    except git.GitError as error:
        raise RegistryError(f"{recipe.name}: its code cannot be checked out: {error}") from error
