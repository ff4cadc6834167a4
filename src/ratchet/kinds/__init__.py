"""Descriptions of samples: what they are, and, with a target (`ratchet.problems`), what a model is.

inputs.py      what a sample is: an image, a row of a table, a text, a piece of a token stream, or named arrays
unusual.py     samples that are unlike those of the training set
model_spec.py  what a model is: its name, its input and its target

They are plain frozen dataclasses. The packed set's manifest and the saved model hold the same ones, so that training,
evaluation and serving agree. This package imports neither torch nor a library of the data layer.
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
from ratchet.kinds.unusual import Unusual, unusual

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
    "Unusual",
    "Width",
    "image_spec",
    "input_from_json",
    "to_json",
    "unusual",
    "without_facts",
]
