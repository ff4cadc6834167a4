"""Behaviour that all commands share: error messages, exit codes, the working folder, speed of the help."""

import ast
import contextlib
import getpass
import os
import pwd
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from commands.app import exit_on_sigterm, interruptible, new_group, project_folder
from ratchet.errors import SettingsError
from ratchet.workspace import Workspace

HEAVY = {"dvc", "filelock", "mlflow", "numpy", "pandas", "pandera", "polars", "prefect", "pydantic", "rich", "torch"}


def new_app(command: Callable[[], None]) -> typer.Typer:
    """Return a group with the command `run`. A second one keeps typer from dropping the group."""
    app = new_group()
    app.command("run")(command)
    app.command("other")(lambda: None)
    return app


def run(command: Callable[[], None], *, fails_with: int) -> str:
    """Run a function as a command; return what it prints to stderr."""
    result = CliRunner().invoke(new_app(command), ["run"])
    assert result.exit_code == fails_with, result.output
    return result.stderr


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a folder inside a project; the working folder and sys.path are restored."""
    (tmp_path / "params.yaml").touch()
    (tmp_path / "notes").mkdir()
    monkeypatch.chdir(tmp_path / "notes")
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path / "notes"


def test_user_error_is_one_line_and_exit_code_1() -> None:
    def fail() -> None:
        raise SettingsError("seed: found x")

    assert run(fail, fails_with=1) == "ratchet: seed: found x\n"


def test_full_disk_is_a_user_error() -> None:
    def fail() -> None:
        raise OSError(28, "No space left on device", "model.json")

    message = run(fail, fails_with=1)
    assert message.startswith("ratchet: model.json: ")
    assert "No space left on device" in message


def test_other_errors_are_not_hidden() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        new_app(fail)(["run"])


def test_ctrl_c_prints_the_note_and_exits_with_130() -> None:
    def fail() -> None:
        with interruptible("nothing was left behind"):
            raise KeyboardInterrupt

    assert run(fail, fails_with=130) == "ratchet: interrupted; nothing was left behind\n"


def swallow(number: signal.Signals) -> None:
    """Receive a signal as extension code does that clears every error."""
    with contextlib.suppress(BaseException):
        signal.raise_signal(number)


@pytest.fixture
def handlers() -> Iterator[None]:
    """Set the handlers of a command in a terminal, which a job in the background lacks; restore them."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    exit_on_sigterm()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("ends_with", [None, typer.Exit(0)])
def test_a_swallowed_ctrl_c_still_ends_with_130(ends_with: Exception | None) -> None:
    def fail() -> None:
        with interruptible("nothing was left behind"):
            swallow(signal.SIGINT)
            if ends_with:
                raise ends_with

    assert run(fail, fails_with=130) == "ratchet: interrupted; nothing was left behind\n"


@pytest.mark.usefixtures("handlers")
def test_a_swallowed_sigterm_still_ends_with_143() -> None:
    def fail() -> None:
        with interruptible("nothing was left behind"):
            swallow(signal.SIGTERM)

    assert run(fail, fails_with=143) == ""


@pytest.mark.usefixtures("handlers")
def test_a_loop_raises_a_swallowed_ctrl_c_again() -> None:
    pieces = []

    def work() -> None:
        with interruptible("") as raise_again:
            for piece in range(9):
                pieces.append(piece)
                if piece == 3:
                    swallow(signal.SIGINT)
                raise_again()

    with pytest.raises(KeyboardInterrupt):
        work()
    assert pieces == [0, 1, 2, 3]


@pytest.mark.usefixtures("handlers")
def test_a_handled_ctrl_c_ends_nothing() -> None:
    """A handler that raises nothing, as that of a training, has dealt with the signal."""
    received: list[int] = []
    handler: Callable[..., None] = lambda number, _: received.append(number)  # noqa: E731
    signal.signal(signal.SIGINT, handler)
    with interruptible("") as raise_again:
        signal.raise_signal(signal.SIGINT)
        raise_again()
    assert received == [signal.SIGINT]
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("error", [None, ValueError("no text")])
def test_handlers_are_restored_though_a_signal_comes_then(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    restore, before = signal.signal, [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    def interrupted(number: int, handler: Callable[..., None]) -> object:
        signal.raise_signal(signal.SIGINT)
        return restore(number, handler)

    def work() -> None:
        with monkeypatch.context() as patch, interruptible(""):
            patch.setattr(signal, "signal", interrupted)
            if error:
                raise error

    with pytest.raises(ValueError if error else KeyboardInterrupt):
        work()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_another_thread_has_no_handlers() -> None:
    results: list[str] = []

    def work() -> None:
        with interruptible("") as raise_again:
            raise_again()
            results.append("complete")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results == ["complete"]


def test_exit_code_of_a_command_is_kept() -> None:
    def fail() -> None:
        raise typer.Exit(3)

    assert run(fail, fails_with=3) == ""


def test_project_folder_is_found_from_below(folder: Path) -> None:
    with project_folder() as workspace:
        assert workspace == Workspace(folder.parent)
        assert Path.cwd() == folder.parent
        assert sys.path[0] == str(folder.parent)


def test_a_user_without_account_has_name_and_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose user is a number. DVC, PyTorch and Prefect raised tracebacks."""
    for name in ("HOME", "LNAME", "LOGNAME", "USER", "USERNAME"):
        monkeypatch.setenv(name, "")  # restored at the end
        monkeypatch.delenv(name)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    with project_folder() as workspace:
        assert Path.home() == workspace.state == folder.parent / ".ratchet"
        assert getpass.getuser() == str(os.getuid())


def test_sigterm_runs_cleanup_and_exits_with_143() -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        exit_on_sigterm()
        with pytest.raises(SystemExit) as end:
            os.kill(os.getpid(), signal.SIGTERM)
        assert end.value.code == 128 + signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)


def test_help_imports_little_and_fits_100_columns() -> None:
    """Imports decide its time: 0.15 s of CPU without these packages, seconds with torch or prefect."""
    program = """
        import sys
        sys.argv = ["ratchet", "--help"]
        from commands.cli import main
        try:
            main()
        finally:
            print(*sys.modules, file=sys.stderr)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    environment = os.environ | {"COLUMNS": "100"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert not HEAVY & set(done.stderr.split())
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    assert sum(line.startswith("  ") for line in lines) > 20


def test_commands_and_stages_print_by_echo_alone() -> None:
    """It breaks lines between words. Messages above a progress bar go through the bar's console."""
    printed = list[str]()
    for folder in ("commands", "tasks"):
        for path in (Path(__file__).parents[2] / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                function = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
                if re.search(r"^print$|^typer\.echo$|console\.print$", function):
                    printed.append(path.name)
    assert set(printed) == {"progress.py"}
