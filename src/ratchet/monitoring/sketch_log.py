"""Sketches that a server makes of what it is asked, beside its request log. So inputs need not be kept to find drift.

Each process has a file for each hour, which is written whole every few seconds; a killed server loses the last ones.
A sketch is of a slot: minutes of which each window has a whole number. The bins of a version come with its files; else
its first rows make them. The first process that needs them stores them for all.
"""

import json
import logging
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from ratchet import files
from ratchet.monitoring.features import Features, features_of, joined
from ratchet.monitoring.sketch import Reference, WindowSketch, layout_of
from ratchet.traffic.log_reader import set_aside, stored_files
from ratchet.traffic.retention import delete_excess, delete_old, time_of
from ratchet.traffic.schema import MODEL, SHADOW, Logged
from ratchet.typed_json import parse, to_plain

__all__ = ["SketchLog", "first_hour", "read_reference", "read_sketches", "sketch_folder"]

_LOG = logging.getLogger(__name__)
_MINUTES = 5  # of a slot, at most
_HOUR = 3600
_LEAST = 200  # rows that make bins
_MOST = 500  # rows of a slot after which inputs are not counted until the next write
_AT_ONCE, _LARGE = 64, 1 << 20  # requests whose features are computed together; bytes of one that is not kept for that
_OPEN = 2 * _HOUR  # seconds after which an hour gets a new file
_REPEATED, _DISTINCT = 60.0, 64  # seconds until an equal request is a new one; bytes of inputs that are rarely equal


def sketch_folder(requests: Path) -> Path:
    """Return the folder of the sketches beside that of the request log."""
    return requests.parent / "sketches"


