"""Models in MLflow: stored with checksums, and verified when they are loaded."""

import importlib.metadata
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet import files
from ratchet.errors import RegistryError, TrainingError
from ratchet.kinds import ArraysInput, ImageInput, TableInput, TokensInput
from ratchet.registry.mlflow_store import active, file_errors, reachable
from ratchet.registry.versions import Version, Versions

if TYPE_CHECKING:
    from mlflow.pyfunc import PyFuncModel
    from mlflow.types import ParamSchema, Schema

    from ratchet.training.models import ModelSpec

__all__ = ["CHECKSUMS_TAG", "Champion", "ModelRegistry"]

CHECKSUMS_TAG = "ratchet.model_checksums"  # of the run: the digest of all checksums, stored apart from the files
_EXPORT_TAG = "ratchet.model_export"  # of the run: registry.export when its model was stored
_ARTIFACT = "model"
_NOT_STORED = shutil.ignore_patterns("__pycache__")


@dataclass(frozen=True)
class Champion:
    """The current champion: its version, and the folder with a copy of its files."""

    version: Version
    folder: Path


class ModelRegistry(Versions):
    """MLflow's model registry with the models' files.

    Raises (every method):
        TrackingUnavailable: MLflow does not answer.
    """

    def log_model(self, run_id: str, folder: Path, spec: "ModelSpec") -> str:
        """Store the model in `folder` with its checksums, and its exported program, in the run; return its address.

        A stored model is replaced only if registry.export changed and the model is not a version yet.
        """
        import mlflow.pyfunc
        from mlflow.models import ModelSignature

        with reachable(self.uri):
            known = self._logged(run_id)
        if known:
            return known
        signature = ModelSignature(
            # MLflow would change the values of a user's own kind, such as arrays in a dictionary.
            inputs=None if isinstance(spec.input, ArraysInput) else _input_schema(spec),
            outputs=_output_schema(spec),
            **({"params": _generation_params()} if isinstance(spec.input, TokensInput) else {}),
        )
        requirements = _requirements(spec)  # before the exporter imports more
        with tempfile.TemporaryDirectory() as place:
            sealed = Path(place, _ARTIFACT)
            checksums = self._seal(folder, sealed)
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
                    pip_requirements=requirements,
                )
        with reachable(self.uri):
            self.client.set_tag(run_id, CHECKSUMS_TAG, files.digest_json(checksums))
            self.client.set_tag(run_id, _EXPORT_TAG, self.params.registry.export)
            self.client.set_tag(run_id, "ratchet.model_uri", logged.model_uri)
        return str(logged.model_uri)

    def _seal(self, folder: Path, place: Path) -> dict[str, str]:
        """Copy a model's files to `place`, add the program that registry.export asks for, and return the checksums."""
        from ratchet.serving.export import export
        from ratchet.training import load_model, seal

        shutil.copytree(folder, place, ignore=_NOT_STORED)
        if self.params.registry.export == "onnx":
            export(*load_model(place), place)
        return seal(place)

    def _logged(self, run_id: str) -> str | None:
        """Return the address of the run's model; None if it must be stored (again)."""
        tags = self.client.get_run(run_id).data.tags
        address: str | None = tags.get("ratchet.model_uri")
        is_current = tags.get(_EXPORT_TAG, "none") == self.params.registry.export
        return address if is_current or self.client.search_model_versions(f"run_id='{run_id}'") else None

    @contextmanager
    def opened(self, model_uri: str) -> "Iterator[tuple[PyFuncModel, Path]]":
        """Load a model as any MLflow user does; yield it with the folder of its files, which exists within the context.

        Raises:
            RegistryError: its files cannot be read, or are not those that were stored.
        """
        import mlflow.pyfunc
        from mlflow.artifacts import download_artifacts

        with tempfile.TemporaryDirectory() as place:
            with active(self.workspace, self.params.tracking), file_errors(model_uri, self.uri):
                folder = download_artifacts(artifact_uri=model_uri, dst_path=place)
                try:
                    loaded = mlflow.pyfunc.load_model(folder)
                except TrainingError as error:  # of `pyfunc`: files that are not those that were stored
                    raise RegistryError(f"{model_uri}: {error}") from error
            yield loaded, Path(folder, "data", _ARTIFACT)

    def champion(self, name: str, into: Path) -> Champion | None:
        """Copy the champion's files to `into`; return None if there is no champion yet.

        Raises:
            RegistryError: its files cannot be read, or are not those that were stored.
        """
        number = self.aliases(name).get("champion")
        if number is None:
            return None
        version = self.find(f"{name}/{number}")
        fix = f"restore them, or `ratchet rollback {name}` to a version that has its files"
        return Champion(version, self.copy_files(version, into, called=f"{version.uri}, the champion", fix=fix))

    def copy_files(self, version: Version, into: Path, *, called: str = "", fix: str = "restore them") -> Path:
        """Copy a version's files to `into`; return the folder with model.json. `called` and `fix` are for messages.

        Raises:
            RegistryError: they cannot be read, or are not those that were stored.
        """
        from ratchet.training.models.checksums import CHECKSUMS

        called = called or version.uri
        folder = self.download(called, into, fix=fix, artifact_uri=version.uri)
        path = next((path for name in (CHECKSUMS, "model.json") for path in folder.rglob(name)), None)
        if path is None:
            raise RegistryError(
                f"{called}, was not made by ratchet (it has no model.json). Fix: set registry.model to another name"
            )
        self._verify_files(version, path.parent)
        return path.parent

    def _verify_files(self, version: Version, folder: Path) -> None:
        """Compare a version's files with their checksums, and these with their digest in the run's tag."""
        from ratchet.training.models.checksums import CHECKSUMS, verify

        with reachable(self.uri):
            recorded = self.client.get_run(version.run_id).data.tags.get(CHECKSUMS_TAG)
        try:
            checksums = verify(folder)
        except TrainingError as error:
            raise RegistryError(f"{version.uri}: {error}") from error
        if recorded is None or checksums is None or files.digest_json(checksums) != recorded:
            problem = (
                f"its run has no tag {CHECKSUMS_TAG}"
                if recorded is None
                else f"its {CHECKSUMS} is {'missing' if checksums is None else 'not the one that was stored'}, by the "
                f"run's tag {CHECKSUMS_TAG}"
            )
            raise RegistryError(
                f"{version.uri}: {problem}: nothing was loaded. Fix: restore the model's files from a backup, or "
                f"`ratchet rollback {version.name}` to another version"
            )

    def log_files(self, run_id: str, wanted: dict[Path, str]) -> None:
        """Store files among the run's artifacts; `wanted` is file -> folder there."""
        with reachable(self.uri):
            for path, folder in wanted.items():
                self.client.log_artifact(run_id, str(path), folder)

    def checksums(self, version: Version) -> dict[str, str]:
        """Return the SHA-256 (hex) of each of a version's files, by its path in the model's folder."""
        from ratchet.training.models.checksums import CHECKSUMS

        with tempfile.TemporaryDirectory() as folder:
            uri = f"{version.uri}/data/{_ARTIFACT}/{CHECKSUMS}"
            digests: dict[str, str] = files.read_json(self.download(uri, Path(folder), artifact_uri=uri))["sha256"]
            return digests


