"""Columns of the request log, and the rows of its requests."""

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ratchet.kinds import ModelSpec
from ratchet.problems import Target

if TYPE_CHECKING:
    import polars
    import pyarrow

__all__ = [
    "INPUT",
    "MODEL",
    "REPEATED",
    "SHADOW",
    "SLICE",
    "Logged",
    "answer_time",
    "is_sampled",
    "row_schema",
    "size_of",
    "stamped_id",
    "table_of",
    "target_id",
]

SHADOW = "shadow"
"""Envelope of rows that a shadow version has answered."""
SLICE = "slice."
"""Begins the names of the columns of serving.log_columns."""
INPUT = "input."
"""Begins the names of the columns with kept inputs: one for each array of the model, or input.prompt."""
MODEL = "model"
"""Source of the answers that the version itself has made; others are of the cache or the fallback."""
REPEATED = ("envelope", "model", "version", "provenance", "key", "target")
"""Columns with few different values."""
_MARK = "72"  # of ids with a time; by chance one in 256 of older ids has it
_STAMPED = re.compile(rf"[0-9a-f]{{22}}{_MARK}([0-9a-f]{{8}})")
_OVERHEAD = 1000  # bytes of a request besides its arrays


class Logged(NamedTuple):
    """An answered request, with what the log needs of it.

    Attributes:
        time: seconds since 1970 when it came.
        seconds: from the request to the answer.
        inputs: arrays of n rows by name, or prompts.
        predictions: float32 (n, outputs), or n texts.
        target: as `target_id` returns it.
        columns: returns the values of serving.log_columns, in the writer's thread.
        source: how the answer was made: model, cache or fallback.
        served: NAME/VERSION that was to answer; empty: the one that did.
        spec: of the version; None: it is not known.
        reference: file with its bins, if there is one.
        texts: of which the inputs are token ids.
    """

    answer: str
    time: float
    seconds: float
    envelope: str
    model: str
    version: str
    provenance: str
    key: str
    inputs: Mapping[str, "NDArray[Any] | tuple[str, ...]"]
    predictions: "NDArray[np.float32] | list[str]"
    target: str = ""
    columns: Callable[[], Mapping[str, Sequence[Any]]] = dict
    source: str = MODEL
    served: str = ""
    spec: ModelSpec | None = None
    reference: Path | None = None
    texts: tuple[str, ...] = ()

    @property
    def watched(self) -> str:
        """NAME/VERSION for which the request counts."""
        return self.served or f"{self.model}/{self.version}"


@lru_cache
def target_id(target: Target) -> str:
    """Return the problem of a version, and a digest of its classes, labels or numbers in their order."""
    names = "\0".join(getattr(target, "names", ()))
    return f"{target.problem} {hashlib.sha256(names.encode()).hexdigest()[:16]}"


def row_schema() -> "polars.Schema":
    """Return the columns that each file of the log has, with their types."""
    import polars as pl

    texts = dict.fromkeys(("answer", *REPEATED, "input_sha256", "text"), pl.String())
    times = {"time": pl.Datetime("us", "UTC"), "seconds": pl.Float32()}
    return pl.Schema({**texts, "row": pl.Int32(), **times, "prediction": pl.List(pl.Float32)})


