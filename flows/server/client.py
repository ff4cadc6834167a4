"""Prefect's own client for the server at a given address, with plain error messages."""

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING

from httpx import HTTPError, HTTPStatusError
from prefect.client.orchestration import get_client
from prefect.exceptions import PrefectException
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_URL,
    PREFECT_CLIENT_CSRF_SUPPORT_ENABLED,
    temporary_settings,
)

from ratchet.errors import PlatformError
from ratchet.servers.addresses import PREFECT_PASSWORD, prefect_credentials

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

__all__ = ["DIRECT", "prefect_client"]

DIRECT = {"trust_env": False}  # a proxy that the environment names is not meant for this server


@contextmanager
def prefect_client(api: str) -> Iterator["SyncPrefectClient"]:
    """Open Prefect's client for the server at `api`.

    The client itself retries with backoff what a busy server refuses (429, 502, 503; PREFECT_CLIENT_MAX_RETRIES).
    Prefect's server answers 503 while SQLite is locked.

    Raises:
        PlatformError: the server refuses or does not answer.
    """
    # The server uses no CSRF tokens, so the client need not ask for one.
    settings = {
        PREFECT_API_URL: api,
        PREFECT_API_AUTH_STRING: prefect_credentials(),
        PREFECT_CLIENT_CSRF_SUPPORT_ENABLED: False,
    }
    try:
        with temporary_settings(settings), get_client(sync_client=True, httpx_settings=DIRECT) as client:
            yield client
    except HTTPStatusError as error:
        status = error.response.status_code
        if status == HTTPStatus.UNAUTHORIZED:
            raise PlatformError(
                f"Prefect's server at {api} asks for a password. Fix: export the {PREFECT_PASSWORD} that it was "
                "started with"
            ) from error
        answer = error.response.text[:500]
        raise PlatformError(f"Prefect's server refused {error.request.url.path} ({status}): {answer}") from error
    except HTTPError as error:
        raise PlatformError(f"Prefect's server at {api} does not answer ({error})") from error
    except PrefectException as error:
        raise PlatformError(f"Prefect's server at {api}: {error}") from error
