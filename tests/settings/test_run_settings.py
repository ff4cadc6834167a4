"""Settings of one run in params.yaml: kept if it completes, otherwise restored."""

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Event

import pytest

from ratchet import files, settings
from ratchet.errors import SettingsError, WorkspaceError
from ratchet.settings.run_settings import RunSettings, overridden, restore
from ratchet.workspace import Workspace

CHANGES = {"training.epochs": 3, "data.drop": ["a", "b"]}


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    project = Workspace(tmp_path)
    text = settings.template().replace("epochs: 30  #", "epochs:   30   # mine:").replace("0.002", "2.0e-3")
    project.params.write_text(text)
    return project


def override(
    workspace: Workspace, changes: dict[str, object] | None = None, say: Callable[[str], None] = print
) -> AbstractContextManager[RunSettings]:
    """Set CHANGES, or other changes, for a run."""
    return overridden(workspace.params, changes or CHANGES, note=workspace.overrides, say=say)


def run(workspace: Workspace, *, keep: bool = False, edit: str = "") -> list[str]:
    """Hold the workspace with CHANGES in its settings, as a flow run does. Return its messages."""
    messages: list[str] = []
    with workspace.hold("a run"), override(workspace, say=messages.append) as mine:
        assert mine.params.training.epochs == 3
        assert settings.load(workspace.params) == mine.params
        if edit:
            settings.override(workspace.params, settings.parse_assignments([edit]))
        if keep:
            mine.keep()
    return messages