class SketchLog:
    """The sketches of one server process. `count` may be called in any thread, the others in that of the log."""

    def __init__(self, requests: Path, *, window: int) -> None:
        """Write beside the request log in `requests`. `window`: minutes of the windows."""
        self.folder, self._slot = sketch_folder(requests), math.gcd(window, _MINUTES) * 60
        self._lock, self._requests = threading.Lock(), Counter[tuple[str, int, str]]()
        self._groups: dict[tuple[str, int], list[Logged]] = {}  # by version and slot
        self._pending: dict[str, list[tuple[int, Features]]] = {}  # by version: features that are not counted yet
        self._rows, self._inputs = Counter[str](), Counter[tuple[str, int]]()  # of pending features
        self._bins: dict[str, Reference] = {}
        self._sketches: dict[int, dict[tuple[str, int], WindowSketch]] = {}  # by hour, then version and slot
        self._paths: dict[int, Path] = {}
        self._latest: dict[tuple[str, str], tuple[int, float]] = {}  # request of each key: hash and time

    def count(self, version: str, result: str, at: float) -> None:
        """Count a request of a version by its result."""
        with self._lock:
            self._requests[version, self._start(at), result] += 1

    def take(self, requests: Sequence[Logged]) -> None:
        """Take answered requests. Their arrays are let go after some requests, and by `write`."""
        counts = Counter[tuple[str, int, str]]()
        for request in requests:
            if request.envelope == SHADOW:
                continue
            version, start = request.served or f"{request.model}/{request.version}", self._start(request.time)
            counts[version, start, "logged"] += 1
            if request.source != MODEL:
                counts[version, start, request.source] += 1
            elif self._is_repeated(version, request, content := _content(request)):
                counts[version, start, "repeated"] += 1
            else:
                group = self._groups.setdefault((version, start), [])
                group.append(request)
                if len(group) == _AT_ONCE or len(content) > _LARGE:
                    self._read(version, start, self._groups.pop((version, start)))
        with self._lock:
            self._requests += counts

    def _read(self, version: str, start: int, group: list[Logged]) -> None:
        """Compute the features of requests, which are counted later."""
        answers = joined([request.predictions for request in group])
        inputs: dict[str, Any] = {}
        if self._inputs[version, start] < _MOST or not isinstance(answers, np.ndarray):
            inputs = {name: joined([request.inputs[name] for request in group]) for name in group[0].inputs}
        if group[0].reference is not None and version not in self._bins:
            self._stored_bins(version, group[0].reference)
        self._pending.setdefault(version, []).append((start, features_of(answers, inputs, group[0].spec)))
        self._rows[version] += len(answers)
        self._inputs[version, start] += len(answers)

    def write(self, *, is_last: bool = False) -> None:
        """Count what was taken, and write the files that changed."""
        while self._groups:
            (version, start), group = self._groups.popitem()
            self._read(version, start, group)
        added: list[WindowSketch] = []
        for version in [*self._pending]:
            if is_last or self._rows[version] >= _LEAST or self._known_bins(version):
                bins = self._known_bins(version) or self._made_bins(version)
                del self._rows[version]
                for start, features in self._pending.pop(version):
                    counts = {
                        each.name: each.count(features[each.name]) for each in bins.layouts if each.name in features
                    }
                    added.append(WindowSketch(version, start, len(next(iter(features.values()))), counts))
        self._inputs.clear()
        with self._lock:
            requests, self._requests = self._requests, Counter()
        added += [WindowSketch(version, at, requests={name: n}) for (version, at, name), n in requests.items()]
        for sketch in added:
            hour = self._sketches.setdefault(sketch.start // _HOUR * _HOUR, {})
            key = (sketch.version, sketch.start)
            hour[key] = hour[key] + sketch if key in hour else sketch
        for start in {sketch.start // _HOUR * _HOUR for sketch in added}:
            self._write_hour(start)
        for start in [start for start in self._sketches if start + _OPEN < max(self._sketches)]:
            del self._sketches[start]
            self._paths.pop(start)

    def tidy(self, *, days: float, mib: float, now: float) -> None:
        """Delete what is too old or too much."""
        delete_old(self.folder, _sketch_files(self.folder), days=days, now=now)
        delete_excess(_sketch_files(self.folder), mib=mib)

    def _start(self, at: float) -> int:
        return int(at // self._slot) * self._slot

    def _write_hour(self, start: int) -> None:
        if start not in self._paths:
            hour = time.strftime("%Y-%m-%dT%H", time.gmtime(start))
            self._paths[start] = self.folder / f"{hour}.{time.time_ns()}-{os.getpid()}.json"
        content = [to_plain(sketch) for sketch in self._sketches[start].values()]
        files.write_bytes(self._paths[start], json.dumps(content, separators=(",", ":")).encode(), private=True)

    def _is_repeated(self, version: str, request: Logged, content: bytes) -> bool:
        """Return whether the request is the same as the one before of its API key, as a client sends it again."""
        if len(content) < _DISTINCT:
            return False
        latest, before = (hash(content), request.time), self._latest.get((version, request.key))
        self._latest[version, request.key] = latest
        return before is not None and before[0] == latest[0] and abs(latest[1] - before[1]) < _REPEATED

    def _known_bins(self, version: str) -> Reference | None:
        if version not in self._bins and (stored := read_reference(self.folder, version)):
            self._bins[version] = stored
        return self._bins.get(version)

    def _made_bins(self, version: str) -> Reference:
        """Return bins that the first rows of a version make."""
        values: dict[str, list[Any]] = {}
        for _, features in self._pending[version]:
            for name, column in features.items():
                values.setdefault(name, []).append(column)
        return self._store(version, Reference([layout_of(name, np.concatenate(each)) for name, each in values.items()]))

    def _stored_bins(self, version: str, path: Path) -> None:
        if path.exists() and not self._known_bins(version):
            self._store(version, parse(Reference, path.read_bytes()))

    def _store(self, version: str, reference: Reference) -> Reference:
        """Store the bins for all processes, unless another one has done it; return those that are stored."""
        path = _bins_path(self.folder, version)
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name("lock")):
            if not path.exists():
                files.write_bytes(path, json.dumps(to_plain(reference)).encode(), private=True)
        self._bins[version] = parse(Reference, path.read_bytes())
        return self._bins[version]


def _content(request: Logged) -> bytes:
    """Return the bytes of the arrays."""
    return b"".join([values.tobytes() for values in request.inputs.values() if isinstance(values, np.ndarray)])


def read_reference(folder: Path, version: str) -> Reference | None:
    """Return the stored bins of a version; None: it has none yet. A damaged file is set aside, and made again."""
    path = _bins_path(folder, version)
    try:
        return parse(Reference, path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        set_aside(path, str(error))
        return None


def first_hour(folder: Path) -> int | None:
    """Return the start of the oldest hour of sketches, in seconds since 1970; None: there is none."""
    return min((int(time_of(path)) - _HOUR for path in _sketch_files(folder)), default=None)


def read_sketches(folder: Path, begin: int, end: int, *, window: int) -> Iterator[WindowSketch]:
    """Yield the sketches of windows from `begin` to `end`, in the order of their starts and versions.

    Args:
        begin, end: seconds since 1970; both are starts of windows.
        window: seconds.
    """
    windows: dict[tuple[int, str], WindowSketch] = {}
    for path in _sketch_files(folder):
        if not begin - _HOUR < time_of(path) - _HOUR < end:
            continue
        for sketch in _read_file(path):
            start = sketch.start // window * window
            if begin <= start < end:
                key = (start, sketch.version)
                windows[key] = windows.get(key, WindowSketch(sketch.version, start)) + sketch
    yield from (windows[key] for key in sorted(windows))


def _read_file(path: Path) -> list[WindowSketch]:
    """Return the sketches of a file; none of one that is damaged, which is set aside, or was deleted meanwhile."""
    try:
        return parse(list[WindowSketch], path.read_bytes())
    except FileNotFoundError:
        return []
    except ValueError as error:
        set_aside(path, str(error))
        return []


def _sketch_files(folder: Path) -> list[Path]:
    return [path for path in stored_files(folder, "*.json") if path.name[:1].isdigit()]


def _bins_path(folder: Path, version: str) -> Path:
    return folder / "bins" / f"{version.replace('/', '-')}.json"
