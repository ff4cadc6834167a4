"""Open Inference Protocol v2 (KServe, Triton), with Triton's binary tensors and timeout.

An image model has one input tensor, a table one for each column, texts and prompts one of BYTES.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from ratchet.exports.program import OUTPUT
from ratchet.kinds.protocol import InputError, go_on
from ratchet.kinds.raw_values import as_type
from ratchet.serving.formats.request_formats import (
    SLOW,
    Answer,
    ModelRequest,
    RequestFormat,
    as_json,
    identity_headers,
    known_fields,
    prompts_of,
    read_object,
    warnings_field,
)
from ratchet.serving.http_request import Header
from ratchet.serving.versions.additions import AnswerOptions
from ratchet.serving.versions.loaded import LoadedVersion

__all__ = ["EXTENSIONS", "V2Format", "metadata"]

EXTENSIONS = ("binary_tensor_data", "schedule_policy")
"""Of the protocol, by Triton. The policy is that of `timeout`."""

_TYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(kind)
    for name, kind in {
        "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "i1", "INT16": "<i2",
        "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
    }.items()
}  # fmt: skip
_NAMES = {kind: name for name, kind in _TYPES.items()}
_BYTES = (b"content-type", b"application/octet-stream")
_AXES = 8  # of a tensor
_SLOW_BYTES = 1 << 20  # of a body with tensors as bytes
_SHORT = 4096  # bytes of a head that is remembered
_FIELDS = frozenset({"id", "inputs", "outputs", "parameters"})
_NUMBERS = {"timeout": "of microseconds ", "priority": ""}  # priority has no effect: there is one queue
_PARAMETERS = frozenset({"binary_data_output", *_NUMBERS})


class V2Format(RequestFormat):
    """Open Inference Protocol v2, with its extension for binary tensors."""

    def read(
        self, body: bytes, headers: Mapping[str, str], loaded: LoadedVersion, check: Callable[[], None] = go_on
    ) -> ModelRequest:
        length, spec = _head_length(headers, body), loaded.spec
        # The head of a request with bytes is short, and a client sends the same one again and again.
        parse = _known_head if length < len(body) and length <= _SHORT else _head
        head = parse(body[:length])
        tensors = _tensors(head.tensors, memoryview(body)[length:])
        values = loaded.kind.from_named(tensors, spec.input)
        if loaded.kind.generates:
            request = prompts_of(values.tolist(), head.parameters, "inputs", "parameters", most=self.rows)
            options = {**request.options, "binary": _binary(head, [output_name(loaded)])}
            return request._replace(options=options, id=head.id, timeout=head.timeout)
        known_fields(head.parameters, _PARAMETERS | {*AnswerOptions._fields}, "parameters.")
        additions = loaded.additions.read(head.parameters, "parameters.")
        added = loaded.additions.tensors(additions, np.empty((0, spec.target.outputs), np.float32))
        options = {"binary": _binary(head, [output_name(loaded), *added])}
        given = loaded.given(values, "inputs", most=self.rows, check=check)
        shared = {"id": head.id, "timeout": head.timeout, "additions": additions}
        return ModelRequest.of(given, spec.input, options=options, **shared)

    def is_slow(self, body: bytes, headers: Mapping[str, str], loaded: LoadedVersion) -> bool:
        # The bytes of a tensor are no JSON, and no tensor is an image file.
        is_long = len(body) > _SLOW_BYTES or _head_length(headers, body) > SLOW
        return is_long or not loaded.kind.is_quick

    def write(self, answer: Answer, request: ModelRequest) -> tuple[bytes, tuple[Header, ...]]:
        arrays, outputs, tail = _outputs(answer, request), list[dict[str, Any]](), b""
        for name, is_binary in request.options["binary"].items():
            output, raw = _output(name, arrays[name], is_binary=is_binary)
            outputs.append(output)
            tail += raw
        content: dict[str, Any] = {
            "model_name": answer.loaded.identity.model,
            "model_version": answer.loaded.identity.version,
            "id": request.id or answer.id,
            "parameters": {
                "provenance": answer.loaded.identity.provenance or "",
                "answer": answer.id,
                # The protocol allows no lists here.
                **{name: orjson.dumps(value).decode() for name, value in warnings_field(request).items()},
            },
            "outputs": outputs,
        }
        head, headers = as_json(content)
        if any(request.options["binary"].values()):
            headers = _BYTES, (b"inference-header-content-length", b"%d" % len(head))
        return head + tail, (*headers, *identity_headers(answer))


def _outputs(answer: Answer, request: ModelRequest) -> dict[str, NDArray[Any]]:
    """Return the output tensors by name: predictions or texts, and what a request asks for beside them."""
    name = output_name(answer.loaded)
    if isinstance(answer.predictions, list):
        return {name: np.array(answer.predictions, object)}
    predictions = np.asarray(answer.predictions, np.float32)
    return {name: predictions, **answer.loaded.additions.tensors(request.additions, predictions)}


def _output(name: str, values: NDArray[Any], *, is_binary: bool) -> tuple[dict[str, Any], bytes]:
    """Return an output as JSON says it, and the bytes that follow the JSON."""
    output = {"name": name, "datatype": _NAMES.get(values.dtype, "BYTES"), "shape": list(values.shape)}
    if is_binary:
        raw = _to_bytes(values)
        return {**output, "parameters": {"binary_data_size": len(raw)}}, raw
    return {**output, "data": values.ravel().tolist() if values.dtype == object else values.ravel()}, b""


def metadata(loaded: LoadedVersion) -> dict[str, Any]:
    """Return the version's inputs and outputs as the Open Inference Protocol describes them."""
    spec = loaded.spec
    inputs = [
        {"name": name, "datatype": "BYTES" if dtype == "text" else _NAMES[np.dtype(dtype)], "shape": [-1, *shape]}
        for name, dtype, shape in loaded.kind.tensors(spec.input)
    ]
    texts = loaded.kind.generates
    shape = [-1] if texts else [-1, spec.target.outputs]
    return {
        "name": loaded.identity.model,
        "versions": [loaded.identity.version],
        "platform": loaded.engine,
        "inputs": inputs,
        "outputs": [{"name": output_name(loaded), "datatype": "BYTES" if texts else "FP32", "shape": shape}],
    }


