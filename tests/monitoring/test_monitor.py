"""Drift in real log files, which RequestLog has written."""

import itertools
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ratchet.errors import PlatformError
from ratchet.kinds import ModelSpec
from ratchet.kinds.inputs import Column, ImageInput, TableInput, TextInput
from ratchet.monitoring.drift_text import lines
from ratchet.monitoring.rule import DriftRule
from ratchet.monitoring.sketch import Reference, layout_of, refusal
from ratchet.monitoring.sketch_log import SketchLog, sketch_folder
from ratchet.monitoring.watch import Monitor, State, current_versions, read_state
from ratchet.problems import Classes
from ratchet.reports.drift_page import drift_page
from ratchet.settings.model import MonitoringSettings
from ratchet.traffic.log_reader import log_folder
from ratchet.traffic.request_log import RequestLog
from ratchet.traffic.schema import SHADOW, Logged
from ratchet.typed_json import to_plain
from ratchet.workspace import Workspace

BEGIN, HOUR = 1_760_000_400 // 3600 * 3600, 3600
SPEC = ModelSpec("convnet", ImageInput(2, 2, 1, (0.0,), (1.0,)), Classes(("cat", "dog")))
SETTINGS = MonitoringSettings(good_windows=10)


def answers(seed: int, rows: int = 200, *, shift: float = 0.0) -> np.ndarray[Any, np.dtype[np.float32]]:
    logits = np.random.default_rng(seed).normal(shift, 1.0, rows)
    cat = 1 / (1 + np.exp(-logits))
    return np.stack([cat, 1 - cat], 1).astype(np.float32)


def request(
    number: int,
    at: float,
    predictions: Any,
    *,
    version: str = "3",
    envelope: str = "own",
    spec: ModelSpec | None = SPEC,
    **inputs: Any,
) -> Logged:
    values = inputs or {"pixels": np.random.default_rng(number).integers(0, 256, (len(predictions), 2, 2, 1), np.uint8)}
    named = (f"{number:032x}", at, 0.01, envelope, "digits", version, "record", "anna", values, predictions)
    return Logged(*named, spec=spec)


def write(workspace: Workspace, requests: list[Logged]) -> None:
    """Write a log file for each hour and version, as a server does."""
    now, folder = max(each.time for each in requests), log_folder(workspace)
    sketches = SketchLog(folder, window=60)
    log = RequestLog(folder, share=1.0, inputs="none", days=1e6, mib=64.0, sketches=sketches, clock=lambda: now)
    for each in requests:
        log.add(each.answer, lambda each=each: each)
    log.close()
    assert not log.lost


def hours(
    first: int, last: int, *, shift: float = 0.0, version: str = "3", make: Callable[..., Logged] = request
) -> list[Logged]:
    return [make(n, BEGIN + n * HOUR + 60, answers(n, shift=shift), version=version) for n in range(first, last)]


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


def monitor(workspace: Workspace, settings: MonitoringSettings = SETTINGS) -> Monitor:
    return Monitor(workspace, log_folder(workspace), settings)


def update(workspace: Workspace, hour: float, **changed: Any) -> State:
    """Update as if the hour after BEGIN were now."""
    return monitor(workspace, **changed).update(now=BEGIN + hour * HOUR)


