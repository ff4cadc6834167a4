"""Export of a model to ONNX, for runtimes without ratchet and PyTorch.

ONNX is a protocol buffer and contains no pickle. The archive that `torch.export.save` writes contains one.
"""

import contextlib
import io
import logging
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ratchet import files
from ratchet.exports.program import ABOUT, OUTPUT, PROGRAM, first_paragraph
from ratchet.kinds import ModelSpec
from ratchet.kinds.registry import kind_of
from ratchet.training.models import Model

__all__ = ["export", "traced", "write_torchscript"]

_TRACED_SAMPLES = 2  # their number may vary in the program, but PyTorch would take 0 or 1 for a constant


def export(model: Model, spec: ModelSpec, folder: Path) -> None:
    """Write model.onnx and program.json, which describes its input, or the reason why there is no program.

    Input and output are those of MLflow's loader (see `Program.predict`), for any number of images. Weights of more
    than 2 GB are in a second file, because the format allows no more in one.
    """
    about: dict[str, object]
    try:
        names = kind_of(spec.input).array_names(spec.input)
        opset = _write(model, spec, names, folder / PROGRAM)
        about = {"program": PROGRAM, "inputs": names, "output": OUTPUT, "opset": opset}
    except Exception as error:  # the exporter may raise anything, and so may the user's code that it traces
        about = {"program": None, "reason": _reason(error)}
    files.write_json(folder / ABOUT, {"format": 1, **about})


def _traced_inputs(spec: ModelSpec) -> tuple[torch.Tensor, ...]:
    """Return raw inputs of `_TRACED_SAMPLES` samples."""
    return tuple(map(torch.from_numpy, kind_of(spec.input).zeros(spec.input, _TRACED_SAMPLES)))


class _WithPredictions(nn.Module):
    """A model with the input and output of the program."""

    def __init__(self, model: Model, spec: ModelSpec) -> None:
        super().__init__()
        self.model, self.spec = model, spec

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Raw images (n, height, width, channels), or the arrays of other kinds -> predictions (n, outputs)."""
        inputs = kind_of(self.spec.input).network_inputs(inputs, self.spec.input)
        return self.spec.target.served(self.model(*inputs))


def traced(model: Model, spec: ModelSpec) -> torch.export.ExportedProgram:
    """Return the program of PyTorch, with the input and output of the ONNX program.

    The number of samples may vary, and so may the second axis of texts.
    """
    whole, inputs = _WithPredictions(model, spec).eval(), _traced_inputs(spec)
    shapes = (tuple(_axes(spec) for _ in inputs),)  # of the arguments, of which there is one: *inputs
    with _quiet(), torch.no_grad():
        return torch.export.export(whole, inputs, dynamic_shapes=shapes, strict=False)


def write_torchscript(model: Model, spec: ModelSpec, path: Path) -> None:
    """Write the program as TorchScript, which PyTorch has deprecated. The file holds a pickle."""
    whole = _WithPredictions(model, spec).eval()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # that it is deprecated, and that shapes of tensors became constants
        jit: Any = torch.jit
        jit.trace(whole, _traced_inputs(spec)).save(str(path))


def _axes(spec: ModelSpec) -> dict[int, Any]:
    """Return the axes of each input that may vary."""
    return {0: torch.export.Dim("rows")} | ({1: torch.export.Dim("length")} if kind_of(spec.input).varies else {})


def _write(model: Model, spec: ModelSpec, names: tuple[str, ...], path: Path) -> int:
    """Export the model and return the version of the ONNX operators that it uses."""
    # Given the model itself, `torch.onnx.export` tries a second method and reports only that one's error.
    exported = traced(model, spec)
    named = (tuple({axis: size.__name__ for axis, size in _axes(spec).items()} for _ in _traced_inputs(spec)),)
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            exported, dynamic_shapes=named, input_names=list(names), output_names=[OUTPUT], verbose=False
        )
    assert program is not None, "it is None only where a file is named"
    program.save(path)
    return program.model.opset_imports[""]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide the graph that PyTorch prints of a model that it cannot trace, and the warning that it logs."""
    log = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        log.setLevel(before)


def _reason(error: Exception) -> str:
    """Return the first error, and the line of the model that raised it."""
    first: BaseException = error
    while first.__cause__ is not None:
        first = first.__cause__
    library = str(Path(torch.__file__).parent)
    frames = [
        frame
        for frame in traceback.extract_tb(first.__traceback__)
        if not frame.filename.startswith(library) and frame.filename != __file__
    ]
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno}: {frames[-1].line})" if frames else ""
    return first_paragraph(first) + where
