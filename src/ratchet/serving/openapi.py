"""The OpenAPI 3.1 document of the served version, written from its input and target."""

import math
from typing import Any

from ratchet.problems.named_answers import named_answers, object_schema
from ratchet.problems.regions import LEVELS, REGIONS
from ratchet.serving.formats.uploads import UPLOADS
from ratchet.serving.formats.v2 import metadata
from ratchet.serving.versions.loaded import LoadedVersion

__all__ = ["document"]

Schema = dict[str, Any]
_MOST_VALUES = 4096  # numbers of an example


def document(loaded: LoadedVersion) -> dict[str, Any]:
    """Return the document. Each example in it is answered with status 200."""
    spec, identity = loaded.spec, loaded.identity
    return {
        "openapi": "3.1.0",
        "info": {
            "title": identity.model,
            "version": identity.version,
            "description": f"{spec.input.description}; {spec.target.description}",
        },
        "paths": _paths(loaded),
        "components": {"schemas": _schemas(loaded)},
    }


def _paths(loaded: LoadedVersion) -> Schema:
    spec, kind = loaded.spec, loaded.kind
    example = kind.example_values(spec.input)
    options = {"max_tokens": 8} if kind.generates else {"top_k": 2}
    own: Schema = {"input": example, "options": options}
    mlflow: Schema = {"inputs": example} | ({"params": options} if kind.generates else {})
    infer = f"/v2/models/{loaded.identity.model}/infer"
    paths = {
        "/v1/predict": _post("Predict rows", "Request", own, "Answer"),
        "/invocations": _post("Predict rows in MLflow's format", "Invocation", mlflow, "Predictions"),
        infer: _post("Predict rows in the Open Inference Protocol v2", "Tensors", _tensors(loaded), "Tensors"),
        "/v1/models": _get("The version that is served"),
        "/ready": _get("Whether a version answers"),
    }
    if spec.input.explanation:
        paths["/v1/explain"] = _post("Predict and explain one row", "Request", own, "Answer")
    if named_answers(spec.target).takes_labels:
        paths["/v1/labels"] = _post("Store the true values of answers", "Labels", None, "Stored")
        paths["/v1/labels"]["post"]["responses"]["404"] = {"description": "An answer is not in the log"}
    if kind.takes_files(spec.input):
        content = paths["/v1/predict"]["post"]["requestBody"]["content"]
        content |= {media: {"schema": _file(loaded, media)} for media in sorted(UPLOADS)}
    return paths


