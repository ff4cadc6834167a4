"""The ONNX program and the rows of requests, for all peers that run it."""

import base64
import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime

INPUTS = json.loads(os.environ["INPUTS"])
"""Name, type and shape of each array of the program, without the axis of rows."""


def open_session() -> onnxruntime.InferenceSession:
    """Return the program with one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(os.environ["MODEL"], options, providers=["CPUExecutionProvider"])


def decoded(texts: Sequence[str]) -> dict[str, Any]:
    """Return the arrays of one row, from base64 of the bytes of each."""
    pairs = zip(INPUTS, texts, strict=True)
    return {
        name: np.frombuffer(base64.b64decode(text), dtype).reshape(1, *shape) for (name, dtype, shape), text in pairs
    }


def stacked(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the arrays of a batch of rows."""
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
