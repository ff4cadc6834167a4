"""A smaller version that answers while the served one is overloaded."""

from ratchet.kinds.registry import takes_equal
from ratchet.serving.versions.alias_watcher import AliasWatcher
from ratchet.serving.versions.batching import Batcher
from ratchet.serving.versions.loaded import LoadedVersion

__all__ = ["Fallback"]


class Fallback:
    """The version of serving.fallback, with a queue and a thread of its own."""

    def __init__(self, watcher: AliasWatcher, *, queue_rows: int) -> None:
        self.watcher = watcher
        self.batcher = Batcher(queue_rows=queue_rows)

    def version_for(self, served: LoadedVersion) -> LoadedVersion | None:
        """Return the version if it takes the same arrays and predicts the same; else None."""
        loaded = self.watcher.current
        if loaded is None or self.problem(served):
            return None
        return loaded

    def problem(self, served: LoadedVersion | None) -> str:
        """Return why the fallback cannot answer instead of the served version; empty: it can."""
        loaded = self.watcher.current
        if loaded is None or served is None:
            return self.watcher.problem
        if not takes_equal(loaded.spec.input, served.spec.input) or loaded.spec.target != served.spec.target:
            return f"serving.fallback: {loaded.identity} has another input or target than {served.identity}"
        return ""

    def close(self) -> None:
        """Drop what waits, and delete the version's files."""
        self.batcher.close()
        self.watcher.close()
