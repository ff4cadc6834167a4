"""Write an MLflow model that runs an ONNX program, for `mlflow models serve`: `mlflow_model.py FOLDER`."""

import os
import sys
from pathlib import Path

import mlflow.pyfunc

CODE = """
import json
import os

import mlflow.pyfunc
import numpy as np
import onnxruntime

INPUTS = json.loads(os.environ["INPUTS"])


class Model(mlflow.pyfunc.PythonModel):
    def load_context(self, context):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            context.artifacts["program"], options, providers=["CPUExecutionProvider"]
        )

    def predict(self, context, model_input, params=None):
        arrays = {name: np.asarray(model_input[name], dtype) for name, dtype, _ in INPUTS}
        return self.session.run(None, arrays)[0]


mlflow.models.set_model(Model())
"""

if __name__ == "__main__":
    code = Path(sys.argv[1]).with_suffix(".py")
    code.write_text(CODE)
    mlflow.pyfunc.save_model(
        sys.argv[1], python_model=str(code), artifacts={"program": os.environ["MODEL"]}, pip_requirements=[]
    )
