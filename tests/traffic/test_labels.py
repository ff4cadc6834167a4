"""Late labels: the newest counts, and quality has the values that NumPy computes from the answers."""

import asyncio
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import orjson
import polars as pl
import pytest

from ratchet.problems import Classes, Numbers
from ratchet.serving import label_endpoint
from ratchet.serving.formats.request_formats import new_id
from ratchet.serving.http_request import Refused
from ratchet.serving.label_endpoint import LabelEndpoint
from ratchet.settings.model import ServingSettings
from ratchet.traffic import label_store
from ratchet.traffic.label_store import LabelStore, Stored
from ratchet.traffic.log_reader import read_file
from ratchet.traffic.log_summary import summary
from ratchet.traffic.request_log import RequestLog
from ratchet.traffic.schema import Logged, answer_time, stamped_id, target_id

NOON = 1_800_014_400.0  # within an hour of the year 2027
ANSWERS = [f"{number:032x}" for number in range(10)]


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    """A log of ten requests of one row; the answer to request n is class n % 2."""
    folder = tmp_path / "requests"
    log = RequestLog(folder, share=1.0, inputs="none", days=30.0, mib=64.0)
    for number, answer in enumerate(ANSWERS):
        predictions = np.eye(2, dtype=np.float32)[[number % 2]]
        request = Logged(
            answer, NOON + number, 0.25, "own", "digits", "3" if number < 8 else "4", "", "", {}, predictions, "digest"
        )
        log.add(answer, lambda request=request: request)
    log.close()
    return folder


def test_newest_label_counts_and_repeats_change_nothing(requests: Path) -> None:
    store = LabelStore(requests)
    labels = {(answer, 0): [0.1] for answer in ANSWERS[:3]}
    assert store.add(labels, problem="regression", days=30.0) == Stored(3, 0, 0)
    assert store.add(labels, problem="regression", days=30.0) == Stored(0, 0, 3)
    assert store.add({(ANSWERS[0], 0): [2.0], (ANSWERS[3], 0): [0.1]}, problem="regression", days=30.0) == Stored(
        1, 1, 0
    )
    newest = {row["answer"]: row["label"] for row in store.newest().iter_rows(named=True)}
    assert (len(newest), newest[ANSWERS[0]]) == (4, [2.0])
    paths = [*store.folder.rglob("*.parquet")]
    assert sum(len(pl.read_parquet(path)) for path in paths) == 5
    assert {path.stat().st_mode & 0o777 for path in paths} == {0o600}
    assert store.logged({ANSWERS[4], "unknown"}) == {(ANSWERS[4], 0): "digest"}


def test_correction_counts_after_the_clock_was_set_back(requests: Path) -> None:
    days = {"now": NOON}
    store = LabelStore(requests, clock=lambda: days["now"])
    for later, label in ((0, 2.0), (365, 1.0), (1, 0.0)):
        days["now"] = NOON + later * 86_400.0
        store.add({(ANSWERS[0], 0): [label]}, problem="regression", days=1000.0)
        assert store.newest()["label"].to_list() == [[label]]
    assert store.add({(ANSWERS[0], 0): [0.0]}, problem="regression", days=1000.0) == Stored(0, 0, 1)
    days = sorted(str(path.relative_to(store.folder))[:10] for path in store.folder.rglob("*.parquet"))
    assert days == ["2027-01-15", "2027-01-16", "2028-01-15"], "the day decides when one is deleted"


def test_labels_are_deleted_in_time_after_a_clock_ahead(requests: Path) -> None:
    days = {"now": NOON + 70 * 365 * 86_400.0}
    store = LabelStore(requests, clock=lambda: days["now"])
    store.add({("ahead", 0): [1.0]}, problem="regression", days=30.0)
    for later in range(40):
        days["now"] = NOON + later * 86_400.0
        store.add({(f"day {later}", 0): [0.0], ("ahead", 0): [2.0 + later]}, problem="regression", days=30.0)
    newest = dict(store.newest().select("answer", "label").iter_rows())
    assert newest["ahead"] == [41.0], "the newest label counts"
    assert [name for name in newest if name != "ahead"] == [f"day {later}" for later in range(8, 40)]
    times = dict(store.newest().select("answer", "labelled").iter_rows())
    del times["ahead"]
    assert max(times.values()).timestamp() == pytest.approx(days["now"]), "one label ahead takes no others along"


