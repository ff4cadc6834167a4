"""Metrics of the model server for Prometheus."""

import time
from collections import Counter as Tally
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ratchet.serving.versions.alias_watcher import AliasWatcher, PinnedVersion
from ratchet.serving.versions.batching import Batcher
from ratchet.serving.versions.loaded import SIZES

if TYPE_CHECKING:
    from ratchet.serving.handler import ServedRequest
    from ratchet.serving.versions.loaded import LoadedVersion

__all__ = ["Meter", "ServerMetrics", "Snapshot", "not_ready", "text_of"]

_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)  # seconds
_READY, _READY_HELP = "ratchet_ready", "1 if a version answers"
_LEAST = (_READY, "process_start_time_seconds")  # of several processes the least counts, not the sum
_MOST = ("ratchet_version_info", "ratchet_version_refused")
_LEFT = 499  # status of a request whose client left before the answer
_FAILED = 500
_NO_WEBSOCKET = 403

Snapshot = list[Any]
"""Metrics of one process as JSON: lists of name, description, type, and samples, each a list of name, labels, value."""


class ServerMetrics:
    """Counters and times of requests, the state of the queue and of the version, and the process.

    Attributes:
        observers: called with envelope, status and version of each request, in the event loop.
        totals: functions that return how often something happened, by the metric's name and description.
        watchers: of the served version, and of those beside it.
    """

    def __init__(self, watcher: AliasWatcher | PinnedVersion, batcher: Batcher, *, deadline: float) -> None:
        """Create the metrics. `deadline`: seconds; it is a limit of a bucket, so that late answers are seen."""
        self.registry = CollectorRegistry()
        self.observers: list[Callable[[str, int, LoadedVersion | None], None]] = []
        self.totals: dict[tuple[str, str], Callable[[], int]] = {}
        count, seconds = "Requests by envelope, status and version", "Seconds from request to answer"
        works, waits = "Requests that the server works on", "Requests that wait until the server begins with them"
        by, registry, buckets = ("envelope", "model", "version"), self.registry, sorted({*_BUCKETS, deadline})
        self._requests = Counter("ratchet_requests", count, ("envelope", "status", *by[1:]), registry=registry)
        self._seconds = Histogram("ratchet_request_seconds", seconds, by, registry=registry, buckets=buckets)
        self.in_flight = Gauge("ratchet_requests_in_flight", works, registry=registry)
        self.waiting = Gauge("ratchet_waiting_requests", waits, registry=registry)
        self.refused: Tally[tuple[str, int]] = Tally()  # requests by envelope and status, refused before they began
        self._children: dict[tuple[str, int, str, str], tuple[Counter, Histogram]] = {}
        labels = ["reason", "model", "version"]
        unlike = "Warnings about rows unlike the training samples, by reason"
        self._warnings = Counter("ratchet_input_warnings", unlike, labels, registry=self.registry)
        sizes = Histogram("ratchet_batch_rows", "Rows of a batch", registry=self.registry, buckets=SIZES)
        batcher.computed = sizes.observe
        self.watchers = [watcher]
        self.registry.register(_State(self.watchers, batcher, self.totals))
        ProcessCollector(registry=self.registry)

    def count(self, envelope: str, status: int, seconds: float, loaded: "LoadedVersion | None") -> None:
        """Count one request, by the version that was to answer it."""
        model, version = (loaded.identity.model, loaded.identity.version) if loaded else ("", "")
        key = (envelope, status, model, version)
        if key not in self._children:  # looking up a label takes longer than counting
            labels = (model, version)
            self._children[key] = (
                self._requests.labels(envelope, str(status), *labels),
                self._seconds.labels(envelope, *labels),
            )
        requests, duration = self._children[key]
        requests.inc()
        duration.observe(seconds)
        for observer in self.observers:
            observer(envelope, status, loaded)

    def count_warnings(self, answered: "ServedRequest") -> None:
        """Count the warnings of an answer."""
        identity = answered.loaded.identity
        for reason, number in Tally(warning.reason for warning in answered.request.warnings).items():
            self._warnings.labels(reason, identity.model, identity.version).inc(number)

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        self._count_refused()
        return generate_latest(self.registry)

    def snapshot(self, earlier: Snapshot) -> Snapshot:
        """Return all metrics, added to the counters of the process before this one."""
        self._count_refused()
        return _snapshot(_sum([_snapshot(self.registry.collect()), _counters(earlier)]))

    def _count_refused(self) -> None:
        for (envelope, status), number in self.refused.items():
            self._requests.labels(envelope, str(status), "", "").inc(number)
        self.refused.clear()


def not_ready(snapshot: Snapshot) -> Snapshot:
    """Return the metrics of a process that does not answer, from its latest ones: its counters stay true."""
    return [*_counters(snapshot), [_READY, _READY_HELP, "gauge", [[_READY, {}, 0.0]]]]


