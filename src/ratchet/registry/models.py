"""Models in MLflow: stored with checksums, and verified when they are loaded."""

import importlib.metadata
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ratchet import files
from ratchet.errors import RegistryError, TrainingError
from ratchet.kinds.registry import kind_of
from ratchet.registry.mlflow_store import active, file_errors, reachable
from ratchet.registry.relocation import local_path
from ratchet.registry.versions import Version, Versions
from ratchet.typed_json import to_plain

if TYPE_CHECKING:
    from mlflow.models import ModelSignature
    from mlflow.models.model import ModelInfo
    from mlflow.pyfunc import PyFuncModel
    from mlflow.types import ParamSchema, Schema

    from ratchet.kinds import ModelSpec

__all__ = ["CHECKSUMS_TAG", "ChampionFiles", "ModelRegistry"]

CHECKSUMS_TAG = "ratchet.model_checksums"  # of the run: the digest of all checksums, stored apart from the files
_EXPORT_TAG = "ratchet.model_export"  # of the run: registry.export and digests of the other files, when it was stored
_ARTIFACT = "model"
_EXAMPLES = 8  # rows
_NOT_STORED = shutil.ignore_patterns("__pycache__")


@dataclass(frozen=True)
class ChampionFiles:
    """The current champion: its version, and the folder with a copy of its files."""

    version: Version
    folder: Path