def test_labels_are_not_stored_after_the_deadline(requests: Path) -> None:
    store = LabelStore(requests)
    endpoint = LabelEndpoint(cast(Any, SimpleNamespace(settings=ServingSettings())), store)
    target = Classes(("even", "odd"))
    predictions = np.eye(2, dtype=np.float32)[[0]]
    logged = Logged("a" * 32, NOON, 0.25, "own", "digits", "5", "", "", {}, predictions, target_id(target))
    log = RequestLog(requests, share=1.0, inputs="none", days=30.0, mib=64.0)
    log.add(logged.answer, lambda: logged)
    log.close()
    body, checks = orjson.dumps({"labels": [{"id": logged.answer, "label": "even"}]}), 0
    for allowed in range(10):
        calls = iter(range(allowed))

        def check(calls: Iterator[int] = calls) -> None:
            if next(calls, None) is None:
                raise TimeoutError

        try:
            endpoint._add(store, body, target, check)
        except TimeoutError:
            checks += 1
            assert store.newest().is_empty()
    assert checks >= 2
    assert store.newest()["answer"].to_list() == [logged.answer]

    def late() -> None:
        raise TimeoutError

    odd = body.replace(b"even", b"odd")
    with pytest.raises(TimeoutError):
        endpoint._add(store, odd, target, lambda: None, late)
    assert store.newest()["label"].to_list() == [[0.0]]
    assert endpoint._add(store, body, target, lambda: None, late) == Stored(0, 0, 1), "nothing is written"


def test_too_many_labels_are_refused() -> None:
    body = orjson.dumps({"labels": [{"id": "a", "row": row, "label": 1.0} for row in range(100_001)]})
    with pytest.raises(Refused, match=r"found 100,001 labels; allowed: 100,000 in one request") as refused:
        label_endpoint._read(body, Numbers(("price",), (50.0,), (7.0,)))
    assert refused.value.status == 413


def test_accuracy_counts_labelled_rows_only(requests: Path) -> None:
    LabelStore(requests).add({(each, 0): [0.0] for each in ANSWERS[:5]}, problem="classification", days=30.0)
    first, second = summary(requests)
    assert (first.version, first.requests, first.labels, first.metric) == ("digits/3", 8, 5, "accuracy")
    assert first.quality is not None
    assert first.quality.value == pytest.approx(3 / 5)
    assert first.quality.low < 3 / 5 < first.quality.high
    assert (second.version, second.requests, second.labels, second.quality) == ("digits/4", 2, 0, None)


def test_errors_of_numbers_are_averaged(requests: Path) -> None:
    LabelStore(requests).add({(each, 0): [3.0, 0.0] for each in ANSWERS[:4]}, problem="regression", days=30.0)
    first = summary(requests)[0]
    errors = [(2 + 0) / 2, (3 + 1) / 2] * 2
    assert first.metric == "mean absolute error"
    assert first.quality is not None
    assert first.quality.value == pytest.approx(np.mean(errors))


def test_empty_log_has_no_hours(tmp_path: Path) -> None:
    assert summary(tmp_path / "requests") == []


def test_a_damaged_file_of_labels_is_set_aside(requests: Path) -> None:
    store = LabelStore(requests, clock=lambda: NOON)
    store.add({(ANSWERS[0], 0): [0.0]}, problem="classification", days=30.0)
    (path,) = store.folder.rglob("*.parquet")
    path.write_bytes(path.read_bytes()[:100])
    assert store.add({(ANSWERS[1], 0): [1.0]}, problem="classification", days=30.0) == Stored(1, 0, 0)
    assert store.newest()["answer"].to_list() == [ANSWERS[1]]
    assert summary(requests)[0].labels == 1


def test_labels_that_cannot_be_read_now_are_kept(requests: Path) -> None:
    """The system refuses to open the file, here because of a link to itself."""
    store = LabelStore(requests, clock=lambda: NOON)
    store.add({(ANSWERS[0], 0): [0.0]}, problem="classification", days=30.0)
    (path,) = store.folder.rglob("*.parquet")
    content = path.read_bytes()
    path.unlink()
    path.symlink_to(path)
    with pytest.raises(OSError, match=f"symbolic links: '{path}'"):
        read_file(path, {})
    assert not list(store.folder.rglob("*.damaged"))
    path.unlink()
    path.write_bytes(content)
    assert store.newest()["answer"].to_list() == [ANSWERS[0]]


def newest_of(store: LabelStore) -> dict[str, tuple[list[float], bool]]:
    """Return the label of each answer, and whether an earlier one was another."""
    return {row["answer"]: (row["label"], row["corrected"]) for row in store.newest().iter_rows(named=True)}


