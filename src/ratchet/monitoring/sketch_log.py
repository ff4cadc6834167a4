"""Sketches that a server makes of what it is asked, beside its request log. So inputs need not be kept to find drift.

Each process has a file for each hour, which is written whole every few seconds; a killed server loses the last ones.
A sketch is of a slot: minutes of which each window has a whole number. The bins of a version come with its files; else
its first rows make them. The first process that needs them stores them for all. Each sketch names its bins by a digest.
"""

import contextlib
import hashlib
import json
import logging
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from ratchet import files
from ratchet.monitoring.features import Features, features_of, joined
from ratchet.monitoring.sketch import Reference, WindowSketch, layout_of
from ratchet.traffic.log_reader import set_aside, stored_files
from ratchet.traffic.retention import delete_excess, delete_old, time_of
from ratchet.traffic.schema import MODEL, SHADOW, Logged
from ratchet.typed_json import parse, to_plain

__all__ = ["SketchLog", "counted", "first_hour", "read_reference", "read_sketches", "sketch_folder"]

_LOG = logging.getLogger(__name__)
_MINUTES = 5  # of a slot, at most
_HOUR = 3600
_LEAST = 200  # rows that make bins
_MOST = 500  # rows of a slot after which inputs are not counted until the next write
_AT_ONCE, _LARGE = 64, 8 << 20  # requests, and about the bytes, whose features are computed together
_OPEN = 3  # hours that were used last; another one gets a new file
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
        self._waiting: dict[str, list[tuple[int, int, Features]]] = {}  # slot, requests and features, until bins
        self._inputs = Counter[tuple[str, int]]()  # rows since the latest write
        self._bins: dict[str, tuple[str, Reference]] = {}  # by version, with their digest
        self._sketches: dict[int, dict[tuple[str, int], WindowSketch]] = {}  # by hour, the latest used last
        self._changed, self._paths = set[int](), dict[int, Path]()
        self._first: dict[tuple[str, str], tuple[int, float]] = {}  # of equal requests of a key: hash and time
        self._faults: dict[str, str] = {}  # by version

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
            version, start = request.watched, self._start(request.time)
            counts[version, start, "logged"] += 1
            if request.source != MODEL:
                counts[version, start, request.source] += 1
            elif self._is_repeated(version, request, content := _content(request)):
                counts[version, start, "repeated"] += 1
            else:
                group = self._groups.setdefault((version, start), [])
                group.append(request)
                if len(group) == _AT_ONCE or len(group) * len(content) > _LARGE:
                    self._read(version, start, self._groups.pop((version, start)))
        with self._lock:
            self._requests += counts

    def _read(self, version: str, start: int, group: list[Logged]) -> None:
        """Count the rows of requests, at once or when the version has bins."""
        features: Features = {}
        waiting = self._waiting.pop(version, [])
        waiting.append((start, len(group), features))
        try:
            features |= self._features(version, start, group)
            if bins := self._bins_of(version, group[0].reference, [each for _, _, each in waiting]):
                for sketch in [counted(version, at, each, *bins) for at, _, each in waiting]:
                    self._add(sketch)
            else:
                self._waiting[version] = waiting
        except Exception as error:  # of a version's features, or of the disk: other versions are counted
            for at, number, _ in waiting:
                self._add(WindowSketch(version, at, requests={"not counted": number}))
            if self._faults.get(version) != str(error):
                _LOG.error("%s: requests cannot be counted to find drift: %s", version, error)
            self._faults[version] = str(error)

    def _features(self, version: str, start: int, group: list[Logged]) -> Features:
        answers = joined([request.predictions for request in group])
        inputs: dict[str, Any] = {}
        if self._inputs[version, start] < _MOST or not isinstance(answers, np.ndarray):
            inputs = {name: joined([request.inputs[name] for request in group]) for name in group[0].inputs}
        self._inputs[version, start] += len(answers)
        return features_of(answers, inputs, group[0].spec)

    def _add(self, sketch: WindowSketch) -> None:
        start, key = sketch.start // _HOUR * _HOUR, (sketch.version, sketch.start)
        hour = self._sketches[start] = self._sketches.pop(start, {})
        hour[key] = hour[key] + sketch if key in hour else sketch
        self._changed.add(start)

    def write(self) -> None:
        """Count what was taken, and write the files that changed. Rows of a version without bins wait."""
        for start in [*self._sketches][:-_OPEN]:  # a clock that was ahead must not close the hours after it
            del self._sketches[start]
            self._changed.discard(start)
            self._paths.pop(start, None)
        while self._groups:
            (version, start), group = self._groups.popitem()
            self._read(version, start, group)
        self._inputs.clear()
        with self._lock:
            requests, self._requests = self._requests, Counter()
        for (version, at, name), number in requests.items():
            self._add(WindowSketch(version, at, requests={name: number}))
        for start in sorted(self._changed):
            self._write_hour(start)
            self._changed.remove(start)

    def tidy(self, *, days: float, mib: float, now: float) -> None:
        """Delete what is too old or too much."""
        drafts = [path for name in (".", "bins") for path in (self.folder / name).glob(f"{files.DRAFT}*")]
        paths = [*stored_files(self.folder, "[0-9]*.json*", "bins/*.json*"), *drafts]
        delete_old(self.folder, paths, days=days, now=now)
        delete_excess(_sketch_files(self.folder), mib=mib, now=now)

    def _start(self, at: float) -> int:
        return int(at // self._slot) * self._slot

    def _write_hour(self, start: int) -> None:
        if start not in self._paths:
            hour = time.strftime("%Y-%m-%dT%H", time.gmtime(start))
            self._paths[start] = self.folder / f"{hour}.{time.time_ns()}-{os.getpid()}.json"
            for version, (digest, _) in self._bins.items():  # still in use: not deleted
                with contextlib.suppress(FileNotFoundError):
                    os.utime(_bins_path(self.folder, version, digest))
        content = [to_plain(sketch) for sketch in self._sketches[start].values()]
        files.write_bytes(self._paths[start], json.dumps(content, separators=(",", ":")).encode(), private=True)

    def _is_repeated(self, version: str, request: Logged, content: bytes) -> bool:
        """Return whether the API key has sent an equal request less than a minute before, and no other since."""
        if len(content) < _DISTINCT:
            return False
        number, before = hash(content), self._first.get((version, request.key))
        if before is not None and before[0] == number and abs(request.time - before[1]) < _REPEATED:
            return True
        self._first[version, request.key] = number, request.time
        return False

    def _bins_of(self, version: str, own: Path | None, waiting: list[Features]) -> tuple[str, Reference] | None:
        """Return the bins of a version with their digest: its own, those that another process made, or new ones."""
        if version in self._bins:
            return self._bins[version]
        folder = self.folder / "bins"
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / "lock"):
            if own is not None and own.exists():
                reference = parse(Reference, own.read_bytes())
            elif (before := self._made_before(version, waiting[-1])) is not None:
                reference = before
            elif sum(map(_rows, waiting)) >= _LEAST:
                reference = _made(waiting)
            else:
                return None
            content = json.dumps(to_plain(reference)).encode()
            digest = hashlib.sha256(content).hexdigest()[:16]
            files.write_bytes(_bins_path(self.folder, version, digest), content, private=True)
        self._bins[version] = digest, reference
        return self._bins[version]

    def _made_before(self, version: str, features: Features) -> Reference | None:
        """Return the latest bins that the first rows of a version made, if they are for these features."""
        paths = stored_files(self.folder, _bins_path(Path(), version, "*").as_posix())
        for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns, reverse=True):
            reference = _read_bins(path)
            if (
                reference
                and not reference.counts
                and {*features} <= {each.name for each in reference.fitting(features)}
            ):
                return reference
        return None


