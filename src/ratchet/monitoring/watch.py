"""Reference, scores and verdict of each version, in one file that is written whole.

All follows from the sketches in their order: judged at once or one by one, they give the same bits.
"""

import base64
import hashlib
import json
import logging
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from ratchet import files, settings
from ratchet.errors import PlatformError
from ratchet.monitoring.rule import RULE, SEASONS, DriftRule, DriftVerdict, Martingales, Watch, counts_of
from ratchet.monitoring.sketch import REQUESTS, FeatureBins, Reference, WindowSketch
from ratchet.monitoring.sketch_log import first_hour, read_reference, read_sketches, sketch_folder
from ratchet.settings.model import MonitoringSettings
from ratchet.traffic.log_reader import log_folder
from ratchet.typed_json import STRICT, parse, to_plain
from ratchet.workspace import Workspace

__all__ = [
    "Monitor",
    "State",
    "WatchedVersion",
    "advanced",
    "current_versions",
    "event_key",
    "monitor_of",
    "read_state",
]

_LOG = logging.getLogger(__name__)
_FORMAT = 2  # of the state; 1 had no bins of versions
_GRACE = 600  # seconds after its end at which a window closes
_RECENT = 86_400  # seconds before the open window in which late rows are counted
_WINDOWS, _ROWS = 5, 200  # of a reference, at least
_ANSWERED = [name == "answered" for name in REQUESTS.names]


@dataclass(frozen=True)
class WatchedVersion:
    """A version with its windows in the order in which they closed.

    Attributes:
        bins: digest of the bins in which its windows are counted; empty: none had rows.
        reference: bins, and counts from which scores are distances; None: it is not complete.
        first: number of its first windows that are the reference; 0: its test rows are.
        later: number of windows after them, up to an alarm.
        normal: sum of its first windows, from which the size of a change is measured.
        latest: the latest windows up to an alarm, or those that a reference may need.
        stored: arrays of the martingales, and `closed`: start, rows and late rows of the latest windows.
    """

    bins: str = ""
    reference: Reference | None = None
    first: int = 0
    later: int = 0
    normal: WindowSketch | None = None
    latest: list[WindowSketch] = field(default_factory=list)
    stored: dict[str, str] = field(default_factory=dict)
    verdict: DriftVerdict = field(default_factory=DriftVerdict)

    __pydantic_config__ = STRICT

    @property
    def layouts(self) -> list[FeatureBins]:
        """Bins of the features."""
        return [*(self.reference.layouts if self.reference else []), REQUESTS]

    @property
    def silent(self) -> list[str]:
        """Features of which the latest windows have no row, though they have rows. They get no bets."""
        windows = [window for window in self.latest if window.rows]
        return [each.name for each in self.layouts[:-1] if windows and not counts_of(each, windows).any()]

    @property
    def closed(self) -> NDArray[np.int64]:
        """Start, rows and late rows of its windows, (windows, 3)."""
        stored = self.stored.get("closed")
        return np.frombuffer(_unpacked(stored) if stored else b"", np.int64).reshape(-1, 3).copy()

    @property
    def evidence(self) -> list[float]:
        """Logarithm of the largest wealth after each judged window."""
        return np.frombuffer(_unpacked(self.stored["evidence"])).tolist() if "evidence" in self.stored else []


@dataclass(frozen=True)
class State:
    """All that is remembered between two runs.

    Attributes:
        rule: settings with which the windows were made; others apply after a restart.
        position: start of the first window that is not closed; None: the log was empty.
        versions: by NAME/VERSION.
        sent: keys of the events that were sent.
        format: of the file.
    """

    rule: DriftRule
    position: int | None = None
    versions: dict[str, WatchedVersion] = field(default_factory=dict)
    sent: list[str] = field(default_factory=list)
    format: int = _FORMAT

    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class _StateBefore:
    """Fields that the states of all releases have."""

    rule: DriftRule
    format: int = 1
    sent: list[str] = field(default_factory=list)


def read_state(workspace: Workspace) -> State | None:
    """Return the stored state; None: there is none. That of another release counts as empty.

    Raises:
        PlatformError: the file is damaged.
    """
    path = _path(workspace)
    try:
        content = path.read_bytes()
        before = parse(_StateBefore, content)
        if before.format == _FORMAT:
            return parse(State, content)
        _LOG.warning(
            "%s is of another release of Ratchet: `ratchet monitor` begins again, from the stored sketches", path
        )
        return State(before.rule, sent=before.sent)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise PlatformError(
            f"{path}: is damaged ({error}). Fix: `ratchet monitor --restart`, which begins with a new reference"
        ) from error


