"""`ratchet.open` and `ratchet.new`. tests/system/test_notebook.py runs them in a real kernel."""

import subprocess
import sys
from collections import deque
from pathlib import Path

import numpy as np
import pytest
from waiting import until

import ratchet
from commands import api, command_process
from commands.command_process import CommandProgress, run_command
from ratchet import settings
from ratchet.errors import DataError, RatchetError, SettingsError, WorkspaceError

PARENT = """
from pathlib import Path
from commands import command_process
from ratchet.workspace import Workspace
command_process._START = {child!r}
command_process.run_command(Workspace(Path({folder!r})), {done!r})
"""
CHILD = """
import os, signal, sys
print("begun", file=sys.stderr, flush=True)
while os.getppid() == {parent}:
    signal.sigtimedwait([], 0.01)
print("its parent has ended", file=sys.stderr, flush=True)
open(sys.argv[1], "x").close()
"""


@pytest.fixture
def pets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A project that was never trained, beside the working folder."""
    monkeypatch.chdir(tmp_path)
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "N")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "n@example.com")
    return ratchet.new("pets", like="tabular-regression")


def test_importing_ratchet_imports_nothing_heavy() -> None:
    program = """
import sys
import ratchet
heavy = {"torch", "numpy", "polars", "mlflow", "pydantic", "commands", "tasks", "flows"}
print(sorted(heavy & sys.modules.keys()), hasattr(ratchet, "train"), callable(ratchet.open))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[] False True\n"


def test_mypy_sees_the_types_of_open() -> None:
    """The stub names what the module gives."""
    assert (ratchet.open, ratchet.new) == (api.open, api.new)
    stub = Path(ratchet.__file__).with_suffix(".pyi").read_text()
    assert "from commands.api import new as new\nfrom commands.api import open as open" in stub


def test_no_project_is_made_or_opened_with_a_question_mark(tmp_path: Path) -> None:
    folder = tmp_path / "pets?"
    with pytest.raises(WorkspaceError, match=r"pets\?: its ledger would be outside"):
        ratchet.new(folder)
    assert not folder.exists()
    folder.mkdir()
    (folder / "params.yaml").touch()
    with pytest.raises(WorkspaceError, match=r"pets\?: its ledger would be outside"):
        ratchet.open(folder)


def test_open_finds_a_project_and_names_a_folder_without_one(pets, tmp_path: Path, monkeypatch) -> None:
    assert ratchet.open("pets").folder == pets.folder == tmp_path / "pets"
    with pytest.raises(WorkspaceError, match=r"dogs: no project, it has no params.yaml .*`ratchet.new\('dogs'\)`"):
        ratchet.open("dogs")
    monkeypatch.chdir(pets.folder / "own")
    assert ratchet.open() == pets
    with pytest.raises(WorkspaceError, match="pets: exists"):
        ratchet.new(pets.folder)


