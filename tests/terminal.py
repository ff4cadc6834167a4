"""A terminal for tests: runs a command in a pseudo-terminal, and shows the lines as a person sees them."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import fork_server

_ROWS = 24
_SEQUENCE = re.compile(r"\x1b\[([?>]?)([\d;]*)([@-~])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]|\x1b[=>78M]")


@dataclass
class Terminal:
    """Screen and history of a terminal of `columns` columns, with the escape codes that progress bars use."""

    columns: int
    lines: list[list[str]] = field(default_factory=lambda: [[]])
    wrapped: set[int] = field(default_factory=set)  # lines that continue the line above, which was too long
    unknown: set[str] = field(default_factory=set)  # escape codes that are not interpreted
    row: int = 0
    column: int = 0

    def write(self, text: str) -> None:
        """Interpret the output of a program."""
        place = 0
        while place < len(text):
            if text[place] == "\x1b":
                sequence = _SEQUENCE.match(text, place)
                if sequence is None:
                    self.unknown.add(text[place : place + 8])
                    place += 1
                    continue
                if sequence[3]:
                    self._control(sequence[1] + sequence[3], sequence[2])
                place = sequence.end()
                continue
            self._character(text[place])
            place += 1

    def _character(self, character: str) -> None:
        if character == "\n":
            self._move(self.row + 1)
        elif character == "\r":
            self.column = 0
        elif character == "\b":
            self.column = max(0, self.column - 1)
        elif character >= " ":
            if self.column == self.columns:
                self._move(self.row + 1)
                self.wrapped.add(self.row)
                self.column = 0
            line = self.lines[self.row]
            line.extend(" " * (self.column + 1 - len(line)))
            line[self.column] = character
            self.column += 1

    def _control(self, code: str, parameters: str) -> None:
        count = int(parameters.partition(";")[0] or 0)
        if code == "A":
            self.row = max(0, len(self.lines) - _ROWS, self.row - max(1, count))
        elif code == "B":
            self._move(self.row + max(1, count))
        elif code == "C":
            self.column = min(self.columns - 1, self.column + max(1, count))
        elif code == "D":
            self.column = max(0, self.column - max(1, count))
        elif code == "G":
            self.column = max(1, count) - 1
        elif code == "K":
            line = self.lines[self.row]
            if count == 0:
                del line[self.column :]
            elif count == 2:
                line.clear()
                self.wrapped.discard(self.row)
        elif code not in ("m", "?h", "?l"):
            self.unknown.add(f"{code} {parameters}")

    def _move(self, row: int) -> None:
        self.row = row
        while len(self.lines) <= row:
            self.lines.append([])

    @property
    def text(self) -> list[str]:
        """Every line that can be seen by scrolling back, without the empty ones at the end."""
        lines = ["".join(line).rstrip() for line in self.lines]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    @property
    def broken_words(self) -> list[str]:
        """Words that go on in the next line, because the terminal has broken them at its edge."""
        broken = []
        for row in self.wrapped:
            before, after = "".join(self.lines[row - 1]), "".join(self.lines[row])
            if not before.endswith(" ") and after[:1].strip():
                broken.append(before.split(" ")[-1] + after.split(" ")[0])
        return broken

    @property
    def screen(self) -> list[str]:
        """Lines of the last screen."""
        return self.text[-_ROWS:]


def run_in_terminal(
    command: list[str], *, columns: int, cwd: Path, environment: Mapping[str, str]
) -> tuple[int, Terminal]:
    """Run a command of `ratchet` in a pseudo-terminal. Return its exit code and the terminal."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, columns, 0, 0))
    variables = {name: value for name, value in environment.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [str(fork_server.shared().programs / "python"), "-m", "commands", *command],
        cwd=cwd,
        env=variables | {"TERM": "xterm-256color"},
        stdin=inner,
        stdout=inner,
        stderr=inner,
        start_new_session=True,
    )
    os.close(inner)
    output = b""
    while True:
        if not select.select([outer], [], [], 0.5)[0]:
            if process.poll() is not None:  # a process that the command has left may hold the terminal
                break
            continue
        try:
            piece = os.read(outer, 65536)
        except OSError:  # Linux: the last process that had the terminal has closed it
            break
        if not piece:
            break
        output += piece
    os.close(outer)
    terminal = Terminal(columns)
    terminal.write(output.decode())
    return process.wait(), terminal
