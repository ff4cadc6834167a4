"""HTTP requests to servers of this machine or its neighbours, without a heavy client library."""

import base64
import json
import urllib.request
from typing import Any

__all__ = ["answers", "read_json"]

# A proxy that the environment names is not meant for these addresses.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def answers(url: str, *, timeout: float = 2.0) -> bool:
    """Return whether `url` answers with success within `timeout` seconds."""
    try:
        with _DIRECT.open(url, timeout=timeout) as response:
            return bool(response.status == 200)
    except (OSError, ValueError):  # refused, too slow, an HTTP error, or not HTTP at all
        return False


def read_json(url: str, body: object = None, *, timeout: float = 5.0, credentials: str | None = None) -> Any:
    """Return the JSON answer of `url`; None if there is none.

    Args:
        credentials: USER:PASSWORD.
    """
    headers = {"Content-Type": "application/json"}
    if credentials:
        headers["Authorization"] = f"Basic {base64.b64encode(credentials.encode()).decode()}"
    data = None if body is None else json.dumps(body).encode()
    try:
        with _DIRECT.open(urllib.request.Request(url, data, headers), timeout=timeout) as response:
            return json.load(response)
    except (OSError, ValueError):
        return None