def table_of(requests: Sequence[Logged], *, inputs: str, sampled: Sequence[int] = ()) -> "pyarrow.Table":
    """Return the rows of requests that one version has answered.

    Columns are built whole: the server answers meanwhile, and a loop over rows would hold it up.

    Args:
        inputs: hash, sample, keep or none.
        sampled: of each request, how many of its first rows keep their inputs; for `sample`.
    """
    import pyarrow as pa

    counts = [len(request.predictions) for request in requests]

    def repeated(values: list[Any], kind: Any = None) -> Any:
        return pa.array(np.repeat(np.array(values, dtype=None if kind else object), counts), kind or pa.string())

    texts = isinstance(requests[0].predictions, list)
    nulls = pa.nulls(sum(counts))
    times = np.array([request.time * 1e6 for request in requests]).round().astype("datetime64[us]")
    columns: dict[str, Any] = {
        name: repeated([getattr(request, name) for request in requests]) for name in ("answer", *REPEATED)
    }
    columns["source"] = repeated([request.source for request in requests])  # not in older files
    columns["row"] = pa.array(np.concatenate([np.arange(count) for count in counts]), pa.int32())
    columns["time"] = pa.array(np.repeat(times, counts), pa.timestamp("us", "UTC"))
    columns["seconds"] = repeated([request.seconds for request in requests], pa.float32())
    hashes = [digest for request in requests for digest in _digests(request)] if inputs != "none" else None
    columns["input_sha256"] = pa.array(hashes, pa.string()) if hashes else nulls.cast(pa.string())
    answers = _joined([request.predictions for request in requests])
    columns["prediction"] = nulls.cast(pa.list_(pa.float32())) if texts else answers
    columns["text"] = answers if texts else nulls.cast(pa.string())
    sliced = [request.columns() for request in requests]
    for name in sliced[0]:
        columns[SLICE + name] = pa.array([value for part in sliced for value in part[name]])
    return pa.table(columns | _inputs(requests, counts if inputs == "keep" else sampled))


def _inputs(requests: Sequence[Logged], kept: Sequence[int]) -> "dict[str, pyarrow.Array]":
    """Return the columns with inputs: of each request those of its first `kept` rows. Other rows have nulls."""
    import pyarrow as pa

    if not any(kept):
        return {}
    values = {INPUT + name: [request.inputs[name] for request in requests] for name in requests[0].inputs}
    if requests[0].texts:
        values[INPUT + "text"] = [request.texts for request in requests]
    rows = np.concatenate([np.arange(len(request.predictions)) for request in requests])
    is_kept = rows < np.repeat(kept, [len(request.predictions) for request in requests])
    places = pa.array(np.cumsum(is_kept) - 1, pa.int64(), mask=~is_kept)
    return {
        name: _joined([part[:number] for part, number in zip(parts, kept, strict=True)]).take(places)
        for name, parts in values.items()
    }


def _joined(parts: "Sequence[NDArray[Any] | Sequence[str]]") -> "pyarrow.Array":
    """Return one list of values for each row of the parts, or one text."""
    import pyarrow as pa

    if not isinstance(parts[0], np.ndarray):
        return pa.array([text for part in parts for text in part], pa.string())
    arrays = [np.asarray(part) for part in parts]
    lengths = np.repeat([math.prod(part.shape[1:]) for part in arrays], [len(part) for part in arrays])
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, np.concatenate([part.ravel() for part in arrays]))


def stamped_id(random: str, seconds: float) -> str:
    """Return the id of an answer: 22 random hexadecimal digits, a mark, and its time, by which it is looked up."""
    return f"{random[:22]}{_MARK}{int(seconds) & 0xFFFFFFFF:08x}"


def answer_time(answer: str) -> int | None:
    """Return the seconds since 1970 at which an answer was given, as its id says; None: an older server gave it."""
    match = _STAMPED.fullmatch(answer)
    return int(match[1], 16) if match else None


def is_sampled(answer: str, share: float) -> bool:
    """Return whether the log takes this answer. It depends on the id alone."""
    return int(answer[:8], 16) < share * 2**32


def size_of(logged: Logged) -> int:
    """Return about how many bytes the request takes in memory."""
    size = _OVERHEAD
    for part in (logged.predictions, logged.texts, *logged.inputs.values()):
        size += part.nbytes if isinstance(part, np.ndarray) else sum(map(len, part))
    return size


def _digests(logged: Logged) -> list[str]:
    """Return the SHA-256 (hex) of each row's arrays, in the order of the model."""
    digests = []
    for row in range(len(logged.predictions)):
        digest = hashlib.sha256()
        for values in logged.inputs.values():
            value = values[row]
            digest.update(value.encode() if isinstance(value, str) else np.ascontiguousarray(value).tobytes())
        digests.append(digest.hexdigest())
    return digests
