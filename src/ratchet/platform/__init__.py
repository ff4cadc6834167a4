"""The local servers: Prefect, MLflow and a worker, started and stopped together, or one for the length of a run."""

from ratchet.platform.lifecycle import Addresses, ServerStatus, down, status, up
from ratchet.platform.private import PrefectServer, prefect_server
from ratchet.platform.servers import client_environment

__all__ = [
    "Addresses",
    "PrefectServer",
    "ServerStatus",
    "client_environment",
    "down",
    "prefect_server",
    "status",
    "up",
]