def starts(state: State) -> list[int]:
    """Hours of the closed windows, after BEGIN."""
    return ((state.versions["digits/3"].closed[:, 0] - BEGIN) // HOUR).tolist()


def test_no_drift_then_drift(workspace: Workspace) -> None:
    write(workspace, hours(0, 40))
    assert lines(update(workspace, 41)) == ["digits/3: no drift in 25 windows"]
    write(workspace, hours(40, 70, shift=2.0))
    state = update(workspace, 71)
    alarm = state.versions["digits/3"].verdict.alarm
    assert alarm is not None
    assert alarm.feature in ("answer.cat", "answer.dog", "confidence")
    assert abs(alarm.since - (BEGIN + 40 * HOUR)) <= 2 * HOUR
    assert lines(state)[0].startswith("digits/3: drift since 2025-10-")


def test_replay_of_the_whole_log_equals_live_updates(workspace: Workspace, tmp_path: Path) -> None:
    """Bit for bit, also in what was stored as JSON between the updates; hours are written and merged meanwhile."""
    for hour in range(60):
        write(workspace, hours(hour, hour + 1, shift=1.5 * (hour >= 40)))
        live = update(workspace, hour + 1.5)
    replayed = Monitor(Workspace(tmp_path / "replay"), log_folder(workspace), SETTINGS)
    assert replayed.update(now=BEGIN + 60.5 * HOUR) == live == read_state(workspace)
    assert live.versions["digits/3"].verdict.alarm is not None


def test_shadow_rows_are_left_out(workspace: Workspace) -> None:
    write(workspace, hours(0, 12))
    write(workspace, hours(0, 12, version="4", make=lambda *a, **k: request(*a, **k, envelope=SHADOW)))
    assert update(workspace, 13).versions.keys() == {"digits/3"}


def test_window_closes_ten_minutes_after_its_end(workspace: Workspace) -> None:
    write(workspace, hours(0, 2))
    assert len(update(workspace, 1 + 9 / 60).versions) == 0
    assert starts(update(workspace, 1 + 10 / 60)) == [0]


def test_late_rows_are_counted_and_not_judged(workspace: Workspace) -> None:
    write(workspace, hours(0, 20))
    before = update(workspace, 21).versions["digits/3"].verdict
    write(workspace, [request(500, BEGIN + 15 * HOUR + 90, answers(500, rows=7))])
    state = update(workspace, 22)
    assert state.versions["digits/3"].verdict == before
    assert state.versions["digits/3"].closed[15, 1:].tolist() == [200, 7]
    assert lines(state) == ["digits/3: no drift in 5 windows; 7 late rows are not judged"]


def test_missing_windows_are_skipped(workspace: Workspace) -> None:
    write(workspace, [*hours(0, 10), *hours(30, 40)])
    state = update(workspace, 41)
    assert starts(state) == [*range(10), *range(30, 40)]
    assert state.versions["digits/3"].verdict.judged == 5


def test_clock_that_was_ahead_stops_nothing(workspace: Workspace) -> None:
    write(workspace, [*hours(0, 10), *hours(200, 201)])  # a request of the future
    assert len(starts(update(workspace, 10.5))) == 10  # its window is not over
    assert len(starts(update(workspace, 300))) == 11
    write(workspace, hours(10, 20))
    state = update(workspace, 10.6)
    assert state.position == BEGIN + 10 * HOUR
    write(workspace, hours(10, 19, version="4"))
    state = update(workspace, 20.5)
    assert list(current_versions(state)) == ["digits/3"]
    write(workspace, [request(998, BEGIN + 20 * HOUR, answers(8), version="4")])
    assert list(current_versions(update(workspace, 21.5))) == ["digits/4"]  # that of the future counts as not closed
    assert len(starts(state)) == 21
    assert update(workspace, 201.5) == update(workspace, 201.5)
    assert set(update(workspace, 201.5).versions["digits/3"].closed[:, 1].tolist()) == {200}


def test_damaged_file_is_set_aside_and_others_are_read(workspace: Workspace) -> None:
    write(workspace, hours(0, 12))
    damaged = sorted(sketch_folder(log_folder(workspace)).glob("2*.json"))[3]
    damaged.write_text("[{")
    assert starts(update(workspace, 13)) == [0, 1, 2, *range(4, 12)]
    assert not damaged.exists()


def test_new_version_gets_a_new_reference(workspace: Workspace) -> None:
    write(workspace, hours(0, 60, shift=0.0)[:40] + hours(40, 60, shift=2.0))
    alarm = update(workspace, 61).versions["digits/3"].verdict
    write(workspace, hours(60, 80, shift=2.0, version="4"))
    state = update(workspace, 81)
    assert state.versions["digits/3"].verdict == alarm
    assert current_versions(state).keys() == {"digits/4"}
    assert lines(state) == ["digits/4: no drift in 5 windows"]


def test_restart_forgets_an_alarm(workspace: Workspace) -> None:
    write(workspace, hours(0, 40) + hours(40, 60, shift=2.0))
    assert update(workspace, 61).versions["digits/3"].verdict.alarm
    monitor(workspace).restart(now=BEGIN + 60.5 * HOUR)
    write(workspace, [request(999, BEGIN + 60.4 * HOUR, answers(9))])
    assert update(workspace, 60.7).versions == {}  # the next window is the first of the new reference
    write(workspace, hours(61, 81, shift=2.0))
    assert lines(update(workspace, 82)) == ["digits/3: no drift in 5 windows"]


def test_first_windows_are_the_reference(workspace: Workspace) -> None:
    """At least 5 windows and 200 rows. Then 10 good ones."""
    write(workspace, [request(hour, BEGIN + hour * HOUR, answers(hour, rows=30)) for hour in range(7)])
    state = update(workspace, 6.5)
    assert lines(state) == ["digits/3: learning, 0 of 10 windows (6 windows for the reference so far)"]
    state = update(workspace, 7.5)
    assert state.versions["digits/3"].first == 7
    write(workspace, hours(7, 12))
    assert lines(update(workspace, 13)) == ["digits/3: learning, 5 of 10 windows"]


def test_changed_settings_apply_after_a_restart(workspace: Workspace) -> None:
    write(workspace, hours(0, 12))
    rule = update(workspace, 13).rule
    changed = MonitoringSettings(window=30, season="day", alpha=0.01)
    assert update(workspace, 14, settings=changed).rule == rule
    monitor(workspace, changed).restart(now=BEGIN + 14 * HOUR)
    assert update(workspace, 15, settings=changed).rule.window == 1800


def test_columns_of_tables_are_watched_with_missing_and_unknown(workspace: Workspace) -> None:
    columns = (Column("age", "numeric"), Column("job", "categorical", categories=("cook", "nurse")))
    spec = ModelSpec("tabm", TableInput(columns), Classes(("no", "yes")))

    def logged(number: int, at: float, predictions: Any, **more: Any) -> Logged:
        random, late = np.random.default_rng(number), number >= 40
        numbers = random.normal(size=(200, 1)).astype(np.float32)
        numbers[random.random(200) < (0.5 if late else 0.1)] = np.nan
        codes = random.integers(1 if late else 2, 4, (200, 1))
        return request(number, at, predictions, spec=spec, numbers=numbers, codes=codes, **more)

    write(workspace, hours(0, 70, make=logged))
    version = update(workspace, 71).versions["digits/3"]
    names = ["answer.no", "answer.yes", "confidence", "input.age", "input.job", "requests"]
    assert [layout.name for layout in version.layouts] == names
    assert version.verdict.alarm is not None
    assert version.verdict.alarm.feature in ("input.age", "input.job")
    assert sum(version.latest[-1].counts["input.job"]) == 200
    assert version.latest[-1].counts["input.job"][1] > 0  # unknown


@pytest.mark.parametrize(
    ("spec", "inputs", "names"),
    [
        (SPEC, {"pixels": np.zeros((200, 2, 2, 1), np.uint8)}, {"input.brightness", "input.contrast"}),
        (ModelSpec("bag", TextInput(), Classes(("a", "b"))), {"ids": np.ones((200, 3), np.int64)}, {"input.length"}),
        (None, {"pixels": np.zeros((200, 2, 2, 1), np.uint8)}, {"answer.0", "answer.1"}),
    ],
)
def test_inputs_of_each_kind_have_features(
    workspace: Workspace, spec: ModelSpec | None, inputs: dict[str, Any], names: set[str]
) -> None:
    write(workspace, hours(0, 6, make=lambda *a, **k: request(*a, **k, spec=spec, **inputs)))
    layouts = update(workspace, 7).versions["digits/3"].layouts
    assert {layout.name for layout in layouts} >= names


def test_prompts_and_written_texts_are_watched_by_length(workspace: Workspace) -> None:
    prompts = [request(n, BEGIN + n * HOUR, ["or not"] * 200, prompt=("To be",) * 200) for n in range(6)]
    write(workspace, prompts)
    layouts = update(workspace, 7).versions["digits/3"].layouts
    assert [layout.name for layout in layouts] == ["length of text", "length of input.prompt", "requests"]


def test_version_with_other_bins_begins_again(workspace: Workspace, tmp_path: Path) -> None:
    """Its registry was replaced, so another model has its name. The whole log judged at once gives the same."""
    write(workspace, hours(0, 20) + hours(20, 40, shift=2.0))
    assert update(workspace, 41).versions["digits/3"].verdict.alarm
    path = tmp_path / "reference.json"
    layout = layout_of("answer.cat", answers(0, shift=2.0)[:, 0])
    path.write_text(json.dumps(to_plain(Reference([layout], {layout.name: layout.count(answers(1, shift=2.0)[:, 0])}))))
    write(workspace, hours(40, 60, shift=2.0, make=lambda *a, **k: request(*a, **k)._replace(reference=path)))
    state = update(workspace, 61)
    assert lines(state) == ["digits/3: no drift in 10 windows"]
    assert len(state.versions["digits/3"].closed) == 60
    replayed = Monitor(Workspace(tmp_path / "replay"), log_folder(workspace), SETTINGS)
    assert replayed.update(now=BEGIN + 61 * HOUR) == state


def test_damaged_state_is_an_error_with_a_fix(workspace: Workspace) -> None:
    write(workspace, hours(0, 3))
    update(workspace, 3.5)
    path = workspace.state / "monitoring" / "state.json"
    path.write_text("{")
    with pytest.raises(PlatformError, match=r"state.json: is damaged .* Fix: `ratchet monitor --restart`"):
        update(workspace, 4)
    monitor(workspace).restart(now=time.time())
    assert read_state(workspace) is not None


def test_state_of_another_release_begins_again(workspace: Workspace, caplog: pytest.LogCaptureFixture) -> None:
    """The events that were sent are not sent twice."""
    write(workspace, hours(0, 20))
    expected = update(workspace, 21)
    monitor(workspace).mark_sent("key")
    path = workspace.state / "monitoring" / "state.json"
    stored = json.loads(path.read_text())
    del stored["format"]
    path.write_text(json.dumps(stored | {"versions": {"digits/3": {"gone": 1}}}))
    assert update(workspace, 21) == replace(expected, sent=["key"]) == read_state(workspace)
    assert len(caplog.records) == 1
    assert "is of another release of Ratchet" in caplog.text


def test_version_with_test_rows_is_watched_from_its_first_window(workspace: Workspace, tmp_path: Path) -> None:
    """Also if the traffic differs from them: only a change is drift."""
    path, columns = tmp_path / "reference.json", answers(0, rows=900, shift=-1.0)
    layouts = [layout_of(f"answer.{name}", columns[:, place]) for place, name in enumerate(("cat", "dog"))]
    counts = {each.name: each.count(columns[:, place]) for place, each in enumerate(layouts)}
    path.write_text(json.dumps(to_plain(Reference(layouts, counts))))

    def make(*values: Any, **more: Any) -> Logged:
        return request(*values, **more)._replace(reference=path)

    write(workspace, hours(0, 40, make=make))
    assert lines(update(workspace, 1.5)) == ["digits/3: learning, 1 of 10 windows"]
    assert lines(update(workspace, 41)) == ["digits/3: no drift in 30 windows"]
    write(workspace, hours(40, 60, shift=1.0, make=make))
    assert update(workspace, 61).versions["digits/3"].verdict.alarm


def refused(number: int, share: float) -> tuple[int, int]:
    """Answered and refused requests of an hour."""
    count = int(np.random.default_rng(number).binomial(200, share))
    return 200 - count, count


def test_refusals_are_drift_and_overload_is_not(workspace: Workspace) -> None:
    sketches = SketchLog(log_folder(workspace), window=60)
    for status, hour in itertools.product((503, 400), range(80)):
        at, numbers = BEGIN + hour * HOUR, refused(hour, 0.3 if hour > 40 else 0.02)
        sketches.take([request(hour, at, answers(hour), version=str(status))])
        for name, number in zip(("answered", refusal(status)), numbers, strict=True):
            for _ in range(number):
                sketches.count(f"digits/{status}", name, at)
    sketches.write()
    bad, overload = lines(update(workspace, 81))
    assert "requests is different from what is normal" in bad
    assert overload == "digits/503: no drift in 65 windows"


NUMBERS = ModelSpec("tabm", TableInput((Column("age", "numeric"), Column("pay", "numeric"))), Classes(("no", "yes")))


def faulty(fault: str, number: int, at: float, predictions: Any, **more: Any) -> list[Logged]:
    """Requests of an hour of a log with a fault."""
    ages = np.random.default_rng(number).normal(size=(200, 1)).astype(np.float32)
    table = {"spec": NUMBERS, "numbers": np.hstack([ages, ages]), "codes": np.zeros((200, 0), np.int64)}
    plain = request(number, at, predictions, **more)
    if fault == "request without rows":
        return [plain, request(number + 500, at, predictions[:0])]
    if fault == "window without rows":
        return [plain] if number % 4 else [request(number + 500, at, predictions[:0])]
    if fault == "answers of one class":
        return [request(number, at, np.repeat([[1.0, 0.0]], 200, 0).astype(np.float32))]
    if fault == "column without values":
        return [request(number, at, predictions, **table | {"numbers": np.hstack([ages, ages * np.nan])})]
    if fault == "infinite numbers":
        return [request(number, at, predictions, **table | {"numbers": np.hstack([ages, np.sign(ages) * np.inf])})]
    if fault == "answers that are not numbers":
        return [request(number, at, np.where(predictions > 0.9, np.nan, predictions))]
    if fault == "unknown version":
        return [request(number, at, predictions, spec=None)]
    if fault == "another schema with the next version":
        return [plain] if number < 20 else [request(number, at, predictions, version="4", **table)]
    if fault == "burst of fallback":
        burst = [request(number + 500 + n, at, answers(n, shift=3.0)) for n in range(30 * (number > 30))]
        return [plain, *(each._replace(source="fallback", served="digits/3", version="1") for each in burst)]
    if fault == "burst of one request":
        return [plain] * (30 if number > 30 else 1)
    assert fault == "missing hours"
    return [] if 8 < number < 30 else [plain]


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("request without rows", "digits/3: no drift in 35 windows"),
        ("window without rows", "digits/3: no drift in 24 windows"),
        ("answers of one class", "digits/3: no drift in 35 windows"),
        ("column without values", "digits/3: no drift in 35 windows"),
        ("infinite numbers", "digits/3: no drift in 35 windows"),
        ("answers that are not numbers", "digits/3: no drift in 35 windows"),
        ("unknown version", "digits/3: no drift in 35 windows"),
        ("another schema with the next version", "digits/4: no drift in 15 windows"),
        ("burst of fallback", "digits/3: no drift in 35 windows"),
        ("burst of one request", "digits/3: no drift in 35 windows"),
        ("missing hours", "digits/3: no drift in 14 windows"),
    ],
)
def test_faults_of_a_log_are_no_drift(workspace: Workspace, fault: str, expected: str) -> None:
    for hour in range(50):
        logged = faulty(fault, hour, BEGIN + hour * HOUR + 60, answers(hour))
        if logged:
            write(workspace, logged)
    state = update(workspace, 51)
    assert lines(state) == [expected]
    assert "no drift" in drift_page(state)


