"""Registered models: versions, aliases, and models that really load."""

import importlib.metadata
import json
import logging
import platform
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet import files
from ratchet.errors import RegistryError, TrainingError
from ratchet.params import Params
from ratchet.registry.mlflow_store import active, address, connect, files_of, reachable
from ratchet.registry.records import read_record
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import RegisteredModel
    from mlflow.pyfunc import PyFuncModel

    from ratchet.training.models import ModelSpec

__all__ = ["CHECKSUMS_TAG", "Champion", "ModelRegistry", "Version"]

CHAMPION = "champion"
CHECKSUMS_TAG = "ratchet.model_checksums"  # of the run: the digest of all checksums, apart from the files themselves
_ARTIFACT = "model"
_ANCHOR = "ratchet.ledger"  # a registered model's tag
_UNKNOWN = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")  # what MLflow says of a name that is not there
_NOT_STORED = shutil.ignore_patterns("__pycache__")

log = logging.getLogger(__name__)

_ABOUT = "Every version here passed the gate. The alias champion is the best so far; challenger waits for approval."


@dataclass(frozen=True)
class Version:
    """One version of a registered model."""

    name: str
    number: str
    run_id: str
    aliases: tuple[str, ...]


@dataclass(frozen=True)
class Champion:
    """The model to beat: its version and where its files were put."""

    version: Version
    folder: Path


