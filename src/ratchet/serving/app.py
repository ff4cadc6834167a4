"""The model server: one handler behind three request formats, health, readiness and metrics."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import orjson
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from ratchet.errors import RatchetError
from ratchet.kinds import TokensInput
from ratchet.serving.batching import Batcher, Overloaded
from ratchet.serving.envelopes import Answer, Envelope, Invocations, Own, Question, new_id
from ratchet.serving.following import Follower
from ratchet.serving.loaded import LoadedVersion
from ratchet.serving.open_inference import Infer, metadata
from ratchet.serving.request_values import BadRequest
from ratchet.settings.model import ServingSettings

__all__ = ["ModelServer"]

_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # seconds
_LOG = logging.getLogger(__name__)
_MIB = 1 << 20
_LARGE = 10_000  # numbers of an answer that takes milliseconds to write


class Refused(Exception):
    """An answer that is an error; `status` is the HTTP status."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers or {}


class ModelServer:
    """The server of one registered model; `app` is its ASGI application."""

    def __init__(self, follower: Follower, settings: ServingSettings) -> None:
        self.follower, self.settings = follower, settings
        self.batcher = Batcher(queue_rows=settings.queue)
        self.metrics = CollectorRegistry()
        self._requests = Counter("ratchet_requests", "Requests by envelope and status", ["envelope", "status"],
                                 registry=self.metrics)  # fmt: skip
        self._seconds = Histogram("ratchet_request_seconds", "Seconds from request to answer", ["envelope"],
                                  registry=self.metrics, buckets=_BUCKETS)  # fmt: skip
        waiting = Gauge("ratchet_waiting_rows", "Rows that wait for the model", registry=self.metrics)
        waiting.set_function(lambda: self.batcher.waiting)
        ready = Gauge("ratchet_ready", "1 if a version answers", registry=self.metrics)
        ready.set_function(lambda: float(self.follower.current is not None))
        self.app = Starlette(routes=self._routes(), lifespan=self._lifespan)

    def _routes(self) -> list[Route]:
        envelopes: list[tuple[str, str, Envelope]] = [
            ("/v1/predict", "own", Own()),
            ("/invocations", "mlflow", Invocations()),
            ("/v2/models/{model}/infer", "v2", Infer()),
            ("/v2/models/{model}/versions/{version}/infer", "v2", Infer()),
        ]
        posts = [Route(path, self._answering(name, envelope), methods=["POST"]) for path, name, envelope in envelopes]
        about = "/v2/models/{model}"
        gets: dict[str, Callable[[Request], Response]] = {
            "/health": lambda _: _json({"status": "live"}),
            "/ready": self._ready,
            "/v1/models": self._models,
            "/ping": self._ready,
            "/version": lambda _: Response(_mlflow_version(), media_type="text/plain"),
            "/metrics": lambda _: Response(generate_latest(self.metrics), media_type="text/plain; version=0.0.4"),
            "/v2": lambda _: _json({"name": "ratchet", "version": "2", "extensions": ["binary_tensor_data"]}),
            "/v2/health/live": lambda _: _json({"live": True}),
            "/v2/health/ready": self._ready,
            about: self._metadata,
            f"{about}/ready": self._model_ready,
            f"{about}/versions/{{version}}": self._metadata,
            f"{about}/versions/{{version}}/ready": self._model_ready,
        }
        return posts + [Route(path, _guarded(function), methods=["GET"]) for path, function in gets.items()]

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        following = asyncio.create_task(self.follower.follow(every=self.settings.poll))
        try:
            yield
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following
            await asyncio.to_thread(self.batcher.close)
            self.follower.close()

    def _answering(self, name: str, envelope: Envelope) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        async def answer(request: Request) -> Response:
            began = time.monotonic()
            try:
                response = await self._answer(envelope, request, began)
            except Refused as error:
                response = _error(error.status, str(error), error.headers)
            except ClientDisconnect:
                return Response(status_code=499)  # no client reads it; the number is that of nginx
            except Exception:  # of a library or of a user's code
                _LOG.exception("%s failed", request.url.path)
                response = _error(500, "the model server failed; its log has the cause", {})
            self._requests.labels(name, str(response.status_code)).inc()
            self._seconds.labels(name).observe(time.monotonic() - began)
            return response

        return answer

    async def _answer(self, envelope: Envelope, request: Request, began: float) -> Response:
        loaded = self._loaded(request)
        deadline = began + _deadline(request, self.settings.deadline)
        try:
            async with asyncio.timeout(self.settings.deadline):
                body = await self._body(request)
        except TimeoutError:
            raise Refused(408, f"the body did not arrive within {self.settings.deadline:g} s") from None
        read = partial(envelope.read, body, request.headers, loaded)
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                question = await asyncio.to_thread(read) if _is_slow(loaded, body) else read()
                predictions = await self._predictions(loaded, question, deadline)
        except TimeoutError:
            raise Refused(503, "it was not answered within the deadline", {"Retry-After": "1"}) from None
        except (BadRequest, RatchetError) as error:
            raise Refused(400, str(error)) from None
        except Overloaded as error:
            raise Refused(503, str(error), {"Retry-After": str(max(1, round(error.retry_after)))}) from None
        write = partial(envelope.write, Answer(new_id(), loaded.identity, loaded.spec, predictions), question)
        is_large = question.rows * loaded.spec.target.outputs > _LARGE
        content, headers = await asyncio.to_thread(write) if is_large else write()
        return Response(content, headers=headers)

    async def _predictions(self, loaded: LoadedVersion, question: Question, deadline: float) -> Any:
        rows = question.rows
        if rows > self.settings.rows:
            raise Refused(413, f"found {rows:,} rows; allowed: {self.settings.rows:,} in one request (serving.rows)")
        if not isinstance(loaded.spec.input, TokensInput):
            return await self.batcher.predict(loaded, question.arrays, deadline=deadline)
        parameters = {name: value for name, value in question.options.items() if name != "binary"}
        longest = parameters.setdefault("max_tokens", self.settings.tokens)
        if longest > self.settings.tokens:
            raise Refused(400, f"max_tokens: found {longest}; allowed: up to {self.settings.tokens} (serving.tokens)")
        write = partial(loaded.generate, list(question.prompts), parameters)
        return await self.batcher.call(write, rows=rows, deadline=deadline)

    async def _body(self, request: Request) -> bytes:
        """Return the body, unless it is larger than serving.body_mib."""
        limit = int(self.settings.body_mib * _MIB)
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > limit:
                raise Refused(413, f"the body is larger than {self.settings.body_mib:g} MiB (serving.body_mib)")
            parts.append(part)
        return b"".join(parts)

    def _loaded(self, request: Request) -> LoadedVersion:
        """Return the version that answers, which must be the one that the path names."""
        loaded = self.follower.current
        if loaded is None:
            raise Refused(503, f"no version is served: {self.follower.problem}", {"Retry-After": "1"})
        named = (request.path_params.get("model"), request.path_params.get("version"))
        identity = loaded.identity
        if named[0] not in (None, identity.model) or named[1] not in (None, identity.version):
            wanted = "/".join(part for part in named if part)
            raise Refused(404, f"found {wanted}; served is {identity.model}/{identity.version}")
        return loaded

    def _ready(self, _: Request) -> Response:
        loaded = self.follower.current
        content = {"ready": loaded is not None, "version": str(loaded.identity) if loaded else None}
        return _json(content | ({"problem": self.follower.problem} if self.follower.problem else {}),
                     status=200 if loaded else 503)  # fmt: skip

    def _model_ready(self, request: Request) -> Response:
        return _json({"name": self._loaded(request).identity.model, "ready": True})

    def _metadata(self, request: Request) -> Response:
        return _json(metadata(self._loaded(request)))

    def _models(self, request: Request) -> Response:
        loaded = self._loaded(request)
        identity = loaded.identity
        about = {
            "model": identity.model, "version": identity.version, "provenance": identity.provenance,
            "follows": self.follower.reference, "input": loaded.spec.input.described,
            "target": loaded.spec.target.described, "engine": loaded.engine, "problem": self.follower.problem or None,
        }  # fmt: skip
        return _json({"models": [about]})


def _guarded(function: Callable[[Request], Response]) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    async def guarded(request: Request) -> Response:
        try:
            return function(request)
        except Refused as error:
            return _error(error.status, str(error), error.headers)

    return guarded


def _is_slow(loaded: LoadedVersion, body: bytes) -> bool:
    """Return whether the request takes so long to read that other requests would wait for it.

    A small image file may have many pixels.
    """
    # A backslash may hide the name of a file: JSON allows "\\u006264".
    return loaded.spec.input.kind != "image" or len(body) > _MIB // 4 or b'"b64"' in body or b"\\" in body


def _deadline(request: Request, longest: float) -> float:
    """Return the seconds that the client gives, at most those of serving.deadline."""
    given = request.headers.get("ratchet-deadline")
    if given is None:
        return longest
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1.0
    if not 0.0 < seconds <= longest:
        raise Refused(400, f"Ratchet-Deadline: found {given!r}; allowed: seconds up to {longest:g} (serving.deadline)")
    return seconds


def _json(content: Any, *, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")


def _error(status: int, message: str, headers: dict[str, str]) -> Response:
    return Response(orjson.dumps({"error": message}), status, headers, media_type="application/json")


def _mlflow_version() -> str:
    from importlib.metadata import version

    return version("mlflow")