def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the list to which each file that is read from now on is added."""
    paths: list[Path] = []

    def noted(path: Path, *more: Any, **options: Any) -> pl.DataFrame:
        paths.append(path)
        return read_file(path, *more, **options)

    monkeypatch.setattr(label_store, "read_file", noted)
    return paths


def test_a_request_reads_and_writes_its_own_labels(requests: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the time of a label grows with those before it."""
    store = LabelStore(requests, clock=lambda: NOON)
    for number in range(5):
        store.add({(f"{number}", row): [0.0] for row in range(100)}, problem="classification", days=30.0)
    store.add({("5", 0): [0.0]}, problem="classification", days=30.0)
    files, paths = {*store.folder.rglob("*.parquet")}, reads(monkeypatch)
    assert store.add({("6", 0): [0.0]}, problem="classification", days=30.0) == Stored(1, 0, 0)
    assert len(paths) == 1, "the file that the request before has written"
    (new,) = {*store.folder.rglob("*.parquet")} - files
    assert len(pl.read_parquet(new)) == 1
    assert store.add({("1", 7): [0.0], ("2", 8): [1.0]}, problem="classification", days=30.0) == Stored(0, 1, 1)
    assert len(paths) == 1 + 1 + 2, "also the two files with an earlier label"


def test_segments_become_one_file_by_the_hour(requests: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_store, "_MOST_SEGMENTS", 4)
    now = {"time": NOON}
    store, other = (LabelStore(requests, clock=lambda: now["time"]) for _ in range(2))  # of two servers
    of_the_disk = store.folder / ".snapshot" / "2027-01-15T07"
    of_the_disk.mkdir(parents=True)
    (of_the_disk.parent / "rows.parquet").write_bytes(b"of an earlier time")
    for number in range(150):
        writer = store if number % 3 else other
        stored = writer.add({(f"{number % 100}", 0): [float(number)]}, problem="regression", days=30.0)
        assert stored == (Stored(1, 0, 0) if number < 100 else Stored(0, 1, 0))
        assert len([*store.folder.rglob("*.parquet")]) <= 8 + 1, "however many labels an hour has"
    before = store.newest()
    now["time"] += 3600.0
    assert other.add({("0", 0): [100.0]}, problem="regression", days=30.0) == Stored(0, 0, 1)
    (whole,) = store.folder.glob("*.parquet")
    assert len(pl.read_parquet(whole)) == 150
    assert [path.name for path in of_the_disk.parent.iterdir()] == ["2027-01-15T07", "rows.parquet"]
    assert store.newest().sort("answer").equals(before.sort("answer"))
    assert before["corrected"].sum() == 50


