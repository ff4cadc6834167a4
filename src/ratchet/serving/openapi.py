"""The OpenAPI 3.1 document of the served version, written from its input and target."""

import math
from typing import Any

from ratchet.kinds import ModelSpec
from ratchet.kinds.protocol import Kind
from ratchet.problems import Classes, Labels, Numbers, Target
from ratchet.serving.formats.open_inference import metadata
from ratchet.serving.formats.uploads import UPLOADS
from ratchet.serving.versions.loaded import LoadedVersion

__all__ = ["document"]

Schema = dict[str, Any]
_MOST_VALUES = 4096  # numbers of an example


def document(loaded: LoadedVersion) -> dict[str, Any]:
    """Return the document. Each example in it is answered with status 200."""
    spec, identity, kind = loaded.spec, loaded.identity, loaded.kind
    example = kind.example_values(spec.input)
    options = {"max_tokens": 8} if kind.generates else {"top_k": 2}
    own: Schema = {"input": example, "options": options}
    mlflow: Schema = {"inputs": example} | ({"params": options} if kind.generates else {})
    infer = f"/v2/models/{identity.model}/infer"
    paths = {
        "/v1/predict": _post("Predict rows", "Request", own, "Answer"),
        "/invocations": _post("Predict rows in MLflow's format", "Invocation", mlflow, "Predictions"),
        infer: _post("Predict rows in the Open Inference Protocol v2", "Tensors", _tensors(loaded), "Tensors"),
        "/v1/models": _get("The version that is served"),
        "/ready": _get("Whether a version answers"),
    }
    if spec.input.explanation:
        paths["/v1/explain"] = _post("Predict and explain one row", "Request", own, "Answer")
    if isinstance(spec.target, Classes | Numbers):
        paths["/v1/labels"] = _post("Store the true values of answers", "Labels", None, "Stored")
        paths["/v1/labels"]["post"]["responses"]["404"] = {"description": "An answer is not in the log"}
    if kind.takes_files(spec.input):
        content = paths["/v1/predict"]["post"]["requestBody"]["content"]
        content |= {media: {"schema": _file(media)} for media in sorted(UPLOADS)}
    schemas: Schema = {
        "Input": kind.schema(spec.input),
        "Request": _object({
            "model": {"const": identity.model}, "input": _ref("Input"), "options": _options(kind),
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


def _tensors(loaded: LoadedVersion) -> Schema | None:
    """Return an example in the Open Inference Protocol v2; None: it would be too long."""
    inputs = []
    for tensor, data in zip(metadata(loaded)["inputs"], loaded.kind.example_tensors(loaded.spec.input), strict=True):
        shape = [1, *tensor["shape"][1:]]
        if math.prod(shape) > _MOST_VALUES:
            return None
        inputs.append(tensor | {"shape": shape, "data": data})
    return {"inputs": inputs} | ({"parameters": {"max_tokens": 8}} if loaded.kind.generates else {})


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


def _options(kind: Kind[Any]) -> Schema:
    whole: Schema = {"type": "integer", "minimum": 1}
    if not kind.generates:
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
