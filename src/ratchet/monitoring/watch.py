"""Windows, reference and verdict of each version, in one file that is written whole.

All that is judged follows from the windows in it: a later run, or one run over the whole log, gives the same.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from ratchet import files, settings
from ratchet.errors import PlatformError
from ratchet.kinds import ModelSpec
from ratchet.monitoring.features import features_of
from ratchet.monitoring.rule import RULE, SEASONS, DriftRule, DriftVerdict, judge
from ratchet.monitoring.sketch import FeatureBins, WindowSketch, layout_of
from ratchet.monitoring.specs import StoredSpecs
from ratchet.monitoring.windows import first_hour, pieces
from ratchet.settings.model import MonitoringSettings
from ratchet.traffic.log_reader import log_folder
from ratchet.typed_json import STRICT, parse, to_plain
from ratchet.workspace import Workspace

__all__ = ["Monitor", "State", "WatchedVersion", "current_versions", "event_key", "monitor_of", "read_state"]

_GRACE = 600  # seconds after its end at which a window closes
_RECENT = 86_400  # seconds before the open window in which late rows are counted
_WINDOWS, _ROWS = 5, 200  # of a reference, at least
_SAMPLE = 100_000  # rows of a reference from which the bins are made
SpecOf = Callable[[str], ModelSpec | None]


@dataclass(frozen=True)
class WatchedVersion:
    """A version with the windows in which it answered, in the order of time.

    Attributes:
        layouts: bins of each feature; None: the reference is not complete.
        reference: number of the first windows that are the reference.
    """

    layouts: list[FeatureBins] | None = None
    reference: int = 0
    windows: list[WindowSketch] = field(default_factory=list)
    verdict: DriftVerdict = field(default_factory=DriftVerdict)

    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class State:
    """All that is remembered between two runs.

    Attributes:
        rule: settings with which the windows were made; others apply after a restart.
        position: start of the first window that is not closed; None: the log was empty.
        versions: by NAME/VERSION.
        sent: keys of the events that were sent.
    """

    rule: DriftRule
    position: int | None = None
    versions: dict[str, WatchedVersion] = field(default_factory=dict)
    sent: list[str] = field(default_factory=list)

    __pydantic_config__ = STRICT


def read_state(workspace: Workspace) -> State | None:
    """Return the stored state; None: there is none.

    Raises:
        PlatformError: the file is damaged.
    """
    path = _path(workspace)
    try:
        return parse(State, path.read_bytes())
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
        closed = [each.start for each in version.windows if each.start < (state.position or 0)]  # not of a clock ahead
        ends |= {name: closed[-1]} if closed else {}
    for name, end in ends.items():
        model = name.rpartition("/")[0]
        latest[model] = max(latest.get(model, end), end)
    return {name: state.versions[name] for name in sorted(ends) if ends[name] == latest[name.rpartition("/")[0]]}


def event_key(name: str, version: WatchedVersion) -> str:
    """Return the key of the event about a version's alarm; empty: it has none."""
    alarm = version.verdict.alarm
    return hashlib.sha256(f"{RULE} {name} {alarm.window}".encode()).hexdigest() if alarm else ""


