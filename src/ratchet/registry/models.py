"""Registered models: versions, aliases, and models that really load."""

import importlib.metadata
import json
import platform
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.errors import RegistryError
from ratchet.params import Params
from ratchet.registry.mlflow_store import active, address, connect, reachable
from ratchet.registry.records import read_record
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.pyfunc import PyFuncModel

    from ratchet.training.models import ModelSpec

__all__ = ["Champion", "ModelRegistry", "Version"]

CHAMPION, CHALLENGER = "champion", "challenger"
_ARTIFACT = "model"
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
        """Put the model in `folder` among the run's, once; its address for `load`."""
        import mlflow.pyfunc
        import numpy as np
        from mlflow.models import ModelSignature
        from mlflow.types import Schema, TensorSpec

        with reachable(self.uri), active(self.workspace, self.params.tracking):
            known = self.client.get_run(run_id).data.tags.get("ratchet.model_uri")
            if known:
                return known
            signature = ModelSignature(
                inputs=Schema([TensorSpec(np.dtype(spec.dtype), (-1, spec.height, spec.width, spec.channels))]),
                outputs=Schema([TensorSpec(np.dtype(np.float32), (-1, len(spec.classes)))]),
            )
            with warnings.catch_warnings(), mlflow.start_run(run_id=run_id):
                warnings.filterwarnings("ignore", message=".*input example was not provided", category=UserWarning)
                logged = mlflow.pyfunc.log_model(
                    name=_ARTIFACT,
                    loader_module="ratchet.registry.pyfunc",
                    data_path=str(folder),
                    signature=signature,
                    conda_env=_environment(),
                )
            self.client.set_tag(run_id, "ratchet.model_uri", logged.model_uri)
            return str(logged.model_uri)

    def load(self, model_uri: str) -> "PyFuncModel":
        """Load a model the way any MLflow user does."""
        import mlflow.pyfunc
        from mlflow.exceptions import MlflowException

        with active(self.workspace, self.params.tracking):
            try:
                loaded: PyFuncModel = mlflow.pyfunc.load_model(model_uri)
                return loaded
            except (MlflowException, OSError) as error:
                raise RegistryError(f"{model_uri}: MLflow cannot load it ({error})") from error

    def champion(self, name: str, into: Path) -> Champion | None:
        """The version that has the alias, its files copied to `into`; None when there is none yet."""
        from mlflow.artifacts import download_artifacts
        from mlflow.exceptions import MlflowException

        with reachable(self.uri), active(self.workspace, self.params.tracking):
            version = self._by_alias(name, CHAMPION)
            if version is None:
                return None
            try:
                folder = Path(download_artifacts(artifact_uri=f"models:/{name}/{version.number}", dst_path=str(into)))
            except (MlflowException, OSError) as error:
                raise RegistryError(
                    f"models:/{name}/{version.number}, the champion: its files cannot be read ({error}): restore them, "
                    "or give the alias champion to a version that has its files, in MLflow's page of the model"
                ) from error
        found = next(folder.rglob("model.json"), None)
        if found is None:
            raise RegistryError(
                f"models:/{name}/{version.number}, the champion, was not made by ratchet (it holds no model.json): "
                "set registry.model to another name"
            )
        return Champion(version, found.parent)

    def register(self, name: str, run_id: str, model_uri: str, *, tags: dict[str, str], description: str) -> Version:
        """Make the run's model a version with alias challenger; the version it already has, when there is one."""
        from mlflow.exceptions import MlflowException

        with reachable(self.uri):
            version = self.version_of(name, run_id)
            if version is None:
                try:
                    self.client.get_registered_model(name)
                except MlflowException:
                    self.client.create_registered_model(name, description=_ABOUT)
                source = self.client.get_logged_model(model_uri.rsplit("/", 1)[-1])
                made = self.client.create_model_version(
                    name, source.artifact_location, run_id, tags=tags, description=description, model_id=source.model_id
                )
                version = Version(name, str(made.version), run_id, ())
            for key, value in tags.items():
                self.client.set_model_version_tag(name, version.number, key, value)
            if CHAMPION not in version.aliases:
                self.client.set_registered_model_alias(name, CHALLENGER, version.number)
            return self._with_aliases(version)

    def promote(self, version: Version) -> Version:
        """Give the version alias champion; it is no longer a challenger."""
        with reachable(self.uri):
            self.client.set_registered_model_alias(version.name, CHAMPION, version.number)
            challenger = self._by_alias(version.name, CHALLENGER)
            if challenger is not None and challenger.number == version.number:
                self.client.delete_registered_model_alias(version.name, CHALLENGER)
            return self._with_aliases(version)

    def log_files(self, run_id: str, wanted: dict[Path, str]) -> None:
        """Put files among the run's artifacts, each in the folder given."""
        with reachable(self.uri):
            for path, folder in wanted.items():
                self.client.log_artifact(run_id, str(path), folder)

    def verdict_of(self, name: str, run_id: str) -> dict[str, Any] | None:
        """The verdict by which this run's model was let in, when it was."""
        with reachable(self.uri):
            found = self.client.search_model_versions(f"name = '{name}' and run_id = '{run_id}'")
        verdict = found[0].tags.get("ratchet.verdict") if found else None
        return json.loads(verdict) if verdict else None

    def record_of(self, name: str, run_id: str) -> dict[str, Any] | None:
        """The provenance record with which this run's model became a version, when it did."""
        with reachable(self.uri):
            found = self.client.search_model_versions(f"name = '{name}' and run_id = '{run_id}'")
            return read_record(self.client, run_id, found[0].tags) if found else None

    def version_of(self, name: str, run_id: str) -> Version | None:
        """The version made of this run, if any."""
        found = self.client.search_model_versions(f"name = '{name}' and run_id = '{run_id}'")
        return self._with_aliases(Version(name, str(found[0].version), run_id, ())) if found else None

    def _with_aliases(self, version: Version) -> Version:
        aliases = self.client.get_registered_model(version.name).aliases
        mine = tuple(sorted(alias for alias, number in aliases.items() if str(number) == version.number))
        return Version(version.name, version.number, version.run_id, mine)

    def _by_alias(self, name: str, alias: str) -> Version | None:
        from mlflow.exceptions import MlflowException

        try:
            found = self.client.get_model_version_by_alias(name, alias)
        except MlflowException as error:
            if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                return None
            raise
        return self._with_aliases(Version(name, str(found.version), str(found.run_id), ()))


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
