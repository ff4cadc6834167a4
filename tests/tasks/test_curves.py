"""Event files as TensorBoard itself reads them: the truth about the format is its own loader."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ratchet.registry.journal import Journal
from tasks.curves import Curves

Told = list[tuple[str, int, float, float]]  # name, step, value, seconds since 1970


@pytest.fixture
def journal(tmp_path: Path) -> Callable[[], Journal]:
    """Open the run's journal, as another process would."""
    return lambda: Journal(tmp_path / "journal")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "curves"


def shown(folder: Path) -> Told:
    """Every scalar in the folder's event files, in the order of the files."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util.tensor_util import make_ndarray

    return [
        (value.tag, event.step, float(make_ndarray(value.tensor)), event.wall_time)
        for path in sorted(folder.iterdir())
        for event in EventFileLoader(str(path)).Load()
        for value in event.summary.value
    ]


def points(journal: Journal, steps: range) -> None:
    for step in steps:
        journal.write("metrics", {"step": step, "values": {"step/loss": 1 / step, "step/learning_rate": 0.5}})


def test_every_point_of_the_journal_is_shown_with_its_time(journal, folder) -> None:
    told = journal()
    told.write("tags", {"values": {"device": "cpu"}})
    points(told, range(1, 3))
    with Curves(folder, told) as curves:
        points(told, range(3, 5))
        curves.update()
        told.write("metrics", {"step": 1, "values": {"validation/accuracy": 0.75}})
    told.close()
    expected = [
        (name, entry.content["step"], pytest.approx(value), entry.time / 1000)
        for entry in told.entries(0)
        if entry.kind == "metrics"
        for name, value in entry.content["values"].items()
    ]
    assert len(expected) == 9
    assert shown(folder) == expected


@pytest.mark.parametrize("written", [False, True], ids=["nothing yet on disk", "on disk, its end torn"])
def test_a_killed_and_resumed_training_shows_every_point_once(journal, folder, written: bool) -> None:
    pid = os.fork()
    if not pid:  # ends as by SIGKILL: nothing is closed on the way out
        told = journal()
        curves = Curves(folder, told)
        points(told, range(1, 6))
        if written:
            curves.close()
        os._exit(0)
    os.waitpid(pid, 0)
    [left] = folder.iterdir()
    with left.open("ab") as file:
        file.write(b"\x18\x00\x00")
    assert len(shown(folder)) == (10 if written else 0)

    told = journal()
    with Curves(folder, told):
        points(told, range(4, 9))
    told.close()
    assert sorted((name, step) for name, step, *_ in shown(folder)) == [
        (name, step) for name in ("step/learning_rate", "step/loss") for step in range(1, 9)
    ]


def test_a_page_that_is_open_reads_on_after_a_resume(journal, folder) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    told = journal()
    with Curves(folder, told):
        points(told, range(1, 4))
    page = EventAccumulator(str(folder))
    page.Reload()
    with Curves(folder, told):
        points(told, range(4, 6))
    told.close()
    page.Reload()
    assert [point.step for point in page.Scalars("step/loss")] == [1, 2, 3, 4, 5]


def test_a_step_that_was_made_again_is_shown_twice_and_no_more(journal, folder) -> None:
    """After a loss that is not finite the run goes back to a checkpoint: both attempts are told, and both are shown."""
    for _ in range(2):
        told = journal()
        for attempt in (0, 1):
            told.write("metrics", {"step": 3, "values": {"step/loss": 2.0 - attempt}, "attempt": attempt})
        with Curves(folder, told):
            told.close()
    assert [(name, step, value) for name, step, value, _ in shown(folder)] == [
        ("step/loss", 3, 2.0),
        ("step/loss", 3, 1.0),
    ]
