"""BentoML with onnxruntime and adaptive batches of up to 32 rows. `bentoml serve bentoml_onnx:Model`."""

import base64
import os

import bentoml
import numpy as np
import onnxruntime

SHAPE = tuple(map(int, os.environ["SHAPE"].split(",")))


@bentoml.service(traffic={"timeout": 60})
class Model:
    """One image in each request."""

    def __init__(self) -> None:
        """Load the program."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(os.environ["MODEL"], options, providers=["CPUExecutionProvider"])

    @bentoml.api(batchable=True, max_batch_size=32, max_latency_ms=1000)
    def predict(self, input: list[str]) -> list[list[float]]:
        """Return probabilities of images."""
        pixels = np.stack([np.frombuffer(base64.b64decode(text), np.uint8).reshape(SHAPE) for text in input])
        return self.session.run(None, {"pixels": pixels})[0].tolist()
