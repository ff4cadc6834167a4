"""MLflow's server in one process: migrate the database, then listen.

Run as a script. `mlflow server` imports MLflow once for itself and once more for its worker: 4.3 s from start to first
answer against 2.2 s here (5.1 s against 2.8 s with a new database; two cores, job execution off, one worker, one run).
Listening only after the migration also means that an answer from /health says that the server can be used.
"""

import argparse
import os
from typing import Any

_TYPES = ("application/x-protobuf",)  # of traces (OTLP); a page of another origin cannot send it unasked
_UPLOADS = (
    "/api/2.0/mlflow-artifacts/artifacts/",
    "/ajax-api/2.0/mlflow-artifacts/artifacts/",
    "/ajax-api/2.0/mlflow/upload-artifact",
)


def main() -> None:
    """Serve until told to stop."""
    parser = argparse.ArgumentParser(description="MLflow's tracking server")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", required=True, type=int)
    parser.add_argument("--backend", required=True, help="SQLAlchemy address of the database")
    parser.add_argument("--artifacts", required=True, help="URI of the folder for artifacts")
    parser.add_argument("--origins", required=True, nargs="+", help="its own addresses, http://HOST:PORT")
    asked = parser.parse_args()

    from mlflow.server import constants

    # The handlers read these whenever they open the store; they are how `mlflow server` tells its own workers.
    os.environ[constants.BACKEND_STORE_URI_ENV_VAR] = asked.backend
    os.environ[constants.REGISTRY_STORE_URI_ENV_VAR] = asked.backend
    os.environ[constants.ARTIFACT_ROOT_ENV_VAR] = asked.artifacts
    os.environ[constants.ARTIFACTS_DESTINATION_ENV_VAR] = asked.artifacts
    os.environ[constants.SERVE_ARTIFACTS_ENV_VAR] = "true"

    import uvicorn
    from mlflow.server.fastapi_app import app
    from mlflow.server.handlers import initialize_backend_stores

    from ratchet.registry.mlflow_store import make_database
    from ratchet.request_filter import BasicAuthentication, RequestFilter

    make_database(asked.backend)  # a cut-off migration would ruin it
    initialize_backend_stores(asked.backend, asked.backend, asked.artifacts)
    served: Any = app
    # As `addresses.mlflow_credentials`, whose package takes long to import.
    user, password = os.environ.get("MLFLOW_TRACKING_USERNAME"), os.environ.get("MLFLOW_TRACKING_PASSWORD")
    if user and password:
        served = BasicAuthentication(app, credentials=f"{user}:{password}", open_paths=("/health",))
    filtered = RequestFilter(served, origins=asked.origins, types=_TYPES, uploads=_UPLOADS)
    uvicorn.run(filtered, host=asked.host, port=asked.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
