"""The protocol of kinds: what a sample is, and how a client's values become the arrays of a model and back.

Each kind is one object. `registry.kind_of` returns that of a model's input; nothing else asks which kind it is.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ratchet.errors import TrainingError

if TYPE_CHECKING:
    import torch

    from ratchet.kinds.inputs import Input
    from ratchet.problems import Target

__all__ = [
    "UNKNOWN",
    "Arrays",
    "InputError",
    "Json",
    "Kind",
    "RawValue",
    "TensorSpec",
    "TooManyRows",
    "Unencoded",
    "Unusual",
    "far_values",
    "go_on",
    "require_fit",
]

S = TypeVar("S")
Arrays = tuple[NDArray[Any], ...]
Json = dict[str, Any]
RawValue = Callable[[int, str], Any]
"""Returns the value of a row in a column, as the client sent it."""
UNKNOWN = "(not in the training rows)"
"""Stands for a category that a model does not know."""
_LONGEST = 600  # characters of a message


class InputError(ValueError):
    """A value cannot be answered; the message names the field, the value, what is allowed and the fix."""

    def __init__(self, message: str) -> None:
        half = _LONGEST // 2  # a value of a request may have megabytes
        super().__init__(message if len(message) <= _LONGEST else f"{message[:half]} ... {message[-half:]}")


class TooManyRows(InputError):
    """The request has more rows than serving.rows."""


class Unencoded(NamedTuple):
    """Checked values of a request that may be encoded with those of others."""

    values: Any
    field: str
    rows: int
    spec: "Input"


class Unusual(NamedTuple):
    """A value that is unlike those of the training samples.

    Attributes:
        field: column, array or tensor.
        reason: range, scale, category, missing or text.
        value: the packed number, or the value as the client sent it; None: missing.
        known: description of the training values.
    """

    row: int
    field: str
    reason: str
    value: Any
    known: Any


class TensorSpec(NamedTuple):
    """An input of a model in the Open Inference Protocol. `dtype`: of NumPy, or "text". `shape`: of one sample."""

    name: str
    dtype: str
    shape: tuple[int, ...] = ()


def require_fit(weights: object, samples: object) -> None:
    """Raise TrainingError if the weights of an earlier model take something else than the samples have."""
    if weights != samples:
        raise TrainingError(
            f"model.pretrained: its weights take {weights}, and these samples have {samples}. Allowed: the same. "
            "Fix: use the data as before, or train without these weights: `ratchet set model.pretrained=none`"
        )


def go_on() -> None:
    """Do nothing: somebody waits for the result."""


class Kind(Generic[S]):
    """A kind of samples, with the defaults of most kinds. `S` is its input of a model."""

    name: ClassVar[str]  # the word in params.yaml and in stored specs
    program_inputs: ClassVar[tuple[str, ...]] = ()  # names of the arrays of an exported program
    unit: ClassVar[str] = "samples"  # in which the size of a data set is given
    packages: ClassVar[tuple[str, ...]] = ()  # that a served model needs besides those of all
    generates: ClassVar[bool] = False  # its models continue texts, and answer no rows
    tokenizes: ClassVar[bool] = False  # a packed set holds UTF-8, which each model reads with its own tokenizer
    is_quick: ClassVar[bool] = False  # values are arrays already, read while other requests wait
    has_user_code: ClassVar[bool] = False  # only a user's module knows which values are allowed
    varies: ClassVar[bool] = False  # the second axis of an array varies
    variants: ClassVar[tuple[str, ...]] = ()  # that export.variants: auto makes
    networks: ClassVar[Mapping[str, str]] = {}  # model.name -> class in `ratchet.training.models`; the first is `auto`
    model: ClassVar[str] = "Model"  # class in `ratchet.training.models.model`
    has_sources: ClassVar[bool] = False  # data.source names where they come from; of other kinds data.path does
    smooths_labels: ClassVar[bool] = False  # training.label_smoothing: auto smooths
    has_torchvision: ClassVar[bool] = False  # model.name may be a classifier of torchvision
    mirrors: ClassVar[bool] = False  # a sample may be mirrored
    has_pixels: ClassVar[bool] = False  # an array has images
    usual_copies: ClassVar[float | None] = None  # share of held-out samples that may be in training; None: as most
    copies_have_target: ClassVar[bool] = False  # samples with other targets are no copies
    baseline: ClassVar[str] = ""  # network of the honest baseline in `ratchet.baselines`; empty: a constant answer
    size_fix: ClassVar[str] = ""  # fix of samples that are too small for a network
    noun: ClassVar[tuple[str, str]] = ("sample", "samples")
    # batch scoring
    file_suffixes: ClassVar[tuple[str, ...]] = ()  # of files that are one sample each
    in_tables: ClassVar[bool] = False  # samples are also rows of CSV, Parquet and JSON files
    files_word: ClassVar[str] = "tables"
    batch_rows: ClassVar[int] = 256

    # Arrays of a model

    def array_names(self, spec: S) -> tuple[str, ...]:
        """Return the names of the arrays that an exported program takes."""
        return self.program_inputs

    def prepare(self, spec: S) -> Any:
        """Return what decoding keeps between calls; it is `spec.prepared`."""
        return None

    def example(self, spec: S, rows: int, seed: int) -> Arrays:
        """Return random rows as an exported program takes them."""
        raise NotImplementedError

    def zeros(self, spec: S, rows: int) -> Arrays:
        """Return rows of zeros as an exported program takes them."""
        raise NotImplementedError

    def packed(self, arrays: Arrays, spec: S) -> Arrays:
        """Return the arrays of an exported program as a packed set and the network take them."""
        return arrays

    def to_tensors(self, arrays: Arrays) -> "tuple[torch.Tensor, ...]":
        """Return packed arrays as tensors of the network."""
        import torch

        return tuple(torch.from_numpy(np.require(array, requirements=("C", "W"))) for array in arrays)

    def from_tensors(self, inputs: "tuple[torch.Tensor, ...]") -> Arrays:
        """Return packed arrays: the inverse of `to_tensors`."""
        return tuple(tensor.numpy() for tensor in inputs)

    def network_inputs(self, inputs: "tuple[torch.Tensor, ...]", spec: S) -> "tuple[torch.Tensor, ...]":
        """Return the arrays of an exported program as tensors of the network; PyTorch can trace it."""
        return inputs

    # A sample in the request log and in a packed set

    def logged_names(self, spec: S) -> tuple[str, ...]:
        """Return the names of the logged inputs of which a sample is made."""
        return self.array_names(spec)

    def no_samples(self, spec: S) -> Arrays:
        """Return no packed samples, with the shapes and types of those that `logged_names` and `values` have."""
        return self.packed(self.zeros(spec, 0), spec)

    # A client's values

    def read(self, values: Any, spec: S, field: str, check: Callable[[], None] = go_on) -> Arrays | Unencoded:
        """Return the arrays of raw values, or checked values that `encode` takes.

        Args:
            check: is called between two image files, and raises an exception when no client waits any more.

        Raises:
            InputError: a value has another type, shape or range, or a column is missing or unknown.
        """
        raise NotImplementedError

    def encode(self, given: Sequence[Unencoded]) -> list[Arrays]:
        """Return the arrays of each of several requests to one model, in one call.

        Raises:
            InputError: a value of a request cannot be encoded. Alone, the message is about this request.
        """
        raise NotImplementedError

    def decode(self, values: Any, spec: S, field: str = "input") -> Arrays:
        """Return the arrays of raw values, as an exported program takes them.

        Raises:
            InputError: naming the field.
        """
        read = self.read(values, spec, field)
        return self.encode([read])[0] if isinstance(read, Unencoded) else read

    def values(self, arrays: Arrays, spec: S) -> Any:
        """Return packed arrays as raw values: `decode` converts them to those of this model or of another."""
        raise NotImplementedError

    def samples(self, split: Any, rows: NDArray[np.int64], spec: S) -> Any:
        """Return samples of a packed split as raw values. `spec` is the input of the packed set."""
        import torch

        inputs, _ = split.batch(rows, torch.device("cpu"))
        return self.values(self.from_tensors(inputs), spec)

    def columns(self, arrays: Arrays, spec: S, names: Collection[str]) -> dict[str, list[float | str | None]]:
        """Return columns of the rows with their values; of most kinds none."""
        return {}

    def features(self, arrays: Arrays, spec: S) -> dict[str, NDArray[Any]]:
        """Return features of rows by name, to watch for drift: numbers (NaN: missing), or objects (None: missing).

        Args:
            arrays: of a program, each (rows, values): its rows are flat, and filled up with zeros.
        """
        return {}

    def unusual(self, arrays: Arrays, spec: S, raw_value: RawValue) -> Iterator[Unusual]:
        """Yield what is unlike the training samples in the arrays of a program."""
        return iter(())

    def takes_files(self, spec: S) -> bool:
        """Return whether a request may have files as values."""
        return False

    # Another model

    def is_equal(self, first: S, second: S) -> bool:
        """Return whether two models take the same arrays for a raw value."""
        return first == second

    def obstacle(self, have: S, want: S) -> str:
        """Return why samples of one model cannot be adapted to another; empty: they can."""
        return ""

    def converts(self, have: S, want: S) -> bool:
        """Return whether each raw value for one model is one for the other."""
        return self.is_equal(have, want)

    def adapt(self, arrays: Arrays, have: S, want: S) -> Arrays:
        """Return packed arrays for another model, to which there is no `obstacle`."""
        return arrays

    def packed_digests(self, arrays: Arrays) -> "NDArray[np.uint64] | None":
        """Return the digests of rows of a packed set with these arrays, (rows, 2); None: they need the source."""
        return None

    # Training

    def continued(self, own: S, parent: S) -> S:
        """Return the input of a model that continues one with the input `parent`: what its weights mean is unchanged.

        Raises:
            TrainingError: the weights do not fit samples with the input `own`.
        """
        return parent

    def open_split(self, packed: Path, name: str, manifest: Mapping[str, Any], spec: S) -> Any:
        """Open a split of a packed set; a missing or damaged file is an OSError, ValueError or KeyError."""
        raise NotImplementedError

    def model_input(
        self, packed: Path, manifest: Mapping[str, Any], spec: S, *, model: str, tokenizer: str, context: int, root: str
    ) -> S:
        """Return a model's input for that of a packed set. Arguments are those of `ratchet.training.model_input`.

        Raises:
            TrainingError: the kind has no such tokenizer, or the user's code changed since ingest.
        """
        if tokenizer != "auto":
            raise TrainingError(
                f"model.tokenizer: found {tokenizer}, and the data are of kind {self.name}. Allowed: auto. "
                "Fix: `ratchet set model.tokenizer=auto`"
            )
        return spec

    def scaled_as(self, spec: S, mean: tuple[float, ...], std: tuple[float, ...]) -> S:
        """Return a model's input that is normalized as that of pretrained weights, if this kind can."""
        return spec

    def model_target(self, spec: S, target: "Target") -> "Target":
        """Return a model's target for that of a packed set."""
        return target

    def network_arguments(self, spec: S, target: "Target") -> dict[str, Any]:
        """Return the arguments of a network's constructor."""
        return {"input": spec, "target": target}

    # Descriptions

    def tensors(self, spec: S) -> tuple[TensorSpec, ...]:
        """Return the inputs in the Open Inference Protocol."""
        return (TensorSpec("text", "text"),)

    def from_named(self, tensors: Mapping[str, NDArray[Any]], spec: S) -> Any:
        """Return the raw values of tensors by name.

        Raises:
            InputError: they are not those of the model.
        """
        names = tuple(tensor.name for tensor in self.tensors(spec))
        if tuple(tensors) != names:
            raise InputError(f"inputs: found {', '.join(tensors)}; allowed: {', '.join(names)}")
        return tensors[names[0]]

    def schema(self, spec: S) -> Json:
        """Return the JSON schema of the rows of a request."""
        return {"type": "array", "items": {"type": "string"}}

    def example_values(self, spec: S) -> Any:
        """Return one row for a request, which the model answers."""
        raise NotImplementedError

    def example_tensors(self, spec: S) -> list[list[Any]]:
        """Return one row for each of `tensors`, flat."""
        return [self.example_values(spec)]

    def mlflow_schema(self, spec: S) -> Any:
        """Return MLflow's description of the raw values; None: MLflow would change them."""
        raise NotImplementedError

    def summary(self, spec: Any) -> str:
        """Return what the model takes, for its card."""
        text: str = spec.description
        return text

    def argument(self, spec: Any) -> str:
        """Return type and shape of the argument of `predict`, for a comment."""
        text: str = spec.description
        return text

    # Batch scoring

    def file_value(self, content: bytes) -> Any:
        """Return the value of a file that is one sample.

        Raises:
            InputError: the file cannot be read.
        """
        return content

    def columns_expected(self, spec: S, column: str | None) -> list[str]:
        """Return the columns that decide between several possible separators of a CSV file."""
        return [column] if column else []

    def columns_read(self, spec: S, names: Sequence[str], column: str | None) -> list[str]:
        """Return the columns of a table that are read. `column` is the setting of the command.

        Raises:
            InputError: it is not clear which column.
        """
        raise NotImplementedError

    def table_values(self, frame: Any) -> Any:
        """Return the raw values of a frame with the columns of `columns_read`."""
        return frame


def far_values(values: NDArray[Any], field: str, range: tuple[float, ...]) -> Iterator[Unusual]:
    """Yield rows with a value far outside the range of the training values."""
    from ratchet.kinds.inputs import with_margin

    if not range or not values.size:
        return
    low, high = with_margin(range)
    flat = values.reshape(len(values), -1)
    lowest, highest = flat.min(axis=1), flat.max(axis=1)
    for row in np.flatnonzero((lowest < low) | (highest > high)).tolist():
        value = lowest[row] if lowest[row] < low else highest[row]
        yield Unusual(row, field, "range", float(f"{value:.6g}"), range)