def killed(workspace: Workspace) -> None:
    """Do the same in another process, which gets SIGKILL."""
    code = (
        "import os, signal, sys; from pathlib import Path; from ratchet.workspace import Workspace\n"
        "from ratchet.settings.run_settings import overridden; w = Workspace(Path(sys.argv[1]))\n"
        f"with w.hold('a run'), overridden(w.params, {CHANGES}, note=w.overrides, say=print):\n"
        " os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(workspace.root)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert settings.load(workspace.params).training.epochs == 3


def test_a_completed_run_keeps_its_settings(workspace: Workspace) -> None:
    assert run(workspace, keep=True) == []
    kept = workspace.params.read_bytes()
    assert settings.load(workspace.params).training.epochs == 3
    with workspace.hold("the next") as restored:
        assert restored is None
    assert workspace.params.read_bytes() == kept


def test_a_link_to_settings_stays_and_its_file_changes(workspace: Workspace) -> None:
    shared = workspace.root / "shared.yaml"
    before = workspace.params.read_text()
    workspace.params.rename(shared)
    workspace.params.symlink_to(shared.name)
    run(workspace)  # it sets others, and restores these
    assert (workspace.params.is_symlink(), shared.read_text()) == (True, before)
    settings.override(workspace.params, {"training.epochs": 7})
    assert (workspace.params.is_symlink(), settings.load(shared).training.epochs) == (True, 7)


def test_settings_of_a_run_are_refused_in_a_shared_file(workspace: Workspace, tmp_path: Path) -> None:
    """Another project would train with them."""
    own = workspace.root / "own"
    own.mkdir()
    linked, before = Workspace(own), workspace.params.read_text()
    linked.params.symlink_to(workspace.params)
    with pytest.raises(
        SettingsError, match=r"a link to .*cannot change training\.epochs, data\.drop.*Fix: "
    ) as refused:
        run(linked)
    assert (workspace.params.read_text(), linked.settings_as_read.exists()) == (before, False)
    with linked.hold("a run"), overridden(linked.params, {}, note=linked.overrides, say=print) as mine:
        assert mine.params.training.epochs == 30
    subprocess.run(str(refused.value).split("`")[3], shell=True, cwd=own, check=True)
    run(linked, keep=True)
    assert (settings.load(linked.params).training.epochs, workspace.params.read_text()) == (3, before)


def test_settings_that_are_set_at_once_are_all_kept(workspace: Workspace, tmp_path: Path) -> None:
    """Also those of two projects with a link to the file."""
    linked = [Workspace(tmp_path / name) for name in ("first", "second")]
    for project in linked:
        project.root.mkdir()
        project.params.symlink_to(workspace.params)
    changes: dict[str, object] = {
        "seed": 5, "training.epochs": 7, "training.patience": 2, "training.batch_size": 33, "serving.port": 8123,
        "search.trials": 9, "data.image_size": 16, "budget.wall_hours": 3.5,
    }  # fmt: skip
    with ThreadPoolExecutor(len(changes)) as pool:
        places = itertools.cycle(project.params for project in [workspace, *linked])
        list(pool.map(lambda key, path: settings.override(path, {key: changes[key]}), changes, places))
    now = settings.flatten(settings.load(workspace.params))
    assert {key: now[key] for key in changes} == changes


def test_settings_of_a_run_that_ends_undo_no_others(workspace: Workspace) -> None:
    """The user changes the file while runs restore it."""
    seeds = list[int]()

    def set_seeds() -> None:
        while not is_over.is_set():
            expected = len(seeds) + 1
            settings.override(workspace.params, {"seed": expected})
            seeds.append(settings.load(workspace.params).seed - expected)

    is_over = Event()
    with ThreadPoolExecutor(1) as pool:
        user = pool.submit(set_seeds)
        try:
            for _ in range(30):
                with workspace.hold("a run"), override(workspace):
                    pass
        finally:
            is_over.set()
        user.result()
    assert len(seeds) == seeds.count(0) > 0
    assert settings.load(workspace.params).training.epochs == 30


def test_a_flow_has_the_settings_that_its_command_read(workspace: Workspace) -> None:
    with workspace.hold("a run"), override(workspace) as command:
        settings.override(workspace.params, settings.parse_assignments(["training.batch_size=17"]))  # for the next run
        with overridden(workspace.params, {}, note=workspace.overrides, say=print) as flow:
            assert flow.params == command.params
        assert settings.load(workspace.settings_as_read) == command.params
    assert settings.load(workspace.params).training.batch_size == 17


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_a_failed_run_leaves_every_byte_as_before(workspace: Workspace, line_end: bytes) -> None:
    before = workspace.params.read_bytes().replace(b"\n", line_end)
    workspace.params.write_bytes(before)
    [message] = run(workspace)
    assert workspace.params.read_bytes() == before
    assert "training.epochs is 30 again" in message
    assert not workspace.overrides.exists()


def test_an_interrupt_restores_the_settings(workspace: Workspace) -> None:
    before = workspace.params.read_bytes()
    with pytest.raises(KeyboardInterrupt), workspace.hold("a run"), override(workspace):
        raise KeyboardInterrupt
    assert workspace.params.read_bytes() == before


def test_a_killed_runs_settings_are_restored_by_the_next(workspace: Workspace) -> None:
    before = workspace.params.read_bytes()
    killed(workspace)
    with workspace.hold("the next") as restored:
        assert workspace.params.read_bytes() == before
    assert restored is not None
    assert "training.epochs is 30 again" in restored


def test_a_retried_run_has_its_settings_again(workspace: Workspace) -> None:
    before = workspace.params.read_bytes()
    killed(workspace)
    run(workspace)
    assert workspace.params.read_bytes() == before
    killed(workspace)
    run(workspace, keep=True)
    assert settings.load(workspace.params).training.epochs == 3


def test_an_edit_during_the_run_is_kept(workspace: Workspace) -> None:
    before = workspace.params.read_text()
    run(workspace, edit="training.batch_size=7")
    assert workspace.params.read_text() == before.replace("batch_size: 64  #", "batch_size: 7  #")


def test_a_setting_new_to_the_file_is_the_default_again(workspace: Workspace) -> None:
    before = workspace.params.read_bytes()
    with workspace.hold("a run"), override(workspace, {"data.folds": 4}):
        pass
    assert workspace.params.read_bytes() == before
    with workspace.hold("a run"), override(workspace, {"data.folds": 4}):
        settings.override(workspace.params, {"seed": 7})
    now = settings.load(workspace.params)
    assert (now.data.folds, now.seed) == (0, 7)


def test_an_edit_of_an_overridden_key_wins(workspace: Workspace) -> None:
    before = workspace.params.read_text()
    [message] = run(workspace, edit="training.epochs=9")
    assert workspace.params.read_text() == before.replace("epochs:   30   #", "epochs:   9   #")
    assert "epochs" not in message


def test_a_note_with_a_removed_setting_restores_the_others(workspace: Workspace) -> None:
    killed(workspace)
    note = files.read_json(workspace.overrides)
    files.write_json(workspace.overrides, {**note, "keys": [*note["keys"], "training.final_rate"]})
    settings.override(workspace.params, {"seed": 7})
    with workspace.hold("the next") as message:
        assert message is not None
    now = settings.load(workspace.params)
    assert (now.training.epochs, now.seed) == (30, 7)


def test_an_edit_after_the_kill_is_kept(workspace: Workspace) -> None:
    killed(workspace)
    workspace.params.write_text(workspace.params.read_text().replace("batch_size: 64", "batch_size: 7"))
    with workspace.hold("the next"):
        pass
    now = settings.load(workspace.params)
    assert (now.training.epochs, now.training.batch_size, now.data.drop) == (30, 7, ())


def test_a_file_broken_meanwhile_waits_for_the_next_run(workspace: Workspace) -> None:
    killed(workspace)
    good = workspace.params.read_text()
    workspace.params.write_text(good + "\n  : [")
    assert restore(workspace.params, workspace.overrides) is None
    assert workspace.overrides.exists()
    workspace.params.write_text(good)
    assert restore(workspace.params, workspace.overrides) is not None
    assert settings.load(workspace.params).training.epochs == 30


@pytest.mark.parametrize("broken", [b"\n# \xe4\n", b"\nday: 2026-13-45\n"])
def test_a_file_broken_during_the_run_hides_no_error(workspace: Workspace, broken: bytes) -> None:
    """Text that is not UTF-8, and a date that does not exist: the error of the run is shown."""
    good = b""

    def fail() -> None:
        nonlocal good
        with workspace.hold("a run"), override(workspace):
            good = workspace.params.read_bytes()
            workspace.params.write_bytes(good + broken)
            raise WorkspaceError("why the run failed")

    with pytest.raises(WorkspaceError, match="why the run failed"):
        fail()
    with workspace.hold("the next"), pytest.raises(SettingsError, match="not YAML"):
        settings.load(workspace.params)
    workspace.params.write_bytes(good)
    assert restore(workspace.params, workspace.overrides) is not None
    assert settings.load(workspace.params).training.epochs == 30


def test_a_run_under_way_keeps_its_settings(workspace: Workspace) -> None:
    with workspace.hold("a run"), override(workspace):
        code = (
            "import sys; from pathlib import Path; from ratchet.workspace import Workspace\n"
            "print(Workspace(Path(sys.argv[1])).restore_if_idle())"
        )
        environment = {name: value for name, value in os.environ.items() if name != "RATCHET_HOLDER"}
        command = [sys.executable, "-c", code, str(workspace.root)]
        assert subprocess.check_output(command, text=True, env=environment) == "None\n"
        assert settings.load(workspace.params).training.epochs == 3
    assert workspace.restore_if_idle() is None


def test_a_refused_change_leaves_nothing(workspace: Workspace) -> None:
    before = workspace.params.read_bytes()
    with pytest.raises(SettingsError, match=r"training\.epochs"), override(workspace, {"training.epochs": 0}):
        raise AssertionError("never begins")
    assert workspace.params.read_bytes() == before
    assert not workspace.state.exists()


def test_a_damaged_note_is_an_error_that_names_it(workspace: Workspace) -> None:
    workspace.state.mkdir()
    workspace.overrides.write_text("{")
    with pytest.raises(SettingsError, match=r"overrides\.json: damaged.*git diff params\.yaml"), workspace.hold("x"):
        raise AssertionError("never begins")
    with pytest.raises(SettingsError, match="damaged"):  # the lock was given back
        workspace.restore_if_idle()


def test_set_after_a_kill_changes_the_restored_file(workspace: Workspace) -> None:
    killed(workspace)
    command = [sys.executable, "-m", "commands", "set", "training.batch_size=7"]
    done = subprocess.run(command, cwd=workspace.root, capture_output=True, text=True, check=True)
    assert "training.epochs is 30 again" in done.stderr
    now = settings.load(workspace.params)
    assert (now.training.epochs, now.training.batch_size) == (30, 7)


def test_a_stage_after_a_kill_asks_to_be_run_again(workspace: Workspace) -> None:
    """DVC, which starts it, has read params.yaml as the killed run left it."""
    before = workspace.params.read_bytes()
    killed(workspace)
    command = [sys.executable, "-m", "tasks.ingest"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, cwd=workspace.root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("did not complete. Fix: run the same command again\n")
    assert "Traceback" not in done.stderr
    assert workspace.params.read_bytes() == before
    assert not (workspace.root / "data").exists()
