"""Ports of this machine: which are free, and which process listens on one."""

import errno
import socket

import psutil

from ratchet.errors import PlatformError

__all__ = ["free_port", "free_port_after", "port_holder"]


def free_port(host: str) -> int:
    """Return a port that no process listens on now."""
    with socket.socket(_family(host)) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def free_port_after(host: str, port: int, *, besides: set[int]) -> int:
    """Return the next free port above `port` that is not in `besides`."""
    candidates = (p for p in range(port + 1, 65536) if p not in besides)
    return next((p for p in candidates if port_holder(host, p) is None), free_port(host))


def port_holder(host: str, port: int, *, named: str = "platform.host") -> str | None:
    """Describe the process that prevents listening on host:port. None: the port is free.

    Raises:
        PlatformError: `host` is not an address of this machine; with `named`, its setting or option.
    """
    try:
        with socket.socket(_family(host)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            return None
    except (OSError, TypeError) as error:  # TypeError: a name outside ASCII that cannot be encoded, such as "ä..b"
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            return _listener(port)
        raise PlatformError(
            f"{named}: cannot listen on {host!r} port {port} ({getattr(error, 'strerror', error)}). "
            "Allowed: an address of this machine. Fix: choose one, for example 127.0.0.1"
        ) from error


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _listener(port: int) -> str:
    for process in psutil.process_iter():
        try:
            connections = process.net_connections(kind="tcp")
            if any(c.status == psutil.CONN_LISTEN and c.laddr and c.laddr.port == port for c in connections):
                return f"process {process.pid} ({' '.join(process.cmdline())[:160]})"
        except (psutil.Error, OSError):  # it belongs to another user, or has ended
            continue
    return "a process of another user"
