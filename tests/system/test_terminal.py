"""Commands in a real terminal of 80 and 40 columns: what a person sees at the end, and in the history above."""

import html
import re
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from terminal import Terminal, run_in_terminal

pytestmark = pytest.mark.system
MOST_LINES = 75  # of a whole run
OF_BARS = ("|0.00 [", "?file/s", "?entry/s", "Collecting", "Pushing", "Checking cache", "Querying")


IMAGE = Path(__file__).parents[2] / "docs" / "images" / "terminal.svg"


@pytest.fixture(scope="module")
def first_run(new_project: Callable[[str], Any], share_server: Callable[[Any], None]) -> tuple[Any, list[str]]:
    """A project, and the lines that its first training left on a terminal."""
    project = new_project("terminal")
    share_server(project)
    code, terminal = show(project, 100, "train")
    assert code == 0, "\n".join(terminal.text)
    return project, terminal.text


@pytest.fixture(scope="module")
def project(first_run: tuple[Any, list[str]]) -> Any:
    """A project with a trained model, so that every command has something to show."""
    return first_run[0]


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


def lines_of_image() -> list[str]:
    """Return the lines of the terminal in docs/images, whose letters are 12.2 units wide."""
    lines: dict[int, str] = defaultdict(str)
    text = re.compile(r'<text [^>]*x="([\d.]+)"[^>]*clip-path="url\(#terminal-line-(\d+)\)">(.*?)</text>')
    for x, number, content in text.findall(IMAGE.read_text(encoding="utf-8")):
        lines[int(number)] = lines[int(number)].ljust(round(float(x) / 12.2)) + html.unescape(content)
    return [lines[number].replace("\xa0", " ").rstrip() for number in range(max(lines) + 1)]


def fixed_parts(lines: list[str]) -> list[str]:
    """Return the starts of messages and summary, up to the first number or address, and the rules of the verdict."""
    begin, end = lines.index(""), next(number for number, line in enumerate(lines) if line.startswith("Next:"))
    starts = [line for line in lines[:begin] if line[0] != " "]
    starts += [line for line in lines[begin:end] if line and not line.startswith("    ")]
    rules = [re.sub(r"^  (?:ok|--|FAILED) +(\S+(?: \S+)*).*", r"rule \1", line) for line in starts]
    return [re.split(r"\d|file:|best ", line)[0].rstrip() for line in rules]


def test_image_of_the_docs_shows_what_a_run_prints(first_run: tuple[Any, list[str]]) -> None:
    shown, printed = fixed_parts(lines_of_image()), fixed_parts(first_run[1])
    assert len(shown) > 20
    expected = [*printed, "$ ratchet train", "rule calibration", "rule ONNX export"]  # switched off in tests
    assert [part for part in shown if part not in expected] == []
    assert not re.search(r"\d:\d\d|/tmp|https?://(?!www\.)", IMAGE.read_text(encoding="utf-8"))
