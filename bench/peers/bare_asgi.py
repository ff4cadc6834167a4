"""An ASGI application with batches and nothing else: what uvicorn and onnxruntime need. `python bare_asgi.py PORT`.

The body ends with the pixels of one image. Nothing is checked, logged or counted.
"""

import asyncio
import gc
import os
import sys
from typing import Any

import numpy as np
import onnxruntime
import orjson
import uvicorn

SHAPE = tuple(map(int, os.environ["SHAPE"].split(",")))
SIZE, LARGEST = int(np.prod(SHAPE)), 32
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(os.environ["MODEL"], options, providers=["CPUExecutionProvider"])
waiting: list[tuple[bytes, Any]] = []


def answer_batch() -> None:
    """Compute what waits."""
    batch = waiting[:LARGEST]
    del waiting[:LARGEST]
    if waiting:
        asyncio.get_running_loop().call_soon(answer_batch)
    pixels = np.frombuffer(b"".join(pixels for pixels, _ in batch), np.uint8).reshape(-1, *SHAPE)
    for (_, future), row in zip(batch, session.run(None, {"pixels": pixels})[0], strict=True):
        if not future.done():
            future.set_result(row)


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answer one request: a POST with pixels, or GET to know whether it answers."""
    content = b""
    if scope["method"] == "POST":
        parts, message = list[bytes](), {"more_body": True}
        while message["more_body"]:
            message = await receive()
            parts.append(message["body"])
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        if not waiting:
            loop.call_soon(answer_batch)
        waiting.append((b"".join(parts)[-SIZE:], future))
        content = orjson.dumps({"predictions": [await future]}, option=orjson.OPT_SERIALIZE_NUMPY)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": content})


if __name__ == "__main__":
    gc.freeze()
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning", access_log=False, lifespan="off")
