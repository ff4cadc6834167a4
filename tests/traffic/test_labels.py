"""Late labels: the newest counts, and quality has the values that NumPy computes from the answers."""

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
from ratchet.serving.http_request import Refused
from ratchet.serving.label_endpoint import LabelEndpoint
from ratchet.settings.model import ServingSettings
from ratchet.traffic.label_store import LabelStore, Stored
from ratchet.traffic.log_reader import read_file
from ratchet.traffic.log_summary import summary
from ratchet.traffic.request_log import RequestLog
from ratchet.traffic.schema import Logged, target_id

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
    (path,) = store.folder.glob("*.parquet")
    assert len(pl.read_parquet(path)) == 5
    assert path.stat().st_mode & 0o777 == 0o600
    assert store.logged({ANSWERS[4], "unknown"}) == {(ANSWERS[4], 0): "digest"}


def test_correction_counts_after_the_clock_was_set_back(requests: Path) -> None:
    days = {"now": NOON}
    store = LabelStore(requests, clock=lambda: days["now"])
    for later, label in ((0, 2.0), (365, 1.0), (1, 0.0)):
        days["now"] = NOON + later * 86_400.0
        store.add({(ANSWERS[0], 0): [label]}, problem="regression", days=1000.0)
        assert store.newest()["label"].to_list() == [[label]]
    assert store.add({(ANSWERS[0], 0): [0.0]}, problem="regression", days=1000.0) == Stored(0, 0, 1)
    names = sorted(path.name for path in store.folder.glob("*.parquet"))
    assert names == ["2027-01-15.parquet", "2027-01-16.parquet", "2028-01-15.parquet"], (
        "the day decides when one is deleted"
    )


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
    (path,) = store.folder.glob("*.parquet")
    path.write_bytes(path.read_bytes()[:100])
    assert store.add({(ANSWERS[1], 0): [1.0]}, problem="classification", days=30.0) == Stored(1, 0, 0)
    assert store.newest()["answer"].to_list() == [ANSWERS[1]]
    assert summary(requests)[0].labels == 1


def test_labels_that_cannot_be_read_now_are_kept(requests: Path) -> None:
    """The system refuses to open the file, here because of a link to itself."""
    store = LabelStore(requests, clock=lambda: NOON)
    store.add({(ANSWERS[0], 0): [0.0]}, problem="classification", days=30.0)
    (path,) = store.folder.glob("*.parquet")
    content = path.read_bytes()
    path.unlink()
    path.symlink_to(path)
    with pytest.raises(OSError, match=f"symbolic links: '{path}'"):
        read_file(path, {})
    assert not list(store.folder.glob("*.damaged"))
    path.unlink()
    path.write_bytes(content)
    assert store.newest()["answer"].to_list() == [ANSWERS[0]]


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
