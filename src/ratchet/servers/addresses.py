"""Addresses of the servers: where they listen, what browsers call them, and which names are their own."""

import ipaddress
import os
import socket
from collections.abc import Collection
from urllib.parse import urlsplit

import psutil

from ratchet.errors import PlatformError
from ratchet.request_filter import normal_host, split_host
from ratchet.settings.model import PlatformSettings

__all__ = [
    "LOOPBACK",
    "MLFLOW_NAMES",
    "PREFECT_PASSWORD",
    "address",
    "api_url",
    "is_loopback",
    "mlflow_credentials",
    "own_origins",
    "prefect_credentials",
    "public_mlflow",
    "public_prefect",
    "require_authentication",
]

PREFECT_PASSWORD = "PREFECT_API_AUTH_STRING"  # USER:PASSWORD, Prefect's own variable
MLFLOW_NAMES = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")  # MLflow's own variables
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def address(host: str, port: int) -> str:
    """Return the address that a browser on this machine opens; a server on all interfaces is reached by loopback."""
    return f"http://{_bracketed(_WILDCARDS.get(_plain(host), host))}:{port}"


def api_url(host: str, port: int) -> str:
    """Return the address of Prefect's API at such a server."""
    return f"{address(host, port)}/api"


def is_loopback(host: str) -> bool:
    """Return whether only processes of this machine reach a server that listens there."""
    try:
        resolved = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
        hosts = {str(place[0]).partition("%")[0] for *_, place in resolved}
        return bool(hosts) and all(ipaddress.ip_address(each).is_loopback for each in hosts)
    except (OSError, ValueError):  # unknown, or no address at all
        return False


def own_origins(host: str, port: int, *, public: str, allowed: Collection[str] = ()) -> list[str]:
    """Return the origins, as http://HOST:PORT, that a server which listens there may be called.

    Args:
        public: its address for browsers.
        allowed: further names of it, HOST or HOST:PORT; a HOST alone is allowed at this port and at the usual ones.
    """
    origins = dict.fromkeys(
        [public, *(f"http://{name}:{port}" for name in (*map(normal_host, LOOPBACK), *_names(host)))]
    )
    for entry in allowed:
        name, own_port = split_host(entry) or (entry, None)
        if own_port is None:
            origins |= dict.fromkeys([f"http://{name}:{port}", f"https://{name}:{port}"])
            origins |= dict.fromkeys([f"http://{name}", f"https://{name}"])
        else:
            origins |= dict.fromkeys([f"http://{name}:{own_port}", f"https://{name}:{own_port}"])
    return list(origins)


def public_prefect(settings: PlatformSettings, host: str) -> str:
    """Return the address that browsers and other machines use for Prefect's server, which listens on `host`."""
    return address(host, settings.prefect_port) if settings.public_url == "auto" else settings.public_url


def public_mlflow(settings: PlatformSettings) -> str:
    """Return the address that browsers and other machines use for MLflow's server."""
    if settings.mlflow_public_url != "auto":
        return settings.mlflow_public_url
    named = urlsplit(settings.public_url)
    if settings.public_url != "auto" and named.port == settings.prefect_port and not is_loopback(settings.host):
        return f"{named.scheme}://{_bracketed(str(named.hostname))}:{settings.mlflow_port}"
    return address(settings.host, settings.mlflow_port)


def prefect_credentials() -> str | None:
    """Return USER:PASSWORD that Prefect's server asks for; None where the environment gives none."""
    return os.environ.get(PREFECT_PASSWORD) or None


def mlflow_credentials() -> str | None:
    """Return USER:PASSWORD that our MLflow server asks for; None where the environment gives none."""
    user, password = (os.environ.get(name) for name in MLFLOW_NAMES)
    return f"{user}:{password}" if user and password else None


def require_authentication(settings: PlatformSettings, *, prefect: str | None, mlflow: str | None) -> None:
    """Refuse to listen where other machines reach a server that would ask for no password.

    Args:
        prefect, mlflow: the addresses that the servers to be started listen on; None: it is not started.

    Raises:
        PlatformError: naming the address and the variables to set.
    """
    back = "or `ratchet set platform.host=127.0.0.1` and connect by SSH (docs/operate.md)"
    user, _, password = (prefect_credentials() or "").partition(":")
    if prefect is not None and not is_loopback(prefect) and not (user and password):
        name = "platform.host" if settings.prefect_api == "auto" else "platform.prefect_api"
        raise PlatformError(
            f"{name}: {prefect} lets other machines reach Prefect's server, and its clients can run code here. "
            f"Allowed beyond loopback: only with a password. Fix: `export {PREFECT_PASSWORD}=USER:PASSWORD`, then the "
            f"same command again; {back}"
        )
    if mlflow is not None and not is_loopback(mlflow) and not mlflow_credentials():
        raise PlatformError(
            f"platform.host: {mlflow} lets other machines reach MLflow's server, and its clients can change and "
            "delete models. Allowed beyond loopback: only with a password. Fix: "
            f"`export {MLFLOW_NAMES[0]}=USER {MLFLOW_NAMES[1]}=PASSWORD`, then the same command again; {back}"
        )
    if _plain(settings.host) in _WILDCARDS and settings.public_url == "auto" and (prefect or mlflow):
        raise PlatformError(
            f"platform.public_url: found auto; with platform.host: {settings.host} pages cannot know which address "
            "browsers use. Fix: name this machine as others do, for example `ratchet set "
            f"platform.public_url=http://{socket.gethostname()}:{settings.prefect_port}`"
        )


def _names(host: str) -> list[str]:
    """Return a server's own names: its host, or each address of this machine if it listens on all interfaces."""
    if _plain(host) not in _WILDCARDS:
        return [_bracketed(host)]
    kinds = (socket.AF_INET, socket.AF_INET6) if _plain(host) == "::" else (socket.AF_INET,)
    return [
        _bracketed(entry.address.partition("%")[0])
        for interface in psutil.net_if_addrs().values()
        for entry in interface
        if entry.family in kinds
    ]


def _plain(host: str) -> str:
    """Spell an IP address in its short form, also one like 0 or 0x7f.1; a name stays."""
    try:
        parsed = ipaddress.ip_address(host.strip("[]"))
        return str(getattr(parsed, "ipv4_mapped", None) or parsed)
    except ValueError:
        pass
    try:
        return socket.inet_ntoa(socket.inet_aton(host))
    except (OSError, ValueError):
        return host


def _bracketed(host: str) -> str:
    return normal_host(host)
