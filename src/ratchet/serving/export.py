"""A model made a program of its own: ONNX, for runtimes that know neither ratchet nor PyTorch.

ONNX is a protocol buffer and holds no pickle; the archive that `torch.export.save` writes holds one.
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
from ratchet.serving.program import ABOUT, INPUT, OUTPUT, PROGRAM, opening
from ratchet.training.models import Classifier, ModelSpec

__all__ = ["export"]

_ROWS = 2  # that the model is followed with: their number may vary, but one or none PyTorch takes for a constant


def export(model: Classifier, spec: ModelSpec, folder: Path) -> None:
    """Write model.onnx into `folder`, and program.json, which says what it takes, or why there is none.

    It takes and gives what MLflow's loader does (`Program.predict`), any number of rows. The weights of a model of
    more than 2 GB come to lie in a file beside it: the format allows no more in one.
    """
    pixels = torch.zeros((_ROWS, spec.height, spec.width, spec.channels), dtype=getattr(torch, spec.raw_dtype))
    about: dict[str, object]
    try:
        opset = _write(_Answering(model, spec.depth).eval(), pixels, folder / PROGRAM)
        about = {"program": PROGRAM, "input": INPUT, "output": OUTPUT, "opset": opset}
    except Exception as error:  # the exporter raises anything, and so may the user's code that it follows
        about = {"program": None, "why": _reason(error)}
    files.write_json(folder / ABOUT, {"format": 1, **about})


class _Answering(nn.Module):
    """A classifier that takes and gives what the program does."""

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
    """Export; the version of ONNX's operators that the program is made of."""
    with _quiet(), torch.no_grad():
        # Given the model itself, `torch.onnx.export` tries a second way, and tells but what went wrong on that one
        followed = torch.export.export(model, (pixels,), dynamic_shapes=({0: torch.export.Dim("rows")},), strict=False)
        program = torch.onnx.export(
            followed, dynamic_shapes=({0: "rows"},), input_names=[INPUT], output_names=[OUTPUT], verbose=False
        )
    assert program is not None, "it is None where a file is named"
    program.save(path)
    return program.model.opset_imports[""]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the graph that PyTorch prints of a model it cannot follow, and the warning it logs."""
    log = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        log.setLevel(before)


def _reason(error: Exception) -> str:
    """What went wrong first, and at which line of the model."""
    first: BaseException = error
    while first.__cause__ is not None:
        first = first.__cause__
    library = str(Path(torch.__file__).parent)
    places = [
        place
        for place in traceback.extract_tb(first.__traceback__)
        if not place.filename.startswith(library) and place.filename != __file__
    ]
    where = f" ({Path(places[-1].filename).name}, line {places[-1].lineno}: {places[-1].line})" if places else ""
    return opening(first) + where
