"""TensorBoard event files, read with TensorBoard's own loader."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ratchet.registry.journal import Journal
from tasks.curves import Curves

Points = list[tuple[str, int, float, float]]  # name, step, value, seconds since 1970


@pytest.fixture
def journal(tmp_path: Path) -> Callable[[], Journal]:
    """Open the run's journal, as a new process would."""
    return lambda: Journal(tmp_path / "journal")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "curves"


def shown(folder: Path) -> Points:
    """Return every scalar in the folder's event files, in the order of the files."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util.tensor_util import make_ndarray

    return [
        (value.tag, event.step, float(make_ndarray(value.tensor)), event.wall_time)
        for path in sorted(folder.iterdir())
        for event in EventFileLoader(str(path)).Load()
        for value in event.summary.value
    ]


def write_points(journal: Journal, steps: range) -> None:
    for step in steps:
        journal.write("metrics", {"step": step, "values": {"step/loss": 1 / step, "step/learning_rate": 0.5}})


def test_every_point_is_shown_with_its_time(journal, folder) -> None:
    run_journal = journal()
    run_journal.write("tags", {"values": {"device": "cpu"}})
    write_points(run_journal, range(1, 3))
    with Curves(folder, run_journal) as curves:
        write_points(run_journal, range(3, 5))
        curves.update()
        run_journal.write("metrics", {"step": 1, "values": {"validation/accuracy": 0.75}})
    run_journal.close()
    expected = [
        (name, entry.content["step"], pytest.approx(value), entry.time / 1000)
        for entry in run_journal.entries(0)
        if entry.kind == "metrics"
        for name, value in entry.content["values"].items()
    ]
    assert len(expected) == 9
    assert shown(folder) == expected


@pytest.mark.parametrize("written", [False, True], ids=["nothing on disk yet", "incomplete end on disk"])
def test_resumed_training_shows_every_point_once(journal, folder, written: bool) -> None:
    pid = os.fork()
    if not pid:  # ends as by SIGKILL: nothing is closed
        run_journal = journal()
        curves = Curves(folder, run_journal)
        write_points(run_journal, range(1, 6))
        if written:
            curves.close()
        os._exit(0)
    os.waitpid(pid, 0)
    [left] = folder.iterdir()
    with left.open("ab") as file:
        file.write(b"\x18\x00\x00")
    assert len(shown(folder)) == (10 if written else 0)

    run_journal = journal()
    with Curves(folder, run_journal):
        write_points(run_journal, range(4, 9))
    run_journal.close()
    assert sorted((name, step) for name, step, *_ in shown(folder)) == [
        (name, step) for name in ("step/learning_rate", "step/loss") for step in range(1, 9)
    ]


def test_open_page_continues_after_a_resume(journal, folder) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run_journal = journal()
    with Curves(folder, run_journal):
        write_points(run_journal, range(1, 4))
    page = EventAccumulator(str(folder))
    page.Reload()
    with Curves(folder, run_journal):
        write_points(run_journal, range(4, 6))
    run_journal.close()
    page.Reload()
    assert [point.step for point in page.Scalars("step/loss")] == [1, 2, 3, 4, 5]


def test_repeated_step_is_shown_exactly_twice(journal, folder) -> None:
    """After a non-finite loss the run returns to a checkpoint. Both attempts are logged and shown."""
    for _ in range(2):
        run_journal = journal()
        for attempt in (0, 1):
            run_journal.write("metrics", {"step": 3, "values": {"step/loss": 2.0 - attempt}, "attempt": attempt})
        with Curves(folder, run_journal):
            run_journal.close()
    assert [(name, step, value) for name, step, value, _ in shown(folder)] == [
        ("step/loss", 3, 2.0),
        ("step/loss", 3, 1.0),
    ]
