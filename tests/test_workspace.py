"""The lock of a workspace: one run at a time; others name its holder; a dead holder has no lock."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ratchet.errors import WorkspaceBusy, WorkspaceError
from ratchet.workspace import Workspace, disk_errors

SOURCE = Path(__file__).parents[1] / "src"
HOLD = """
import signal, sys
from pathlib import Path
from ratchet.workspace import Workspace
with Workspace(Path(sys.argv[1])).hold("a long training"):
    print("holding", flush=True)
    signal.pause()
"""
TRY = """
import sys
from pathlib import Path
from ratchet.errors import RatchetError
from ratchet.workspace import Workspace
try:
    with Workspace(Path(sys.argv[1])).hold("a try"):
        print("entered")
except RatchetError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    (tmp_path / "params.yaml").touch()
    return Workspace(tmp_path)


def environment(**more: str) -> dict[str, str]:
    """As in another shell: not started by the holder of the workspace."""
    mine = {name: value for name, value in os.environ.items() if name != "RATCHET_HOLDER"}
    return {**mine, "PYTHONPATH": str(SOURCE), **more}


@contextmanager
def holder(workspace: Workspace) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the workspace."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(workspace.root)], env=environment(), stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout
        assert process.stdout.readline() == "holding\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def attempt(workspace: Workspace, *prefix: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [*prefix, sys.executable, "-c", TRY, str(workspace.root)]
    return subprocess.run(command, env=environment(**more), capture_output=True, text=True, check=False)


