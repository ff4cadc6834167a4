"""Inputs of a model: what one sample is, with all that is needed to turn a raw value into the model's arrays.

Some fields are facts of the training samples: they decide no weight, and are no part of equality. A server needs them
to recognise samples that are unlike those (`input_warnings.py`). A model of an earlier release has none.
"""

import math
import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "MAX_CATEGORIES",
    "Array",
    "ArraysInput",
    "Column",
    "ImageInput",
    "Input",
    "TableInput",
    "TextInput",
    "TokensInput",
]

MAX_CATEGORIES = 1000
"""Categories of a column that a model knows: the commonest."""


class InputSpec:
    """Input of a model or of a packed set. `kind` names its kind."""

    kind: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample, where all have one: of images height, width and channels."""
        return ()

    @property
    def numbered(self) -> bool:
        """Whether a table's columns have numbers for names, because its file has no header."""
        return False

    @property
    def widths(self) -> tuple[int, ...]:
        """Cells that a row of a table's file may have, if the file has no header; empty: any."""
        return ()

    @property
    def user_code(self) -> tuple[str, str] | None:
        """Folder and place in it of the user's own code of the kind."""
        return None

    @property
    def row_identity(self) -> tuple[str, ...]:
        """Columns or code by which samples are identified; empty: by their source alone."""
        return ()

    def with_code_in(self, folder: str) -> Self:
        """Return the input with the user's own code in another folder."""
        return self

    @cached_property
    def prepared(self) -> Any:
        """Objects that the kind keeps between calls to decode values: a user's class, for example."""
        from ratchet.kinds.registry import kind_of

        return kind_of(self).prepare(self)


