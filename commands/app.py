"""Behaviour that all commands share: help, errors, the working folder and signals."""

import os
import pwd
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Any

import typer
from typer.core import TyperGroup

from ratchet.errors import RatchetError
from ratchet.terminal_lines import columns_of, echo
from ratchet.workspace import Workspace, disk_errors

__all__ = [
    "Panel",
    "exit_on_sigterm",
    "interruptible",
    "new_group",
    "project_folder",
]

_NARROW = 52  # columns
_WHOLE = 1000  # characters of a command's short help: no sentence is cut
_INTERRUPTED = 128 + signal.SIGINT  # the exit code that shells give a program ended by Ctrl-C


class Panel(StrEnum):
    """Groups of commands in `ratchet --help`, in the order in which a person needs them."""

    SETTINGS = "Settings"
    TRAINING = "Data and training"
    DECISIONS = "Decide about versions"
    USE = "Use a model"
    RECORDS = "Records and evidence"
    SERVERS = "Servers"
    COMMANDS = "Commands"


class _Commands(TyperGroup):
    """The only error handler of the command line: a user error is a message and exit code 1, without a traceback."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands by panel. Typer does that in its coloured help alone."""
        width = max(map(len, self.commands))
        for panel in Panel:
            rows = [
                (name.ljust(width), command.get_short_help_str(_WHOLE))
                for name, command in self.commands.items()
                if (getattr(command, "rich_help_panel", None) or Panel.COMMANDS) == panel
            ]
            if rows:
                with formatter.section(panel.value):
                    formatter.write_dl(rows)

    def invoke(self, ctx: Any) -> Any:
        try:
            with disk_errors(Path.cwd()):
                return super().invoke(ctx)
        except RatchetError as error:
            echo(f"ratchet: {error}", err=True)
            raise typer.Exit(1) from error
        except KeyboardInterrupt as interrupt:
            echo(f"ratchet: {'; '.join(['interrupted', *map(str, interrupt.args)])}", err=True)
            raise typer.Exit(_INTERRUPTED) from interrupt


def new_group(help: str | None = None) -> typer.Typer:
    """Return an empty group of commands. Help is plain text: typer's coloured help takes .3 s to import."""
    return typer.Typer(
        cls=_Commands,
        help=help,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, **_narrow()},
    )


def _narrow() -> dict[str, int]:
    """Return the width of help for a narrow terminal: click's own is at least 50 columns."""
    columns = columns_of(sys.stdout)
    return {"terminal_width": columns - 1} if columns is not None and columns < _NARROW else {}


@contextmanager
def project_folder() -> Iterator[Workspace]:
    """Make the project's folder the working folder, and let Python find the project's own modules.

    Relative paths in params.yaml start there. Resolve paths that the user typed before this.
    """
    workspace = Workspace.find()
    _name_user(workspace)
    os.chdir(workspace.root)
    workspace.make_importable()
    with disk_errors(workspace.root):
        yield workspace


def _name_user(workspace: Workspace) -> None:
    """Give a user without an account, as in a container, the name and home that DVC, PyTorch and Prefect need."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        os.environ.setdefault("USER", str(os.getuid()))
        os.environ.setdefault("HOME", str(workspace.project.state))


@contextmanager
def interruptible(note: str) -> Iterator[Callable[[], None]]:
    """Add a note to the message that follows Ctrl-C. Yield a function that raises again a signal that was swallowed.

    Extension code and user code can swallow an exception that a signal handler raises. The end of the block raises it
    again; a long loop calls the function.
    """
    try:
        with _recorded_signals() as raise_again:
            try:
                yield raise_again
            except typer.Exit:  # the exit code of a command that came to its end
                raise_again()
                raise
    except KeyboardInterrupt:
        raise KeyboardInterrupt(note) from None


@contextmanager
def _recorded_signals() -> Iterator[Callable[[], None]]:
    """Record SIGINT and SIGTERM if their handlers raise. Yield a function that calls the handlers of these again.

    Only the main thread has handlers; elsewhere nothing is recorded.
    """
    before: dict[int, Any] = {}
    received: list[int] = []
    is_leaving = False

    def record(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if not is_leaving:
            before[number](number, frame)
            received.remove(number)  # it did not raise, so it has dealt with the signal

    def raise_again() -> None:
        for number in received:
            before[number](number, None)

    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        before.update((number, handler) for number, handler in handlers.items() if callable(handler))
    try:
        for number in before:
            signal.signal(number, record)
        yield raise_again
    finally:
        is_leaving = True  # Ctrl-C from here on waits for the last line, so that all handlers are restored
        for number in reversed(before):
            signal.signal(number, before[number])
    raise_again()


def exit_on_sigterm() -> None:
    """Let SIGTERM raise SystemExit, so that temporary files and child processes are cleaned up."""

    def leave(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, leave)
