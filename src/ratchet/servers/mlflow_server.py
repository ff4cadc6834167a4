"""MLflow's server in one process: migrate the database, then listen.

Run as a script. `mlflow server` imports MLflow once for itself and once more for its worker: 4.3 s from start to first
answer, against 2.2 s here (5.1 s against 2.8 s with a new database; two cores, job execution off, one worker, one run).
It listens only after the migration, so an answer from /health means that the server can be used.
"""

import argparse
import os
from typing import Any

_TYPES = ("application/x-protobuf",)  # of traces (OTLP); a page of another origin cannot send it unoptions
_UPLOADS = (
    "/api/2.0/mlflow-artifacts/artifacts/",
    "/ajax-api/2.0/mlflow-artifacts/artifacts/",
    "/ajax-api/2.0/mlflow/upload-artifact",
)


def main() -> None:
    """Serve until a signal ends it."""
    parser = argparse.ArgumentParser(description="MLflow's tracking server")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", required=True, type=int)
    parser.add_argument("--backend", required=True, help="SQLAlchemy address of the database")
    parser.add_argument("--artifacts", required=True, help="URI of the folder for artifacts")
    parser.add_argument("--origins", required=True, nargs="+", help="its own addresses, http://HOST:PORT")
    options = parser.parse_args()

    from mlflow.server import constants

    # The handlers read these whenever they open the store, as in the workers of `mlflow server`.
    os.environ[constants.BACKEND_STORE_URI_ENV_VAR] = options.backend
    os.environ[constants.REGISTRY_STORE_URI_ENV_VAR] = options.backend
    os.environ[constants.ARTIFACT_ROOT_ENV_VAR] = options.artifacts
    os.environ[constants.ARTIFACTS_DESTINATION_ENV_VAR] = options.artifacts
    os.environ[constants.SERVE_ARTIFACTS_ENV_VAR] = "true"

    import uvicorn
    from mlflow.server.fastapi_app import app
    from mlflow.server.handlers import initialize_backend_stores

    from ratchet.registry.mlflow_store import make_database
    from ratchet.request_filter import BasicAuthentication, RequestFilter

    make_database(options.backend)  # an interrupted migration would damage it
    initialize_backend_stores(options.backend, options.backend, options.artifacts)
    served: Any = app
    # Not by `addresses.mlflow_credentials`: its package takes long to import.
    user, password = os.environ.get("MLFLOW_TRACKING_USERNAME"), os.environ.get("MLFLOW_TRACKING_PASSWORD")
    if user and password:
        served = BasicAuthentication(app, credentials=f"{user}:{password}", open_paths=("/health",))
    filtered = RequestFilter(served, origins=options.origins, types=_TYPES, uploads=_UPLOADS)
    uvicorn.run(filtered, host=options.host, port=options.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