@dataclass(frozen=True)
class ImageInput(InputSpec):
    """Images of one size. One array: uint8 or float32 (n, height, width, channels)."""

    height: int
    width: int
    channels: int
    mean: tuple[float, ...]  # per channel, of the training pixels
    std: tuple[float, ...]  # never 0
    dtype: str = "uint8"  # of the pixels; float32 in models of older versions
    depth: int | None = None  # bits of the raw value that became 255; None: images have 8 bits
    limits: tuple[float, ...] = ()  # lowest and highest pixel for a network, if training pixels are far; else empty
    range: tuple[float, ...] = field(default=(), compare=False)  # fact: smallest and largest usual pixel, of float32
    min_side: int = field(default=4, compare=False)  # fact: pixels of the shorter side of an image file
    max_aspect: float = field(default=10.0, compare=False)  # fact: ratio of its long side to its short side
    max_pixels: int = field(default=50_000_000, compare=False)  # fact: its pixels
    kind: Literal["image"] = "image"
    explanation: ClassVar[str] = "pixels"  # what explanations of answers are about; "": there are none

    @property
    def raw_dtype(self) -> str:
        """Type of the values that a served model takes."""
        return self.dtype if self.depth is None else "uint16"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels."""
        return self.height, self.width, self.channels

    @property
    def sample(self) -> str:
        """Word for one sample."""
        return "image"

    @property
    def description(self) -> str:
        """Text for people: "8 x 8 x 1 pixels"."""
        return " x ".join(map(str, self.shape)) + " pixels"


@dataclass(frozen=True)
class Column:
    """One feature of a table.

    A date becomes a number: seconds since 1970-01-01 in UTC. Numbers are packed as `value - offset` in float32, so that
    minutes of a date and the last digits of a large number survive. `mean`, `std`, `quantiles` and `limits` are those
    of the packed numbers.
    """

    name: str
    type: Literal["numeric", "datetime", "categorical"]
    mean: float = 0.0  # of the known training values that are not far from the others
    std: float = 1.0  # of the same values; never 0
    quantiles: tuple[float, ...] = ()  # of the known training values, in equal steps from the smallest to the largest
    categories: tuple[str, ...] = ()  # values of the training rows, in the order of their codes (the first has code 2)
    form: str = ""  # how texts write its numbers or dates (`number_formats`); "": plain numbers, ISO dates
    offset: float = 0.0  # a training value in the middle, for dates and for large numbers that are close together
    limits: tuple[float, ...] = ()  # lowest and highest number for a network, if training values are far; else empty
    complete: bool = field(default=False, compare=False)  # fact: no training row lacks a value

    @property
    def range(self) -> tuple[float, ...]:
        """Smallest and largest packed number of the training rows that is not far from the others; empty: unknown."""
        return _without_margin(self.limits) or (self.quantiles and (self.quantiles[0], self.quantiles[-1]))


@dataclass(frozen=True)
class TableInput(InputSpec):
    """Rows of a table. Two arrays, in the order of `numeric` and of `categorical`.

    numbers: float32 (n, numeric columns), less `Column.offset`; NaN: missing.
    codes: int64 (n, categorical columns); 0: missing, 1: not among the training rows, 2 and up: `Column.categories`.
    """

    columns: tuple[Column, ...]  # in the order of the file
    missing: tuple[str, ...] = ()  # further texts that mean a missing value
    # Fact: cells of a row, also without last labels, if there is no header.
    widths: tuple[int, ...] = field(default=(), compare=False)
    kind: Literal["table"] = "table"
    explanation: ClassVar[str] = "columns"

    @property
    def row_identity(self) -> tuple[str, ...]:
        return tuple(sorted(column.name for column in self.columns))

    @property
    def numbered(self) -> bool:
        return all(re.fullmatch(r"column_[1-9][0-9]*", column.name) for column in self.columns)

    @property
    def numeric(self) -> tuple[Column, ...]:
        """Numbers and dates."""
        return tuple(column for column in self.columns if column.type != "categorical")

    @property
    def categorical(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.type == "categorical")

    @cached_property
    def usual(self) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
        """Values with which cells are compared.

        Smallest and largest usual numbers, (2, numeric); whether numeric and categorical columns are complete; whether
        the categories of a column are all of those in the training rows.
        """
        bounds = [with_margin(column.range) or (-math.inf, math.inf) for column in self.numeric]
        return (
            np.array(bounds, np.float64).reshape(-1, 2).T,
            np.array([column.complete for column in self.numeric], bool),
            np.array([column.complete for column in self.categorical], bool),
            np.array([0 < len(column.categories) < MAX_CATEGORIES for column in self.categorical], bool),
        )

    @property
    def unscaled(self) -> "TableInput":
        """The same rows for a model that takes numbers as they are packed."""
        return replace(self, columns=tuple(replace(each, mean=0.0, std=1.0, limits=()) for each in self.columns))

    @property
    def sample(self) -> str:
        """Word for one sample."""
        return "row"

    @property
    def description(self) -> str:
        """Text for people: "14 columns"."""
        return f"{len(self.columns)} columns"


@dataclass(frozen=True)
class TextInput(InputSpec):
    """Texts. One array: token ids, int64 (n, longest text of the batch); 0: padding.

    A packed set holds the texts as UTF-8. `tokenizer` and what follows it belong to a model and are empty there.
    """

    tokenizer: str = "none"  # hashed: words and pairs of words by hash; words: `vocabulary`
    buckets: int = 0  # ids of the tokenizer hashed
    vocabulary: tuple[str, ...] = ()  # words of the training texts; the first has id 2, id 1 is any other word
    longest: int = 0  # tokens of a text that are used; the rest is cut off; 0: all
    characters: str = field(default="", compare=False)  # fact: those of the words of the training texts, each once
    kind: Literal["text"] = "text"
    explanation: ClassVar[str] = "words"

    @property
    def sample(self) -> str:
        """Word for one sample."""
        return "text"

    @property
    def description(self) -> str:
        return "texts"


@dataclass(frozen=True)
class TokensInput(InputSpec):
    """Pieces of a token stream. One array: token ids, int64 (n, context).

    A packed set holds each split as UTF-8. The other fields belong to a model and are empty there.
    """

    tokenizer: str = "none"  # bytes, characters or words
    vocabulary: tuple[str, ...] = ()  # characters or words of the training text, in the order of their ids
    context: int = 0  # tokens that the model sees at once
    kind: Literal["tokens"] = "tokens"
    explanation: ClassVar[str] = ""

    @property
    def sample(self) -> str:
        """Word for one sample."""
        return "piece of text"

    @property
    def description(self) -> str:
        return "a stream of text"


@dataclass(frozen=True)
class Array:
    """One of the arrays that a user's own kind makes of each sample. All samples have this type and shape."""

    name: str
    dtype: str  # float32, uint8, int8, int16, int32, int64 or bool
    shape: tuple[int, ...]  # of one sample
    mean: float = 0.0  # of all training values that are not far from the others
    std: float = 1.0  # of the same values; never 0
    limits: tuple[float, ...] = ()  # lowest and highest value for a network, if training values are far; else empty
    range: tuple[float, ...] = field(default=(), compare=False)  # fact: smallest and largest value that is not far

    @property
    def is_scaled(self) -> bool:
        """Whether a network gets its values in standard deviations from the mean."""
        return self.dtype == "float32"

    @property
    def size(self) -> int:
        """Values of one sample."""
        return math.prod(self.shape)

    @property
    def description(self) -> str:
        """Text for people: "load, float32 (168)"."""
        return f"{self.name}, {self.dtype} ({', '.join(map(str, self.shape))})"


