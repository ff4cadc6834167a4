"""The model server: its routes, and what starts and ends with it."""

import asyncio
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache, partial
from typing import Any

from numpy.typing import NDArray
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ratchet.monitoring.sketch import refusal
from ratchet.serving.canary import Canary
from ratchet.serving.explaining import ExplainEndpoint
from ratchet.serving.fallback import Fallback
from ratchet.serving.formats.request_formats import MlflowFormat, RatchetFormat, RequestFormat
from ratchet.serving.formats.v2 import EXTENSIONS, V2Format, metadata
from ratchet.serving.handler import PredictEndpoint, RequestHandler, ServedRequest
from ratchet.serving.http_request import Refused, error_response, json_response
from ratchet.serving.label_endpoint import LabelEndpoint
from ratchet.serving.openapi import document
from ratchet.serving.page import page
from ratchet.serving.server_metrics import ServerMetrics, Snapshot, not_ready, text_of
from ratchet.serving.shadow import Shadow
from ratchet.serving.shared_state import EVERY, SharedStates
from ratchet.serving.versions.alias_watcher import AliasWatcher, PinnedVersion
from ratchet.serving.versions.batching import Batcher
from ratchet.serving.versions.loaded import LoadedVersion
from ratchet.settings.model import ServingSettings
from ratchet.traffic.label_store import LabelStore
from ratchet.traffic.request_log import RequestLog
from ratchet.traffic.schema import MODEL, Logged, target_id

__all__ = ["ModelServer", "envelope_of"]