class ModelRegistry:
    """MLflow's model registry, spoken to in whole steps.

    Raises (every method):
        TrackingAway: MLflow does not answer.
    """

    def __init__(self, workspace: Workspace, params: Params) -> None:
        self.workspace, self.params = workspace, params
        self.uri = address(workspace, params.tracking)
        self.client: MlflowClient = connect(workspace, params.tracking)

    def log_model(self, run_id: str, folder: Path, spec: "ModelSpec") -> str:
        """Put the model in `folder`, with the checksums of its files, among the run's, once; its address for `load`."""
        import mlflow.pyfunc
        import numpy as np
        from mlflow.models import ModelSignature
        from mlflow.types import Schema, TensorSpec

        from ratchet.training import seal

        with reachable(self.uri), active(self.workspace, self.params.tracking):
            known = self.client.get_run(run_id).data.tags.get("ratchet.model_uri")
            if known:
                return known
            signature = ModelSignature(
                inputs=Schema([TensorSpec(np.dtype(spec.dtype), (-1, spec.height, spec.width, spec.channels))]),
                outputs=Schema([TensorSpec(np.dtype(np.float32), (-1, len(spec.classes)))]),
            )
            with (
                tempfile.TemporaryDirectory() as place,
                warnings.catch_warnings(),
                mlflow.start_run(run_id=run_id),
            ):
                warnings.filterwarnings("ignore", message=".*input example was not provided", category=UserWarning)
                sealed = Path(shutil.copytree(folder, Path(place, _ARTIFACT), ignore=_NOT_STORED))
                checksums = seal(sealed)
                logged = mlflow.pyfunc.log_model(
                    name=_ARTIFACT,
                    loader_module="ratchet.registry.pyfunc",
                    data_path=str(sealed),
                    signature=signature,
                    conda_env=_environment(),
                )
            self.client.set_tag(run_id, CHECKSUMS_TAG, files.digest_json(checksums))
            self.client.set_tag(run_id, "ratchet.model_uri", logged.model_uri)
            return str(logged.model_uri)

    def load(self, model_uri: str) -> "PyFuncModel":
        """Load a model the way any MLflow user does."""
        import mlflow.pyfunc

        with active(self.workspace, self.params.tracking), files_of(model_uri, self.uri):
            try:
                loaded: PyFuncModel = mlflow.pyfunc.load_model(model_uri)
            except TrainingError as error:  # of our loader's: files that are not those that were stored
                raise RegistryError(f"{model_uri}: {error}") from error
            return loaded

    def champion(self, name: str, into: Path) -> Champion | None:
        """The version that has the alias, its files copied to `into`; None when there is none yet.

        Raises:
            RegistryError: its files cannot be had, or are not those that were stored.
        """
        from mlflow.artifacts import download_artifacts

        from ratchet.training.models.checksums import CHECKSUMS

        with active(self.workspace, self.params.tracking):
            with reachable(self.uri):
                version = self._by_alias(name, CHAMPION)
            if version is None:
                return None
            address = f"models:/{name}/{version.number}"
            way_out = f"restore them, or `ratchet rollback {name}` to a version that has its files"
            with files_of(f"{address}, the champion", self.uri, way_out):
                folder = Path(download_artifacts(artifact_uri=address, dst_path=str(into)))
        found = next((path for name in (CHECKSUMS, "model.json") for path in folder.rglob(name)), None)
        if found is None:
            raise RegistryError(
                f"models:/{name}/{version.number}, the champion, was not made by ratchet (it holds no model.json): "
                "set registry.model to another name"
            )
        self._require_untouched(version, found.parent)
        return Champion(version, found.parent)

    def _require_untouched(self, version: Version, folder: Path) -> None:
        """Hold a version's files against their checksums, and these against what the run was told of them."""
        from ratchet.training.models.checksums import CHECKSUMS, verify

        called = f"models:/{version.name}/{version.number}"
        with reachable(self.uri):
            noted = self.client.get_run(version.run_id).data.tags.get(CHECKSUMS_TAG)
        try:
            checksums = verify(folder)
        except TrainingError as error:
            raise RegistryError(f"{called}: {error}") from error
        if noted is None and checksums is None:
            log.warning("%s was stored without checksums, by an earlier version: its files are not checked", called)
        elif noted is not None and (checksums is None or files.digest_json(checksums) != noted):
            raise RegistryError(
                f"{called}: its {CHECKSUMS} is {'missing' if checksums is None else 'not the one that was stored'}, "
                f"as the run's tag {CHECKSUMS_TAG} tells: nothing was loaded; restore the model's files from a backup, "
                f"or `ratchet rollback {version.name}` to another version"
            )

    def enter(self, name: str, run_id: str, model_uri: str, *, tags: dict[str, str]) -> Version:
        """Make the run's model a version, with no alias yet; the version it already has, when there is one."""
        from mlflow.exceptions import MlflowException

        with reachable(self.uri):
            version = self._only_version(name, run_id)
            if version is None:
                try:
                    self.client.create_registered_model(name, description=_ABOUT)
                except MlflowException as error:
                    if error.error_code != "RESOURCE_ALREADY_EXISTS":
                        raise
                source = self.client.get_logged_model(model_uri.rsplit("/", 1)[-1])
                self.client.create_model_version(name, source.artifact_location, run_id, model_id=source.model_id)
                version = self._only_version(name, run_id)
                assert version is not None, "it was made just now"
            for key, value in tags.items():
                self.client.set_model_version_tag(name, version.number, key, value)
            return version

    def _only_version(self, name: str, run_id: str) -> Version | None:
        """The first: a server that was slow to answer was asked again, and may have made the version twice."""
        found = self._versions_of(name, run_id)
        for one in found[1:]:
            self.client.delete_model_version(name, one.number)
        return found[0] if found else None

    def set_aliases(self, name: str, wanted: Mapping[str, str | None]) -> None:
        """Give each alias to a version, or to none. Who may do that and why is Succession's to know."""
        with reachable(self.uri):
            for alias, number in wanted.items():
                if number is None:
                    self.client.delete_registered_model_alias(name, alias)
                else:
                    self.client.set_registered_model_alias(name, alias, number)

    def aliases(self, name: str) -> dict[str, str]:
        """Alias -> version number; empty for a name that nothing is registered by."""
        with reachable(self.uri):
            model = self._registered(name)
            return {alias: str(number) for alias, number in model.aliases.items()} if model else {}

    def versions(self, name: str) -> list[Version]:
        """Every version there is, the first first."""
        with reachable(self.uri):
            found = _all(partial(self.client.search_model_versions, f"name = '{name}'"))
            ordered = sorted(found, key=lambda one: int(one.version))
            return [self._with_aliases(Version(name, str(one.version), str(one.run_id), ())) for one in ordered]

    def names(self) -> list[str]:
        """Every registered model."""
        with reachable(self.uri):
            return sorted(str(model.name) for model in _all(self.client.search_registered_models))

    def anchor(self, name: str) -> str | None:
        """The seal of the ledger's entry that the aliases follow; None before the first."""
        with reachable(self.uri):
            model = self._registered(name)
            return str(model.tags[_ANCHOR]) if model and _ANCHOR in model.tags else None

    def set_anchor(self, name: str, seal: str) -> None:
        """Note which of the ledger's entries the aliases follow."""
        with reachable(self.uri):
            self.client.set_registered_model_tag(name, _ANCHOR, seal)

    def find(self, asked: str) -> Version:
        """The version that `NAME/VERSION`, `NAME@ALIAS` or either behind `models:/` means.

        Raises:
            RegistryError: it is none of these, or there is no such version; lists those that there are.
        """
        from mlflow.exceptions import MlflowException

        name, mark, which = asked.removeprefix("models:/").partition("@")
        if not mark:
            name, mark, which = name.rpartition("/")
        if not name or not which:
            raise RegistryError(f"{asked}: write NAME/VERSION or NAME@ALIAS, digits/3 or digits@challenger for example")
        with reachable(self.uri):
            try:
                found = (
                    self.client.get_model_version_by_alias(name, which)
                    if mark == "@"
                    else self.client.get_model_version(name, which)
                )
            except MlflowException as error:
                if error.error_code not in _UNKNOWN:
                    raise
                found = None
        if found is not None:
            return self._with_aliases(Version(name, str(found.version), str(found.run_id), ()))
        there = [f"{name}/{one.number}" for one in self.versions(name)[-10:]]
        known = f"there are {', '.join(there)}" if there else f"registered are {', '.join(self.names()) or 'no models'}"
        raise RegistryError(f"{asked}: MLflow has no such version; {known}")

    def log_files(self, run_id: str, wanted: dict[Path, str]) -> None:
        """Put files among the run's artifacts, each in the folder given."""
        with reachable(self.uri):
            for path, folder in wanted.items():
                self.client.log_artifact(run_id, str(path), folder)

    def checksums(self, version: Version) -> dict[str, str]:
        """SHA-256 (hex) of each of a version's files, by its path in the model's folder; of older versions none."""
        from mlflow.artifacts import download_artifacts

        from ratchet.training.models.checksums import CHECKSUMS

        with reachable(self.uri), active(self.workspace, self.params.tracking), tempfile.TemporaryDirectory() as folder:
            if CHECKSUMS_TAG not in self.client.get_run(version.run_id).data.tags:
                return {}
            place = f"models:/{version.name}/{version.number}/data/{_ARTIFACT}/{CHECKSUMS}"
            found: dict[str, str] = files.read_json(Path(download_artifacts(place, dst_path=folder)))["sha256"]
            return found

    def describe(self, version: Version, text: str) -> None:
        """Say in Markdown what MLflow's page of the version begins with."""
        with reachable(self.uri):
            self.client.update_model_version(version.name, version.number, text)

    def verdict_of(self, name: str, run_id: str) -> dict[str, Any] | None:
        """The verdict by which this run's model was let in, when it was."""
        with reachable(self.uri):
            version = self.version_of(name, run_id)
            found = self.client.get_model_version(name, version.number) if version else None
        verdict = found.tags.get("ratchet.verdict") if found else None
        return json.loads(verdict) if verdict else None

    def record_of(self, name: str, run_id: str) -> dict[str, Any] | None:
        """The provenance record with which this run's model became a version, when it did."""
        with reachable(self.uri):
            version = self.version_of(name, run_id)
            found = self.client.get_model_version(name, version.number) if version else None
            return read_record(self.client, run_id, found.tags) if found else None

    def version_of(self, name: str, run_id: str) -> Version | None:
        """The version made of this run, if any."""
        return next(iter(self._versions_of(name, run_id)), None)

    def _versions_of(self, name: str, run_id: str) -> list[Version]:
        found = self.client.search_model_versions(f"name = '{name}' and run_id = '{run_id}'")
        numbers = sorted((str(one.version) for one in found), key=int)
        return [self._with_aliases(Version(name, number, run_id, ())) for number in numbers]

    def _with_aliases(self, version: Version) -> Version:
        aliases = self.client.get_registered_model(version.name).aliases
        mine = tuple(sorted(alias for alias, number in aliases.items() if str(number) == version.number))
        return Version(version.name, version.number, version.run_id, mine)

    def _registered(self, name: str) -> "RegisteredModel | None":
        from mlflow.exceptions import MlflowException

        try:
            return self.client.get_registered_model(name)
        except MlflowException as error:
            if error.error_code in _UNKNOWN:
                return None
            raise

    def _by_alias(self, name: str, alias: str) -> Version | None:
        from mlflow.exceptions import MlflowException

        try:
            found = self.client.get_model_version_by_alias(name, alias)
        except MlflowException as error:
            if error.error_code in _UNKNOWN:
                return None
            raise
        return self._with_aliases(Version(name, str(found.version), str(found.run_id), ()))


def _all(search: Callable[..., Any]) -> list[Any]:
    """Every page of what MLflow finds."""
    page = search()
    found = list(page)
    while page.token:
        page = search(page_token=page.token)
        found += page
    return found


def _environment() -> dict[str, Any]:
    """What the model needs, said outright: MLflow's own guess imports everything and takes eighteen seconds."""
    # Whoever builds one of torchvision's models, or one of the user's that needs it, has imported it.
    vision = ["torchvision"] if "torchvision" in sys.modules else []
    packages = ["mlflow", "numpy", "safetensors", "torch", *vision]
    needs = [f"{name}=={importlib.metadata.version(name)}" for name in packages]
    return {
        "name": "ratchet",
        "channels": ["conda-forge"],
        "dependencies": [f"python={platform.python_version()}", "pip", {"pip": needs}],
    }
