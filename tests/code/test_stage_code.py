"""The stage code: the digests of the code that decides each stage."""

from pathlib import Path
from typing import Any

import pytest

from ratchet import files, settings
from ratchet.code.closure import closure
from ratchet.code.syntax import digest_code
from ratchet.errors import WorkspaceError
from ratchet.settings.model import Params
from ratchet.workspace import Workspace
from tasks import code as stage
from tasks.code import choice, code, require_current, stage_files

PIPELINE = """
stages:
  fetch: {cmd: echo hi, params: [seed]}
  wait: {cmd: echo ho}
  ingest: {cmd: python -m tasks.ingest, params: [{data/code.json: [ingest]}, data]}
"""
INGEST = "src/ratchet/data/ingest.py"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """A project with own code and own stages, but without Ratchet's code."""
    (tmp_path / "dvc.yaml").write_text(PIPELINE)
    (tmp_path / "params.yaml").write_text(settings.template())
    (tmp_path / "sets.py").write_text("SIZE = 1\n")
    settings.override(tmp_path / "params.yaml", {"data.kind": "sets:Make", "data.code": "sets.py"})
    return Workspace(tmp_path)


def test_a_users_own_stage_has_no_digest(workspace: Workspace) -> None:
    assert code(settings.load(workspace.params), workspace).stages.keys() == {"ingest"}


def test_the_training_loop_decides_the_stage_train(workspace: Workspace) -> None:
    counted = stage_files("train", settings.load(workspace.params), workspace)
    assert {"src/ratchet/training/loop.py", "src/ratchet/training/optim.py"} <= counted.keys()


def test_code_that_is_edited_meanwhile_is_read_again(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    own = workspace.root / "sets.py"

    def edited(name: str, params: Params, workspace: Workspace) -> dict[str, str]:
        read = stage_files(name, params, workspace)
        own.write_text("SIZE = 2\n")
        return read

    monkeypatch.setattr(stage, "stage_files", edited)
    code(settings.load(workspace.params), workspace)
    assert files.read_json(workspace.code)["files"]["ingest"]["sets.py"] == digest_code(own)


def test_code_of_another_folder_is_refused(workspace: Workspace) -> None:
    (workspace.root / "src/ratchet").mkdir(parents=True)
    params = settings.load(workspace.params)
    for act in (lambda: code(params, workspace), lambda: require_current("ingest", params, workspace)):
        with pytest.raises(
            WorkspaceError, match=r"src/ratchet: this code does not run, but that of .* Fix: run `export"
        ):
            act()


@pytest.mark.system
def test_a_stage_runs_the_code_of_its_own_folder(new_project: Any) -> None:
    """Not that of the installed project, as in a git worktree."""
    project = new_project("worktree")
    with (project.root / INGEST).open("a") as file:
        file.write("CHANGED = 1\n")
    alone = {"PYTHONPATH": "", "PYTHONHASHSEED": "0"}  # which makes it a new interpreter
    project.good(*project.stage("code"), **alone)
    assert files.read_json(project.workspace.code)["files"]["ingest"][INGEST] == digest_code(project.root / INGEST)
    project.good("dvc", "commit", "--force", "--quiet", "code")  # and then nothing has to be written
    assert "Fix: run `export PYTHONPATH=" in " ".join(project.refused("ratchet", "train", **alone).split())


def test_a_teacher_may_be_a_baseline() -> None:
    params = Params()
    with_teacher = params.model_copy(update={"training": params.training.model_copy(update={"teacher": "digits"})})
    counted = [
        closure(["ratchet.training.fit"], stage="train", choice=choice(each, variant="network"))
        for each in (params, with_teacher)
    ]
    assert ["src/ratchet/training/models/trees.py" in each for each in counted] == [False, True]


def test_the_cost_counts_where_it_is_shown() -> None:
    counted = {
        name: "src/ratchet/cost.py" in closure([f"tasks.{name}"], stage=name, choice=choice(Params()))
        for name in ("train", "register")
    }
    assert counted == {"train": False, "register": True}