def _input_schema(spec: "ModelSpec") -> "Schema":
    """Return MLflow's description of the raw inputs: a tensor of images, or the columns of a table."""
    import numpy as np
    from mlflow.types import ColSpec, Schema, TensorSpec
    from mlflow.types.schema import AnyType

    if isinstance(spec.input, ImageInput):
        return Schema([TensorSpec(np.dtype(spec.input.raw_dtype), (-1, *spec.input.shape))])
    if isinstance(spec.input, TableInput):
        # Of any type, because ingest reads numbers, dates and texts in many forms, and so does `predict`.
        anything = AnyType()  # type: ignore[no-untyped-call]
        return Schema([ColSpec(anything, column.name, required=False) for column in spec.input.columns])
    return Schema([ColSpec("string")])


def _output_schema(spec: "ModelSpec") -> "Schema":
    """Return MLflow's description of the answers: numbers for each output, or a generated text."""
    import numpy as np
    from mlflow.types import ColSpec, Schema, TensorSpec

    if isinstance(spec.input, TokensInput):
        return Schema([ColSpec("string")])
    return Schema([TensorSpec(np.dtype(np.float32), (-1, spec.target.outputs))])


def _generation_params() -> "ParamSchema":
    """Return the parameters of `predict` of a language model, with their defaults."""
    from mlflow.types import ParamSchema, ParamSpec

    from ratchet.training.generate import Sampling

    types = {"max_tokens": "long", "temperature": "double", "top_k": "long", "top_p": "double", "seed": "long"}
    usual = Sampling()
    return ParamSchema([ParamSpec(name, kind, getattr(usual, name)) for name, kind in types.items()])


def _requirements(spec: "ModelSpec") -> list[str]:
    """Return the model's packages. MLflow's own detection imports everything and takes eighteen seconds."""
    frames = ["polars"] if isinstance(spec.input, TableInput) else []
    # A process that built a model with torchvision has imported it.
    vision = ["torchvision"] if "torchvision" in sys.modules else []
    packages = ["mlflow", "numpy", *frames, "safetensors", "torch", *vision]
    return [f"{name}=={importlib.metadata.version(name)}" for name in packages]
