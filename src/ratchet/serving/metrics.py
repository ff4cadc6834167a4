"""Metrics of the model server for Prometheus."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ratchet.serving.versions.batching import Batcher
from ratchet.serving.versions.following import Fixed, Follower
from ratchet.serving.versions.loaded import SIZES

if TYPE_CHECKING:
    from ratchet.serving.shadow import Shadow
    from ratchet.serving.versions.loaded import LoadedVersion

__all__ = ["Metrics"]

_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # seconds


class Metrics:
    """Counters and times of requests, and the state of the queue and of the version."""

    def __init__(self, follower: Follower | Fixed, batcher: Batcher) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter("ratchet_requests", "Requests by envelope, status and version",
                                 ["envelope", "status", "model", "version"], registry=self.registry)  # fmt: skip
        self._seconds = Histogram("ratchet_request_seconds", "Seconds from request to answer",
                                  ["envelope", "model", "version"], registry=self.registry,
                                  buckets=_BUCKETS)  # fmt: skip
        self._children: dict[tuple[str, int, str, str], tuple[Counter, Histogram]] = {}
        sizes = Histogram("ratchet_batch_rows", "Rows of a batch", registry=self.registry, buckets=SIZES)
        batcher.computed = sizes.observe
        waiting = Gauge("ratchet_waiting_rows", "Rows that wait for the model", registry=self.registry)
        waiting.set_function(lambda: batcher.waiting)
        ready = Gauge("ratchet_ready", "1 if a version answers", registry=self.registry)
        ready.set_function(lambda: float(follower.current is not None))

    def count_lost(self, lost: Callable[[], float]) -> None:
        """Show the requests that the log could not take."""
        gauge = Gauge("ratchet_log_lost_requests", "Requests that the log could not take", registry=self.registry)
        gauge.set_function(lost)

    def count_dropped(self, shadow: "Shadow") -> None:
        """Show the requests that the shadow version was too slow for."""
        gauge = Gauge(
            "ratchet_shadow_dropped_requests", "Requests that the shadow version left out", registry=self.registry
        )
        gauge.set_function(lambda: float(shadow.dropped))

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

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self.registry)