def current_versions(state: State) -> dict[str, WatchedVersion]:
    """Return the versions that answered in the latest window of their model, by name."""
    latest: dict[str, int] = {}
    ends: dict[str, int] = {}
    for name, version in state.versions.items():
        starts = version.closed[:, 0]
        closed = starts[starts < (state.position or 0)]  # not of a clock ahead
        ends |= {name: int(closed.max())} if len(closed) else {}
    for name, end in ends.items():
        model = name.rpartition("/")[0]
        latest[model] = max(latest.get(model, end), end)
    return {name: state.versions[name] for name in sorted(ends) if ends[name] == latest[name.rpartition("/")[0]]}


def event_key(name: str, version: WatchedVersion) -> str:
    """Return the key of the event about a version's alarm; empty: it has none."""
    alarm = version.verdict.alarm
    return hashlib.sha256(f"{RULE} {name} {alarm.window}".encode()).hexdigest() if alarm else ""


class Monitor:
    """Keeps the state of a project up to date with the sketches of its server. One process at a time."""

    def __init__(self, workspace: Workspace, requests: Path, chosen: MonitoringSettings) -> None:
        """Use the sketches beside the request log in `requests`."""
        self._workspace, self._folder = workspace, sketch_folder(requests)
        self._rule = DriftRule(chosen.window * 60, chosen.season, chosen.alpha, chosen.good_windows)

    def restart(self, *, now: float) -> None:
        """Forget all windows. The next reference begins with the next window, under the settings of now."""
        window = self._rule.window
        with self._held():
            self._write(State(self._rule, int(now // window + 1) * window))

    def update(self, *, now: float) -> State:
        """Close the windows that are over, judge them, and write the state. `now`: seconds since 1970."""
        with self._held():
            state = read_state(self._workspace) or State(self._rule)
            if not state.versions:
                state = replace(state, rule=self._rule)
            updated = self._updated(state, now)
            if updated != state:
                self._write(updated)
            return updated

    def mark_sent(self, key: str) -> None:
        """Record that the event with this key was sent."""
        with self._held():
            state = read_state(self._workspace)
            if state is not None and key not in state.sent:
                self._write(replace(state, sent=[*state.sent, key]))

    def _updated(self, state: State, now: float) -> State:
        rule, window = state.rule, state.rule.window
        begin = first_hour(self._folder) if state.position is None else state.position
        if begin is None:
            return state
        if begin > now + window:  # a clock was ahead: judging goes on at the time that is right now
            begin = int(now)
        begin = begin // window * window
        end = max(begin, int(now - _GRACE) // window * window)
        windows: dict[str, list[WindowSketch]] = {}
        for sketch in read_sketches(self._folder, (begin - _RECENT) // window * window, end, window=window):
            windows.setdefault(sketch.version, []).append(sketch)
        versions = dict(state.versions)
        for name, sketches in windows.items():
            version = versions.get(name, WatchedVersion())
            rows = {sketch.start: sketch.rows for sketch in sketches}
            closed = version.closed
            for window_of in closed:
                window_of[2] = max(window_of[2], rows.get(int(window_of[0]), 0) - window_of[1])
            starts = set(closed[:, 0].tolist())
            new = [sketch for sketch in sketches if sketch.start >= begin and sketch.start not in starts]
            added = np.array([(sketch.start, sketch.rows, 0) for sketch in new], np.int64).reshape(-1, 3)
            if new or len(closed):
                closed = np.concatenate([closed, added])
                version = replace(version, stored=version.stored | {"closed": _packed(closed)})
                version = advanced(rule, name, version, new, partial(read_reference, self._folder, name))
                versions[name] = replace(version, stored=version.stored | {"closed": _packed(closed[-rule.ranked :])})
        return _without_old(replace(state, position=end, versions=versions), first_hour(self._folder))

    @contextmanager
    def _held(self) -> Iterator[None]:
        _path(self._workspace).parent.mkdir(parents=True, exist_ok=True)
        with FileLock(_path(self._workspace).with_name("lock")):
            yield

    def _write(self, state: State) -> None:
        content = json.dumps(to_plain(state), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        files.write_bytes(_path(self._workspace), content.encode(), private=True)


def monitor_of(workspace: Workspace) -> Monitor:
    """Return the monitor of a project, with its settings."""
    return Monitor(workspace, log_folder(workspace), settings.load(workspace.params).monitoring)


def _without_old(state: State, first: int | None) -> State:
    """Return the state without versions of which no sketch is left, unless they are served."""
    served = current_versions(state)
    versions = {
        name: version
        for name, version in state.versions.items()
        if name in served or first is None or version.closed[:, 0].max(initial=0) >= first
    }
    return replace(state, versions=versions)


def _by_bins(bins: str, windows: list[WindowSketch]) -> Iterator[tuple[str, list[WindowSketch]]]:
    """Yield the windows in a row that have the same bins. One without rows has those of the window before."""
    names = [*accumulate((window.bins for window in windows), lambda before, own: own or before, initial=bins)][1:]
    for name, group in groupby(zip(names, windows, strict=True), key=lambda pair: pair[0]):
        yield name, [window for _, window in group]


def _with_bins(version: WatchedVersion, bins: str) -> WatchedVersion:
    """Return a version for windows in these bins. With other bins than before it begins again: it is another model."""
    if version.bins not in ("", bins):
        version = WatchedVersion(stored={key: text for key, text in version.stored.items() if key == "closed"})
    return replace(version, bins=bins)


def advanced(
    rule: DriftRule,
    name: str,
    version: WatchedVersion,
    new: list[WindowSketch],
    read: Callable[[str], Reference | None],
) -> WatchedVersion:
    """Return a version after new windows. `read` returns the bins with a digest."""
    for bins, windows in _by_bins(version.bins, new):
        version = _with_windows(rule, name, _with_bins(version, bins), windows, read)
    return version


def _with_windows(
    rule: DriftRule,
    name: str,
    version: WatchedVersion,
    new: list[WindowSketch],
    read: Callable[[str], Reference | None],
) -> WatchedVersion:
    """Return a version after new windows in its bins. A finished alarm stays."""
    if not new or version.verdict.alarm:
        return version
    if version.normal is None:
        latest = [*version.latest, *new]
        version = _with_reference(rule, name, replace(version, latest=latest), read(version.bins))
        new, version = version.latest[version.first :], replace(version, latest=version.latest[: version.first])
    if version.reference is None:
        return replace(version, latest=new[-_most(rule) :])
    return _judged(rule, name, version, version.reference, new) if new else version


def _with_reference(rule: DriftRule, name: str, version: WatchedVersion, reference: Reference | None) -> WatchedVersion:
    """Return a version with its reference, if it has test rows, or its first windows are enough for one."""
    if reference is None:
        return version
    begin, end = (0, 0) if reference.counts else _reference_range(version.latest, rule)
    if not end and not reference.counts:
        return version
    latest = version.latest[begin:]
    normal = sum(latest[: end - begin], start=WindowSketch(name, latest[0].start))
    counts = (reference.counts or normal.counts) | {REQUESTS.name: list(map(int, _ANSWERED))}
    reference = replace(reference, counts=counts)
    return replace(version, reference=reference, first=end - begin, normal=normal, latest=latest)


def _judged(
    rule: DriftRule, name: str, version: WatchedVersion, reference: Reference, new: list[WindowSketch]
) -> WatchedVersion:
    """Return a version with a reference after new windows."""
    normal, season = version.normal, SEASONS[rule.season]
    assert normal is not None, "it comes with the reference"
    for number, sketch in enumerate(new, version.later):
        if sketch.start < normal.start + season if season else number < rule.good_windows:
            normal += sketch
    counts = reference.counts
    base = {each.name: np.array(counts.get(each.name, [0] * each.bins), np.int64) for each in version.layouts}
    normal_counts = {each.name: counts_of(each, [normal])[0] for each in version.layouts}
    watch = Watch(name, version.layouts, base, normal_counts, rule)
    stored = {key: _unpacked(text) for key, text in version.stored.items()}
    martingales = Martingales(rule.classes, len(watch.columns), stored)
    verdict = watch.judge(martingales, new, version.latest)
    last = verdict.alarm.window if verdict.alarm else new[-1].start
    judged = [sketch for sketch in new if sketch.start <= last]
    latest = [*version.latest, *judged][-rule.remembered :]
    packed = {key: _packed(array) for key, array in martingales.arrays.items()}
    later, stored_now = version.later + len(judged), version.stored | packed
    return replace(version, later=later, normal=normal, latest=latest, stored=stored_now, verdict=verdict)


def _packed(array: NDArray[Any]) -> str:
    return base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes())).decode()


def _unpacked(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text))


def _reference_range(windows: list[WindowSketch], rule: DriftRule) -> tuple[int, int]:
    """Return the range of windows that are enough for a reference: in number, rows and a whole season. (0, 0): none."""
    rows = 0
    for end, window in enumerate(windows, start=1):
        begin = max(0, end - _most(rule))
        rows += window.rows - (windows[begin - 1].rows if begin else 0)
        season = window.start + rule.window - windows[begin].start
        if end - begin >= _WINDOWS and rows >= _ROWS and season >= SEASONS[rule.season]:
            return begin, end
    return 0, 0


def _most(rule: DriftRule) -> int:
    """Return how many windows a reference may have."""
    return rule.remembered + rule.classes


def _path(workspace: Workspace) -> Path:
    return workspace.state / "monitoring" / "state.json"
