"""BentoML with onnxruntime and adaptive batches of up to 32 rows. `bentoml serve bentoml_onnx:Model`."""

import bentoml
from program import decoded, open_session, stacked


@bentoml.service(traffic={"timeout": 60})
class Model:
    """One row in each request."""

    def __init__(self) -> None:
        """Load the program."""
        self.session = open_session()

    @bentoml.api(batchable=True, max_batch_size=32, max_latency_ms=1000)
    def predict(self, input: list[list[str]]) -> list[list[float]]:
        """Return probabilities of rows, each as base64 of its arrays."""
        return self.session.run(None, stacked([decoded(row) for row in input]))[0].tolist()