@dataclass(frozen=True)
class ArraysInput(InputSpec):
    """Samples of a user's own kind: named arrays, (n, *shape) each, in the order of their names.

    Two of them are equal if their code is, wherever it is.
    """

    arrays: tuple[Array, ...]
    reader: str  # package.module:Class of the user's code, which makes the arrays of a raw value
    code: str  # file or folder with that code, relative to `root`
    code_digest: str  # of its files at ingest
    root: str = field(default=".", compare=False, metadata={"stored": False})  # folder of `code` on this machine
    kind: Literal["arrays"] = "arrays"
    explanation: ClassVar[str] = ""

    @property
    def row_identity(self) -> tuple[str, ...]:
        return (self.code_digest,)

    @property
    def user_code(self) -> tuple[str, str]:
        return self.root, self.code

    def with_code_in(self, folder: str) -> "ArraysInput":
        return replace(self, root=folder)

    @property
    def unscaled(self) -> "ArraysInput":
        """The same arrays for a model that takes values as they are packed."""
        return replace(self, arrays=tuple(replace(each, mean=0.0, std=1.0, limits=()) for each in self.arrays))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(array.name for array in self.arrays)

    @property
    def size(self) -> int:
        """Values of all arrays of one sample."""
        return sum(array.size for array in self.arrays)

    @property
    def layout(self) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
        """Name, type and shape of each array: models with the same layout take the same arrays."""
        return tuple((array.name, array.dtype, array.shape) for array in self.arrays)

    @property
    def sample(self) -> str:
        """Word for one sample."""
        return "sample"

    @property
    def description(self) -> str:
        """Text for people: "arrays load, float32 (168); weather, float32 (4, 24)"."""
        return f"array{'s' * (len(self.arrays) > 1)} {'; '.join(array.description for array in self.arrays)}"


Input = ImageInput | TableInput | TextInput | TokensInput | ArraysInput


def with_margin(range: tuple[float, ...]) -> tuple[float, ...]:
    """Return smallest and largest value of a range with its width added on each side (1 if it is 0)."""
    if not range:
        return ()
    low, high = range
    width = high - low if high > low else 1.0
    return low - width, high + width


def _without_margin(limits: tuple[float, ...]) -> tuple[float, ...]:
    """Return the range of `with_margin`."""
    if not limits:
        return ()
    width = (limits[1] - limits[0]) / 3
    return limits[0] + width, limits[1] - width
