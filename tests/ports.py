"""Ports for servers that cannot choose one and report it: Prefect, MLflow, and what knows its address beforehand."""

import os
import socket

FIRST, COUNT = 12_000, 20_000  # below those that systems give to outgoing connections and to servers with port 0
_HELD: list[socket.socket] = []


def reserved_port(host: str) -> int:
    """Return a TCP port that is free at `host`, and that no other call returns, in any process, while this one lives.

    The UDP port of the same number is the token: it is bound until this process ends.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    start = os.getpid() * 97 + len(_HELD)
    for port in (FIRST + (start + number) % COUNT for number in range(COUNT)):
        token = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            token.bind(("127.0.0.1", port))
            with socket.socket(family) as probe:
                probe.bind((host, port))
        except OSError:
            token.close()
            continue
        _HELD.append(token)
        return port
    raise AssertionError(f"no free port at {host} from {FIRST} to {FIRST + COUNT - 1}")