def output_name(loaded: LoadedVersion) -> str:
    """Return the name of the answer in the Open Inference Protocol."""
    return "text" if loaded.kind.generates else OUTPUT


def _head_length(headers: Mapping[str, str], body: bytes) -> int:
    """Return the bytes of the JSON part of a body."""
    given = headers.get("inference-header-content-length")
    if given is None:
        return len(body)
    if len(given) > 12 or not given.isdecimal() or int(given) > len(body):
        raise InputError(f"Inference-Header-Content-Length: found {given!r}; allowed: up to {len(body)}")
    return int(given)


class _Tensor(NamedTuple):
    """An input tensor as the JSON describes it. Its values are `data`, or `size` bytes after the JSON."""

    name: str
    kind: str
    shape: list[int]
    size: Any
    data: Any


class _Head(NamedTuple):
    """The JSON of a request.

    Attributes:
        parameters: without those of the protocol.
        is_binary: the client wants outputs as bytes, unless `outputs` says otherwise.
        timeout: in seconds.
    """

    id: str
    tensors: tuple[_Tensor, ...]
    outputs: Any
    parameters: Mapping[str, Any]
    is_binary: bool
    timeout: float


def _head(text: bytes) -> _Head:
    content = read_object(text)
    known_fields(content, _FIELDS, "")
    inputs = content.get("inputs")
    if not isinstance(inputs, list) or not inputs:
        raise InputError("inputs: allowed: a list of tensors")
    tensors = tuple(_described(tensor, f"inputs[{place}]") for place, tensor in enumerate(inputs))
    given = _parameters(content, "parameters")
    is_binary = _boolean(given, "binary_data_output", "parameters", default=False)
    for name, unit in _NUMBERS.items():
        if type(value := given.get(name, 0)) is not int or value < 0:
            raise InputError(f"parameters.{name}: found {value!r}; allowed: a whole number {unit}from 0")
    parameters = {name: value for name, value in given.items() if name not in _PARAMETERS}
    timeout = given.get("timeout", 0) / 1e6 or math.inf
    return _Head(str(content.get("id") or ""), tensors, content.get("outputs"), parameters, is_binary, timeout)


_known_head = lru_cache(_head)


def _described(tensor: Any, where: str) -> _Tensor:
    if not isinstance(tensor, dict) or not isinstance(tensor.get("name"), str):
        raise InputError(f"{where}: allowed: an object with name, shape, datatype and data")
    shape, kind = tensor.get("shape"), tensor.get("datatype")
    if not isinstance(shape, list) or not 0 < len(shape) <= _AXES or any(type(size) is not int for size in shape):
        raise InputError(f"{where}.shape: allowed: a list of 1 to {_AXES} whole numbers")
    if not all(0 <= size < 2**31 for size in shape):
        raise InputError(f"{where}.shape: found {shape}; allowed: numbers from 0 to {2**31 - 1}")
    if not isinstance(kind, str) or (kind != "BYTES" and kind not in _TYPES):
        raise InputError(f"{where}.datatype: found {kind!r}; allowed: BYTES, {', '.join(_TYPES)}")
    parameters = _parameters(tensor, f"{where}.parameters")
    known_fields(parameters, {"binary_data_size"}, f"{where}.parameters.")
    return _Tensor(tensor["name"], kind, shape, parameters.get("binary_data_size"), tensor.get("data"))