def text_of(snapshots: Iterable[Snapshot]) -> bytes:
    """Return the metrics of all processes in Prometheus's text format."""
    whole = CollectorRegistry()
    whole.register(_Fixed(_sum(snapshots)))
    return generate_latest(whole)


def _counters(snapshot: Snapshot) -> Snapshot:
    return [family for family in snapshot if family[2] in ("counter", "histogram")]


def _snapshot(metrics: Iterable[Metric]) -> Snapshot:
    return [
        [
            each.name,
            each.documentation,
            each.type,
            [[sample.name, sample.labels, sample.value] for sample in each.samples],
        ]
        for each in metrics
    ]


def _sum(snapshots: Iterable[Snapshot]) -> list[Metric]:
    families: dict[str, tuple[Metric, dict[tuple[str, tuple[tuple[str, str], ...]], float]]] = {}
    for name, description, kind, samples in (family for snapshot in snapshots for family in snapshot):
        _, values = families.setdefault(name, (Metric(name, description, kind), {}))
        for sample, labels, value in samples:
            key = (sample, tuple(labels.items()))
            if key not in values:
                values[key] = value
            elif name in _LEAST or sample.endswith("_created"):
                values[key] = min(values[key], value)
            else:
                values[key] = max(values[key], value) if name in _MOST else values[key] + value
    for metric, values in families.values():
        for (sample, labels), value in values.items():
            metric.add_sample(sample, dict(labels), value)
    return [metric for metric, _ in families.values()]


class _Fixed(Collector):
    """Returns metrics that were collected before."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        """Return the metrics."""
        return self._metrics

    def describe(self) -> list[Metric]:
        """Return no names, since no other collector is there."""
        return []


class _State(Collector):
    """Collects the state of the version and of the queue when Prometheus asks."""

    def __init__(
        self,
        watchers: list[AliasWatcher | PinnedVersion],
        batcher: Batcher,
        totals: dict[tuple[str, str], Callable[[], int]],
    ) -> None:
        self._watchers, self._batcher, self._totals = watchers, batcher, totals

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        loaded, refused = self._watchers[0].current, sorted({each.refused for each in self._watchers} - {""})
        yield GaugeMetricFamily("ratchet_waiting_rows", "Rows that wait for the model", self._batcher.waiting)
        yield GaugeMetricFamily(_READY, _READY_HELP, float(loaded is not None))
        version = GaugeMetricFamily("ratchet_version_info", "Version that answers", labels=("model", "version"))
        if loaded:
            version.add_metric((loaded.identity.model, loaded.identity.version), 1.0)
        yield version
        family = GaugeMetricFamily(
            "ratchet_version_refused",
            "1 for each version that a reference names and cannot be served",
            labels=["refused"],
        )
        for name in refused or [""]:
            family.add_metric((name,), float(bool(name)))
        yield family
        for (name, description), total in self._totals.items():
            yield CounterMetricFamily(name, description, total())


class Meter:
    """ASGI application that counts each request to another one, whatever refuses it.

    `scope["ratchet.loaded"]` is the version that was to answer, if the request came so far.
    """

    def __init__(self, app: ASGIApp, metrics: ServerMetrics, envelope: Callable[[Scope], str]) -> None:
        """Wrap `app`. `envelope` returns the request format by method and path."""
        self._app, self._metrics, self._envelope = app, metrics, envelope

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on one request, and count it when its answer begins."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        began, status = scope.get("ratchet.began") or time.monotonic(), 0

        def counted(message: Message) -> Awaitable[None]:
            nonlocal status
            kind = message["type"]
            if not status and (kind.endswith("http.response.start") or kind == "websocket.close"):
                status = message.get("status", _NO_WEBSOCKET)
                self._count(scope, status, began)
            return send(message)

        self._metrics.in_flight.inc()
        try:
            await self._app(scope, receive, counted)
            if not status:
                self._count(scope, _LEFT, began)
        except Exception:  # the protocol answers
            if not status:
                self._count(scope, _FAILED, began)
            raise
        finally:
            self._metrics.in_flight.dec()

    def refuse(self, status: int, path: str | None = None) -> None:
        """Count a request that is refused before there is a scope: bad HTTP, or a POST while the server is busy.

        That must be cheap, and these requests have no seconds.
        """
        envelope = "http" if path is None else self._envelope({"method": "POST", "path": path})
        self._metrics.refused[envelope, status] += 1

    def _count(self, scope: Scope, status: int, began: float) -> None:
        seconds = time.monotonic() - began
        self._metrics.count(self._envelope(scope), status, seconds, scope.get("ratchet.loaded"))