def test_state_has_a_limit(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks begin again after 20,000 windows; here after 50. Judged at once and by hours, the bits are the same."""
    monkeypatch.setattr(DriftRule, "ranked", 50)
    monkeypatch.setattr(DriftRule, "remembered", 20)
    write(workspace, hours(0, 140))
    sizes = []
    for hour in range(10, 140, 7):
        live = update(workspace, hour)
        sizes.append((workspace.state / "monitoring" / "state.json").stat().st_size)
    replayed = Monitor(Workspace(workspace.root / "replay"), log_folder(workspace), SETTINGS)
    assert replayed.update(now=BEGIN + hour * HOUR) == live
    assert max(sizes[8:]) < 1.2 * max(sizes[:8])
    assert len(live.versions["digits/3"].evidence) <= 50


def test_ranks_that_begin_again_are_no_judgement(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DriftRule, "ranked", 20)
    write(workspace, hours(0, 40))
    assert lines(update(workspace, 25.5)) == ["digits/3: no drift in 10 windows"]
    text = "digits/3: no drift in 10 windows; ranks began again, 4 of 10 windows are learned"
    assert lines(update(workspace, 29.5)) == [text]
    assert lines(update(workspace, 37.5)) == ["digits/3: no drift in 12 windows"]


def test_windows_without_a_reference_have_a_limit(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DriftRule, "remembered", 20)
    sketches = SketchLog(log_folder(workspace), window=60)
    for hour in range(70):
        sketches.count("digits/3", "answered", BEGIN + hour * HOUR)
        sketches.take([request(hour, BEGIN + hour * HOUR, answers(hour, rows=200 if hour > 50 else 0))])
    sketches.write()
    for hour in range(1, 52, 5):
        live = update(workspace, hour)
    assert len(live.versions["digits/3"].latest) == 21
    live = update(workspace, 71)
    assert lines(live) == ["digits/3: no drift in 8 windows"]
    replayed = Monitor(Workspace(workspace.root / "replay"), log_folder(workspace), SETTINGS)
    assert replayed.update(now=BEGIN + 71 * HOUR) == live


def test_versions_without_sketches_are_forgotten_unless_served(workspace: Workspace) -> None:
    write(workspace, [*hours(0, 2), *hours(2, 4, version="4"), *hours(4, 6, version="5")])
    assert len(update(workspace, 7).versions) == 3
    for path in sorted(sketch_folder(log_folder(workspace)).glob("2*.json"))[:3]:
        path.unlink()
    assert update(workspace, 8).versions.keys() == {"digits/4", "digits/5"}


def test_feature_without_rows_is_named(workspace: Workspace, tmp_path: Path) -> None:
    layouts = [layout_of(name, np.arange(9.0)) for name in ("answer.cat", "input.age")]
    path = tmp_path / "reference.json"
    path.write_text(json.dumps(to_plain(Reference(layouts, {each.name: [1] * each.bins for each in layouts}))))
    write(workspace, hours(0, 12, make=lambda *a, **k: request(*a, **k)._replace(reference=path)))
    assert lines(update(workspace, 13)) == ["digits/3: no drift in 2 windows; not watched, without rows: input.age"]
