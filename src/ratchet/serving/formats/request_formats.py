"""The three request formats of the model server. Each is read into a `ModelRequest` and written from an `Answer`.

- Our own: POST /v1/predict with {"input": [...], "options": {...}}, or with image files (`uploads.py`).
- MLflow's: POST /invocations with inputs, instances, dataframe_split or dataframe_records.
- Open Inference Protocol v2: POST /v2/models/NAME/infer (`open_inference.py`).
"""

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import orjson
from numpy.typing import NDArray

from ratchet.kinds import Input
from ratchet.kinds.input_warnings import InputWarning, by_row, input_warnings
from ratchet.kinds.protocol import Arrays, InputError, Unencoded, go_on
from ratchet.kinds.raw_values import check_rows, texts_in
from ratchet.kinds.registry import kind_of
from ratchet.serving.formats.uploads import is_upload, read_upload
from ratchet.serving.http_request import Header
from ratchet.serving.versions.additions import PLAIN, AnswerOptions
from ratchet.serving.versions.loaded import Identity, LoadedVersion
from ratchet.serving.versions.text_limit import check_texts
from ratchet.traffic.schema import stamped_id

__all__ = [
    "SLOW",
    "Answer",
    "MlflowFormat",
    "ModelRequest",
    "RatchetFormat",
    "RequestFormat",
    "as_json",
    "encode_together",
    "identity_headers",
    "known_fields",
    "new_id",
    "own_content",
    "prompts_of",
    "read_json_value",
    "read_object",
    "warnings_field",
]

SLOW = 1 << 18
"""Bytes of JSON that takes milliseconds to read."""
_WARNING_BYTES = 200  # of a warning besides its text
_IDS = 256  # ids of answers that are drawn at once
_JSON = (b"content-type", b"application/json")
_GENERATION: dict[str, tuple[type, ...]] = {  # options, with their types
    "max_tokens": (int,),
    "temperature": (int, float),
    "top_k": (int,),
    "top_p": (int, float),
    "seed": (int,),
}


class ModelRequest(NamedTuple):
    """The rows of a request: arrays, values that are not encoded yet, or prompts of a language model."""

    arrays: Arrays = ()
    prompts: tuple[str, ...] = ()
    options: Mapping[str, Any] = MappingProxyType({})  # those of the envelope, and of generation
    id: str = ""  # given by the client
    timeout: float = math.inf  # seconds from its first byte, given by the client in the body
    unencoded: Unencoded | None = None
    warnings: tuple[InputWarning, ...] = ()  # about rows unlike the training samples; after the encoding
    texts: tuple[str, ...] = ()  # of which the arrays are token ids
    additions: AnswerOptions = PLAIN

    @classmethod
    def of(cls, given: Arrays | Unencoded, input_spec: Input, **fields: Any) -> "ModelRequest":
        """Return the request with these rows for a model with this input."""
        if isinstance(given, Unencoded):
            return cls(unencoded=given, **fields)
        return cls(given, warnings=input_warnings(given, input_spec, None), **fields)

    def encoded(self, arrays: Arrays) -> "ModelRequest":
        """Return the request with the arrays of its values."""
        assert self.unencoded, "callers check it"
        warnings = input_warnings(arrays, self.unencoded.spec, self.unencoded.values)
        texts = tuple(self.unencoded.values) if kind_of(self.unencoded.spec).tokenizes else ()
        return self._replace(arrays=arrays, unencoded=None, warnings=warnings, texts=texts)

    @property
    def nbytes(self) -> int:
        """Bytes of arrays, texts and warnings in memory."""
        texts = sum(_WARNING_BYTES + len(warning.text) for warning in self.warnings) + sum(map(len, self.texts))
        return sum(array.nbytes for array in self.arrays) + texts

    @property
    def rows(self) -> int:
        """Number of rows or prompts."""
        if self.unencoded is not None:
            return self.unencoded.rows
        return len(self.arrays[0]) if self.arrays else len(self.prompts)


