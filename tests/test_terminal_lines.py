"""Lines for a terminal: no word, hash or path is broken, at no width, by no function that prints."""

import fcntl
import os
import pty
import struct
import sys
import termios
from collections.abc import Callable

import pytest

from ratchet.terminal_lines import echo, echo_table, wrapped
from tests.terminal import Terminal

HASH = "34762c536f1b46c6dc1b1e4aeb8ddcb6.dir"
TEXT = f"the stored column data.group_column of /tmp/a-long-folder/with-names is {HASH}, see 計算機 and the rest"
REASON = "ended early, because other trials had better values at this epoch"
HEADER = ("trial", "optimizer.learning_rate", "reason")
ROWS = [
    ("1", "0.001", f"its hash is {HASH}"),
    ("2, seed 7", "", f"{REASON} by the pruner"),
]
PRINTERS: dict[str, tuple[Callable[[], None], str]] = {
    "line": (lambda: echo(TEXT), TEXT),
    "error": (lambda: echo(f"ratchet: {TEXT}", err=True), TEXT),
    "tree": (lambda: echo(f"│    └── {TEXT}"), TEXT),
    "caption": (lambda: echo(TEXT, caption="  evidence   "), f"evidence {TEXT}"),
    "deep caption": (lambda: echo(TEXT, caption="  ✓ ingest       9.0 s  ", style="green"), f"ingest 9.0 s {TEXT}"),
    "style": (lambda: echo(TEXT, style="bold"), TEXT),
    "table": (lambda: echo_table(HEADER, ROWS), " ".join([*HEADER, *(" ".join(row) for row in ROWS)])),
    "empty table": (lambda: echo_table(HEADER, []), ""),
}


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], None]], Terminal]:
    """Return a function that runs a function whose stdout and stderr are a terminal of so many columns."""

    def run(columns: int, act: Callable[[], None]) -> Terminal:
        outer, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        with os.fdopen(inner, "w", encoding="utf-8") as stream, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stream)
            patch.setattr(sys, "stderr", stream)
            patch.delenv("NO_COLOR", raising=False)
            act()
            os.write(inner, b"\x1b[0m")  # so that there is something to read
            output = os.read(outer, 65536)
        os.close(outer)
        terminal = Terminal(columns)
        terminal.write(output.decode())
        return terminal

    return run


@pytest.mark.parametrize("columns", [40, 80, 100, 200])
@pytest.mark.parametrize("name", PRINTERS)
def test_no_printer_breaks_a_word(
    name: str, columns: int, on_terminal: Callable[[int, Callable[[], None]], Terminal]
) -> None:
    act, text = PRINTERS[name]
    terminal = on_terminal(columns, act)
    assert terminal.broken_words == []
    assert terminal.wrapped == set()
    assert set(text.split()) <= set(" ".join(terminal.text).split())


def test_word_wider_than_the_terminal_begins_a_line() -> None:
    assert wrapped(f"      see {HASH} there", 30) == f"      see\n{HASH}\n        there"
    assert wrapped("計算機 計算機", 8, 0) == "計算機\n計算機"  # two columns each


def test_table_gets_narrower_before_it_becomes_a_list(
    on_terminal: Callable[[int, Callable[[], None]], Terminal],
) -> None:
    rows = [("alpha", "one two three four"), ("beta", "five")]
    for columns, expected in (
        (40, ["name   values", "alpha  one two three four", "beta   five"]),
        (20, ["name   values", "alpha  one two three", "       four", "beta   five"]),
    ):
        assert on_terminal(columns, lambda: echo_table(("name", "values"), rows)).text == expected
    wide = on_terminal(20, lambda: echo_table(("name", "values"), [("alpha", "x" * 18)])).text
    assert wide == ["name    alpha", "values", "  " + "x" * 18]


def test_pipe_gets_whole_lines_without_colour(capsys: pytest.CaptureFixture[str]) -> None:
    echo(TEXT, caption="  evidence   ")
    echo_table(HEADER, ROWS)
    assert capsys.readouterr().out.splitlines() == [
        f"  evidence   {TEXT}",
        "trial      optimizer.learning_rate  reason",
        f"1          0.001                    its hash is {HASH}",
        f"2, seed 7                           {REASON} by the pruner",
    ]
