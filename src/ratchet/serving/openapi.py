"""The OpenAPI 3.1 document of the served version, written from its input and target."""

import base64
import io
import math
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ratchet.kinds import ArraysInput, Column, ImageInput, ModelSpec, TableInput, TextInput, TokensInput
from ratchet.problems import Classes, Labels, Numbers, Target
from ratchet.serving.formats.open_inference import metadata
from ratchet.serving.formats.uploads import UPLOADS
from ratchet.serving.versions.loaded import LoadedVersion

__all__ = ["document"]

Schema = dict[str, Any]
_MOST_VALUES = 4096  # numbers of an example


def document(loaded: LoadedVersion) -> dict[str, Any]:
    """Return the document. Each example in it is answered with status 200."""
    spec, identity = loaded.spec, loaded.identity
    rows, example = _rows(spec), _example(spec)
    is_language = _is_language(spec)
    options = {"max_tokens": 8} if is_language else {"top_k": 2}
    own: Schema = {"input": example, "options": options}
    mlflow: Schema = {"inputs": example} | ({"params": options} if is_language else {})
    infer = f"/v2/models/{identity.model}/infer"
    paths = {
        "/v1/predict": _post("Predict rows", "Request", own, "Answer"),
        "/invocations": _post("Predict rows in MLflow's format", "Invocation", mlflow, "Predictions"),
        infer: _post("Predict rows in the Open Inference Protocol v2", "Tensors", _tensors(loaded), "Tensors"),
        "/v1/models": _get("The version that is served"),
        "/ready": _get("Whether a version answers"),
    }
    if isinstance(spec.input, ImageInput | TableInput | TextInput):
        paths["/v1/explain"] = _post("Predict and explain one row", "Request", own, "Answer")
    if isinstance(spec.target, Classes | Numbers):
        paths["/v1/labels"] = _post("Store the true values of answers", "Labels", None, "Stored")
        paths["/v1/labels"]["post"]["responses"]["404"] = {"description": "An answer is not in the log"}
    if _takes_files(spec):
        content = paths["/v1/predict"]["post"]["requestBody"]["content"]
        content |= {kind: {"schema": _file(kind)} for kind in sorted(UPLOADS)}
    schemas: Schema = {
        "Input": rows,
        "Request": _object({
            "model": {"const": identity.model}, "input": _ref("Input"), "options": _options(spec),
        }, "input"),
        "Invocation": _object({"inputs": _ref("Input"), "params": {"type": "object"}}, "inputs"),
        "Tensors": _object({"parameters": _object({
            "warnings": {"type": "string", "description": "Of an answer: Warnings, as JSON in a text"},
        })}),
        "Labels": _object({"labels": _list(_label(spec.target))}, "labels"),
        "Stored": _object({name: {"type": "integer"} for name in ("new", "corrected", "known")}),
        "Prediction": _prediction(spec),
        "Answer": _object({
            "id": {"type": "string"}, "model": {"type": "string"}, "version": {"type": "string"},
            "provenance": {"type": ["string", "null"]}, "variant": {"type": "string"},
            "predictions": _list(_ref("Prediction")), "warnings": _ref("Warnings"),
        }),
        "Predictions": _object({"predictions": {"type": "array"}, "warnings": _ref("Warnings")}),
        "Warnings": _list(_list({"type": "string"})) | {
            "description": "About each row: values unlike those of the training samples. Left out if there are none"
        },
        "Error": _object({"error": {"type": "string"}}, "error"),
    }  # fmt: skip
    return {
        "openapi": "3.1.0",
        "info": {
            "title": identity.model,
            "version": identity.version,
            "description": f"{spec.input.described}; {spec.target.described}",
        },
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _rows(spec: ModelSpec) -> Schema:
    """Return the schema of `input`."""
    match spec.input:
        case ImageInput(height=height, width=width, channels=channels):
            arrays: Schema = {"type": "array", "description": f"{height} x {width} x {channels} raw values"}
            file = _object({"b64": {"type": "string", "contentEncoding": "base64"}}, "b64")
            return _list({"anyOf": [file, arrays]} if _takes_files(spec) else arrays)
        case TableInput(columns=columns):
            return _list(_object({column.name: _column(column) for column in columns}, *(c.name for c in columns)))
        case TextInput() | TokensInput():
            return _list({"type": "string"})
        case ArraysInput(arrays=named):
            by_name = _object({array.name: {"type": "array"} for array in named}, *(array.name for array in named))
            return {"anyOf": [by_name, {"type": "array"}]}
    raise AssertionError(spec.input)


def _column(column: Column) -> Schema:
    """Return the schema of a column. Other values than those of the training rows are answered too."""
    if column.type == "categorical":
        return {"type": ["string", "number", "boolean", "null"], "examples": list(column.categories)}
    ends = [column.offset + end for end in (column.quantiles[0], column.quantiles[-1])] if column.quantiles else []
    if column.type == "datetime":
        described = " to ".join(_date(end) for end in ends)
        return {"type": ["string", "number", "null"], "format": "date-time"} | _described(described)
    kinds = ["number", "null"] if not column.form else ["number", "string", "null"]
    return {"type": kinds} | _described(" to ".join(f"{end:.6g}" for end in ends))


def _described(span: str) -> Schema:
    return {"description": f"training values: {span}"} if span else {}


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(round(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _example(spec: ModelSpec) -> Any:
    """Return an input of one row that the model answers."""
    match spec.input:
        case ImageInput():
            pixels = np.broadcast_to(np.array(spec.input.mean), spec.input.shape)
            if not _takes_files(spec):
                return [pixels.astype(spec.input.raw_dtype).tolist()]
            from PIL import Image

            # Brighter from top to bottom: an image of the mean colour has no explanation.
            ramp = np.linspace(0, 255, spec.input.height)[:, None, None]
            values, file = np.broadcast_to(ramp, spec.input.shape).astype(np.uint8), io.BytesIO()
            Image.fromarray(values[:, :, 0] if spec.input.channels == 1 else values).save(file, "PNG")
            return [{"b64": base64.b64encode(file.getvalue()).decode()}]
        case TableInput(columns=columns):
            return [{column.name: _value(column) for column in columns}]
        case ArraysInput(arrays=named):
            filled = {array.name: np.full((1, *array.shape), array.mean).astype(array.dtype) for array in named}
            return {name: values.tolist() for name, values in filled.items()}
        case _:
            return [spec.input.example]


def _value(column: Column) -> Any:
    if column.type == "categorical":
        return column.categories[0] if column.categories else None
    if column.form:
        return None
    value = column.offset + (column.quantiles[len(column.quantiles) // 2] if column.quantiles else column.mean)
    return _date(value) if column.type == "datetime" else value


def _tensors(loaded: LoadedVersion) -> Schema | None:
    """Return an example in the Open Inference Protocol v2; None: it would be too long."""
    spec, example, inputs = loaded.spec, _example(loaded.spec), []
    for tensor in metadata(loaded)["inputs"]:
        shape = [1, *tensor["shape"][1:]]
        if math.prod(shape) > _MOST_VALUES:
            return None
        match spec.input:
            case TableInput():
                value = example[0][tensor["name"]]
                if value is None and tensor["datatype"] == "BYTES":
                    value = ""
                data = [value]
            case ImageInput():
                data = np.broadcast_to(np.array(spec.input.mean), shape).astype(spec.input.raw_dtype).ravel().tolist()
            case ArraysInput():
                data = np.ravel(example[tensor["name"]]).tolist()
            case _:
                data = example
        inputs.append(tensor | {"shape": shape, "data": data})
    return {"inputs": inputs} | ({"parameters": {"max_tokens": 8}} if _is_language(spec) else {})


def _prediction(spec: ModelSpec) -> Schema:
    share: Schema = {"type": "number", "minimum": 0, "maximum": 1.000001}
    match spec.target:
        case Classes(names=names):
            chosen: Schema = {"class": {"enum": list(names)}, "probability": share}
            return _object(chosen | {"top": _list(_object(chosen))}, "class", "probability")
        case Labels(names=names):
            return _object({"probabilities": _object(dict.fromkeys(names, share))})
        case Numbers(names=names, mean=mean, std=std):
            texts = [
                f"training values: mean {m:.6g}, standard deviation {s:.6g}" for m, s in zip(mean, std, strict=True)
            ]
            numbers = [{"type": "number", "description": text} for text in texts]
            return _object({"values": _object(dict(zip(names, numbers, strict=True)))})
        case _:
            return _object({"text": {"type": "string"}}, "text")


def _options(spec: ModelSpec) -> Schema:
    whole: Schema = {"type": "integer", "minimum": 1}
    if not _is_language(spec):
        return _object({"top_k": whole})
    number: Schema = {"type": "number", "minimum": 0}
    return _object({
        "max_tokens": whole | {"description": "tokens to generate at most"},
        "temperature": number | {"description": "0: always the most probable token; default: 0.8"},
        "top_k": {"type": "integer", "minimum": 0, "description": "only so many of the most probable tokens; 0: all"},
        "top_p": number | {"maximum": 1, "description": "only the tokens with this share of the probability; 1: all"},
        "seed": {"type": "integer", "minimum": 0, "description": "another number gives another text; default: 0"},
        "stream": {"type": "boolean"},
    })  # fmt: skip


def _is_language(spec: ModelSpec) -> bool:
    return isinstance(spec.input, TokensInput)


def _takes_files(spec: ModelSpec) -> bool:
    described = spec.input
    return isinstance(described, ImageInput) and (
        described.dtype == "uint8" and described.depth is None and described.height == described.width
    )


def _label(target: Target) -> Schema:
    """Return the schema of one label of /v1/labels."""
    number: Schema = {"type": "number"}
    value: Schema = {"enum": list(target.names)} if isinstance(target, Classes) else number
    if isinstance(target, Numbers):
        values = _object(dict.fromkeys(target.names, number), *target.names)
        value = {"anyOf": [number, values]} if len(target.names) == 1 else values
    return _object({"id": {"type": "string"}, "row": {"type": "integer"}, "label": value}, "id", "label")


def _file(kind: str) -> Schema:
    if kind.startswith("image/"):
        return {"contentMediaType": kind}
    file: Schema = {"type": "string", "contentMediaType": "application/octet-stream"}
    return _object({"file": file, "files": _list(file), "model": {"type": "string"}, "top_k": {"type": "integer"}})


def _post(summary: str, request: str, example: Schema | None, answer: str) -> Schema:
    body = {"schema": _ref(request)} | ({"example": example} if example is not None else {})
    refused = {"content": {"application/json": {"schema": _ref("Error")}}}
    meanings = {"400": "A field is wrong; the message names it", "413": "Too many rows or bytes", "503": "Overloaded"}
    return {"post": {
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": body}},
        "responses": {
            "200": {"description": "The answer", "content": {"application/json": {"schema": _ref(answer)}}},
            **{status: {"description": meaning} | refused for status, meaning in meanings.items()},
        },
    }}  # fmt: skip


def _get(summary: str) -> Schema:
    return {"get": {"summary": summary, "responses": {"200": {"description": summary}}}}


def _object(properties: Schema, *required: str) -> Schema:
    return {"type": "object", "properties": properties} | ({"required": list(required)} if required else {})


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}
