"""The path of one request: read it, compute it in a batch, write the answer, and pass it to observers."""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ratchet.errors import RatchetError
from ratchet.kinds.protocol import InputError, TooManyRows
from ratchet.serving.answered import Answered, Observer
from ratchet.serving.encodings import accepted_encoding, encoded
from ratchet.serving.fallback import Fallback
from ratchet.serving.formats.envelopes import Answer, Envelope, ModelRequest, encode_together, new_id, own_content
from ratchet.serving.lifetime import Lifetime, stays
from ratchet.serving.recent import RecentAnswers, request_key
from ratchet.serving.requests import (
    Bodies,
    Busy,
    Header,
    Refused,
    Reply,
    content_length,
    deadline_seconds,
    discard,
    error_response,
    headers_of,
)
from ratchet.serving.streaming import TextStream, event
from ratchet.serving.time_limit import TimeLimit
from ratchet.serving.versions.batching import Batcher, Overloaded, Raw
from ratchet.serving.versions.following import Fixed, Follower
from ratchet.serving.versions.loaded import LoadedVersion
from ratchet.serving.worker import Worker
from ratchet.settings.model import ServingSettings

if TYPE_CHECKING:
    from ratchet.serving.canary import Canary

__all__ = ["Answering", "Call", "Endpoint"]

_LOG = logging.getLogger(__name__)
_LARGE = 10_000  # numbers of an answer that takes milliseconds to write
_LATE = "it was not answered within the deadline"
_NOT_GENERATION = ("binary", "classes", "stream")  # options of a language model's answer


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


