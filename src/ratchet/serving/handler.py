"""The path of one request: read it, compute it in a batch, write the answer, and pass it to observers."""

import asyncio
import contextlib
import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ratchet.errors import RatchetError
from ratchet.kinds.protocol import InputError, TooManyRows
from ratchet.serving.encodings import accepted_encoding, encoded
from ratchet.serving.fallback import Fallback
from ratchet.serving.formats.request_formats import (
    Answer,
    ModelRequest,
    RequestFormat,
    encode_together,
    new_id,
    own_content,
)
from ratchet.serving.http_request import (
    Bodies,
    Busy,
    Header,
    Refused,
    Reply,
    TooLarge,
    answer_first,
    content_length,
    deadline_seconds,
    discard,
    error_response,
    headers_of,
)
from ratchet.serving.lifetime import Lifetime, stays
from ratchet.serving.recent import RecentAnswers, request_key
from ratchet.serving.streaming import TextStream, event
from ratchet.serving.versions.additions import NotCalibrated
from ratchet.serving.versions.alias_watcher import AliasWatcher, PinnedVersion
from ratchet.serving.versions.batching import Batcher, Overloaded, Raw
from ratchet.serving.versions.loaded import LoadedVersion
from ratchet.serving.worker_thread import Worker
from ratchet.settings.model import ServingSettings

if TYPE_CHECKING:
    from ratchet.serving.canary import Canary

__all__ = ["Call", "Endpoint", "PredictEndpoint", "RequestHandler", "ServedRequest"]

_LOG = logging.getLogger(__name__)
_LARGE = 10_000  # numbers of an answer that takes milliseconds to write
_NOT_GENERATION = ("binary", "stream")  # options of a language model's answer


class Call(NamedTuple):
    """A request to a model.

    Attributes:
        envelope: its name in metrics and in the log.
        path: parameters of the path: model and version, if it names them.
        headers: by names in lower case.
        key: name of the API key, or empty.
        client: its key, or its address.
        receive: returns the parts of the body.
        began: when its first byte came, on the clock of `time.monotonic`.
        has_left: returns whether its client has gone; in any thread.
    """

    envelope: str
    path: Mapping[str, str | None]
    headers: Mapping[str, str]
    key: str
    client: str
    receive: Receive
    began: float
    has_left: Callable[[], bool] = stays

    @classmethod
    def of(cls, envelope: str, scope: Scope, receive: Receive) -> "Call":
        """Return the request that begins now."""
        key, path = scope.get("ratchet.key", ""), scope.get("path_params", {})
        began, has_left = scope.get("ratchet.began") or time.monotonic(), scope.get("ratchet.has_left", stays)
        client = key or (scope.get("client") or ("",))[0]
        return cls(envelope, path, headers_of(scope["headers"]), key, client, receive, began, has_left)

    def lifetime(self, settings: ServingSettings) -> Lifetime:
        """Return until when an answer is of use.

        Raises:
            Refused: the client gives a wrong deadline.
        """
        return Lifetime(self.began + deadline_seconds(self.headers, settings), self.has_left)


class ServedRequest(NamedTuple):
    """A request that was answered, as the log, the metrics, shadow and canary see it.

    Attributes:
        loaded: the version that was to answer.
        began: in seconds since 1970.
        seconds: from the request to the answer.
        model_seconds: of the version, without the client's upload and the reading of the request.
    """

    call: Call
    request: ModelRequest
    answer: Answer
    loaded: LoadedVersion
    began: float
    seconds: float
    model_seconds: float