_LOG = logging.getLogger(__name__)
_INFER = re.compile(r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?/infer")
_ENVELOPES: dict[str, tuple[str, type[RequestFormat]]] = {
    "/v1/predict": ("own", RatchetFormat),
    "/invocations": ("mlflow", MlflowFormat),
    "/v2/models/{model}/infer": ("v2", V2Format),
    "/v2/models/{model}/versions/{version}/infer": ("v2", V2Format),
}
_WATCHED = {name for name, _ in _ENVELOPES.values()}
_NAMES = {path: name for path, (name, _) in _ENVELOPES.items()} | {"/v1/explain": "explain", "/v1/labels": "labels"}


class ModelServer:
    """The server of one registered model, an ASGI application.

    Attributes:
        problems: of what stands before it, such as the keys; empty: there is none.
    """

    def __init__(
        self,
        watcher: AliasWatcher | PinnedVersion,
        settings: ServingSettings,
        *,
        log: RequestLog | None = None,
        fallback: AliasWatcher | None = None,
        shadow: AliasWatcher | None = None,
        canary: Canary | None = None,
        group: SharedStates | None = None,
    ) -> None:
        self.watcher, self.settings, self.group, self.problems = watcher, settings, group, list[Callable[[], str]]()
        self.batcher = Batcher(queue_rows=settings.queue)
        self.metrics = ServerMetrics(watcher, self.batcher, deadline=settings.deadline)
        self.metrics.watchers += filter(None, (fallback, shadow, canary.watcher if canary else None))
        self.fallback = Fallback(fallback, queue_rows=settings.queue) if fallback else None
        self.handler = RequestHandler(watcher, self.batcher, settings, self.fallback)
        self.handler.observers.append(self.metrics.count_warnings)
        self.canary = self.handler.canary = canary
        if canary:
            self.handler.observers.append(canary.answered)
        self.log = log
        if log:
            self.handler.observers.append(partial(_log, log, settings.log_columns))
            self.metrics.observers.append(self._count)
            self.metrics.totals["ratchet_log_lost_requests", "Requests that the log could not take"] = lambda: log.lost
        self.shadow = beside = Shadow(shadow, log) if shadow and log else None
        if beside:
            self.handler.observers.append(beside.observe)
            totals, name = self.metrics.totals, "ratchet_shadow_{}_requests"
            totals[name.format("dropped"), "Requests that the shadow version left out"] = lambda: beside.dropped
            totals[name.format("failed"), "Requests that the shadow version failed to answer"] = lambda: beside.failed
        self.explaining = ExplainEndpoint(self.handler)
        self.labels = LabelEndpoint(self.handler, LabelStore(log.folder) if log else None)
        self._endpoints = {
            path: PredictEndpoint(self.handler, name, format(settings.rows))
            for path, (name, format) in _ENVELOPES.items()
        }
        handlers: dict[Any, Any] = {HTTPException: _unknown}
        self._app = Starlette(routes=self._routes(), lifespan=self._lifespan, exception_handlers=handlers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Starlette's router and middlewares would take longer than a prediction."""
        app: ASGIApp = self._app
        if scope["type"] == "http" and scope["method"] == "POST":
            path, scope["path_params"] = _matched(scope["path"])
            app = self._endpoints.get(path, app)
        await app(scope, receive, send)

    def _count(self, envelope: str, status: int, loaded: LoadedVersion | None) -> None:
        """Count a request to the model by its result, for monitoring."""
        version = loaded or self.watcher.current
        if version and self.log and self.log.sketches and envelope in _WATCHED:
            result = "answered" if status < 400 else refusal(status)
            self.log.sketches.count(version.identity.reference, result, time.time())

    def _routes(self) -> list[Route]:
        posts = [Route(path, endpoint, methods=["POST"]) for path, endpoint in self._endpoints.items()]
        about = "/v2/models/{model}"
        gets: dict[str, Callable[[Request], Response]] = {
            "/": lambda _: page(),
            "/openapi.json": lambda request: json_response(document(self.handler.version_for(request.path_params))),
            "/health": self._health,
            "/ready": self._ready,
            "/v1/models": self._models,
            "/ping": self._ready,
            "/version": lambda _: Response(_mlflow_version(), media_type="text/plain"),
            "/metrics": lambda _: Response(self._metrics(), media_type="text/plain; version=0.0.4"),
            "/v2": lambda _: json_response({"name": "ratchet", "version": "2", "extensions": EXTENSIONS}),
            "/v2/health/live": lambda _: json_response({"live": True}),
            "/v2/health/ready": self._ready,
            about: self._metadata,
            f"{about}/ready": self._model_ready,
            f"{about}/versions/{{version}}": self._metadata,
            f"{about}/versions/{{version}}/ready": self._model_ready,
        }
        posts.append(Route("/v1/explain", self.explaining, methods=["POST"]))
        posts.append(Route("/v1/labels", self.labels, methods=["POST"]))
        return posts + [Route(path, _guarded(function), methods=["GET"]) for path, function in gets.items()]

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        others = [each.watcher for each in (self.fallback, self.shadow, self.canary) if each]
        tasks = [asyncio.create_task(each.watch(every=self.settings.poll)) for each in (self.watcher, *others)]
        for watcher in (self.watcher, *([self.canary.watcher] if self.canary else [])):
            tasks.append(asyncio.create_task(self.explaining.warm(watcher, every=self.settings.poll)))
        if self.group:
            self._publish(self.group)
            tasks.append(asyncio.create_task(self._publish_often(self.group)))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self.log:  # first, since it has something to write
                self.log.close(self.settings.deadline)
            closed: list[Any] = [self.explaining, self.labels.worker, self.handler.worker]
            closed += [self.fallback, self.canary, self.batcher, self.shadow, self.watcher]
            for each in filter(None, closed):
                each.close()

    async def _publish_often(self, group: SharedStates) -> None:
        while True:
            await asyncio.sleep(EVERY)
            self._publish(group)

    def _publish(self, group: SharedStates) -> Snapshot:
        """Show the state of this process to the others, and return its metrics."""
        metrics = self.metrics.snapshot(group.earlier.get("metrics", []))
        group.publish({"state": self._own_state(), "metrics": metrics})
        return metrics

    def _metrics(self) -> bytes:
        """Return the metrics of all processes."""
        if self.group is None:
            return self.metrics.text()
        own, others = self._publish(self.group), self.group.others().values()
        metrics = [(each.get("metrics", []), each["late"]) for each in others]
        return text_of([own, *(not_ready(each) if is_late else each for each, is_late in metrics)])

    def _health(self, _: Request) -> Response:
        return json_response({"status": "live", **self._state()})

    def _ready(self, _: Request) -> Response:
        return json_response(self._state(), status=200 if self.watcher.current else 503)

    def _state(self) -> dict[str, Any]:
        """Return the state of this process, with problems of the others, and each one's version."""
        own = self._own_state()
        if self.group is None:
            return own
        others, problems = self.group.others(), [own["problem"]] if "problem" in own else []
        processes = {self.group.number: {"pid": os.getpid(), "version": own["version"]}}
        for number, other in others.items():
            state = other.get("state", {})
            problem = "it does not answer" if other["late"] else state.get("problem", "")
            problems += [f"process {number}: {problem}"] if problem and problem not in problems else []
            version = None if other["late"] else state.get("version")
            processes[number] = {"pid": other.get("pid"), "version": version}
            own = {key: state[key] for key in ("refused", "withdrawn") if key in state} | own
        own["processes"] = [processes[number] for number in sorted(processes)]
        return own | ({"problem": "; ".join(problems)} if problems else {})

    def _own_state(self) -> dict[str, Any]:
        problems = [self.watcher.problem, self.log.problem if self.log else "", *(each() for each in self.problems)]
        if self.fallback:
            problems.append(self.fallback.problem(self.watcher.current))
        if self.canary:
            problems.append(self.canary.problem(self.watcher.current))
        loaded, problem = self.watcher.current, "; ".join(problem for problem in problems if problem)
        state: dict[str, Any] = {"ready": loaded is not None, "version": str(loaded.identity) if loaded else None}
        refused = {"refused": self.watcher.refused} if self.watcher.refused else {}
        if self.canary and self.canary.withdrawn:
            state["withdrawn"] = {"canary": self.canary.state["version"], "reason": self.canary.withdrawn}
        return state | refused | ({"problem": problem} if problem else {})

    def _model_ready(self, request: Request) -> Response:
        return json_response({"name": self.handler.version_for(request.path_params).identity.model, "ready": True})

    def _metadata(self, request: Request) -> Response:
        return json_response(metadata(self.handler.version_for(request.path_params)))

    def _models(self, request: Request) -> Response:
        loaded = self.handler.version_for(request.path_params)
        identity = loaded.identity
        about: dict[str, Any] = {
            "model": identity.model,
            "version": identity.version,
            "provenance": identity.provenance,
            "follows": self.watcher.reference,
            "input": loaded.spec.input.description,
            "target": loaded.spec.target.description,
            "engine": loaded.engine,
            "variant": identity.variant,
            "problem": self.watcher.problem or None,
        }
        if self.shadow:
            about["shadow"] = str(self.shadow.version.identity) if self.shadow.version else None
            about["shadow_problem"] = self.shadow.problem(loaded) or None
        if self.canary:
            about["canary"] = self.canary.state
        return json_response({"models": [about]})


def asks_model(path: str) -> bool:
    """Return whether a POST to this path asks the model."""
    return _NAMES.get(_matched(path)[0], "labels") != "labels"


def envelope_of(scope: Scope) -> str:
    """Return the request format by method and path, for metrics; "other" is the page, health, or an unknown path."""
    return _NAMES.get(_matched(scope["path"])[0], "other") if scope.get("method") == "POST" else "other"


@lru_cache
def _matched(path: str) -> tuple[str, dict[str, str | None]]:
    """Return the path of the endpoint that answers a path, and the parameters of it."""
    match = _INFER.fullmatch(path)
    return ("/v2/models/{model}/infer", match.groupdict()) if match else (path, {})


def _log(log: RequestLog, columns: Sequence[str], answered: ServedRequest) -> None:
    def logged() -> Logged:
        answer, request, loaded = answered.answer, answered.request, answered.loaded
        inputs: dict[str, NDArray[Any] | tuple[str, ...]] = {"prompt": request.prompts}
        if request.arrays:
            inputs = dict(zip(loaded.names, request.arrays, strict=True))
        identity = answer.loaded.identity
        return Logged(
            answer.id,
            answered.began,
            answered.seconds,
            answered.call.envelope,
            identity.model,
            identity.version,
            identity.provenance or "",
            answered.call.key,
            inputs,
            answer.predictions,
            target_id(answer.loaded.spec.target),
            partial(loaded.kind.columns, request.arrays, loaded.spec.input, columns) if columns else dict,
            answer.instead or MODEL,
            loaded.identity.reference,
            loaded.spec,
            loaded.reference,
            request.texts,
        )

    log.add(answered.answer.id, logged)


def _guarded(function: Callable[[Request], Response]) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    async def guarded(request: Request) -> Response:
        try:
            return function(request)
        except Refused as error:
            return error_response(error)

    return guarded


async def _unknown(request: Request, error: HTTPException) -> Response:
    """Refuse a path or a method that no route has, as JSON like all refusals."""
    path, headers = request.url.path[:100], dict(error.headers or {})
    if error.status_code == 405:
        return error_response(Refused(405, f"{request.method} {path}; allowed: {headers.get('Allow', '')}", headers))
    return error_response(Refused(error.status_code, f"{path}: unknown path; /openapi.json lists them", headers))


def _mlflow_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("mlflow")
    except PackageNotFoundError:  # of an offline bundle
        raise Refused(404, "MLflow is not installed where this server runs") from None