def test_it_is_found_from_any_folder_below(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = workspace.root / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.delenv("RATCHET_ROOT", raising=False)
    assert Workspace.find(inner).root == workspace.root.resolve()
    monkeypatch.setenv("RATCHET_ROOT", str(workspace.root))
    assert Workspace.find().root == workspace.root.resolve()


def test_where_there_is_none_the_way_out_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RATCHET_ROOT", raising=False)
    with pytest.raises(
        WorkspaceError, match=r"no params\.yaml in .* run this inside the project folder, or set RATCHET"
    ):
        Workspace.find(tmp_path)


def test_a_path_that_ends_a_database_address_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite would take all before the question mark for the file, as for a ledger beside the project."""
    monkeypatch.delenv("RATCHET_ROOT", raising=False)
    root = tmp_path / "w?x" / "pets"
    root.mkdir(parents=True)
    (root / "params.yaml").touch()
    with pytest.raises(WorkspaceError, match=r"w\?x/pets: its ledger would be outside.* Fix: rename the folder$"):
        Workspace.find(root)
    (tmp_path / "w?x").rename(tmp_path / "w-x")
    renamed = (tmp_path / "w-x" / "pets").resolve()
    assert Workspace.find(renamed).root == renamed


def test_a_second_process_is_told_who_holds_it(workspace: Workspace) -> None:
    with holder(workspace) as other:
        with pytest.raises(WorkspaceBusy) as caught, workspace.hold("a test"):
            pass
        message = str(caught.value)
        assert f"held by a long training (process {other.pid}) since " in message
        assert f"`kill {other.pid}`" in message
        assert attempt(workspace).stderr.startswith("WorkspaceBusy: ")
    with workspace.hold("a test"):
        assert attempt(workspace).stderr.startswith("WorkspaceBusy: ")
    assert attempt(workspace).stdout == "entered\n"


@pytest.mark.parametrize("elsewhere", ["machine", "container"])
def test_no_process_of_another_machine_is_to_be_killed(workspace: Workspace, elsewhere: str) -> None:
    """Its number is that of another process here."""
    other = {"machine": "node-7", "machine_id": "1" * 32, "boot_id": "of node-7"}
    changed = other if elsewhere == "machine" else {"machine": "node-7", "pid_namespace": "pid:[1]"}
    with holder(workspace) as process:
        path = workspace.state / "holder.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changed))
        with pytest.raises(WorkspaceBusy) as caught, workspace.hold("a test"):
            pass
        assert f"held by a long training (process {process.pid} of node-7) since " in str(caught.value)
        assert "wait for it to end, stop it there, or work in a second clone" in str(caught.value)
        assert f"(process {process.pid} of node-7)" in str(workspace.holder())


def test_waiting_gets_it_when_the_holder_leaves(workspace: Workspace) -> None:
    with holder(workspace) as other:
        os.kill(other.pid, signal.SIGKILL)
        with workspace.hold("a test", wait=30.0):
            assert json.loads((workspace.state / "holder.json").read_text())["pid"] == os.getpid()


def test_a_killed_holder_holds_nothing(workspace: Workspace) -> None:
    with holder(workspace) as other:
        other.kill()
        other.wait()
    assert (workspace.state / "holder.json").exists()  # it could not tidy up
    assert attempt(workspace).stdout == "entered\n"
    assert not (workspace.state / "holder.json").exists()


def test_an_unknown_holder_is_busy_too(workspace: Workspace) -> None:
    with holder(workspace):
        (workspace.state / "holder.json").write_text("")
        with pytest.raises(WorkspaceBusy, match="another run holds this workspace"), workspace.hold("a test"):
            pass


def test_what_the_holder_starts_may_enter(workspace: Workspace) -> None:
    with workspace.hold("the flow"):
        with workspace.hold("its stage"):
            assert json.loads((workspace.state / "holder.json").read_text())["purpose"] == "the flow"
        assert attempt(workspace, RATCHET_HOLDER=os.environ["RATCHET_HOLDER"]).stdout == "entered\n"
    assert "RATCHET_HOLDER" not in os.environ


def test_it_is_free_again_after_an_error(workspace: Workspace) -> None:
    with pytest.raises(KeyError), workspace.hold("a test"):
        raise KeyError
    assert attempt(workspace).stdout == "entered\n"


def test_the_holder_of_another_workspace_is_no_holder_here(workspace: Workspace, tmp_path: Path) -> None:
    with holder(workspace):
        done = attempt(workspace, RATCHET_HOLDER=str(tmp_path / "elsewhere"))
    assert done.stderr.startswith("WorkspaceBusy: ")


def test_a_folder_that_cannot_be_written_is_told(open_folder: Path, unprivileged: tuple[str, ...]) -> None:
    open_folder.chmod(0o555)
    done = attempt(Workspace(open_folder), *unprivileged)
    open_folder.chmod(0o755)
    assert done.returncode == 1
    assert done.stderr.strip() == (
        f"WorkspaceError: {open_folder / '.ratchet'}: cannot be read or written (Permission denied): "
        "make it readable and writable for this user, or work in a clone"
    )


def test_the_disk_s_refusals_are_told_and_other_errors_pass(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceError, match=r"No space left on device.: free some space"), disk_errors(tmp_path):
        raise OSError(28, "No space left on device")
    with pytest.raises(WorkspaceError, match=f"^{tmp_path / 'x'}: .*read-only"), disk_errors(tmp_path):
        raise OSError(30, "Read-only file system", str(tmp_path / "x"))
    with pytest.raises(WorkspaceError, match=r"File name too long.: take a shorter name"), disk_errors(tmp_path):
        (tmp_path / ("n" * 300)).mkdir()
    with pytest.raises(ConnectionRefusedError), disk_errors(tmp_path):
        raise ConnectionRefusedError(111, "Connection refused")


@pytest.mark.parametrize("bare", [True, False])
def test_a_worktree_without_a_main_folder_is_named(workspace: Workspace, tmp_path: Path, bare: bool) -> None:
    """Git removes it with the ledger, which it ignores. Beside a main folder the records are there."""

    def git(*arguments: str, root: Path = workspace.root) -> None:
        own = ("-c", "user.name=tests", "-c", "user.email=tests@localhost")
        subprocess.run(["git", "-C", str(root), *own, *arguments], check=True, capture_output=True)

    git("init")
    git("add", "params.yaml")
    git("commit", "--message=one")
    git("clone", *["--bare"] * bare, str(workspace.root), str(tmp_path / "apart" / "repository"))
    git("worktree", "add", str(tmp_path / "tree"), "HEAD", root=tmp_path / "apart" / "repository")
    tree = Workspace(tmp_path / "tree")
    with tree.hold("a run") as message:
        assert ("is a git worktree, and the repository has no main folder" in (message or "")) == bare
    tree.mlruns.mkdir()
    with tree.hold("a run") as message:
        assert message is None