class RequestHandler:
    """The served version with its queue, and what all endpoints share.

    Attributes:
        observers: called in the event loop after each answer is ready, so they must return at once.
        canary: answers a share of the requests, if it is set.
        bodies: of all requests in memory.
        worker: writes large answers.
    """

    def __init__(
        self,
        watcher: AliasWatcher | PinnedVersion,
        batcher: Batcher,
        settings: ServingSettings,
        fallback: Fallback | None = None,
    ) -> None:
        self.watcher, self.batcher, self.settings = watcher, batcher, settings
        self.observers: list[Callable[[ServedRequest], None]] = []
        self.canary: Canary | None = None
        self.bodies, self.worker = Bodies(settings), Worker("writing")
        self.fallback, self.recent = fallback, RecentAnswers()

    def has_room(self) -> bool:
        """Return whether a request may go to the queue, or be answered in another way if that is full."""
        return self.fallback is not None or self.recent.is_useful or not self.batcher.is_nearly_full

    def version_for(self, path: Mapping[str, str | None]) -> LoadedVersion:
        """Return the served version, which must be the one that the parameters of the path name.

        Raises:
            Refused: there is none, or the path names another one.
        """
        loaded = self.watcher.current
        if loaded is None:
            raise Refused(503, f"no version is served: {self.watcher.problem}", {"Retry-After": "1"})
        named = (path.get("model"), path.get("version"))
        identity = loaded.identity
        if named[0] not in (None, identity.model) or named[1] not in (None, identity.version):
            wanted = "/".join(part for part in named if part)
            raise Refused(404, f"found {wanted}; served is {identity.model}/{identity.version}")
        return loaded

    def chosen(self, call: Call) -> LoadedVersion:
        """Return the version that answers a request: the served one, or the canary unless the path names a version.

        Raises:
            Refused: as `version_for`.
        """
        served = self.version_for(call.path)
        if self.canary is None or call.path.get("version"):
            return served
        return self.canary.version_for(call.headers, call.key, served)

    def batcher_of(self, loaded: LoadedVersion) -> Batcher:
        """Return the queue of a version."""
        return self.canary.batcher if self.canary and self.canary.watcher.current is loaded else self.batcher

    async def check(self, loaded: LoadedVersion, call: Call, lifetime: Lifetime) -> None:
        """Refuse a request before its body is read, unless a cached answer or the fallback may be given.

        Raises:
            Overloaded: it would not be answered within its deadline.
        """
        try:
            self.batcher_of(loaded).check(content_length(call.headers), lifetime.deadline)
        except Overloaded:
            if self.fallback is None and not (self.recent and self.recent.is_useful):
                await discard(call.receive, call.headers)
                raise

    def observe(
        self, request: ModelRequest, answer: Answer, loaded: LoadedVersion, call: Call, model_seconds: float
    ) -> None:
        """Pass an answer to the observers."""
        seconds = time.monotonic() - call.began
        served = ServedRequest(call, request, answer, loaded, time.time() - seconds, seconds, model_seconds)
        for observer in self.observers:
            observer(served)


class Endpoint(ABC):
    """ASGI application that answers the requests to one path.

    Attributes:
        late: message for a request that is not answered within its deadline.
        asks_model: whether a request waits in the queue of the model.
        judges_canary: whether a fault counts against the version that was to answer.
    """

    late: ClassVar[str] = "it was not answered within the deadline"
    asks_model: ClassVar[bool] = True
    judges_canary: ClassVar[bool] = False

    def __init__(self, handler: RequestHandler, name: str) -> None:
        """Answer by `handler`. `name` is the label of the requests in metrics and in the log."""
        self.handler, self.name = handler, name

    def version(self, call: Call) -> LoadedVersion:
        """Return the version that answers a request.

        Raises:
            Refused: there is none.
        """
        return self.handler.chosen(call)

    @abstractmethod
    async def answer(
        self, loaded: LoadedVersion, body: bytes, call: Call, lifetime: Lifetime, limit: asyncio.Timeout
    ) -> Response:
        """Return the response to a request.

        Args:
            loaded: version that answers.
            body: of the request.
            call: the request.
            lifetime: of the request.
            limit: ends this coroutine at the deadline.
        """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        is_fault, canary = False, self.handler.canary
        call = Call.of(self.name, scope, receive)
        try:
            scope["ratchet.loaded"] = self.version(call)
            self.handler.bodies.check(call.headers)
            response = await self._within_deadline(scope, call)
        except TooLarge as error:
            await answer_first(error_response(error), scope, receive, send, seconds=self.handler.settings.deadline)
            return
        except Refused as error:
            response = error_response(error)
            is_fault = error.status >= 500 and not isinstance(error, Busy)
        except ClientDisconnect:
            return
        except Exception:  # of a library or of a user's code
            _LOG.exception("%s failed", scope["path"])
            response, is_fault = error_response(Refused(500, "the model server failed; its log has the cause")), True
        if self.judges_canary and canary and is_fault and "ratchet.loaded" in scope:
            canary.failed(scope["ratchet.loaded"], call.client)
        await response(scope, receive, send)

    async def _within_deadline(self, scope: Scope, call: Call) -> Response:
        """Read the body and return the response; that of the served version, if the canary lacks a calibration.

        Raises:
            ClientDisconnect: the client has gone.
            Refused: the request is wrong, or is not answered within its deadline.
        """
        handler, arrived, loaded = self.handler, math.inf, scope["ratchet.loaded"]
        longest = handler.settings.deadline
        lifetime = call.lifetime(handler.settings)
        try:
            async with asyncio.timeout(call.began + longest - time.monotonic()) as limit:
                with handler.bodies.hold() as held:
                    if self.asks_model:
                        await handler.check(loaded, call, lifetime)
                    body = await held.read(call.receive, call.headers)
                    arrived = time.monotonic()
                    if lifetime.deadline < call.began + longest:
                        _shorten(limit, lifetime)
                    try:
                        return await self.answer(loaded, body, call, lifetime, limit)
                    except NotCalibrated:
                        if (served := handler.version_for(call.path)) is loaded:
                            raise
                        scope["ratchet.loaded"] = served
                        return await self.answer(served, body, call, lifetime, limit)
        except TimeoutError:
            if arrived == math.inf:
                raise Refused(408, f"the body did not arrive within {longest:g} s") from None
            # By the client, or by its upload, which left the version less than half of the time.
            if lifetime.deadline < call.began + longest or arrived > call.began + longest / 2:
                raise Busy(self.late, 1.0) from None
            raise Refused(503, self.late, {"Retry-After": "1"}) from None
        except TooManyRows as error:
            raise Refused(413, str(error)) from None
        except (InputError, RatchetError) as error:
            raise Refused(400, str(error)) from None
        except Overloaded as error:
            raise Busy(str(error), error.retry_after) from None