class Answering:
    """Answers requests in all envelopes by the version that is served.

    Attributes:
        observers: called for each answer.
        canary: answers a share of the requests, if it is set.
        bodies: of all requests in memory.
        worker: writes large answers.
    """

    def __init__(
        self,
        follower: Follower | Fixed,
        batcher: Batcher,
        settings: ServingSettings,
        fallback: Fallback | None = None,
    ) -> None:
        self.follower, self.batcher, self.settings = follower, batcher, settings
        self.observers: list[Observer] = []
        self.canary: Canary | None = None
        self.bodies, self.worker = Bodies(settings), Worker("writing")
        self._fallback, self._recent = fallback, RecentAnswers()

    def has_room(self) -> bool:
        """Return whether a request may go to the queue, or be answered in another way if that is full."""
        return self._fallback is not None or self._recent.is_useful or not self.batcher.is_nearly_full

    def version_for(self, path: Mapping[str, str | None]) -> LoadedVersion:
        """Return the served version, which must be the one that the parameters of the path name.

        Raises:
            Refused: there is none, or the path names another one.
        """
        loaded = self.follower.current
        if loaded is None:
            raise Refused(503, f"no version is served: {self.follower.problem}", {"Retry-After": "1"})
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
        return self.canary.batcher if self.canary and self.canary.follower.current is loaded else self.batcher

    async def answer(self, envelope: Envelope, loaded: LoadedVersion, call: Call) -> Response:
        """Return the response of a version to a request.

        Raises:
            ClientDisconnect: the client has gone.
            Refused: the request is wrong, or is not answered within its deadline.
        """
        body, lifetime = None, call.lifetime(self.settings)
        try:
            with TimeLimit(call.began + self.settings.deadline - time.monotonic()) as limit, self.bodies.hold() as held:
                await self._check(loaded, call, lifetime)
                body = await held.read(call.receive, call.headers)
                limit.reschedule(lifetime.deadline - time.monotonic())
                read = _reader(envelope, loaded, body, call, lifetime, limit)
                question, answer, seconds = await self._answered(envelope, loaded, body, call, lifetime, read)
                if question.options.get("stream"):
                    return await self._streamed(question, loaded, call, lifetime)
                if question.prompts:
                    began = time.monotonic()
                    answer = await self._generated(loaded, question, lifetime)
                    seconds = time.monotonic() - began
                assert answer
                content, headers = await self._written(envelope, question, answer, call, lifetime)
        except TimeoutError:
            if body is None:
                raise Refused(408, f"the body did not arrive within {self.settings.deadline:g} s") from None
            if lifetime.deadline < call.began + self.settings.deadline:  # by the client
                raise Busy(_LATE, 1.0) from None
            raise Refused(503, _LATE, {"Retry-After": "1"}) from None
        except TooManyRows as error:
            raise Refused(413, str(error)) from None
        except (InputError, RatchetError) as error:
            raise Refused(400, str(error)) from None
        except Overloaded as error:
            raise Busy(str(error), error.retry_after) from None
        self.observe(question, answer, loaded, call, seconds)
        return Reply(content, headers)

    async def _written(
        self, envelope: Envelope, question: ModelRequest, answer: Answer, call: Call, lifetime: Lifetime
    ) -> tuple[bytes, tuple[Header, ...]]:
        """Return body and headers of the response. A large one is written beside the event loop, and compressed."""
        if question.rows * answer.spec.target.outputs <= _LARGE:
            return envelope.write(answer, question)
        write = partial(_compressed, envelope, answer, question, accepted_encoding(call.headers))
        written: tuple[bytes, tuple[Header, ...]] = await self.worker.run(write, lifetime)
        return written

    async def _check(self, loaded: LoadedVersion, call: Call, lifetime: Lifetime) -> None:
        """Refuse a request before its body is read, unless a cached answer or the fallback may be given.

        Raises:
            Overloaded: it would not be answered within its deadline.
        """
        try:
            self.batcher_of(loaded).check(content_length(call.headers), lifetime.deadline)
        except Overloaded:
            if self._fallback is None and not (self._recent and self._recent.is_useful):
                await discard(call.receive, call.headers)
                raise

    def observe(
        self, question: ModelRequest, answer: Answer, loaded: LoadedVersion, call: Call, model_seconds: float
    ) -> None:
        """Pass an answer to the observers."""
        seconds = time.monotonic() - call.began
        answered = Answered(
            call.envelope,
            question,
            answer,
            loaded,
            call.key,
            call.client,
            time.time() - seconds,
            seconds,
            model_seconds,
        )
        for observe in self.observers:
            observe(answered)

    async def _streamed(
        self, question: ModelRequest, loaded: LoadedVersion, call: Call, lifetime: Lifetime
    ) -> Response:
        """Return the response that sends a text while it is generated, once its first piece is there."""
        parameters = self._generation(question)
        stream = TextStream(
            partial(loaded.pieces, question.prompts[0], parameters),
            partial(self.batcher_of(loaded).take_turns, count=1, tokens=parameters["max_tokens"]),
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
                answer = Answer(new_id(), loaded.identity, loaded.spec, stream.text.result())
                self.observe(question, answer, loaded, call, time.monotonic() - began)
                yield event(own_content(answer, 1, question), "end")
            except TimeoutError:
                yield event({"error": _LATE}, "error")
            except Exception:  # of PyTorch: the status was sent before
                _LOG.exception("the generation of a text failed")
                yield event({"error": "the model server failed; its log has the cause"}, "error")
            finally:
                stream.leave()

        return StreamingResponse(events(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    async def _answered(
        self,
        envelope: Envelope,
        loaded: LoadedVersion,
        body: bytes,
        call: Call,
        lifetime: Lifetime,
        read: Callable[[], ModelRequest],
    ) -> tuple[ModelRequest, Answer | None, float]:
        """Return what a request asks, the answer, and the seconds of the version.

        When the server is overloaded, it is that to an equal request, or the fallback's. A language model has none yet.

        Raises:
            Overloaded: there is none.
        """
        batcher, key = self.batcher_of(loaded), None
        if batcher.is_busy:  # only then will repeated requests need the answer
            key = request_key(call.envelope, call.headers, body, loaded)
        raw = Raw(read, len(body), encode_together)
        try:
            if envelope.is_slow(body, call.headers, loaded):
                question, predictions, seconds = await batcher.answer(loaded, raw, lifetime)
            else:
                question, began = raw.read(), time.monotonic()
                predictions = await batcher.predict(loaded, question.arrays, lifetime) if question.arrays else None
                seconds = time.monotonic() - began
        except Overloaded:
            if (known := self._recent.get(key)) is not None:
                return known[0], Answer(new_id(), loaded.identity, loaded.spec, known[1], "cache"), 0.0
            if self._fallback is None or (smaller := self._fallback.version_for(loaded)) is None:
                raise
            question, predictions, seconds = await self._fallback.batcher.answer(smaller, raw, lifetime)
            return question, Answer(new_id(), smaller.identity, smaller.spec, predictions, "fallback"), seconds
        if predictions is None:
            return question, None, seconds
        self._recent.add(key, question, predictions)
        return question, Answer(new_id(), loaded.identity, loaded.spec, predictions), seconds

    async def _generated(self, loaded: LoadedVersion, question: ModelRequest, lifetime: Lifetime) -> Answer:
        """Return the texts of a language model, one prompt at a time, in turns with other requests.

        Raises:
            Refused: several prompts need longer than the deadline.
        """
        parameters, batcher = self._generation(question), self.batcher_of(loaded)
        tokens, rest = parameters["max_tokens"], lifetime.deadline - time.monotonic()
        seconds = batcher.seconds_of(question.rows, tokens) or question.rows * tokens * loaded.token_seconds
        if question.rows > 1 and seconds > rest:
            raise Refused(
                413,
                f"found {question.rows} prompts with up to {tokens} tokens each; they need about {seconds:.0f} s; "
                f"allowed: {max(0.0, rest):.1f} s. Fix: send fewer prompts in one request, or a smaller max_tokens",
            )
        turns = loaded.generate(question.prompts, parameters, lifetime.check)
        texts = await batcher.take_turns(turns, lifetime, count=question.rows, tokens=tokens)
        return Answer(new_id(), loaded.identity, loaded.spec, texts)

    def _generation(self, question: ModelRequest) -> dict[str, Any]:
        """Return the parameters of a generation.

        Raises:
            Refused: it asks for more tokens than serving.tokens.
        """
        parameters = {name: value for name, value in question.options.items() if name not in _NOT_GENERATION}
        longest = parameters.setdefault("max_tokens", self.settings.tokens)
        if longest > self.settings.tokens:
            raise Refused(400, f"max_tokens: found {longest}; allowed: up to {self.settings.tokens} (serving.tokens)")
        return parameters


def _reader(
    envelope: Envelope, loaded: LoadedVersion, body: bytes, call: Call, lifetime: Lifetime, limit: TimeLimit
) -> Callable[[], ModelRequest]:
    """Return the function that reads a request in any thread. A timeout in its body shortens lifetime and limit."""
    loop = asyncio.get_running_loop()

    def read() -> ModelRequest:
        question = envelope.read(body, call.headers, loaded, lifetime.check)
        if question.timeout < math.inf:
            lifetime.shorten(call.began + question.timeout)
            loop.call_soon_threadsafe(limit.reschedule, lifetime.deadline - time.monotonic())
        return question

    return read


def _compressed(
    envelope: Envelope, answer: Answer, question: ModelRequest, encoding: str
) -> tuple[bytes, tuple[Header, ...]]:
    """Return body and headers of the response, in an encoding unless that is empty."""
    content, headers = envelope.write(answer, question)
    if not encoding:
        return content, headers
    return encoded(content, encoding), (*headers, (b"content-encoding", encoding.encode()))


class Endpoint:
    """ASGI application that answers the requests of one envelope."""

    def __init__(self, answering: Answering, name: str, envelope: Envelope) -> None:
        """Answer by `answering`. `name` is the label of the envelope in metrics and in the log."""
        self._answering, self._name, self._envelope = answering, name, envelope

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        answering, loaded, is_fault = self._answering, None, False
        call = Call.of(self._name, scope, receive)
        try:
            loaded = scope["ratchet.loaded"] = answering.chosen(call)
            response = await answering.answer(self._envelope, loaded, call)
        except Refused as error:
            response = error_response(error)
            is_fault = error.status >= 500 and not isinstance(error, Busy)
        except ClientDisconnect:
            return
        except Exception:  # of a library or of a user's code
            _LOG.exception("%s failed", scope["path"])
            response, is_fault = error_response(Refused(500, "the model server failed; its log has the cause")), True
        if answering.canary and loaded and is_fault:
            answering.canary.failed(loaded, call.client)
        await response(scope, receive, send)
