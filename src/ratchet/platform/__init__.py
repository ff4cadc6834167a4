"""The local servers: Prefect, MLflow and a worker, started and stopped together, or one for the length of a run."""

from ratchet.platform.condition import ServerStatus, status
from ratchet.platform.foreground import stay
from ratchet.platform.lifecycle import Addresses, down, up
from ratchet.platform.logs import Line, read_logs
from ratchet.platform.private import PrefectServer, prefect_server
from ratchet.platform.servers import client_environment

__all__ = [
    "Addresses",
    "Line",
    "PrefectServer",
    "ServerStatus",
    "client_environment",
    "down",
    "prefect_server",
    "read_logs",
    "status",
    "stay",
    "up",
]
