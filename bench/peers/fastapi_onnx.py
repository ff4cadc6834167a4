"""FastAPI and onnxruntime: one call for each request, in FastAPI's threads. `uvicorn fastapi_onnx:app`."""

import base64
import os

import numpy as np
import onnxruntime
from fastapi import FastAPI
from pydantic import BaseModel

SHAPE = tuple(map(int, os.environ["SHAPE"].split(",")))
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(os.environ["MODEL"], options, providers=["CPUExecutionProvider"])
app = FastAPI()


class Image(BaseModel):
    """Base64 of the pixels."""

    input: str


@app.post("/predict")
def predict(image: Image) -> dict[str, list[list[float]]]:
    """Return the probabilities of one image."""
    pixels = np.frombuffer(base64.b64decode(image.input), np.uint8).reshape(1, *SHAPE)
    return {"predictions": session.run(None, {"pixels": pixels})[0].tolist()}
