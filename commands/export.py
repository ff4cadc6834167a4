"""`ratchet export`: write one variant of a registered version to a folder."""

import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratchet import files, settings
from ratchet.errors import RegistryError, WorkspaceError
from ratchet.exports import onnx_export, quantize, variant_text, variants
from ratchet.exports.program import ABOUT, OUTPUT, PROGRAM, NotExported, Program
from ratchet.kinds import ModelSpec
from ratchet.kinds.registry import kind_of
from ratchet.registry.models import ModelRegistry
from ratchet.registry.provenance_record import PROVENANCE_TAG
from ratchet.registry.pyfunc import ServedModel
from ratchet.registry.versions import Version
from ratchet.training.models import Model, load_model
from ratchet.typed_json import to_plain
from ratchet.workspace import Workspace

__all__ = ["ALLOWED", "export"]

_MODEL = "model"  # as registered, for training.teacher
ALLOWED = (variants.FULL, *variants.VARIANTS, "torch-export", "torchscript", _MODEL)
_ROWS = 32  # random samples that a program is compared with the model on
Arrays = tuple[NDArray[Any], ...]
Predict = Callable[[Arrays], NDArray[np.float32]]


def export(workspace: Workspace, reference: str, *, variant: str, to: Path) -> str:
    """Write one variant of a version with about.json, which describes it, to the new folder `to`; return a summary."""
    if variant not in ALLOWED:
        raise RegistryError(f"--variant: found {variant}; allowed: {', '.join(ALLOWED)}")
    if to.exists():
        raise WorkspaceError(f"--to: {to} exists. Fix: name a new folder")
    registry = ModelRegistry(workspace, settings.load(workspace.params))
    version = registry.find(reference)
    with tempfile.TemporaryDirectory(prefix="ratchet-export-") as place, files.draft_directory(to) as draft:
        folder = registry.copy_files(version, Path(place))
        if variant == _MODEL:
            shutil.copytree(folder, draft, dirs_exist_ok=True)
            return f"{to}: {version.uri}, as it is registered"
        model, spec = load_model(folder)
        if kind_of(spec.input).generates:
            raise RegistryError(
                f"{version.uri}: is a language model, whose texts PyTorch generates: it has no variants"
            )
        name, predict = _write(variant, folder, draft, model, spec, version)
        difference = _difference(predict, model, spec)
        files.write_json(draft / "about.json", _about(version, variant, name, folder, spec, difference))
    return (
        f"{to}: {version.uri} as {name}; largest difference from the model {difference:.2g} on {_ROWS} random samples"
    )


def _write(
    variant: str, folder: Path, draft: Path, model: Model, spec: ModelSpec, version: Version
) -> tuple[str, Predict]:
    """Write the program; return the name of its file, and the function that runs it."""
    import torch

    if variant == "torchscript":
        path = draft / "model.pt"
        onnx_export.write_torchscript(model, spec, path)
        jit: Any = torch.jit
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # that it is deprecated
            return path.name, _of_torch(jit.load(str(path)))
    if variant == "torch-export":
        path = draft / "model.pt2"
        program = onnx_export.traced(model, spec)
        program._example_inputs = None  # they would be stored as a pickle
        torch.export.save(program, path)
        return path.name, _of_torch(torch.export.load(path).module())
    _write_onnx(variant, folder, draft, model, spec, version)
    return PROGRAM, Program(draft / PROGRAM, kind_of(spec.input).array_names(spec.input)).predict


def _write_onnx(variant: str, folder: Path, draft: Path, model: Model, spec: ModelSpec, version: Version) -> None:
    if variant in variants.passed(folder):
        _copy_program(folder / variants.FOLDER / variant, draft)
        return
    if variant == "int8-static":
        refused = next((variant_text.summary(sheet) for sheet in variants.read(folder) if sheet.name == variant), "")
        raise RegistryError(
            f"{version.uri}: has no variant int8-static{f': {refused}' if refused else ''}. It is made from training "
            "samples by the stage export. Fix: `ratchet set 'export.variants=[int8-static]'`, then train a new version"
        )
    source = folder
    if not (folder / ABOUT).exists():
        source = Path(tempfile.mkdtemp(dir=folder.parent))
        onnx_export.export(model, spec, source)
    program = Program.of(source)
    if not isinstance(program, Program):
        assert isinstance(program, NotExported), "it was exported just now"
        raise RegistryError(f"{version.uri}: has no ONNX program ({program.reason})")
    if variant == variants.FULL:
        _copy_program(source, draft)
    else:
        quantize.dynamic_int8(program, draft)
        (draft / ABOUT).unlink()  # about.json has its content


def _copy_program(source: Path, draft: Path) -> None:
    for path in source.glob(f"{PROGRAM}*"):  # large weights are in a second file
        shutil.copy(path, draft / path.name)


def _of_torch(module: Any) -> Predict:
    import torch

    def predict(arrays: Arrays) -> NDArray[np.float32]:
        with torch.no_grad():
            answers: NDArray[np.float32] = module(*(torch.from_numpy(array) for array in arrays)).numpy()
        return answers

    return predict


def _difference(predict: Predict, model: Model, spec: ModelSpec) -> float:
    """Return the largest difference from the model on random samples."""
    arrays = kind_of(spec.input).example(spec.input, _ROWS, seed=0)
    expected = ServedModel(model, spec).answers_to_arrays(arrays)
    return spec.target.largest_difference(predict(arrays), expected)


def _about(
    version: Version, variant: str, name: str, folder: Path, spec: ModelSpec, difference: float
) -> dict[str, Any]:
    """Return the description: origin, inputs and output, and the parity sheet."""
    sheet = next((sheet for sheet in variants.read(folder) if sheet.name == variant), None)
    example = kind_of(spec.input).example(spec.input, 1, seed=0)
    return {
        "format": 1,
        "model": version.name,
        "version": version.number,
        "run": version.run_id,
        "provenance": version.tags.get(PROVENANCE_TAG),
        "variant": variant,
        "file": name,
        "inputs": [
            {"name": key, "dtype": str(array.dtype), "shape": [None, *array.shape[1:]]}
            for key, array in zip(kind_of(spec.input).array_names(spec.input), example, strict=True)
        ],
        "output": {"name": OUTPUT, "dtype": "float32", "shape": [None, spec.target.outputs]},
        "names": list(getattr(spec.target, "names", ())),
        "largest_difference": difference,
        "parity": to_plain(sheet) if sheet else None,
    }
