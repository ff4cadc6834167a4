"""The path of one request: read it, compute it in a batch, write the answer, and pass it to observers."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ratchet.errors import RatchetError
from ratchet.kinds import TokensInput
from ratchet.serving.answered import Answered, Observer
from ratchet.serving.fallback import Fallback
from ratchet.serving.formats.envelopes import Answer, Envelope, Question, new_id, own_content
from ratchet.serving.formats.request_values import BadRequest, TooManyRows
from ratchet.serving.metrics import Metrics
from ratchet.serving.recent import RecentAnswers
from ratchet.serving.requests import Refused, Reply, deadline_seconds, error_response, headers_of, read_body
from ratchet.serving.streaming import TextStream, event
from ratchet.serving.time_limit import TimeLimit
from ratchet.serving.versions.batching import Batcher, Overloaded
from ratchet.serving.versions.following import Fixed, Follower
from ratchet.serving.versions.loaded import LoadedVersion
from ratchet.settings.model import ServingSettings

if TYPE_CHECKING:
    from ratchet.serving.canary import Canary

__all__ = ["Answering", "Call", "Endpoint"]

_LOG = logging.getLogger(__name__)
_LARGE = 10_000  # numbers of an answer that takes milliseconds to write
_LATE = "it was not answered within the deadline"


class Call(NamedTuple):
    """A request to a model.

    Attributes:
        envelope: its name in metrics and in the log.
        path: parameters of the path: model and version, if it names them.
        headers: by names in lower case.
        key: name of the API key, or empty.
        receive: returns the parts of the body.
        began: on the clock of `time.monotonic`.
    """

    envelope: str
    path: Mapping[str, str | None]
    headers: Mapping[str, str]
    key: str
    receive: Receive
    began: float

    @classmethod
    def of(cls, envelope: str, scope: Scope, receive: Receive) -> "Call":
        """Return the request that begins now."""
        key, path = scope.get("ratchet.key", ""), scope.get("path_params", {})
        return cls(envelope, path, headers_of(scope["headers"]), key, receive, time.monotonic())


class Answering:
    """Answers requests in all envelopes by the version that is served.

    Attributes:
        observers: called for each answer.
        canary: answers a share of the requests, if it is set.
    """

    def __init__(
        self,
        follower: Follower | Fixed,
        batcher: Batcher,
        metrics: Metrics,
        settings: ServingSettings,
        fallback: Fallback | None = None,
    ) -> None:
        self.follower, self.batcher, self.metrics, self.settings = follower, batcher, metrics, settings
        self.observers: list[Observer] = []
        self.canary: Canary | None = None
        self._fallback, self._recent = fallback, RecentAnswers()

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

    def _batcher(self, loaded: LoadedVersion) -> Batcher:
        return self.canary.batcher if self.canary and self.canary.follower.current is loaded else self.batcher

    async def answer(self, envelope: Envelope, loaded: LoadedVersion, call: Call) -> Response:
        """Return the response of a version to a request.

        Raises:
            ClientDisconnect: the client has gone.
            Refused: the request is wrong, or is not answered within its deadline.
        """
        longest, body = deadline_seconds(call.headers, self.settings), None
        deadline = call.began + longest
        try:
            with TimeLimit(self.settings.deadline) as limit:
                # Read in any case: a client that is still sending would get a reset connection, not the refusal.
                body = await read_body(call.receive, self.settings)
                if longest < self.settings.deadline:
                    limit.reschedule(deadline - time.monotonic())
                if envelope.is_slow(body, call.headers, loaded):
                    question = await asyncio.to_thread(envelope.read, body, call.headers, loaded)
                else:
                    question = envelope.read(body, call.headers, loaded)
                if question.options.get("stream"):
                    return await self._streamed(question, loaded, call, deadline)
                answer = await self._answered(loaded, question, deadline)
        except TimeoutError:
            if body is None:
                raise Refused(408, f"the body did not arrive within {self.settings.deadline:g} s") from None
            raise Refused(503, _LATE, {"Retry-After": "1"}) from None
        except TooManyRows as error:
            raise Refused(413, str(error)) from None
        except (BadRequest, RatchetError) as error:
            raise Refused(400, str(error)) from None
        except Overloaded as error:
            raise Refused(503, str(error), {"Retry-After": str(max(1, round(error.retry_after)))}) from None
        if question.rows * loaded.spec.target.outputs > _LARGE:
            content, headers = await asyncio.to_thread(envelope.write, answer, question)
        else:
            content, headers = envelope.write(answer, question)
        self.observe(question, answer, loaded, call)
        return Reply(content, headers)

    def observe(self, question: Question, answer: Answer, loaded: LoadedVersion, call: Call) -> None:
        """Pass an answer to the observers."""
        seconds = time.monotonic() - call.began
        answered = Answered(call.envelope, question, answer, loaded, call.key, time.time() - seconds, seconds)
        for observe in self.observers:
            observe(answered)

    async def _streamed(self, question: Question, loaded: LoadedVersion, call: Call, deadline: float) -> Response:
        """Return the response that sends a text while it is generated, once its first piece is there."""
        parameters = self._generation(question)
        stream = TextStream(
            partial(loaded.pieces, question.prompts[0], parameters),
            partial(self._batcher(loaded).call, rows=1, deadline=deadline),
            deadline=deadline,
        )
        pieces = stream.pieces()
        try:
            first = await anext(pieces, "")
        except BaseException:
            stream.leave()
            raise

        async def events() -> AsyncIterator[bytes]:
            try:
                yield event({"text": first})
                async for piece in pieces:
                    yield event({"text": piece})
                answer = Answer(new_id(), loaded.identity, loaded.spec, [stream.text.result()])
                self.observe(question, answer, loaded, call)
                yield event(own_content(answer, 1), "end")
            except TimeoutError:
                yield event({"error": _LATE}, "error")
            except Exception:  # of PyTorch: the status was sent before
                _LOG.exception("the generation of a text failed")
                yield event({"error": "the model server failed; its log has the cause"}, "error")
            finally:
                stream.leave()

        return StreamingResponse(events(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    async def _answered(self, loaded: LoadedVersion, question: Question, deadline: float) -> Answer:
        """Return the answer; when the server is overloaded, that to an equal request, or the fallback's.

        Raises:
            Overloaded: there is none.
        """
        is_loaded = self._batcher(loaded).is_busy  # only then will repeated requests need the answer
        try:
            predictions = await self._predictions(loaded, question, deadline)
            if is_loaded and question.arrays:
                self._recent.add(loaded, question.arrays, predictions)
            return Answer(new_id(), loaded.identity, loaded.spec, predictions)
        except Overloaded:
            if not question.arrays:
                raise
            known = self._recent.get(loaded, question.arrays)
            if known is not None:
                return Answer(new_id(), loaded.identity, loaded.spec, known, "cache")
            if self._fallback is None or (smaller := self._fallback.version_for(loaded)) is None:
                raise
        predictions = await self._fallback.batcher.predict(smaller, question.arrays, deadline=deadline)
        return Answer(new_id(), smaller.identity, smaller.spec, predictions, "fallback")

    def _predictions(self, loaded: LoadedVersion, question: Question, deadline: float) -> Awaitable[Any]:
        batcher = self._batcher(loaded)
        if not isinstance(loaded.spec.input, TokensInput):
            return batcher.predict(loaded, question.arrays, deadline=deadline)
        write = partial(loaded.generate, question.prompts, self._generation(question), deadline=deadline)
        return batcher.call(write, rows=question.rows, deadline=deadline)

    def _generation(self, question: Question) -> dict[str, Any]:
        """Return the parameters of a generation.

        Raises:
            Refused: it asks for more tokens than serving.tokens.
        """
        parameters = {name: value for name, value in question.options.items() if name not in ("binary", "stream")}
        longest = parameters.setdefault("max_tokens", self.settings.tokens)
        if longest > self.settings.tokens:
            raise Refused(400, f"max_tokens: found {longest}; allowed: up to {self.settings.tokens} (serving.tokens)")
        return parameters


class Endpoint:
    """ASGI application that answers the requests of one envelope."""

    def __init__(self, answering: Answering, name: str, envelope: Envelope) -> None:
        """Answer by `answering`. `name` is the label of the envelope in metrics and in the log."""
        self._answering, self._name, self._envelope = answering, name, envelope

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        answering, loaded = self._answering, None
        call = Call.of(self._name, scope, receive)
        try:
            loaded = answering.chosen(call)
            response = await answering.answer(self._envelope, loaded, call)
        except Refused as error:
            response = error_response(error)
        except ClientDisconnect:
            return
        except Exception:  # of a library or of a user's code
            _LOG.exception("%s failed", scope["path"])
            response = error_response(Refused(500, "the model server failed; its log has the cause"))
        answering.metrics.count(self._name, response.status_code, time.monotonic() - call.began, loaded)
        if answering.canary and loaded and response.status_code >= 500:
            answering.canary.failed(loaded)
        await response(scope, receive, send)
