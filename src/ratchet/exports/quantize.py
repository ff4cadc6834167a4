"""int8 forms of an ONNX program, made by onnxruntime."""

import logging
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.exports.program import ABOUT, PROGRAM, Program

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = tuple[NDArray[Any], ...]

__all__ = ["dynamic_int8", "static_int8"]

# Operators in int8. Probabilities are not among them: int8 has only 256. Nor is pooling: onnxruntime runs it in int8
# all the same, but with each MaxPool in the list a ConvNet 32x32 was 1.7 times as fast as fp32 instead of 2.7 times
# (onnxruntime 1.31, batches of 32, one thread, x86-64 with AVX-512 VNNI).
_OPERATORS = ["Add", "Conv", "Gemm", "MatMul"]


def static_int8(program: Program, folder: Path, batches: Sequence["Arrays"]) -> None:
    """Write the program with int8 weights and uint8 activations to `folder`.

    Weights have a scale for each output channel. Activations have the range that they have on the calibration samples.

    Raises:
        Exception: those of onnxruntime, which have no common base.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class _Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rest = iter(batches)

        def get_next(self) -> "dict[str, NDArray[Any]] | None":
            batch = next(self.rest, None)
            return None if batch is None else program.feed(batch)

    with _prepared(program) as source:
        quantize_static(
            source,
            folder / PROGRAM,
            _Reader(),
            quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QUInt8,  # int8 activations are slow on x86-64
            weight_type=QuantType.QInt8,
            per_channel=True,
            op_types_to_quantize=_OPERATORS,
            extra_options={"OpTypesToExcludeOutputQuantization": ["Gemm", "MatMul"]},  # logits stay float32
        )
    _describe(program, folder)


def dynamic_int8(program: Program, folder: Path) -> None:
    """Write the program with int8 weights to `folder`. The range of activations is measured in each batch.

    Raises:
        Exception: those of onnxruntime, which have no common base.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with _prepared(program) as source:
        quantize_dynamic(source, folder / PROGRAM, weight_type=QuantType.QInt8, per_channel=True)
    _describe(program, folder)


@contextmanager
def _prepared(program: Program) -> Iterator[Path]:
    """Yield the path of the program with the shape of each tensor, and with batch norm merged into convolutions."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.ERROR)  # onnxruntime advises on the root logger to do what is done here
    try:
        with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            path = Path(place, PROGRAM)
            quant_pre_process(program.path, path)
            yield path
    finally:
        root.setLevel(before)


def _describe(program: Program, folder: Path) -> None:
    """Write program.json: inputs and output are those of the float32 program."""
    shutil.copy(program.path.parent / ABOUT, folder / ABOUT)