class ModelRegistry(Versions):
    """MLflow's model registry with the models' files.

    Raises (every method):
        TrackingUnavailable: MLflow does not answer.
    """

    def log_model(
        self,
        run_id: str,
        folder: Path,
        spec: "ModelSpec",
        *,
        exported: Path | None = None,
        beside: Mapping[str, object] = MappingProxyType({}),
    ) -> str:
        """Store the model in `folder` with its checksums, and its exported program, in the run; return its address.

        A stored model is replaced only if other files are to be with it and the model is not a version yet.

        Args:
            exported: folder of its program and variants, from the stage export; None: the program is made here.
            beside: frozen values to store as JSON, by the name of the file.
        """
        export = self._export_tag(exported, beside)
        with reachable(self.uri):
            address = self._logged(run_id, export)
        if address:
            return address
        requirements = _requirements(spec)  # before the exporter imports more
        with tempfile.TemporaryDirectory() as place:
            sealed = Path(place, _ARTIFACT)
            checksums = self._seal(folder, sealed, exported, beside)
            logged = self._log_to_mlflow(run_id, sealed, spec, requirements)
        with reachable(self.uri):
            self.client.set_tag(run_id, CHECKSUMS_TAG, files.digest_json(checksums))
            self.client.set_tag(run_id, _EXPORT_TAG, export)
            self.client.set_tag(run_id, "ratchet.model_uri", logged.model_uri)
        return str(logged.model_uri)

    def _log_to_mlflow(self, run_id: str, sealed: Path, spec: "ModelSpec", requirements: list[str]) -> "ModelInfo":
        import mlflow.pyfunc

        with (
            reachable(self.uri),
            active(self.workspace, self.params.tracking),
            warnings.catch_warnings(),
            mlflow.start_run(run_id=run_id),
        ):
            warnings.filterwarnings("ignore", message=".*input example was not provided", category=UserWarning)
            logged: ModelInfo = mlflow.pyfunc.log_model(
                name=_ARTIFACT,
                loader_module="ratchet.registry.pyfunc",
                data_path=str(sealed),
                signature=_signature(spec),
                pip_requirements=requirements,
            )
        return logged

    def _seal(self, folder: Path, place: Path, exported: Path | None, beside: Mapping[str, object]) -> dict[str, str]:
        """Copy a model's files to `place`, add its program and the variants that passed, and return the checksums."""
        from ratchet.checksums import seal
        from ratchet.exports import variants
        from ratchet.exports.onnx_export import export
        from ratchet.training import load_model

        shutil.copytree(folder, place, ignore=_NOT_STORED)
        if exported is not None:
            variants.add_exported(exported, place)
        elif self.params.registry.export == "onnx":
            export(*load_model(place), place)
        self._add_examples(place)
        for name, value in beside.items():
            files.write_json(place / name, to_plain(value))
        return seal(place)

    def _add_examples(self, place: Path) -> None:
        """Store random rows with the answers of the model and of each variant, except for some kinds.

        A language model answers no rows, and only a user's own module knows which values its kind allows.
        """
        from ratchet.exports import variants
        from ratchet.exports.example_rows import write_examples
        from ratchet.exports.program import Program
        from ratchet.registry.pyfunc import ServedModel
        from ratchet.training import load_model

        model, spec = load_model(place)
        kind = kind_of(spec.input)
        if kind.has_user_code or kind.generates:
            return
        limit, arrays = self.params.gate.export_difference, kind.example(spec.input, _EXAMPLES, seed=0)
        write_examples(place, arrays, ServedModel(model, spec).answers_to_arrays(arrays), limit=limit)
        for name, measured in variants.passed(place).items():
            folder = place / variants.FOLDER / name
            program = Program.of(folder)
            assert isinstance(program, Program), "a variant that passed has a program"
            # On a processor of another kind int8 rounds differently, up to about as much as from float32 to int8.
            write_examples(folder, arrays, program.predict(arrays), limit=max(limit, measured.largest_difference))

    def _export_tag(self, exported: Path | None, beside: Mapping[str, object]) -> str:
        """Return what identifies the programs and other files that are stored with a model."""
        programs = [files.digest_tree(exported)] if exported is not None else []
        values = [files.digest_json({name: to_plain(value) for name, value in beside.items()})] if beside else []
        return " ".join([self.params.registry.export, *programs, *values])

    def _logged(self, run_id: str, export: str) -> str | None:
        """Return the address of the run's model; None if it must be stored (again)."""
        tags = self.client.get_run(run_id).data.tags
        address: str | None = tags.get("ratchet.model_uri")
        is_current = tags.get(_EXPORT_TAG, "none") == export
        return address if is_current or self.client.search_model_versions(f"run_id='{run_id}'") else None

    @contextmanager
    def opened(self, model_uri: str) -> "Iterator[tuple[PyFuncModel, Path]]":
        """Load a model as any MLflow user does; yield it with the folder of its files, which exists within the context.

        Raises:
            RegistryError: its files cannot be read, or are not those that were stored.
        """
        import mlflow.pyfunc

        with tempfile.TemporaryDirectory() as place:
            folder = str(self.download(model_uri, Path(place), artifact_uri=model_uri))
            with active(self.workspace, self.params.tracking), file_errors(model_uri, self.uri):
                try:
                    model = mlflow.pyfunc.load_model(folder)
                except TrainingError as error:  # of `pyfunc`: files that are not those that were stored
                    raise self._damaged(model_uri, error, Path(folder, "data", _ARTIFACT)) from error
            yield model, Path(folder, "data", _ARTIFACT)

    def champion(self, name: str, into: Path) -> ChampionFiles | None:
        """Copy the champion's files to `into`; return None if there is no champion yet.

        Raises:
            RegistryError: its files cannot be read, or are not those that were stored.
        """
        number = self.aliases(name).get("champion")
        if number is None:
            return None
        version = self.find(f"{name}/{number}")
        fix = f"restore them, or `ratchet rollback {name} --why ...`, if an earlier champion has its files"
        return ChampionFiles(version, self.copy_files(version, into, called=f"{version.uri}, the champion", fix=fix))

    def copy_files(self, version: Version, into: Path, *, called: str = "", fix: str = "restore them") -> Path:
        """Copy a version's files to `into`; return the folder with model.json. `called` and `fix` are for messages.

        Raises:
            RegistryError: they cannot be read, or are not those that were stored.
        """
        from ratchet.checksums import CHECKSUMS

        called = called or version.uri
        folder = self.download(called, into, fix=fix, artifact_uri=version.uri)
        path = next((path for name in (CHECKSUMS, "model.json") for path in folder.rglob(name)), None)
        if path is None and self._recorded_checksums(version) is not None:
            where = self._stored_folder(version.uri)
            raise RegistryError(f"{called}: its files are incomplete: {where} has no {CHECKSUMS}. Fix: {fix}")
        if path is None:
            raise RegistryError(
                f"{called}, was not made by ratchet (it has no model.json). Fix: set registry.model to another name"
            )
        self._verify_files(version, path.parent)
        return path.parent

    def _recorded_checksums(self, version: Version) -> str | None:
        with reachable(self.uri):
            digest: str | None = self.client.get_run(version.run_id).data.tags.get(CHECKSUMS_TAG)
        return digest

    def _verify_files(self, version: Version, folder: Path) -> None:
        """Compare a version's files with their checksums, and these with their digest in the run's tag."""
        from ratchet.checksums import CHECKSUMS, verify

        recorded = self._recorded_checksums(version)
        try:
            checksums = verify(folder)
        except TrainingError as error:
            raise self._damaged(version.uri, error, folder) from error
        if recorded is None or checksums is None or files.digest_json(checksums) != recorded:
            problem = (
                f"its run has no tag {CHECKSUMS_TAG}"
                if recorded is None
                else f"its {CHECKSUMS} is {'missing' if checksums is None else 'not the one that was stored'}, by the "
                f"run's tag {CHECKSUMS_TAG}"
            )
            raise RegistryError(
                f"{version.uri}: {problem}: nothing was loaded. Fix: restore the files in "
                f"{self._stored_folder(version.uri)} from a backup, or `ratchet rollback {version.name} --why ...`, if "
                "there is an earlier champion"
            )

    def _damaged(self, model_uri: str, error: TrainingError, copy: Path) -> RegistryError:
        """Return the error of damaged files. It names the stored files, which a user can restore, not the copy."""
        return RegistryError(f"{model_uri}: {error}".replace(str(copy), self._stored_folder(model_uri)))

    def _stored_folder(self, model_uri: str) -> str:
        """Return where a model's files are stored: a folder, or an address."""
        from mlflow.store.artifact.models_artifact_repo import ModelsArtifactRepository

        with reachable(self.uri), active(self.workspace, self.params.tracking):
            place: str = ModelsArtifactRepository(model_uri).repo.artifact_uri
        return f"{local_path(place) or place}/data/{_ARTIFACT}"

    def log_files(self, run_id: str, wanted: dict[Path, str]) -> None:
        """Store files among the run's artifacts; `wanted` is file -> folder there."""
        with reachable(self.uri):
            for path, folder in wanted.items():
                self.client.log_artifact(run_id, str(path), folder)

    def checksums(self, version: Version) -> dict[str, str]:
        """Return the SHA-256 (hex) of each of a version's files, by its path in the model's folder."""
        from ratchet.checksums import CHECKSUMS

        with tempfile.TemporaryDirectory() as folder:
            uri = f"{version.uri}/data/{_ARTIFACT}/{CHECKSUMS}"
            digests: dict[str, str] = files.read_json(self.download(uri, Path(folder), artifact_uri=uri))["sha256"]
            return digests


