"""Samples: what they are and can do; and, with a target (`ratchet.problems`), what a model is.

inputs.py      what a sample is: an image, a row of a table, a text, a piece of a token stream, or named arrays
protocol.py    what each kind of samples can do, with defaults
registry.py    the kinds by name; image/, table/, text/, tokens/ and custom/ have one object each
model_spec.py  what a model is: its name, its input and its target

Inputs are plain frozen dataclasses. The packed set's manifest and the saved model hold the same ones, so that training,
evaluation and serving agree. Modules import torch, polars, MLflow and the data layer where needed.
"""

from ratchet.kinds.inputs import (
    MAX_CATEGORIES,
    Array,
    ArraysInput,
    Column,
    ImageInput,
    Input,
    TableInput,
    TextInput,
    TokensInput,
)
from ratchet.kinds.model_spec import ModelSpec, Width, image_spec
from ratchet.kinds.spec_json import input_from_json, to_json, without_facts

__all__ = [
    "MAX_CATEGORIES",
    "Array",
    "ArraysInput",
    "Column",
    "ImageInput",
    "Input",
    "ModelSpec",
    "TableInput",
    "TextInput",
    "TokensInput",
    "Width",
    "image_spec",
    "input_from_json",
    "to_json",
    "without_facts",
]
