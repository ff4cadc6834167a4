"""The textbook server: FastAPI and eager PyTorch, one call for each request. `uvicorn fastapi_torch:app`.

The model is the one of which the ONNX program was made: its class and its weights, from the folder that training wrote.
"""

import os
from pathlib import Path

import torch
from fastapi import FastAPI
from program import decoded
from pydantic import BaseModel

from ratchet.training.models import load_model

torch.set_num_threads(1)
model, spec = load_model(Path(os.environ["FOLDER"]))
app = FastAPI()


class Row(BaseModel):
    """Base64 of each array."""

    input: list[str]


@app.post("/predict")
def predict(row: Row) -> dict[str, list[list[float]]]:
    """Return the probabilities of one row."""
    tensors = [torch.from_numpy(array.copy()) for array in decoded(row.input).values()]
    if spec.input.kind == "image":
        tensors = [tensor.permute(0, 3, 1, 2) for tensor in tensors]
    with torch.inference_mode():
        return {"predictions": spec.target.served(model(*tensors)).tolist()}
