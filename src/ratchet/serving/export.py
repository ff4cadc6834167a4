"""Export of a model to ONNX, for runtimes without ratchet and PyTorch.

ONNX is a protocol buffer and contains no pickle. The archive that `torch.export.save` writes contains one.
"""

import contextlib
import io
import logging
import traceback
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from ratchet import files
from ratchet.data.depth import largest
from ratchet.serving.program import ABOUT, INPUT, OUTPUT, PROGRAM, first_paragraph
from ratchet.training.models import Classifier, ModelSpec

__all__ = ["export"]

_TRACED_IMAGES = 2  # their number may vary in the program, but PyTorch would take 0 or 1 for a constant


def export(model: Classifier, spec: ModelSpec, folder: Path) -> None:
    """Write model.onnx and program.json, which describes its input, or the reason why there is no program.

    Input and output are those of MLflow's loader (see `Program.predict`), for any number of images. Weights of more
    than 2 GB are in a second file, because the format allows no more in one.
    """
    pixels = torch.zeros((_TRACED_IMAGES, spec.height, spec.width, spec.channels), dtype=getattr(torch, spec.raw_dtype))
    about: dict[str, object]
    try:
        opset = _write(_WithProbabilities(model, spec.depth).eval(), pixels, folder / PROGRAM)
        about = {"program": PROGRAM, "input": INPUT, "output": OUTPUT, "opset": opset}
    except Exception as error:  # the exporter may raise anything, and so may the user's code that it traces
        about = {"program": None, "reason": _reason(error)}
    files.write_json(folder / ABOUT, {"format": 1, **about})


class _WithProbabilities(nn.Module):
    """A classifier with the input and output of the program."""

    def __init__(self, model: Classifier, depth: int | None) -> None:
        super().__init__()
        self.model, self.depth = model, depth

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Raw values (n, height, width, channels) -> class probabilities (n, classes)."""
        if self.depth is not None:  # as ratchet.data.depth.eight_bits
            limit = largest(self.depth)
            values = pixels.to(torch.int32).clamp(max=limit) * 255 + limit // 2
            pixels = torch.div(values, limit, rounding_mode="floor").to(torch.float32)
        return torch.softmax(self.model(pixels.permute(0, 3, 1, 2)), 1)


def _write(model: nn.Module, pixels: torch.Tensor, path: Path) -> int:
    """Export the model and return the version of the ONNX operators that it uses."""
    with _quiet(), torch.no_grad():
        # Given the model itself, `torch.onnx.export` tries a second method and reports only that one's error.
        exported = torch.export.export(model, (pixels,), dynamic_shapes=({0: torch.export.Dim("rows")},), strict=False)
        program = torch.onnx.export(
            exported, dynamic_shapes=({0: "rows"},), input_names=[INPUT], output_names=[OUTPUT], verbose=False
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
