"""LitServe with onnxruntime and batches of up to 32 rows."""

import sys
from typing import Any

import litserve
from program import decoded, open_session, stacked


class Model(litserve.LitAPI):
    """One row in each request."""

    def setup(self, device: str) -> None:
        """Load the program."""
        self.session = open_session()

    def decode_request(self, request: dict[str, list[str]]) -> Any:
        """Return the arrays of a row."""
        return decoded(request["input"])

    def batch(self, inputs: list[Any]) -> Any:
        """Join the rows."""
        return stacked(inputs)

    def predict(self, batch: Any) -> Any:
        """Return probabilities."""
        return self.session.run(None, batch)[0]

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