def encode_together(requests: Sequence[ModelRequest]) -> list[ModelRequest]:
    """Return requests to one version with their arrays, which are made in one call.

    Raises:
        InputError: a value of one of them cannot be encoded.
    """
    waiting = [request.unencoded for request in requests if request.unencoded]
    encoded = iter(kind_of(waiting[0].spec).encode(waiting) if waiting else ())
    return [request.encoded(next(encoded)) if request.unencoded else request for request in requests]


class Answer(NamedTuple):
    """Predictions float32 (n, outputs), or texts, of one version."""

    id: str
    loaded: LoadedVersion
    predictions: NDArray[np.float32] | list[str]
    instead: str = ""  # of the served version, which is overloaded: cache or fallback


class RequestFormat:
    """One request format. `rows` are allowed in one request."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def read(
        self, body: bytes, headers: Mapping[str, str], loaded: LoadedVersion, check: Callable[[], None] = go_on
    ) -> ModelRequest:
        """Return the rows of a request.

        `check` is called between two image files, and raises an exception when no client waits any more.

        Raises:
            InputError: naming the field.
            TooManyRows: found more than `rows`.
        """
        raise NotImplementedError

    def is_slow(self, body: bytes, headers: Mapping[str, str], loaded: LoadedVersion) -> bool:
        """Return whether `read` takes so long that other requests would wait: the thread of the batches reads it.

        A small image file may have many pixels.
        """
        # A backslash may hide the name of a file: JSON allows "\\u006264".
        return not loaded.kind.is_quick or len(body) > SLOW or b'"b64"' in body or b"\\" in body

    def write(self, answer: Answer, request: ModelRequest) -> tuple[bytes, tuple[Header, ...]]:
        """Return the body and the headers of the response."""
        raise NotImplementedError


class RatchetFormat(RequestFormat):
    """Our own format: one object for each row, with names of classes, labels or numbers."""

    def is_slow(self, body: bytes, headers: Mapping[str, str], loaded: LoadedVersion) -> bool:
        return is_upload(headers) or super().is_slow(body, headers, loaded)

    def read(
        self, body: bytes, headers: Mapping[str, str], loaded: LoadedVersion, check: Callable[[], None] = go_on
    ) -> ModelRequest:
        input_spec = loaded.spec.input
        content = read_upload(body, headers, loaded) if is_upload(headers) else read_object(body)
        known_fields(content, {"model", "input", "options"}, "")
        name = content.get("model", loaded.identity.model)
        if name != loaded.identity.model:
            raise InputError(f"model: found {name!r}; allowed: {loaded.identity.model}")
        if "input" not in content:
            raise InputError("input: is missing. Fix: send the rows as a list")
        options = content.get("options", {})
        if not isinstance(options, dict):
            raise InputError('options: allowed: an object, {"top_k": 5} for example')
        if loaded.kind.generates:
            return _streamable(content["input"], dict(options), most=self.rows)
        known_fields(options, {"top_k", *AnswerOptions._fields}, "options.")
        top = options.get("top_k", 1)
        if not isinstance(top, int) or isinstance(top, bool) or top < 1:
            raise InputError(f"options.top_k: found {top!r}; allowed: a whole number of 1 or more")
        additions = loaded.additions.read(options, "options.")
        given = loaded.given(content["input"], "input", most=self.rows, check=check)
        return ModelRequest.of(given, input_spec, options={"top_k": top}, additions=additions)

    def write(self, answer: Answer, request: ModelRequest) -> tuple[bytes, tuple[Header, ...]]:
        return as_json(own_content(answer, request.options.get("top_k", 1), request))


def own_content(answer: Answer, top: int, request: ModelRequest) -> dict[str, Any]:
    """Return an answer in our own format; `top` classes are listed for each row."""
    identity, additions = answer.loaded.identity, request.additions
    return {
        "id": answer.id,
        "model": identity.model,
        "version": identity.version,
        "provenance": identity.provenance,
        "variant": identity.variant,
        **({"instead": answer.instead} if answer.instead else {}),
        **additions.content,
        "predictions": _named(answer, top, additions),
        **warnings_field(request),
    }


def warnings_field(request: ModelRequest) -> dict[str, list[list[str]]]:
    """Return the field with the warnings about each row; it is left out if there are none."""
    return {"warnings": by_row(request.warnings, request.rows)} if request.warnings else {}


class MlflowFormat(RequestFormat):
    """MLflow's scoring format."""

    _FORMS = ("inputs", "instances", "dataframe_split", "dataframe_records")

    def read(
        self, body: bytes, headers: Mapping[str, str], loaded: LoadedVersion, check: Callable[[], None] = go_on
    ) -> ModelRequest:
        content = read_object(body)
        known_fields(content, {*self._FORMS, "params", "signature_name"}, "")
        given = [form for form in self._FORMS if form in content]
        if len(given) != 1:
            raise InputError(
                f"found {', '.join(given) or 'no input'}; allowed: exactly one of {', '.join(self._FORMS)}"
            )
        (form,), params = given, content.get("params") or {}
        if not isinstance(params, dict):
            raise InputError("params: allowed: an object")
        values = _split_frame(content[form]) if form == "dataframe_split" else content[form]
        if loaded.kind.generates:
            return prompts_of(values, params, form, "params", most=self.rows)
        known_fields(params, {*AnswerOptions._fields}, "params.")
        additions = loaded.additions.read(params, "params.")
        rows = loaded.given(values, form, most=self.rows, check=check)
        return ModelRequest.of(rows, loaded.spec.input, additions=additions)

    def write(self, answer: Answer, request: ModelRequest) -> tuple[bytes, tuple[Header, ...]]:
        content: dict[str, Any] = {"predictions": answer.predictions}
        if not isinstance(answer.predictions, list):
            additions = answer.loaded.additions
            if regions := additions.regions(request.additions):
                content["intervals"] = regions.rows(answer.predictions)
            content |= additions.flags(request.additions, answer.predictions)
        body, headers = as_json({**content, **warnings_field(request)})
        return body, (*headers, *identity_headers(answer))


