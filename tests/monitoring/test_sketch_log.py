"""Sketches of a server's log, as RequestLog has them made."""

import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ratchet.kinds import ModelSpec
from ratchet.kinds.inputs import ImageInput
from ratchet.monitoring.sketch import REFERENCE, Reference, WindowSketch, layout_of
from ratchet.monitoring.sketch_log import SketchLog, read_reference, read_sketches, sketch_folder
from ratchet.problems import Classes
from ratchet.traffic.request_log import RequestLog
from ratchet.traffic.schema import SHADOW, Logged
from ratchet.typed_json import to_plain

BEGIN, RANDOM = 1_760_000_400 // 3600 * 3600, np.random.default_rng(0)
SPEC = ModelSpec("convnet", ImageInput(8, 8, 1, (0.0,), (1.0,)), Classes(("cat", "dog")))


def logged(at: float = 0.0, *, rows: int = 10, pixels: Any = None, **changed: Any) -> Logged:
    cat = RANDOM.random((rows, 1)).astype(np.float32)
    pixels = RANDOM.integers(0, 256, (rows, 8, 8, 1)).astype(np.uint8) if pixels is None else pixels
    answers = np.concatenate([cat, 1 - cat], 1)
    named = ("0" * 32, BEGIN + at, 0.01, "own", "digits", "3", "record", "anna", {"pixels": pixels}, answers)
    return Logged(*named, spec=SPEC)._replace(**changed)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., list[WindowSketch]]:
    """Return a function that takes requests as one process, and returns the windows of all."""

    def write(*requests: Logged, window: int = 3600) -> list[WindowSketch]:
        log = SketchLog(tmp_path / "requests", window=window // 60)
        log.take([logged(-7200.0, rows=200)])  # makes the bins
        log.take(requests)
        log.write()
        return list(read_sketches(sketch_folder(tmp_path / "requests"), BEGIN, BEGIN + 86_400, window=window))

    return write


def test_processes_and_slots_of_a_window_add_up(write: Callable[..., list[WindowSketch]]) -> None:
    write(logged(), logged(299.0), logged(300.0))
    [window, later] = write(logged(3599.0), logged(3600.0))
    assert (window.start, window.rows, later.rows) == (BEGIN, 40, 10)
    assert {sum(counts) for counts in window.counts.values()} == {40}
    assert window.counts.keys() == {
        "answer.cat", "answer.dog", "confidence", "input.brightness", "input.contrast",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "name"),
    [({"source": "cache"}, "cache"), ({"source": "fallback", "model": "small", "served": "digits/3"}, "fallback")],
)
def test_burst_of_other_answers_is_counted_and_not_watched(
    write: Callable[..., list[WindowSketch]], changed: dict[str, Any], name: str
) -> None:
    [window] = write(logged(), *[logged(n, **changed) for n in range(50)])
    assert (window.rows, window.requests) == (10, {"logged": 51, name: 50})


def test_retries_are_counted_and_not_watched(write: Callable[..., list[WindowSketch]]) -> None:
    """The same content of the same key within a minute; not an equal row of few bytes."""
    pixels = np.ones((10, 8, 8, 1), np.uint8)
    [window] = write(*[logged(n, pixels=pixels) for n in (0, 1, 2, 120)], logged(121.0, pixels=pixels, key="ben"))
    assert (window.rows, window.requests) == (30, {"logged": 5, "repeated": 2})
    [window] = write(*[logged(n, rows=1, pixels=pixels[:1, :4, :4], spec=None) for n in range(3)])
    assert window.requests == {"logged": 8, "repeated": 2}


def test_shadow_is_left_out(write: Callable[..., list[WindowSketch]]) -> None:
    assert [each.version for each in write(logged(), logged(envelope=SHADOW, version="4"))] == ["digits/3"]


def test_window_shorter_than_a_slot_has_slots_of_its_own(write: Callable[..., list[WindowSketch]]) -> None:
    assert [each.rows for each in write(logged(), logged(59.0), logged(60.0), window=60)] == [20, 10]


