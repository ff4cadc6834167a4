"""Descriptions of samples and of targets: the two halves of every data set and of every model.

inputs.py      what a sample is: an image, a row of a table, a text, a piece of a token stream, or named arrays
targets.py     what is predicted: a class, several labels, numbers, the next token
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
from ratchet.kinds.spec_json import input_from_json, target_from_json, to_json, without_facts
from ratchet.kinds.targets import Classes, Labels, NextToken, Numbers, Target
from ratchet.kinds.unusual import Unusual, unusual

__all__ = [
    "MAX_CATEGORIES",
    "Array",
    "ArraysInput",
    "Classes",
    "Column",
    "ImageInput",
    "Input",
    "Labels",
    "ModelSpec",
    "NextToken",
    "Numbers",
    "TableInput",
    "Target",
    "TextInput",
    "TokensInput",
    "Unusual",
    "Width",
    "image_spec",
    "input_from_json",
    "target_from_json",
    "to_json",
    "unusual",
    "without_facts",
]
