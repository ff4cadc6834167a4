"""Requests to a model server in this process, without a socket."""

import asyncio
from typing import Any

from ratchet.serving.app import ModelServer

__all__ = ["exchange"]


def exchange(
    server: ModelServer, path: str, body: bytes, *, kind: bytes = b"application/json", method: str = "POST"
) -> tuple[int, dict[bytes, bytes], bytes]:
    """Return status, headers and body of the answer to a request whose body has this media type."""
    sent = list[dict[str, Any]]()
    scope = {
        "type": "http", "method": method, "path": path, "query_string": b"", "root_path": "", "scheme": "http",
        "headers": [(b"content-type", kind), (b"content-length", b"%d" % len(body))],
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(server(scope, receive, send))  # type: ignore[arg-type]
    return sent[0]["status"], dict(sent[0]["headers"]), b"".join(message.get("body", b"") for message in sent)