def test_bins_come_with_the_version_else_from_its_first_rows(
    write: Callable[..., list[WindowSketch]], tmp_path: Path
) -> None:
    folder, stored = sketch_folder(tmp_path / "requests"), tmp_path / REFERENCE
    reference = Reference([layout_of("confidence", np.linspace(0.5, 1, 9))], {"confidence": [0] * 11})
    stored.write_text(json.dumps(to_plain(reference)))
    own, first = write(logged(version="5", reference=stored), logged(version="4", rows=200))[::-1]
    assert read_reference(folder, "digits/5", own.bins) == reference
    bins = read_reference(folder, "digits/4", first.bins)
    assert bins is not None
    assert (len(bins.layouts), bins.counts) == (5, {})
    assert [each.rows for each in write(logged(version="4"))] == [210, 10]


def test_few_rows_make_no_bins(write: Callable[..., list[WindowSketch]], tmp_path: Path) -> None:
    """A server that stops early leaves them to the next one."""
    [few] = write(logged(version="4", rows=199))
    assert (few.rows, few.bins, few.requests) == (0, "", {"logged": 1})
    [window] = write(logged(version="4", rows=200))
    bins = read_reference(sketch_folder(tmp_path / "requests"), "digits/4", window.bins)
    assert bins is not None
    assert window.rows == 200


def test_counts_in_other_bins_are_not_added(write: Callable[..., list[WindowSketch]], tmp_path: Path) -> None:
    """Of a registry that was replaced: the version has other bins under the same name, or other features."""
    stored = tmp_path / REFERENCE
    [before] = write(logged(version="4", rows=200))
    layouts = [layout_of("confidence", np.linspace(0, 1, 9)), layout_of("answer.cat", np.array(["a", "b"], object))]
    stored.write_text(json.dumps(to_plain(Reference(layouts, {each.name: [1] * each.bins for each in layouts}))))
    [both] = write(logged(version="4", rows=30, reference=stored))
    assert (both.rows, both.counts) == (200, before.counts)
    assert both.requests == {"logged": 2, "rows in other bins": 30}
    [_, new] = write(logged(3600.0, version="4", rows=30, reference=stored))
    assert (new.rows, new.counts.keys()) == (30, {"confidence"})


def test_clock_that_was_ahead_makes_few_files(tmp_path: Path) -> None:
    log = SketchLog(tmp_path / "requests", window=60)
    log.take([logged(86_400.0 * 9, rows=200)])
    for part in range(12):
        log.take([logged(5.0 * part)])
        log.write()
    assert len([*log.folder.glob("2*.json")]) == 2


def test_features_that_fail_hold_up_no_other_version(
    write: Callable[..., list[WindowSketch]], caplog: pytest.LogCaptureFixture
) -> None:
    good, failed = write(logged(), *[logged(60.0 * n, version="4", predictions=np.zeros((3, 1))) for n in range(12)])
    assert (good.rows, good.requests) == (10, {"logged": 1})
    assert failed.requests == {"logged": 12, "not counted": 12}
    assert len([each for each in caplog.records if "digits/4" in each.getMessage()]) == 1


