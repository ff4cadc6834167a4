"""Where no bar can be drawn, a stage's progress is a line now and then, and sentences are shown as they are."""

import random
from collections.abc import Iterator

import pytest

from tasks import progress
from tasks.progress import Terminal


@pytest.fixture(autouse=True)
def own_chance() -> Iterator[None]:
    """rich draws from Python's global generator; the next test shall not notice."""
    before = random.getstate()
    yield
    random.setstate(before)


def test_progress_is_told_now_and_then_not_at_every_step(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with Terminal("train", unit="steps") as terminal:
        for step in range(1, 51):
            now[0] += 1.0
            terminal.progress(step, 50, f"loss {1 / step:.2f}")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" of ")[0] for line in lines] == ["train: 11", "train: 22", "train: 33", "train: 44"]
    assert lines[0] == "train: 11 of 50 steps, 1/s, 0:00:39 left, loss 0.09"


def test_a_sentence_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with Terminal("ingest", unit="samples") as terminal:
        terminal.say("class '[bold]' has 3 of " + "x" * 300)
    assert capsys.readouterr().err == "ingest: class '[bold]' has 3 of " + "x" * 300 + "\n"