class PredictEndpoint(Endpoint):
    """Answers requests in one format."""

    judges_canary = True

    def __init__(self, handler: RequestHandler, name: str, format: RequestFormat) -> None:
        super().__init__(handler, name)
        self._format = format

    async def answer(
        self, loaded: LoadedVersion, body: bytes, call: Call, lifetime: Lifetime, limit: asyncio.Timeout
    ) -> Response:
        """Return the response of a version to a request."""
        read = partial(self._read, loaded, body, call, lifetime, limit, asyncio.get_running_loop())
        request, answer, seconds = await self._predicted(loaded, body, call, lifetime, read)
        if request.options.get("stream"):
            return await self._streamed(request, loaded, call, lifetime)
        if answer is None:
            began = time.monotonic()
            answer = await self._generated(loaded, request, lifetime)
            seconds = time.monotonic() - began
        content, headers = await self._written(request, answer, call, lifetime)
        self.handler.observe(request, answer, loaded, call, seconds)
        return Reply(content, headers)

    def _read(
        self,
        loaded: LoadedVersion,
        body: bytes,
        call: Call,
        lifetime: Lifetime,
        limit: asyncio.Timeout,
        loop: asyncio.AbstractEventLoop,
    ) -> ModelRequest:
        """Read a request in any thread. A timeout in its body shortens its lifetime."""
        request = self._format.read(body, call.headers, loaded, lifetime.check)
        if request.timeout < math.inf:
            lifetime.shorten(call.began + request.timeout)
            loop.call_soon_threadsafe(_shorten, limit, lifetime)
        return request

    async def _written(
        self, request: ModelRequest, answer: Answer, call: Call, lifetime: Lifetime
    ) -> tuple[bytes, tuple[Header, ...]]:
        """Return body and headers of the response. A large one is written beside the event loop, and compressed."""
        if request.rows * answer.loaded.spec.target.outputs <= _LARGE:
            return self._format.write(answer, request)

        def write() -> tuple[bytes, tuple[Header, ...]]:
            content, headers = self._format.write(answer, request)
            encoding = accepted_encoding(call.headers)
            if not encoding:
                return content, headers
            return encoded(content), (*headers, (b"content-encoding", encoding.encode()))

        written: tuple[bytes, tuple[Header, ...]] = await self.handler.worker.run(write, lifetime)
        return written

    async def _streamed(self, request: ModelRequest, loaded: LoadedVersion, call: Call, lifetime: Lifetime) -> Response:
        """Return the response that sends a text while it is generated, once its first piece is there."""
        parameters = self._generation(request)
        stream = TextStream(
            partial(loaded.pieces, request.prompts[0], parameters),
            partial(self.handler.batcher_of(loaded).take_turns, count=1, tokens=parameters["max_tokens"]),
            lifetime,
        )
        pieces = stream.pieces()
        try:
            first = await anext(pieces, "")
        except BaseException:
            stream.leave()
            raise

        async def events() -> AsyncIterator[bytes]:
            began = time.monotonic()
            try:
                yield event({"text": first})
                async for piece in pieces:
                    yield event({"text": piece})
                answer = Answer(new_id(), loaded, stream.text.result())
                self.handler.observe(request, answer, loaded, call, time.monotonic() - began)
                yield event(own_content(answer, 1, request), "end")
            except TimeoutError:
                yield event({"error": self.late}, "error")
            except Exception:  # of PyTorch: the status was sent before
                _LOG.exception("the generation of a text failed")
                yield event({"error": "the model server failed; its log has the cause"}, "error")
            finally:
                stream.leave()

        return StreamingResponse(events(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    async def _predicted(
        self, loaded: LoadedVersion, body: bytes, call: Call, lifetime: Lifetime, read: Callable[[], ModelRequest]
    ) -> tuple[ModelRequest, Answer | None, float]:
        """Return what a request asks, the answer, and the seconds of the version.

        When the server is overloaded, it is that to an equal request, or the fallback's. A language model has none yet.

        Raises:
            Overloaded: there is none.
        """
        batcher, recent, fallback = self.handler.batcher_of(loaded), self.handler.recent, self.handler.fallback
        keeps = batcher.is_busy and recent.keeps_next()  # only then will repeated requests need the answer
        raw = Raw(read, len(body), encode_together)
        try:
            if self._format.is_slow(body, call.headers, loaded):
                request, predictions, seconds = await batcher.answer(loaded, raw, lifetime)
            else:
                request, began = raw.read(), time.monotonic()
                predictions = await batcher.predict(loaded, request.arrays, lifetime) if request.arrays else None
                seconds = time.monotonic() - began
        except Overloaded:
            if recent and (earlier := recent.get(request_key(call.envelope, call.headers, body, loaded))) is not None:
                return earlier[0], Answer(new_id(), loaded, earlier[1], "cache"), 0.0
            if fallback is None or (smaller := fallback.version_for(loaded)) is None:
                raise
            request, predictions, seconds = await fallback.batcher.answer(smaller, raw, lifetime)
            if not smaller.additions.has(request.additions):
                raise
            return request, Answer(new_id(), smaller, predictions, "fallback"), seconds
        if predictions is None:
            return request, None, seconds
        if keeps:
            recent.add(request_key(call.envelope, call.headers, body, loaded), request, predictions)
        return request, Answer(new_id(), loaded, predictions), seconds

    async def _generated(self, loaded: LoadedVersion, request: ModelRequest, lifetime: Lifetime) -> Answer:
        """Return the texts of a language model, one prompt at a time, in turns with other requests.

        Raises:
            Refused: several prompts need longer than the deadline.
        """
        parameters, batcher = self._generation(request), self.handler.batcher_of(loaded)
        tokens, rest = parameters["max_tokens"], lifetime.deadline - time.monotonic()
        seconds = batcher.seconds_of(request.rows, tokens) or request.rows * tokens * loaded.token_seconds
        if request.rows > 1 and seconds > rest:
            raise Refused(
                413,
                f"found {request.rows} prompts with up to {tokens} tokens each; they need about {seconds:.0f} s; "
                f"allowed: {max(0.0, rest):.1f} s. Fix: send fewer prompts in one request, or a smaller max_tokens",
            )
        turns = loaded.generate(request.prompts, parameters, lifetime.check)
        texts = await batcher.take_turns(turns, lifetime, count=request.rows, tokens=tokens)
        return Answer(new_id(), loaded, texts)

    def _generation(self, request: ModelRequest) -> dict[str, Any]:
        """Return the parameters of a generation.

        Raises:
            Refused: it asks for more tokens than serving.tokens.
        """
        parameters = {name: value for name, value in request.options.items() if name not in _NOT_GENERATION}
        most = self.handler.settings.tokens
        longest = parameters.setdefault("max_tokens", most)
        if longest > most:
            raise Refused(400, f"max_tokens: found {longest}; allowed: up to {most} (serving.tokens)")
        return parameters


def _shorten(limit: asyncio.Timeout, lifetime: Lifetime) -> None:
    """Let a time limit end with the lifetime."""
    with contextlib.suppress(RuntimeError):  # it has ended already
        limit.reschedule(asyncio.get_running_loop().time() + lifetime.deadline - time.monotonic())