def test_sketches_are_written_where_the_request_log_is_not(tmp_path: Path) -> None:
    """And the other way round: each has a message of its own."""
    for name, other, message in (
        ("requests", "sketches", "the request log cannot be written: "),
        ("sketches", "requests", "requests cannot be counted to find drift: "),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_text("a file in place of the folder")
        sketches = SketchLog(folder / "requests", window=60)
        log = RequestLog(
            folder / "requests", share=1.0, inputs="none", days=1e6, mib=64.0, sketches=sketches, clock=lambda: BEGIN
        )
        log.add("0" * 32, lambda: logged(rows=200))
        log.close()
        assert log.problem.startswith(message)
        assert [*(folder / other).rglob("*.parquet"), *(folder / other).glob("2*.json")]


def test_lost_rows_of_shadow_are_of_no_version(tmp_path: Path) -> None:
    large = np.broadcast_to(np.uint8(0), (1, 65 << 20))
    sketches = SketchLog(tmp_path / "requests", window=60)
    log = RequestLog(tmp_path / "requests", share=1.0, inputs="none", days=1e6, mib=64.0, sketches=sketches)
    for envelope in ("own", SHADOW):
        log.add("0" * 32, lambda envelope=envelope: logged(pixels=large, envelope=envelope))
    log.close()
    [window] = read_sketches(sketches.folder, BEGIN, BEGIN + 3600, window=3600)
    assert (window.version, window.requests) == ("digits/3", {"lost": 1})


@pytest.mark.parametrize(("requests", "rows"), [(64, 1), (2, 32)])
def test_features_of_images_need_little_memory(tmp_path: Path, requests: int, rows: int) -> None:
    spec = ModelSpec("convnet", ImageInput(512, 512, 3, (0.0,) * 3, (1.0,) * 3), Classes(("cat", "dog")))
    log = SketchLog(tmp_path / "requests", window=60)
    tracemalloc.start()
    for number in range(requests):
        log.take([logged(number, rows=rows, pixels=np.full((rows, 512, 512, 3), number, np.uint8), spec=spec)])
    peak = tracemalloc.get_traced_memory()[1] / (1 << 20)
    tracemalloc.stop()
    assert peak < 100


def test_leftovers_and_unused_bins_are_deleted(write: Callable[..., list[WindowSketch]], tmp_path: Path) -> None:
    write(logged())
    folder, now = sketch_folder(tmp_path / "requests"), BEGIN + 86_400.0 * 9
    for name in (".draft-1.json", "2020-01-01T00.1-1.json.damaged", "bins/digits-2.0.json.damaged"):
        (folder / name).write_text("[")
    for path in [*folder.glob(".draft*"), *folder.glob("bins/*.json*")]:
        os.utime(path, (BEGIN, BEGIN))
    for later in (0.0, 86_400.0):  # a second reading of the clock says so too
        SketchLog(tmp_path / "requests", window=60).tidy(days=7.0, mib=64.0, now=now + later)
    assert {path.name for path in folder.rglob("*") if path.is_file()} == {"expired.json", "lock"}


def test_bins_of_first_rows_have_no_extremes(write: Callable[..., list[WindowSketch]], tmp_path: Path) -> None:
    request = logged(version="4", rows=200)
    [window] = write(request)
    bins = read_reference(sketch_folder(tmp_path / "requests"), "digits/4", window.bins)
    assert bins is not None
    cat = next(each for each in bins.layouts if each.name == "answer.cat")
    assert min(request.predictions[:, 0]) < cat.edges[0] < cat.edges[-1] < max(request.predictions[:, 0])


def test_frozen_camera_counts_once_a_minute(write: Callable[..., list[WindowSketch]]) -> None:
    pixels = np.ones((1, 8, 8, 1), np.uint8)
    [window] = write(*[logged(10.0 * n, rows=1, pixels=pixels) for n in range(60)])
    assert (window.rows, window.requests) == (10, {"logged": 60, "repeated": 50})


def test_hours_are_files_of_limited_size(write: Callable[..., list[WindowSketch]], tmp_path: Path) -> None:
    """Their size does not grow with the requests, and the oldest ones are deleted."""
    log = SketchLog(tmp_path / "requests", window=60)
    for part in range(30):
        log.take([logged(1200.0 * part + 20 * number) for number in range(60)])
        log.write()
    paths = sorted(log.folder.glob("2*.json"))
    assert len(paths) == 10
    assert max(path.stat().st_size for path in paths) < 12 * 1000
    log.tidy(days=1e6, mib=paths[-1].stat().st_size / (1 << 20), now=BEGIN + 36_000.0)
    assert sorted(log.folder.glob("2*.json")) == paths[-1:]