def _named(answer: Answer, top: int, additions: AnswerOptions) -> list[dict[str, Any]]:
    """Return the predictions with the names of classes, labels or numbers, and what is asked for beside them."""
    predictions = answer.predictions
    if isinstance(predictions, list):
        return [{"text": text} for text in predictions]
    return answer.loaded.additions.rows(additions, predictions, top)


def prompts_of(values: Any, options: Any, field: str, options_field: str, *, most: int) -> ModelRequest:
    """Return the prompts of a language model and the options of its generation."""
    if not isinstance(options, dict):
        raise InputError(f"{options_field}: allowed: an object")
    known_fields(options, set(_GENERATION), f"{options_field}.")
    for name, value in options.items():
        if isinstance(value, bool) or not isinstance(value, _GENERATION[name]):
            raise InputError(f"{options_field}.{name}: found {value!r}; allowed: a number")
    check_rows(values, most)
    prompts = tuple(texts_in(values, field))
    check_texts(prompts, field)
    return ModelRequest(prompts=prompts, options=dict(options))


def _streamable(values: Any, options: dict[str, Any], *, most: int) -> ModelRequest:
    """Return the prompts of a request in our own format, which may ask for a stream of one text."""
    stream = options.pop("stream", False)
    if not isinstance(stream, bool):
        raise InputError(f"options.stream: found {stream!r}; allowed: true, false")
    request = prompts_of(values, options, "input", "options", most=most)
    if stream and request.rows != 1:
        raise InputError(f"options.stream: found {request.rows} prompts; allowed: 1. Fix: send one request for each")
    return request._replace(options={**request.options, "stream": stream})


