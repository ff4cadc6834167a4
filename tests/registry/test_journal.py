"""The journal: each entry is on disk once, whatever happens to the writer."""

import errno
import json
import threading
from pathlib import Path

import pytest

from ratchet import files
from ratchet.registry.journal import Journal


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def written(journal: Journal) -> list[tuple[str, dict[str, object]]]:
    return [(entry.kind, entry.content) for entry in journal.entries(0)]


def point(step: int, **values: float) -> dict[str, object]:
    return {"step": step, "values": values}


def test_the_next_process_reads_what_was_written(folder: Path) -> None:
    first = Journal(folder)
    first.write("metrics", point(1, loss=0.5))
    first.write("tags", {"values": {"a": "ø"}})
    first.close()
    second = Journal(folder)
    assert written(second) == [("metrics", point(1, loss=0.5)), ("tags", {"values": {"a": "ø"}})]
    assert second.uid == first.uid
    second.close()


def test_two_trainings_have_two_ids(tmp_path: Path) -> None:
    journals = [Journal(tmp_path / name) for name in "ab"]
    assert journals[0].uid != journals[1].uid
    for journal in journals:
        assert journal.is_empty
        assert journal.is_sent
        journal.close()


def test_a_repeated_point_is_written_once(folder: Path) -> None:
    for _ in range(2):  # the second time as a resumed training in a new process
        journal = Journal(folder)
        for step in (1, 2, 1, 2):
            journal.write("metrics", point(step, loss=step / 10))
        journal.write("metrics", point(1, loss=0.9))  # the same point with another value: the first one counts
        journal.write("metrics", point(1, accuracy=0.9))
        journal.write("params", {"values": {"epochs": "3"}})
        journal.write("params", {"values": {"epochs": "4"}})
        journal.close()
    assert written(journal) == [
        ("metrics", point(1, loss=0.1)),
        ("metrics", point(2, loss=0.2)),
        ("metrics", point(1, accuracy=0.9)),
        ("params", {"values": {"epochs": "3"}}),
    ]


def test_a_status_can_be_written_again(folder: Path) -> None:
    journal = Journal(folder)
    for status in ("RUNNING", "KILLED", "RUNNING", "FINISHED"):
        journal.write("status", {"status": status}, again=True)
    journal.close()
    assert [content["status"] for _, content in written(journal)] == ["RUNNING", "KILLED", "RUNNING", "FINISHED"]


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_a_partial_line_is_cut_off_and_written_again(folder: Path, cut: int) -> None:
    journal = Journal(folder)
    journal.write("metrics", point(1, loss=0.1))
    journal.write("metrics", point(2, loss=0.2))
    journal.close()
    content = (folder / "events.jsonl").read_bytes()
    (folder / "events.jsonl").write_bytes(content[:-cut])
    again = Journal(folder)
    again.write("metrics", point(2, loss=0.2))
    again.close()
    assert written(again) == [("metrics", point(1, loss=0.1)), ("metrics", point(2, loss=0.2))]


def test_a_line_that_is_being_written_is_not_read_yet(folder: Path) -> None:
    journal = Journal(folder)
    journal.write("metrics", point(1, loss=0.1))
    with (folder / "events.jsonl").open("ab") as file:
        file.write(b'{"kind": "metrics", "ti')
    assert written(journal) == [("metrics", point(1, loss=0.1))]
    journal.close()


def test_a_second_journal_keeps_the_line_being_written(folder: Path) -> None:
    """`ratchet sync` beside a training."""
    training = Journal(folder)
    training.write("metrics", point(1, loss=0.1))
    line = json.dumps({"kind": "metrics", "time": 5, "content": point(2, loss=0.2)}).encode() + b"\n"
    with (folder / "events.jsonl").open("ab", buffering=0) as file:
        file.write(line[:30])  # what a full disk took
        sending = Journal(folder)
        sending.mark_sent("run-1", sending.entries(0)[-1].end)
        assert sending.is_sent
        file.write(line[30:])
    assert not sending.is_sent
    assert written(sending) == [("metrics", point(1, loss=0.1)), ("metrics", point(2, loss=0.2))]
    sending.close()
    training.close()


def test_a_seal_outlasts_another_process_that_sends(folder: Path) -> None:
    training = Journal(folder, store="s")
    training.mark_sent("run-1", 0)
    sending = Journal(folder, store="s")
    training.seal("weights")
    sending.mark_sent("run-1", 20)
    again = Journal(folder, store="s")
    assert (again.sealed, again.sent, again.uid) == ("weights", 20, training.uid)
    for journal in (training, sending, again):
        journal.close()


def test_many_threads_write_whole_lines_and_no_point_twice(folder: Path) -> None:
    journal = Journal(folder)
    barrier = threading.Barrier(8)

    def write() -> None:
        barrier.wait()
        for step in range(200):
            journal.write("metrics", point(step, loss=step / 7))

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal.close()
    lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert sorted(line["content"]["step"] for line in lines) == list(range(200))


def test_the_sent_position_is_exact(folder: Path) -> None:
    journal = Journal(folder)
    for step in range(3):
        journal.write("metrics", point(step, loss=0.1))
    entries = journal.entries(0)
    journal.mark_sent("run-1", entries[1].end)
    journal.close()
    again = Journal(folder)
    assert (again.run_id, again.sent, again.is_sent) == ("run-1", entries[1].end, False)
    assert [entry.content["step"] for entry in again.entries(again.sent)] == [2]
    assert again.entries(again.sent)[0].time == entries[2].time  # MLflow identifies a point by its time, too
    again.mark_sent("run-1", entries[2].end)
    assert again.is_sent
    again.close()


def test_nan_is_refused(folder: Path) -> None:
    journal = Journal(folder)
    with pytest.raises(ValueError, match="not JSON compliant"):
        journal.write("metrics", point(1, loss=float("nan")))
    journal.write("metrics", point(2, loss=0.5))
    journal.close()
    assert written(journal) == [("metrics", point(2, loss=0.5))]


def test_a_full_disk_makes_nothing_be_sent_twice(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    journal = Journal(folder)
    journal.mark_sent("run", 10)
    with monkeypatch.context() as patch:
        patch.setattr(files, "write_json", full)
        with pytest.raises(OSError, match="No space left"):
            journal.mark_sent("run", 20)
        journal.refresh()
        assert (journal.run_id, journal.sent) == ("run", 20)
    journal.seal("weights")
    another = Journal(folder)
    assert (journal.sent, another.sent) == (20, 20)
    another.mark_sent("run", 30)
    journal.refresh()
    assert journal.sent == 30
    another.close()
    journal.close()


def test_what_went_to_another_store_is_not_sent_here(folder: Path) -> None:
    """`tracking.uri` was changed, and a sync to the new address was cut off after this training had begun."""
    before = Journal(folder, store="the old address")
    before.mark_sent("old run", 1000)
    training, sync = (Journal(folder, store="the new address") for _ in range(2))
    sync.mark_sent("new run", 300)
    training.refresh()
    assert (training.run_id, training.sent) == ("new run", 300)
    before.seal("weights")
    training.refresh()
    assert training.sent == 300
    before.refresh()  # its run is unknown again, and gets everything
    assert (before.run_id, before.sent) == (None, 0)
    for journal in (before, training, sync):
        journal.close()
