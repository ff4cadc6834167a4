"""Sketches of a server's log, as RequestLog has them made."""

import json
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
        log.take(requests)
        log.write(is_last=True)
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
    write(logged(reference=stored), logged(version="4"))
    assert read_reference(folder, "digits/3") == reference
    bins = read_reference(folder, "digits/4")
    assert bins is not None
    assert (len(bins.layouts), bins.counts) == (5, {})
    write(logged(version="4"))
    assert read_reference(folder, "digits/4") == bins


def test_hours_are_files_of_limited_size(write: Callable[..., list[WindowSketch]], tmp_path: Path) -> None:
    """Their size does not grow with the requests, and the oldest ones are deleted."""
    log = SketchLog(tmp_path / "requests", window=60)
    for part in range(30):
        log.take([logged(1200.0 * part + 20 * number) for number in range(60)])
        log.write()
    paths = sorted(log.folder.glob("2*.json"))
    assert len(paths) == 10
    assert max(path.stat().st_size for path in paths) < 12 * 1000
    log.tidy(days=1e6, mib=paths[-1].stat().st_size / (1 << 20), now=BEGIN)
    assert sorted(log.folder.glob("2*.json")) == paths[-1:]
