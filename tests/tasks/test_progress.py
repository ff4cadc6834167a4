"""Progress of a stage without a terminal: a line every ten seconds, and messages unchanged."""

import random
from collections.abc import Iterator

import pytest

from tasks import progress
from tasks.progress import Terminal


@pytest.fixture(autouse=True)
def restored_random_state() -> Iterator[None]:
    """Restore Python's global generator, which rich uses."""
    before = random.getstate()
    yield
    random.setstate(before)


def test_progress_lines_are_at_least_ten_seconds_apart(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with Terminal("train", unit="steps") as terminal:
        for step in range(1, 51):
            now[0] += 1.0
            terminal.update(step, 50, f"loss {1 / step:.2f}")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" of ")[0] for line in lines] == ["train: 11", "train: 22", "train: 33", "train: 44"]
    assert lines[0] == "train: 11 of 50 steps, 1/s, 0:00:39 left, loss 0.09"


def test_rate_and_time_left_begin_again_with_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar of evaluate goes from the test samples to each of the user's metrics."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    terminal = Terminal("evaluate", unit="samples")
    terminal.update(360, 360)
    for note, pace in (("interval of cost", 72), ("interval of gain", 36)):
        for done in range(0, 360, pace):
            now[0] += 1.0
            terminal.update(done, 360, note)
        left = 360 - done
        assert terminal.words == f"evaluate: {done} of 360 samples, {pace}/s, 0:00:{left // pace:02} left, {note}"


def test_message_is_printed_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    with Terminal("ingest", unit="samples") as terminal:
        terminal.say("class '[bold]' has 3 of " + "x" * 300)
    assert capsys.readouterr().err == "ingest: class '[bold]' has 3 of " + "x" * 300 + "\n"
