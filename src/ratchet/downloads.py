"""Read files over HTTP: to their end, within a limit of bytes, and without waiting for long."""

import http.client
import urllib.error
import urllib.request
from collections.abc import Iterator

__all__ = ["DownloadError", "stream"]

NO_RESULT = "what it reads is checked by a digest"

_TIMEOUT = 30.0  # seconds without a byte
_CHUNK = 1 << 20


class DownloadError(Exception):
    """A file that cannot be read to its end. `status` is that of the answer; 0: there is none, or it was good."""

    def __init__(self, reason: str, *, status: int = 0, code: str = "") -> None:
        super().__init__(reason)
        self.status = status
        self.code = code  # the header X-Error-Code of Hugging Face's hub


def stream(address: str, *, token: str = "", most: int) -> Iterator[bytes]:
    """Yield the content of an address. A token is not sent to where the server redirects.

    Raises:
        DownloadError: the content cannot be read to its end, or has more than `most` bytes.
    """
    received, length = 0, None
    try:
        request = urllib.request.Request(address)
        if token:
            request.add_unredirected_header("Authorization", f"Bearer {token}")
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:
            length = response.headers.get("Content-Length")
            while chunk := response.read(_CHUNK):
                received += len(chunk)
                if received > most:
                    raise DownloadError(f"it has more than the allowed {most:,} bytes")
                yield chunk
        if length and received != int(length):
            raise DownloadError(f"it ended after {received:,} of {int(length):,} bytes")
    except urllib.error.HTTPError as error:
        with error:
            code = error.headers.get("X-Error-Code", "")
        raise DownloadError(f"{error.code} {error.reason}", status=error.code, code=code) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise DownloadError(str(getattr(error, "reason", "") or error or type(error).__name__)) from None
