"""FastAPI and onnxruntime: one call for each request, in FastAPI's threads. `uvicorn fastapi_onnx:app`."""

from fastapi import FastAPI
from program import decoded, open_session
from pydantic import BaseModel

session = open_session()
app = FastAPI()


class Row(BaseModel):
    """Base64 of each array."""

    input: list[str]


@app.post("/predict")
def predict(row: Row) -> dict[str, list[list[float]]]:
    """Return the probabilities of one row."""
    return {"predictions": session.run(None, decoded(row.input))[0].tolist()}