def _schemas(loaded: LoadedVersion) -> Schema:
    spec, kind, named = loaded.spec, loaded.kind, named_answers(loaded.spec.target)
    text: Schema = {"type": "string"}
    own = {"model": {"const": loaded.identity.model}, "input": _ref("Input"), "options": _options(loaded)}
    label = {"id": text, "row": {"type": "integer"}, "label": named.label_schema}
    warnings = {"warnings": text | {"description": "Of an answer: Warnings, as JSON in a text"}}
    unlike = "About each row: values unlike those of the training samples. Left out if there are none"
    answer = dict.fromkeys(("id", "model", "version", "variant"), text) | {
        "provenance": {"type": ["string", "null"]},
        "predictions": _list(_ref("Prediction")),
        "warnings": _ref("Warnings"),
        **_additions(loaded),
    }
    fields, flags = _fields(loaded), _flags(loaded)
    intervals = {"intervals": _list(object_schema(fields))} if fields else {}
    intervals |= {name: _list(schema) for name, schema in flags.items()}
    answers = named.schema["properties"] | fields | flags
    if "abstained" in flags:
        answers["class"] = {"enum": [*answers["class"]["enum"], None]}
    return {
        "Input": kind.schema(spec.input),
        "Request": object_schema(own, "input"),
        "Invocation": object_schema({"inputs": _ref("Input"), "params": object_schema(_additions(loaded))}, "inputs"),
        "Tensors": object_schema({"parameters": object_schema(warnings | _additions(loaded))}),
        "Labels": object_schema({"labels": _list(object_schema(label, "id", "label"))}, "labels"),
        "Stored": object_schema({name: {"type": "integer"} for name in ("new", "corrected", "known")}),
        "Prediction": named.schema | {"properties": answers},
        "Answer": object_schema(answer),
        "Predictions": object_schema({"predictions": {"type": "array"}, "warnings": _ref("Warnings")} | intervals),
        "Warnings": _list(_list(text)) | {"description": unlike},
        "Error": object_schema({"error": text}, "error"),
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


def _interval(loaded: LoadedVersion) -> Schema:
    """Return the option of intervals or sets; empty: the version has none."""
    calibration = loaded.additions.calibration
    if calibration is None or calibration.highest not in LEVELS:
        return {}
    bounds = {"minimum": LEVELS.start / 100, "maximum": calibration.highest / 100}
    about = "level of the prediction intervals or sets to add, in steps of 0.01"
    return {"interval": {"type": "number", **bounds, "description": about}}


def _additions(loaded: LoadedVersion) -> Schema:
    """Return the options of what the version can add to its predictions."""
    abstention, flags, options = loaded.additions.abstention, _flags(loaded), dict(_interval(loaded))
    if abstention is not None and "abstained" in flags:
        about = "error rate among the answered rows; unsure rows have no class"
        bounds = {"minimum": abstention.lowest, "exclusiveMaximum": 1}
        options["abstain"] = {"type": "number", **bounds, "description": about}
    return options | ({"novelty": {"type": "boolean"}} if "novelty" in flags else {})


def _flags(loaded: LoadedVersion) -> Schema:
    """Return the schemas of the fields of abstention and novelty that the version has."""
    abstention = loaded.additions.abstention
    abstains = {"abstained": {"type": "boolean"}} if abstention is not None and abstention.lowest < 1 else {}
    about = "share of test samples that are less unusual"
    novelty = {"type": "number", "minimum": 0, "maximum": 1, "description": about}
    return abstains | ({"novelty": novelty} if loaded.additions.novelty else {})


def _fields(loaded: LoadedVersion) -> Schema:
    """Return the schemas of the fields of an interval or set; empty: the version has none."""
    target = loaded.spec.target
    return REGIONS[target.problem].schema(target) if _interval(loaded) else {}


def _options(loaded: LoadedVersion) -> Schema:
    whole: Schema = {"type": "integer", "minimum": 1}
    if not loaded.kind.generates:
        return object_schema({"top_k": whole} | _additions(loaded))
    number: Schema = {"type": "number", "minimum": 0}
    options = {
        "max_tokens": whole | {"description": "tokens to generate at most"},
        "temperature": number | {"description": "0: always the most probable token; default: 0.8"},
        "top_k": {"type": "integer", "minimum": 0, "description": "only so many of the most probable tokens; 0: all"},
        "top_p": number | {"maximum": 1, "description": "only the tokens with this share of the probability; 1: all"},
        "seed": {"type": "integer", "minimum": 0, "description": "another number gives another text; default: 0"},
        "stream": {"type": "boolean"},
    }
    return object_schema(options)


def _file(loaded: LoadedVersion, media: str) -> Schema:
    if media.startswith("image/"):
        return {"contentMediaType": media}
    file: Schema = {"type": "string", "contentMediaType": "application/octet-stream"}
    fields: Schema = {"file": file, "files": _list(file), "model": {"type": "string"}, "top_k": {"type": "integer"}}
    return object_schema(fields | _additions(loaded))


def _post(summary: str, request: str, example: Schema | None, answer: str) -> Schema:
    body = {"schema": _ref(request)} | ({"example": example} if example is not None else {})
    refused = {"content": {"application/json": {"schema": _ref("Error")}}}
    meanings = {"400": "A field is wrong; the message names it", "413": "Too many rows or bytes", "503": "Overloaded"}
    given = {"content": {"application/json": {"schema": _ref(answer)}}}
    responses = {status: {"description": meaning} | refused for status, meaning in meanings.items()}
    post = {
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": body}},
        "responses": {"200": {"description": "The answer"} | given} | responses,
    }
    return {"post": post}


def _get(summary: str) -> Schema:
    return {"get": {"summary": summary, "responses": {"200": {"description": summary}}}}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}