def _parameters(content: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    given = content.get("parameters") or {}
    if not isinstance(given, dict):
        raise InputError(f"{where}: allowed: an object")
    return given


def _boolean(parameters: Mapping[str, Any], name: str, where: str, *, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise InputError(f"{where}.{name}: found {value!r}; allowed: true, false")
    return value


def _binary(head: _Head, names: Sequence[str]) -> dict[str, bool]:
    """Return the outputs that the client wants, and whether as bytes; `names` are those of the answer.

    Raises:
        InputError: it wants another output, one twice, or in another way.
    """
    if not head.outputs:
        return dict.fromkeys(names, head.is_binary)
    wanted = dict[str, bool]()
    if not isinstance(head.outputs, list):
        raise InputError(f"outputs: allowed: a list with {', '.join(map(repr, names))}")
    for place, output in enumerate(head.outputs):
        name, where = output.get("name") if isinstance(output, dict) else output, f"outputs[{place}]"
        if not (isinstance(output, dict) and isinstance(name, str)) or name not in names or name in wanted:
            raise InputError(f"{where}.name: found {name!r}; allowed: {', '.join(map(repr, names))}, each once")
        parameters = _parameters(output, f"{where}.parameters")
        known_fields(parameters, {"binary_data"}, f"{where}.parameters.")
        wanted[name] = _boolean(parameters, "binary_data", f"{where}.parameters", default=head.is_binary)
    return wanted


def _tensors(given: Sequence[_Tensor], binary: memoryview) -> dict[str, NDArray[Any]]:
    """Return the input tensors by name, with their shapes."""
    tensors: dict[str, NDArray[Any]] = {}
    for place, tensor in enumerate(given):
        where, size = f"inputs[{place}]", tensor.size
        if tensor.name in tensors:
            raise InputError(f"{where}.name: {tensor.name!r} is given twice")
        if size is not None and (not isinstance(size, int) or not 0 <= size <= len(binary)):
            raise InputError(
                f"{where}.parameters.binary_data_size: found {size!r}; allowed: up to {len(binary)}, the bytes left"
            )
        tensors[tensor.name] = _values(tensor, None if size is None else binary[:size], where)
        binary = binary[size or 0 :]
    if len(binary):
        raise InputError(f"the body has {len(binary)} bytes more than its tensors")
    return tensors


def _values(tensor: _Tensor, binary: memoryview | None, where: str) -> NDArray[Any]:
    kind, shape = tensor.kind, tensor.shape
    array = _from_json(tensor.data, kind, where) if binary is None else _from_bytes(binary, kind, where)
    if array.size != math.prod(shape):
        raise InputError(f"{where}: found {array.size} values; allowed: as many as its shape {shape} has")
    try:
        return array.reshape(shape)
    except ValueError:
        raise InputError(f"{where}.shape: found {shape}, which is too large") from None


def _from_json(data: Any, kind: str, where: str) -> NDArray[Any]:
    if not isinstance(data, list):
        raise InputError(f"{where}.data: allowed: a list of values")
    try:
        if kind == "BYTES":
            return np.array(list(_flat(data)), dtype=object)
        given = np.asarray(data, dtype=object).ravel()
        if _TYPES[kind].kind != "f":
            return as_type(given, _TYPES[kind])
        missing = np.array([value is None for value in given.tolist()], bool)
        array = as_type(np.where(missing, 0.0, given), _TYPES[kind])
        array[missing] = np.nan  # null: a missing value, as NaN among the bytes of a tensor
        return array
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise InputError(f"{where}.data: has values that are not {kind}") from None


def _flat(values: list[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list):
            yield from _flat(value)
        else:
            yield value


def _from_bytes(raw: memoryview, kind: str, where: str) -> NDArray[Any]:
    if kind != "BYTES":
        if len(raw) % (size := _TYPES[kind].itemsize):
            raise InputError(f"{where}: {len(raw)} bytes is not a multiple of {size} ({kind})")
        return np.frombuffer(raw, _TYPES[kind])
    texts, at = list[bytes](), 0
    while at < len(raw):
        size = int.from_bytes(raw[at : at + 4], "little")
        if at + 4 + size > len(raw):
            raise InputError(f"{where}: a text of {size} bytes is cut off")
        texts.append(bytes(raw[at + 4 : at + 4 + size]))
        at += 4 + size
    return np.array(texts, dtype=object)


def _to_bytes(values: NDArray[Any]) -> bytes:
    if values.dtype != object:
        return values.astype(values.dtype.newbyteorder("<")).tobytes()
    encoded = [text.encode() for text in values.ravel().tolist()]
    return b"".join(len(text).to_bytes(4, "little") + text for text in encoded)