def counted(version: str, start: int, features: Features, digest: str, bins: Reference) -> WindowSketch:
    """Return a sketch of rows in the bins of a version. `digest`: of the bins."""
    counts = {each.name: each.count(features[each.name]) for each in bins.fitting(features)}
    return WindowSketch(version, start, _rows(features), counts, bins=digest)


def _rows(features: Features) -> int:
    return len(next(iter(features.values())))


def _made(waiting: list[Features]) -> Reference:
    """Return bins that the first rows of a version make. Their ends are no values of single rows."""
    values: dict[str, list[NDArray[Any]]] = {}
    for features in waiting:
        for name, column in features.items():
            values.setdefault(name, []).append(column)
    return Reference([layout_of(name, np.concatenate(each), has_ends=False) for name, each in values.items()])


def _content(request: Logged) -> bytes:
    """Return the bytes of the arrays."""
    return b"".join([values.tobytes() for values in request.inputs.values() if isinstance(values, np.ndarray)])


def read_reference(folder: Path, version: str, digest: str) -> Reference | None:
    """Return the bins of a version with a digest; None: they were deleted or are damaged."""
    return _read_bins(_bins_path(folder, version, digest))


def _read_bins(path: Path) -> Reference | None:
    """Return stored bins; None: there are none. A damaged file is set aside, and made again."""
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
        sketches = parse(list[WindowSketch], path.read_bytes())
    except FileNotFoundError:
        return []
    except ValueError as error:
        set_aside(path, str(error))
        return []
    # An older release did not name the bins.
    return [each if each.bins else replace(each, rows=0, counts={}) for each in sketches]


def _sketch_files(folder: Path) -> list[Path]:
    return [path for path in stored_files(folder, "*.json") if path.name[:1].isdigit()]


def _bins_path(folder: Path, version: str, digest: str) -> Path:
    return folder / "bins" / f"{version.replace('/', '-')}.{digest}.json"