def test_every_fault_of_a_command_is_known(pets, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more files than are named the warning says how many: 200 lines of a command are kept."""
    program = (
        "import sys; [print(f'ratchet: {{n}}.png: cannot be read', file=sys.stderr) for n in range(300)]; sys.exit(1)"
    )
    monkeypatch.setattr(command_process, "_START", program)
    with pytest.raises(command_process.CommandEnded, match=r"^299\.png") as ended:
        run_command(pets.workspace, "predict")
    assert ended.value.faults == tuple(f"{n}.png: cannot be read" for n in range(300))
    assert api._unanswered(ended.value.faults).splitlines()[-2:] == ["99.png: cannot be read", "and 200 more"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epoch": 3}, "epoch: unknown key .*Did you mean training.epochs"),
        ({"epochs": "many"}, "training.epochs: found 'many'. Allowed: a whole number"),
        ({"epochs": object()}, "training.epochs: found <object .*Allowed: numbers, texts, lists and mappings"),
        ({"epochs": np.int64(-5)}, "training.epochs: found -5. Allowed: a whole number"),
        ({"class_weights": np.array([1.0, -2.0])}, "training.class_weights: found -2.0"),
        ({"model.name": "resnet1"}, "model.name: no model .*is called 'resnet1'"),
        ({"workers": 2}, r"workers: several settings .*data.workers, training.workers.*\*\*\{'data.workers': 2\}"),
        ({"epochs": 2, "training.epochs": 3}, "training.epochs: is given twice"),
    ],
)
def test_wrong_settings_name_what_is_allowed(pets, changes: dict[str, object], message: str) -> None:
    before = pets.workspace.params.read_bytes()
    with pytest.raises(SettingsError, match=message):
        pets.train(**changes)
    assert pets.workspace.params.read_bytes() == before
    assert not pets.workspace.state.joinpath("workspace.lock").exists(), "no command was started"


def test_a_start_replaces_weights_that_a_clone_lacks(pets) -> None:
    """git does not have the files of a version that the settings name."""
    settings.override(pets.workspace.params, {"model.pretrained": "pets/3"})
    with pytest.raises(SettingsError, match=r"there is no file pets/3 .*`ratchet train --from pets/3` fetches"):
        pets._checked({"epochs": 2})
    assert pets._checked({"epochs": 2}, "pets/3") == ["--set", "training.epochs=2"]
    with pytest.raises(SettingsError, match=r"is called .resnet1."):
        pets._checked({"model.name": "resnet1"}, "pets/3")


def test_without_a_run_or_files_the_fix_is_named(pets) -> None:
    with pytest.raises(DataError, match=r"pets: has no finished run. Fix: `project.train\(\)`"):
        pets.run()
    version = api.ModelVersion(pets.workspace, "pets", "1", ())
    with pytest.raises(DataError, match=r"new/\*.jpg: matches no file in"):
        version.predict("new/*.jpg")
    with pytest.raises(DataError, match="no files"):
        version.predict()


def test_a_failed_command_raises_its_message(pets) -> None:
    pets.workspace.params.write_text("data: [\n")
    with pytest.raises(RatchetError, match=r"params.yaml line 2: not YAML .*Fix: correct that line$"):
        run_command(pets.workspace, "train")


def test_a_command_outlives_the_process_that_started_it(pets, tmp_path: Path) -> None:
    """It can write its last lines, so that a training gets its checkpoint."""
    done = tmp_path / "done"
    program = PARENT.format(child=CHILD, folder=str(pets.folder), done=str(done))
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "begun\n"
        process.kill()
    until(done.exists)


def test_more_paths_than_a_command_takes_name_the_fix(pets) -> None:
    with pytest.raises(DataError, match=r"predict: more, or longer, arguments .* Fix: name the folder of files"):
        run_command(pets.workspace, "predict", *["photo" * 20] * 100_000)


def test_settings_and_paths_may_have_any_character(pets, tmp_path: Path, monkeypatch) -> None:
    text = api._yaml("data.label_column", "😀 𠮷")
    edit = settings.plan(pets.workspace.params, settings.parse_assignments([f"data.label_column={text}"]))
    assert edit.params.data.label_column == "😀 𠮷"
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "x[1].csv").touch()
    assert api._files(("~/x[1].csv",)) == api._files(("~/x*.csv",)) == [str(tmp_path / "x[1].csv")]


def test_a_killed_command_names_its_signal() -> None:
    lines = deque(["ratchet: params.yaml: a note", "train: 10 of 1,200 steps"])
    message = command_process._error(lines, "train", -9)
    assert message.startswith("the command train was ended by SIGKILL; its last lines were:\n")
    assert message.endswith("train: 10 of 1,200 steps")


def test_progress_lines_replace_each_other_in_a_notebook() -> None:
    progress = CommandProgress(deque(), "ratchet train")
    progress.add("train: 10 of 1,200 steps, 4/s, <b>")
    assert (
        '<progress value="10" max="1200"></progress> train: 10 of 1,200 steps, 4/s, &lt;b&gt;' in progress._repr_html_()
    )
    progress.add("train: done")
    assert "<progress" not in progress._repr_html_()
    assert repr(progress) == "ratchet train\ntrain: done"
