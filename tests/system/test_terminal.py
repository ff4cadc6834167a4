"""Commands in a real terminal of 80 and 40 columns: what a person sees at the end, and in the history above."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from terminal import Terminal, run_in_terminal

pytestmark = pytest.mark.system
MOST_LINES = 75  # of a whole run
OF_BARS = ("|0.00 [", "?file/s", "?entry/s", "Collecting", "Pushing", "Checking cache", "Querying")


@pytest.fixture(scope="module")
def project(new_project: Callable[[str], Any], share_server: Callable[[Any], None]) -> Any:
    """A project with a trained model, so that every command has something to show."""
    project = new_project("terminal")
    share_server(project)
    project.good("ratchet", "train")
    return project


def show(project: Any, columns: int, *command: str) -> tuple[int, Terminal]:
    """Run a command of `ratchet`. Check what holds for each: no unknown code, and no word broken at the edge."""
    code, terminal = run_in_terminal(list(command), columns=columns, cwd=project.root, environment=project.environment)
    history = "\n".join(terminal.text)
    assert not terminal.unknown
    assert "Traceback" not in history
    # A path or hash that is longer than the space beside its caption cannot be helped.
    assert [word for word in terminal.broken_words if len(word) <= columns - 16] == [], history
    return code, terminal


def test_run_leaves_only_its_messages_on_the_terminal(project: Any) -> None:
    code, terminal = show(project, 80, "train", "--set", "evaluation.resamples=101")
    history = "\n".join(terminal.text)
    assert code == 0, history
    assert [part for part in OF_BARS if part in history] == []
    assert "!" not in terminal.text
    assert len(terminal.text) <= MOST_LINES, history
    bars = [line for line in terminal.text if "━" in line]
    assert len(bars) == 3, history  # one finished bar of each stage that runs
    assert any(line.startswith("Next:") for line in terminal.screen)
    assert terminal.screen[-1].endswith("search better settings")  # the last of the next steps


def test_short_commands_break_lines_between_words(project: Any) -> None:
    """In few columns, where most lines have to be broken."""
    for command, expected in (
        ("set training.epoch=3", 1),
        ("diff photos", 0),
        ("status", 3),
        ("audit", 0),
        ("train", 0),
        ("predict missing.jpg", 1),
        ("predict --help", 0),
    ):
        code, terminal = show(project, 40, *command.split())
        assert code == expected, (command, terminal.text)
        assert len(terminal.text) < 150, command


def test_pipe_gets_whole_lines(project: Any) -> None:
    lines = project.good("ratchet", "use").splitlines()
    assert max(map(len, lines)) > 80
    assert all(line.startswith(" ") is False for line in lines)
