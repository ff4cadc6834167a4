"""LitServe with onnxruntime and batches of up to 32 rows."""

import base64
import os
import sys
from typing import Any

import litserve
import numpy as np
import onnxruntime

SHAPE = tuple(map(int, os.environ["SHAPE"].split(",")))


class Model(litserve.LitAPI):
    """One image in each request."""

    def setup(self, device: str) -> None:
        """Load the program."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(os.environ["MODEL"], options, providers=["CPUExecutionProvider"])

    def decode_request(self, request: dict[str, str]) -> Any:
        """Return the pixels."""
        return np.frombuffer(base64.b64decode(request["input"]), np.uint8).reshape(SHAPE)

    def batch(self, inputs: list[Any]) -> Any:
        """Stack images."""
        return np.stack(inputs)

    def predict(self, batch: Any) -> Any:
        """Return probabilities."""
        return self.session.run(None, {"pixels": batch})[0]

    def unbatch(self, output: Any) -> list[Any]:
        """Return the rows."""
        return list(output)

    def encode_response(self, output: Any) -> dict[str, list[list[float]]]:
        """Return one answer."""
        return {"predictions": [output.tolist()]}


if __name__ == "__main__":
    api = Model(max_batch_size=32, batch_timeout=0.001)
    litserve.LitServer(api, accelerator="cpu").run(
        host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False, log_level="warning"
    )