def test_a_server_killed_at_any_moment_loses_no_label(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends before each change of its folder in turn, and another server goes on."""
    monkeypatch.setattr(label_store, "_MOST_SEGMENTS", 2)
    now, left = {"time": NOON}, {"changes": 0}

    def counted(change: Any) -> Any:
        def counting(*arguments: Any, **options: Any) -> Any:
            left["changes"] -= 1
            if left["changes"] == 0:
                raise KeyboardInterrupt
            return change(*arguments, **options)

        return counting

    for owner, name in ((os, "replace"), (Path, "unlink"), (Path, "rmdir")):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))
    for moment in itertools.count(1):
        left["changes"], requests, kills = moment, tmp_path / f"{moment}" / "requests", 0
        store = LabelStore(requests, clock=lambda: now["time"])
        newest: dict[str, tuple[list[float], bool]] = {}
        for number in range(9):
            now["time"] = NOON + 900.0 * number  # four in an hour
            answer, labels = f"{number % 5}", {(f"{number % 5}", 0): [float(number)]}
            try:
                store.add(labels, problem="regression", days=30.0)
            except KeyboardInterrupt:
                store, kills = LabelStore(requests, clock=lambda: now["time"]), kills + 1
                assert newest_of(store) == newest
                store.add(labels, problem="regression", days=30.0)
            newest[answer] = ([float(number)], answer in newest)
            assert newest_of(store) == newest
        now["time"], left["changes"] = now["time"] + 3600.0, 0
        assert store.add({("0", 0): [5.0]}, problem="regression", days=30.0) == Stored(0, 0, 1)
        paths = [*store.folder.rglob("*.parquet")]
        assert [path.parent for path in paths] == [store.folder] * 3, "one for each hour"
        assert sum(len(pl.read_parquet(path)) for path in paths) == 9
        if not kills:
            break
    assert moment > 15


def test_labels_of_an_older_release_count(requests: Path) -> None:
    """It wrote one file for each day."""
    store = LabelStore(requests, clock=lambda: NOON)
    store.add({("a", 0): [0.0]}, problem="regression", days=30.0)
    (segment,) = store.folder.rglob("*.parquet")
    segment.rename(store.folder / "2027-01-15.parquet")
    store = LabelStore(requests, clock=lambda: NOON)
    assert store.add({("a", 0): [0.0], ("b", 0): [0.0]}, problem="regression", days=30.0) == Stored(1, 0, 1)
    assert store.add({("a", 0): [1.0]}, problem="regression", days=30.0) == Stored(0, 1, 0)
    assert dict(store.newest().select("answer", "corrected").iter_rows()) == {"a": True, "b": False}


def test_an_answer_is_looked_up_in_its_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its id says when it was given. That of an older release does not, and the whole log is read."""
    folder = tmp_path / "requests"
    log = RequestLog(folder, share=1.0, inputs="none", days=1e6, mib=64.0, clock=lambda: NOON)
    answers = [stamped_id("a" * 32, NOON + 3600.0 * hour) for hour in range(10)]
    later = stamped_id("d" * 32, NOON + 3600.0 * 5 + 60.0)
    for answer in [*answers, later, "f" * 32]:
        predictions = np.eye(2, dtype=np.float32)[[0]]
        began = (answer_time(answer) or NOON) - 1.0  # the request came before its answer was ready
        request = Logged(answer, began, 1.0, "own", "digits", "3", "", "", {}, predictions, "digest")
        log.add(answer, lambda request=request: request)
    log.close()
    store, paths = LabelStore(folder), reads(monkeypatch)
    assert store.logged({answers[5]}) == {(answers[5], 0): "digest"}
    assert len(paths) <= 3
    paths.clear()
    assert store.logged({later}) == {(later, 0): "digest"}
    assert len(paths) == 1, "that of the very hour first"
    paths.clear()
    assert store.logged({stamped_id("b" * 32, NOON + 3600.0 * 5)}) == {}
    assert len(paths) <= 3
    assert store.logged({"f" * 32, answers[2]}) == {("f" * 32, 0): "digest", (answers[2], 0): "digest"}
    assert store.logged({stamped_id("c" * 32, 1e9), answers[9]}) == {(answers[9], 0): "digest"}


def test_ids_of_answers_say_their_time() -> None:
    before = int(time.time())
    ids = {new_id() for _ in range(100)}
    assert {len(answer) for answer in ids} == {32}
    assert len({answer[:22] for answer in ids}) == 100
    assert all(before <= (answer_time(answer) or 0) <= time.time() for answer in ids)
    assert answer_time(ANSWERS[1]) is None, "an older id"


def test_labels_that_are_being_stored_have_no_deadline() -> None:
    """An answer that they are not stored would be wrong."""

    async def late(*, lift_first: bool) -> str:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as limit:
                if lift_first:
                    await asyncio.to_thread(label_endpoint._lift, limit, loop)
                    assert limit.when() is None
                    return "stored"
                limit.reschedule(0.0)
                await asyncio.Event().wait()
        except TimeoutError:
            with pytest.raises(TimeoutError):
                await asyncio.to_thread(label_endpoint._lift, limit, loop)
        return "late"

    assert asyncio.run(late(lift_first=True)) == "stored"
    assert asyncio.run(late(lift_first=False)) == "late"


def test_drafts_of_a_killed_write_of_labels_are_removed(requests: Path) -> None:
    store = LabelStore(requests, clock=lambda: NOON)
    store.folder.mkdir()
    (store.folder / ".draft-2027-01-15.parquet.abc.parquet").write_bytes(b"PAR1")
    store.add({(ANSWERS[0], 0): [0.0]}, problem="classification", days=30.0)
    assert not list(store.folder.glob(".draft-*"))
    assert len(store.newest()) == 1


def test_old_labels_are_deleted_after_two_readings(requests: Path) -> None:
    days = {"now": NOON}
    store = LabelStore(requests, clock=lambda: days["now"])
    for number, later in enumerate((0.0, 40.0, 40.5, 41.5)):
        days["now"] = NOON + later * 86_400.0
        store.add({(ANSWERS[number], 0): [0.0]}, problem="classification", days=30.0)
        assert (ANSWERS[0] in store.newest()["answer"].to_list()) == (later < 41)