def _signature(spec: "ModelSpec") -> "ModelSignature":
    from mlflow.models import ModelSignature

    kind = kind_of(spec.input)
    more: dict[str, Any] = {"params": _generation_params()} if kind.generates else {}
    return ModelSignature(inputs=kind.mlflow_schema(spec.input), outputs=_output_schema(spec), **more)


def _output_schema(spec: "ModelSpec") -> "Schema":
    """Return MLflow's description of the answers: numbers for each output, or a generated text."""
    import numpy as np
    from mlflow.types import ColSpec, Schema, TensorSpec

    if kind_of(spec.input).generates:
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
    from ratchet.training.models.vision import TIMM

    uses_timm = spec.factory == "none" and spec.name.startswith(TIMM)
    vision = ["torchvision"] if uses_timm or _uses_torchvision(spec) else []
    vision = ["timm", *vision] if uses_timm else vision
    packages = ["mlflow", "numpy", *kind_of(spec.input).packages, "safetensors", "torch", *vision]
    return [f"{name}=={importlib.metadata.version(name)}" for name in packages]


def _uses_torchvision(spec: "ModelSpec") -> bool:
    """Return whether the model needs torchvision. A process that built a model with it has imported it."""
    from ratchet.training.models.vision import torchvision_names

    if "torchvision" not in sys.modules:
        return False
    return spec.factory != "none" or spec.name in torchvision_names()  # the exporter imports it, too
