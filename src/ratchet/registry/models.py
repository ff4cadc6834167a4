"""Models among MLflow's runs and versions: stored with their checksums, and really loaded."""

import importlib.metadata
import logging
import platform
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet import files
from ratchet.errors import RegistryError, TrainingError
from ratchet.registry.mlflow_store import active, files_of, reachable
from ratchet.registry.versions import Version, Versions

if TYPE_CHECKING:
    from mlflow.pyfunc import PyFuncModel

    from ratchet.training.models import ModelSpec

__all__ = ["CHECKSUMS_TAG", "Champion", "ModelRegistry"]

CHAMPION = "champion"
CHECKSUMS_TAG = "ratchet.model_checksums"  # of the run: the digest of all checksums, apart from the files themselves
_EXPORT_TAG = "ratchet.model_export"  # of the run: what registry.export was as its model was stored
_ARTIFACT = "model"
_NOT_STORED = shutil.ignore_patterns("__pycache__")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Champion:
    """The model to beat: its version and where its files were put."""

    version: Version
    folder: Path


class ModelRegistry(Versions):
    """MLflow's model registry, spoken to in whole steps.

    Raises (every method):
        TrackingAway: MLflow does not answer.
    """

    def log_model(self, run_id: str, folder: Path, spec: "ModelSpec") -> str:
        """Put the model in `folder`, with its program and the checksums of all, among the run's; its address.

        It is stored once: again only while it is no version, and if registry.export was another then.
        """
        import mlflow.pyfunc
        import numpy as np
        from mlflow.models import ModelSignature
        from mlflow.types import Schema, TensorSpec

        with reachable(self.uri):
            known = self._logged(run_id)
        if known:
            return known
        signature = ModelSignature(
            inputs=Schema([TensorSpec(np.dtype(spec.raw_dtype), (-1, spec.height, spec.width, spec.channels))]),
            outputs=Schema([TensorSpec(np.dtype(np.float32), (-1, len(spec.classes)))]),
        )
        environment = _environment()  # before the exporter imports its own
        with tempfile.TemporaryDirectory() as place:
            sealed = Path(place, _ARTIFACT)
            checksums = self._sealed(folder, sealed)
            with (
                reachable(self.uri),
                active(self.workspace, self.params.tracking),
                warnings.catch_warnings(),
                mlflow.start_run(run_id=run_id),
            ):
                warnings.filterwarnings("ignore", message=".*input example was not provided", category=UserWarning)
                logged = mlflow.pyfunc.log_model(
                    name=_ARTIFACT,
                    loader_module="ratchet.registry.pyfunc",
                    data_path=str(sealed),
                    signature=signature,
                    conda_env=environment,
                )
        with reachable(self.uri):
            self.client.set_tag(run_id, CHECKSUMS_TAG, files.digest_json(checksums))
            self.client.set_tag(run_id, _EXPORT_TAG, self.params.registry.export)
            self.client.set_tag(run_id, "ratchet.model_uri", logged.model_uri)
        return str(logged.model_uri)

    def _sealed(self, folder: Path, place: Path) -> dict[str, str]:
        """Copy a model's files to `place` as they are stored: with the program that is asked for; their checksums."""
        from ratchet.serving.export import export
        from ratchet.training import load_model, seal

        shutil.copytree(folder, place, ignore=_NOT_STORED)
        if self.params.registry.export == "onnx":
            export(*load_model(place), place)
        return seal(place)

    def _logged(self, run_id: str) -> str | None:
        """The address of the run's model, unless it is to be stored (again)."""
        tags = self.client.get_run(run_id).data.tags
        known: str | None = tags.get("ratchet.model_uri")
        as_set = tags.get(_EXPORT_TAG, "none") == self.params.registry.export
        return known if as_set or self.client.search_model_versions(f"run_id='{run_id}'") else None

    @contextmanager
    def opened(self, model_uri: str) -> "Iterator[tuple[PyFuncModel, Path]]":
        """Load a model the way any MLflow user does; with the folder of its files, which is there until the end.

        Raises:
            RegistryError: its files cannot be had, or are not those that were stored.
        """
        import mlflow.pyfunc
        from mlflow.artifacts import download_artifacts

        with tempfile.TemporaryDirectory() as place:
            with active(self.workspace, self.params.tracking), files_of(model_uri, self.uri):
                folder = download_artifacts(artifact_uri=model_uri, dst_path=place)
                try:
                    loaded = mlflow.pyfunc.load_model(folder)
                except TrainingError as error:  # of our loader's: files that are not those that were stored
                    raise RegistryError(f"{model_uri}: {error}") from error
            yield loaded, Path(folder, "data", _ARTIFACT)

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

    def log_files(self, run_id: str, wanted: dict[Path, str]) -> None:
        """Put files among the run's artifacts, each in the folder given."""
        with reachable(self.uri):
            for path, folder in wanted.items():
                self.client.log_artifact(run_id, str(path), folder)

    def artifact(self, run_id: str, path: str, into: Path) -> Path:
        """Copy one of a run's artifacts into the folder `into`.

        Raises:
            RegistryError: it cannot be read.
        """
        from mlflow.artifacts import download_artifacts

        with active(self.workspace, self.params.tracking), files_of(f"run {run_id}: {path}", self.uri):
            return Path(download_artifacts(run_id=run_id, artifact_path=path, dst_path=str(into)))

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
