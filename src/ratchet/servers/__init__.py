"""The local servers as processes: start, watch and stop Prefect's server, MLflow's server and a worker."""

from ratchet.servers.environment import client_environment
from ratchet.servers.logs import LogLine, read_logs
from ratchet.servers.private import PrefectServer, prefect_server

__all__ = ["LogLine", "PrefectServer", "client_environment", "prefect_server", "read_logs"]
