"""A training that was cut off, seen by another one: real settings, real digests, a checkpoint's name."""

import json
from pathlib import Path
from typing import Any

import pytest

from ratchet import settings
from ratchet.data.ingest import ingest
from ratchet.data.manifest import Manifest
from ratchet.workspace import Workspace
from tasks.training_job import TrainingJob
from tasks.unfinished import note, unfinished


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """The digits, with shipped settings."""
    workspace = Workspace(tmp_path)
    workspace.params.write_text(settings.template())
    read(workspace)
    return workspace


def read(workspace: Workspace) -> None:
    ingest(
        settings.load(workspace.params).data,
        packed=workspace.packed, quarantine=workspace.quarantine, root=workspace.root, report=lambda *_: None,
    )  # fmt: skip


def course(workspace: Workspace, **changes: Any) -> TrainingJob:
    settings.override(workspace.params, {name.replace("__", "."): value for name, value in changes.items()})
    return TrainingJob.of(settings.load(workspace.params), workspace, Manifest.read(workspace.packed))


def cut_off(workspace: Workspace, one: TrainingJob, *, step: int = 1200) -> Path:
    """What a training leaves that was killed after a checkpoint."""
    folder = workspace.running / one.key
    note(folder, one, total=8000)
    (folder / f"step-{step:012d}.safetensors").touch()
    return folder


def test_nothing_is_said_of_a_training_that_continues_or_has_no_checkpoint(workspace: Workspace) -> None:
    mine = course(workspace)
    note(workspace.running / "another", course(workspace, seed=5), total=10)
    assert unfinished(workspace, course(workspace, seed=0)) == []
    cut_off(workspace, course(workspace, seed=5))
    cut_off(workspace, mine)
    assert unfinished(workspace, mine) == []


def test_settings_that_decide_nothing_name_the_same_training(workspace: Workspace) -> None:
    mine = course(workspace)
    others = {"training__keep_last": 7, "training__log_every": 1, "training__checkpoint_steps": 3}
    assert course(workspace, **others, training__max_rollbacks=0).key == mine.key
    assert course(workspace, model__code="elsewhere.py", data__workers=3).key == mine.key
    assert course(workspace, training__accumulation=2).key != mine.key


def test_it_says_which_settings_differ_and_the_command_that_puts_them_back(workspace: Workspace) -> None:
    theirs = course(workspace, training__learning_rate=0.05, training__betas=[0.8, 0.9])
    folder = cut_off(workspace, theirs)
    (said,) = unfinished(workspace, course(workspace, training__learning_rate=0.01, training__betas=[0.9, 0.999]))
    assert said == (
        f"this run starts at step 0; another one is unfinished, at step 1,200 of 8,000, in data/running/{folder.name}. "
        "What differs: training.learning_rate was 0.05, is now 0.01; "
        "training.betas was [0.8, 0.9], is now [0.9, 0.999]. "
        "To continue that one: `ratchet set training.learning_rate=0.05 'training.betas=[0.8, 0.9]'`, and run again. "
        f"To delete it: `rm -r data/running/{folder.name}`"
    )
    assert course(workspace, training__learning_rate=0.05, training__betas=[0.8, 0.9]).key == folder.name


def test_it_names_files_of_code_and_data_that_differ(workspace: Workspace) -> None:
    mine = course(workspace)
    folder = cut_off(workspace, mine)
    noted = json.loads((folder / "run.json").read_text())
    noted["code"]["src/ratchet/training/loop.py"] = "0" * 64
    folder = folder.rename(folder.with_name("0123456789abcdef"))
    (folder / "run.json").write_text(json.dumps(noted))
    (said,) = unfinished(workspace, mine)
    assert "What differs: src/ratchet/training/loop.py changed. To continue that one: put the files back" in said
    course(workspace, data__test_fraction=0.3)
    read(workspace)
    (said,) = unfinished(workspace, course(workspace))
    assert "data.test_fraction was 0.15, is now 0.3; src/ratchet/training/loop.py changed" in said
    assert "`ratchet set data.test_fraction=0.15`, put the files back" in said


def test_a_folder_without_a_note_is_named_all_the_same(workspace: Workspace) -> None:
    folder = cut_off(workspace, course(workspace, seed=3))
    for content in (None, "[]", "{"):
        (folder / "run.json").unlink() if content is None else (folder / "run.json").write_text(content)
        (said,) = unfinished(workspace, course(workspace, seed=0))
        assert "at step 1,200, in data/running" in said
        assert "What differs: its settings were not recorded. To delete it" in said


def test_of_many_the_latest_three_are_named(workspace: Workspace) -> None:
    for seed in range(1, 6):
        cut_off(workspace, course(workspace, seed=seed))
    said = unfinished(workspace, course(workspace, seed=0))
    assert len(said) == 4
    assert said[-1] == "data/running has 2 older unfinished runs"
    assert "seed was 5, is now 0" in said[0]