def read_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object that is the body, read by `read_json_value`.

    Raises:
        InputError: it is none.
    """
    content = read_json_value(body, "the body")
    if not isinstance(content, dict):
        raise InputError("the body: allowed: a JSON object")
    return content


def read_json_value(body: bytes, where: str) -> Any:
    """Return what JSON says. NaN, which many clients write for a missing value, is read as null.

    Args:
        where: name of the JSON in messages.

    Raises:
        InputError: it is no JSON, or has an infinite number.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        content = _with_nan(body, where) if b"NaN" in body or b"Infinity" in body else None
        if content is None:
            raise InputError(f"{where} is not JSON: {error}") from None
        return content


def _with_nan(body: bytes, where: str) -> Any:
    """Return the content of JSON with NaN, each as None; None: the body is no JSON for another reason.

    Raises:
        InputError: it has an infinite number.
    """

    def constant(name: str) -> None:
        if name != "NaN":
            raise InputError(f"{where}: found {name}; allowed: finite numbers, and null or NaN for a missing value")

    def number(text: str) -> float:  # orjson would write an infinite one as null
        if math.isinf(value := float(text)):
            constant(text)
        return value

    try:
        # Python's reader takes lone surrogates and longer numbers, which orjson refuses in every other request.
        return orjson.loads(orjson.dumps(json.loads(body, parse_constant=constant, parse_float=number)))
    except InputError:
        raise
    except (ValueError, TypeError, RecursionError):
        return None


def known_fields(content: Mapping[str, Any], allowed: Set[str], prefix: str) -> None:
    """Refuse an unknown field; `prefix` is the path of the object in the request, with a full stop.

    Raises:
        InputError: naming the field.
    """
    for name in content:
        if name not in allowed:
            known = ", ".join(sorted(allowed)) or "none"
            raise InputError(f"{prefix}{name}: unknown field; allowed: {known}")


def _split_frame(content: Any) -> dict[str, list[Any]]:
    """Return the columns of MLflow's dataframe_split."""
    if not isinstance(content, dict) or not {"columns", "data"} <= set(content):
        raise InputError("dataframe_split: allowed: an object with columns and data")
    names, data = content["columns"], content["data"]
    if not isinstance(names, list) or len({str(name) for name in names}) != len(names):
        raise InputError("dataframe_split.columns: allowed: a list of different names")
    if not isinstance(data, list) or any(not isinstance(row, list) or len(row) != len(names) for row in data):
        raise InputError(f"dataframe_split.data: allowed: a list of rows with {len(names)} values each")
    return {str(name): [row[place] for row in data] for place, name in enumerate(names)}


def identity_headers(answer: Answer) -> tuple[Header, ...]:
    """Return what each answer says of its version, where the format has no field for it."""
    instead = ((b"ratchet-instead", answer.instead.encode()),) if answer.instead else ()
    return (b"ratchet-answer", answer.id.encode()), *_version_headers(answer.loaded.identity), *instead


@lru_cache
def _version_headers(identity: Identity) -> tuple[Header, ...]:
    return (
        (b"ratchet-version", quote(f"{identity.model}/{identity.version}").encode()),
        (b"ratchet-provenance", (identity.provenance or "").encode("latin-1")),
        (b"ratchet-variant", identity.variant.encode("latin-1")),
    )


def as_json(content: dict[str, Any]) -> tuple[bytes, tuple[Header, ...]]:
    """Return the body and the headers of a JSON response. Arrays become lists."""
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), (_JSON,)


def new_id() -> str:
    """Return the id of an answer. Called in the event loop only."""
    return stamped_id(next(_NEW_IDS), time.time())


def _new_ids() -> Iterator[str]:
    """Yield random ids. Each draw lets other threads run, so that one for each answer would hold up all answers."""
    while True:
        drawn = os.urandom(16 * _IDS).hex()
        yield from (drawn[at : at + 32] for at in range(0, len(drawn), 32))


_NEW_IDS = _new_ids()