class Monitor:
    """Keeps the state of a project up to date with its request log. One process at a time."""

    def __init__(self, workspace: Workspace, requests: Path, chosen: MonitoringSettings, spec_of: SpecOf) -> None:
        """Use the log in the folder `requests`. `spec_of` returns the spec of NAME/VERSION; None: it is not known."""
        self._workspace, self._requests, self._spec_of = workspace, requests, spec_of
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
        window = state.rule.window
        begin = first_hour(self._requests) if state.position is None else state.position
        if begin is None:
            return state
        if begin > now + window:  # a clock was ahead: judging goes on at the time that is right now
            begin = int(now)
        begin = begin // window * window
        end = max(begin, int(now - _GRACE) // window * window)
        by_start = {name: {each.start: each for each in version.windows} for name, version in state.versions.items()}
        for name, late in self._late(state, begin).items():
            by_start[name] |= late
        for name, start, rows in pieces(self._requests, begin, end, window=window):
            version = state.versions.get(name, WatchedVersion())
            sketch = WindowSketch(start, len(rows), {})
            if version.layouts is not None:
                sketch = _sketch(start, features_of(rows, self._spec_of(name)), version.layouts, len(rows))
            windows = by_start.setdefault(name, {})
            is_closed = any(each.start == start for each in version.windows)
            added = WindowSketch(start, 0, {}, late=len(rows)) if is_closed else sketch
            windows[start] = windows[start] + added if start in windows else added
        versions = {
            name: self._judged(state, name, [windows[start] for start in sorted(windows)], end)
            for name, windows in by_start.items()
        }
        return replace(state, position=end, versions=versions)

    def _late(self, state: State, end: int) -> dict[str, dict[int, WindowSketch]]:
        """Return the recent closed windows with the rows that came after their end."""
        window = state.rule.window
        begin = (end - _RECENT) // window * window
        rows: dict[tuple[str, int], int] = {}
        for name, start, piece in pieces(self._requests, begin, end, window=window, columns=()):
            rows[name, start] = rows.get((name, start), 0) + len(piece)
        return {
            name: {
                each.start: replace(each, late=max(each.late, rows.get((name, each.start), 0) - each.rows))
                for each in version.windows
                if begin <= each.start < end
            }
            for name, version in state.versions.items()
        }

    def _judged(self, state: State, name: str, windows: list[WindowSketch], end: int) -> WatchedVersion:
        """Return a version with its windows and the verdict. A finished alarm stays."""
        before = state.versions.get(name, WatchedVersion())
        version = replace(before, windows=windows)
        if version.layouts is None:
            version = self._with_reference(state.rule, name, version, end)
        if version.windows == before.windows or version.layouts is None or version.verdict.alarm:
            return version
        return replace(version, verdict=judge(name, version.layouts, version.windows, state.rule, version.reference))

    def _with_reference(self, rule: DriftRule, name: str, version: WatchedVersion, end: int) -> WatchedVersion:
        """Return a version with its reference, if its first windows are enough for one. They are read again."""
        number = _reference_length(version.windows, rule)
        if not number:
            return version
        spec, last = self._spec_of(name), version.windows[number - 1].start + rule.window
        begin, sampled = version.windows[0].start, 0
        values: dict[str, list[NDArray[Any]]] = {}
        for piece in pieces(self._requests, begin, last, window=rule.window):
            if piece.version == name and sampled < _SAMPLE:
                sampled += len(piece.rows)
                for feature, column in features_of(piece.rows, spec).items():
                    values.setdefault(feature, []).append(column)
        layouts = [layout_of(feature, np.concatenate(columns)) for feature, columns in values.items()]
        windows: dict[int, WindowSketch] = {}
        for piece in pieces(self._requests, begin, end, window=rule.window):
            if piece.version == name:
                sketch = _sketch(piece.start, features_of(piece.rows, spec), layouts, len(piece.rows))
                windows[piece.start] = windows[piece.start] + sketch if piece.start in windows else sketch
        counted = [windows[start] for start in sorted(windows)]
        number = _reference_length(counted, rule)  # files of these windows may have been deleted
        return replace(version, layouts=layouts, reference=number, windows=counted) if number else version

    @contextmanager
    def _held(self) -> Iterator[None]:
        _path(self._workspace).parent.mkdir(parents=True, exist_ok=True)
        with FileLock(_path(self._workspace).with_name("lock")):
            yield

    def _write(self, state: State) -> None:
        content = json.dumps(to_plain(state), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        files.write_bytes(_path(self._workspace), content.encode(), private=True)


def monitor_of(workspace: Workspace) -> Monitor:
    """Return the monitor of a project, with its settings and registry."""
    params = settings.load(workspace.params)
    return Monitor(workspace, log_folder(workspace), params.monitoring, StoredSpecs(workspace, params))


def _sketch(start: int, features: dict[str, NDArray[Any]], layouts: list[FeatureBins], rows: int) -> WindowSketch:
    counts = {layout.name: layout.count(features[layout.name]) for layout in layouts if layout.name in features}
    return WindowSketch(start, rows, counts)


def _reference_length(windows: list[WindowSketch], rule: DriftRule) -> int:
    """Return how many first windows are enough for a reference: in number, rows, and a whole season; 0: not enough."""
    rows = 0
    for number, window in enumerate(windows, start=1):
        rows += window.rows
        season = window.start + rule.window - windows[0].start
        if number >= _WINDOWS and rows >= _ROWS and season >= SEASONS[rule.season]:
            return number
    return 0


def _path(workspace: Workspace) -> Path:
    return workspace.state / "monitoring" / "state.json"
