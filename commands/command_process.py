"""A command of `ratchet` in a child process, whose progress is shown in a notebook or as lines on stderr."""

import errno
import html
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import deque
from collections.abc import Sequence
from typing import IO, Any

from ratchet.errors import DataError, RatchetError
from ratchet.terminal_lines import echo
from ratchet.workspace import ROOT_VARIABLE, Workspace
from tasks.progress import LINE_SECONDS_VARIABLE

__all__ = ["CommandEnded", "CommandProgress", "run_command"]

_PROGRESS = re.compile(r"^(?P<stage>[\w-]+): (?P<done>[\d,]+) of (?P<total>[\d,]+) ")
_LINE_SECONDS = "0.5"
_SHOWN = 12  # lines
_LOOK = 0.1  # seconds between two looks at what the command wrote
_LOGGED = 200  # lines that are kept for the message of an error
_ERROR = "ratchet: "  # begins the message of an error
_COLOURS = ("FORCE_COLOR", "CLICOLOR_FORCE", "CLICOLOR", "MPLBACKEND")  # that Jupyter sets for the kernel's own output
_START = """\
import os, signal, sys
from ratchet.parent_process import end_with_parent
end_with_parent({parent}, signal.SIGTERM)
sys.argv[0] = "ratchet"
from commands.cli import main
main()
"""


class CommandEnded(RatchetError):
    """A command has ended with an error. `faults`: its messages, of which a command that goes on has several."""

    def __init__(self, message: str, faults: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.faults = tuple(faults)


def run_command(workspace: Workspace, *arguments: str) -> list[str]:
    """Run `ratchet ARGUMENTS` in the project folder, and return the last lines that it wrote to stderr.

    The command ends as by SIGTERM if this process ends. Ctrl-C, or the button "interrupt" of a notebook, is passed on.

    Raises:
        CommandEnded: the command has ended with an error, which is the message.
    """
    lines: deque[str] = deque(maxlen=_LOGGED)
    # A file, not a pipe: the command must be able to write its last lines, and a checkpoint, after this process ended.
    with tempfile.NamedTemporaryFile(delete=False) as log, open(log.name, "ab") as written:
        os.unlink(log.name)  # no file stays behind when this process is killed
        with (
            _start(workspace, arguments, written) as process,
            CommandProgress(lines, f"ratchet {arguments[0]}") as progress,
        ):
            try:
                _follow(process, log, progress)
            except KeyboardInterrupt:
                process.send_signal(signal.SIGINT)
                _follow(process, log, progress)
                raise
    if process.returncode:
        raise CommandEnded(_error(lines, arguments[0], process.returncode), progress.faults)
    return list(lines)


def _start(workspace: Workspace, arguments: Sequence[str], stderr: IO[bytes]) -> "subprocess.Popen[bytes]":
    environment = {name: value for name, value in os.environ.items() if name not in _COLOURS}
    environment |= {ROOT_VARIABLE: str(workspace.root), LINE_SECONDS_VARIABLE: _LINE_SECONDS, "NO_COLOR": "1"}
    program = _START.format(parent=os.getpid())
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", program, *arguments],  # -P: no folder of the project is taken for Ratchet's
            cwd=workspace.root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,  # a notebook's interrupt goes to the kernel's whole group
        )
    except OSError as error:
        if error.errno != errno.E2BIG:
            raise
        raise DataError(
            f"{arguments[0]}: more, or longer, arguments than the system takes. Fix: name the folder of files, and "
            "write long settings into params.yaml"
        ) from None


def _follow(process: "subprocess.Popen[bytes]", log: IO[bytes], progress: "CommandProgress") -> None:
    """Show the lines that a process writes to a file until it ends."""
    rest, has_ended = b"", False
    while not has_ended:
        has_ended = process.poll() is not None
        *whole, rest = (rest + log.read()).split(b"\n")
        if has_ended and rest:
            whole.append(rest)
        for line in whole:
            progress.add(line.decode(errors="replace").rstrip())
        if not has_ended:
            time.sleep(_LOOK)


def _error(lines: "deque[str]", command: str, code: int) -> str:
    """Return the message of the error that ended a command: the lines from the last that begins as one.

    A command that a signal ended wrote none.
    """
    content = list(lines)
    starts = [number for number, line in enumerate(content) if line.startswith(_ERROR)]
    if code < 0:
        name = signal.Signals(-code).name
        return "\n".join([f"the command {command} was ended by {name}; its last lines were:", *content[-_SHOWN:]])
    if not starts:
        return "\n".join([f"the command {command} ended with exit code {code}", *content[-_SHOWN:]])
    return "\n".join(content[starts[-1] :]).removeprefix(_ERROR)


class CommandProgress:
    """Lines of a command. In a notebook one output with a bar, which is updated; elsewhere stderr.

    Attributes:
        faults: the first line of each error.
    """

    def __init__(self, lines: "deque[str]", title: str) -> None:
        self.faults: list[str] = []
        self._lines, self._title, self._bar = lines, title, ""
        self._shown: deque[str] = deque(maxlen=_SHOWN)
        self._display = _notebook()
        self._id = uuid.uuid4().hex

    def __enter__(self) -> "CommandProgress":
        if self._display:
            self._display.display(self, display_id=self._id)
        return self

    def __exit__(self, *_: object) -> None:
        self._bar = ""
        self._update()

    def add(self, line: str) -> None:
        """Show a line. That of a stage's progress takes the place of the one before."""
        self._lines.append(line)
        if line.startswith(_ERROR):
            self.faults.append(line.removeprefix(_ERROR))
        if not self._display:
            echo(line, err=True)
        if progress := _PROGRESS.match(line):
            done, total = (int(progress[name].replace(",", "")) for name in ("done", "total"))
            self._bar = f'<progress value="{done}" max="{max(1, total)}"></progress> {html.escape(line)}'
        elif line:
            self._bar = ""
            self._shown.append(line)
        self._update()

    def _update(self) -> None:
        if self._display:
            self._display.update_display(self, display_id=self._id)

    def __repr__(self) -> str:
        return "\n".join([self._title, *self._shown])

    def _repr_html_(self) -> str:
        lines = html.escape("\n".join(self._shown))
        return f'<b>{html.escape(self._title)}</b><pre style="white-space:pre-wrap">{lines}</pre>{self._bar}'


def _notebook() -> Any:
    """Return the module IPython.display in the kernel of a notebook; None elsewhere."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return ipython.display if getattr(shell, "kernel", None) else None
