"""Progress of a service that starts: a busy machine may make it slow, but it computes."""

import time

import psutil

from ratchet.servers.supervisor import Service

__all__ = ["StartProgress", "cpu_seconds"]

_BUSY = 0.05  # share of one core below which a process only waits


class StartProgress:
    """Watches services that are not up yet, in periods of so many seconds."""

    def __init__(self, period: float) -> None:
        self._period = period
        self._marks: dict[str, tuple[float, float]] = {}  # start of the period and CPU seconds until then, by service

    def has_ended(self, service: Service) -> bool:
        """Return whether the service has computed next to nothing for a whole period."""
        now, used = time.monotonic(), cpu_seconds(service.pid)
        began, before = self._marks.setdefault(service.name, (now, used))
        if now - began < self._period:
            return False
        self._marks[service.name] = now, used
        return used - before < _BUSY * self._period


def cpu_seconds(pid: int | None) -> float:
    """Return the CPU time of a process and its children so far; 0 if it does not run."""
    try:
        root = psutil.Process(pid or 0)
        return sum(sum(process.cpu_times()[:2]) for process in (root, *root.children(recursive=True)))
    except psutil.Error:
        return 0.0
