"""Messages about interrupted trainings, with real settings and digests."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ratchet import files, settings
from ratchet.data.ingest import IngestTask, ingest
from ratchet.data.manifest import Manifest
from ratchet.errors import TrainingError
from ratchet.workspace import Workspace
from tasks.changed_code import resumed
from tasks.training_job import TrainingJob
from tasks.unfinished import note, unfinished


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """Workspace with the digits and the shipped settings."""
    workspace = Workspace(tmp_path)
    workspace.params.write_text(settings.template())
    pack(workspace)
    return workspace


def pack(workspace: Workspace) -> None:
    ingest(
        IngestTask(
            settings.load(workspace.params).data,
            packed=workspace.packed,
            quarantine=workspace.quarantine,
            root=workspace.root,
        )
    )


def job(workspace: Workspace, **changes: Any) -> TrainingJob:
    settings.override(workspace.params, {name.replace("__", "."): value for name, value in changes.items()})
    return TrainingJob.of(settings.load(workspace.params), workspace, Manifest.read(workspace.packed))


def interrupt(workspace: Workspace, training: TrainingJob, *, step: int = 1200) -> Path:
    """Write the files of a training that was killed after a checkpoint."""
    folder = workspace.running / training.key
    note(folder, training, total=8000)
    (folder / f"step-{step:012d}.safetensors").touch()
    return folder


def test_continued_training_reports_no_unfinished_one(workspace: Workspace) -> None:
    mine = job(workspace)
    note(workspace.running / "another", job(workspace, seed=5), total=10)
    assert unfinished(workspace, job(workspace, seed=0)) == []
    interrupt(workspace, job(workspace, seed=5))
    interrupt(workspace, mine)
    assert unfinished(workspace, mine) == []


def test_settings_without_effect_keep_the_training_key(workspace: Workspace) -> None:
    mine = job(workspace)
    others = {"training__keep_last": 7, "training__log_every": 1, "training__checkpoint_steps": 3}
    assert job(workspace, **others, training__max_rollbacks=0).key == mine.key
    assert job(workspace, model__code="elsewhere.py", data__workers=3).key == mine.key
    assert job(workspace, training__accumulation=2).key != mine.key


@pytest.mark.parametrize(("before", "now"), [("auto", [{"mixup": 0.2}]), ([{"mixup": 0.2}], "auto")])
def test_message_has_a_list_of_augmentations(workspace: Workspace, before: object, now: object) -> None:
    interrupt(workspace, job(workspace, training__augment=before))
    (message,) = unfinished(workspace, job(workspace, training__augment=now))
    texts = [each if isinstance(each, str) else "[{mixup: 0.2}]" for each in (before, now)]
    assert f"Differences: training.augment was {texts[0]}, is now {texts[1]}. To continue that one: `" in message
    assert f"training.augment={texts[0]}" in message


def test_code_of_an_own_augmentation_is_part_of_the_key(workspace: Workspace) -> None:
    """It is imported before the training."""
    code = workspace.root / "turn.py"
    turn = "class Turn:\n    def __call__(self, images, numbers):\n        return images.flip(1)\n"
    code.write_text(turn)
    mine = job(workspace, model__code="turn.py", training__augment=["turn:Turn"])
    code.write_text(turn.replace("flip(1)", "flip(2)"))
    assert job(workspace).key != mine.key
    code.write_text("import nothing_here\n")
    with pytest.raises(TrainingError, match=r"^training.augment: turn does not import"):
        job(workspace)


def test_message_has_differing_settings_and_files(workspace: Workspace) -> None:
    theirs = job(workspace, training__learning_rate=0.05, training__betas=[0.8, 0.9])
    folder = interrupt(workspace, theirs)
    recorded = files.read_json(folder / "run.json")
    recorded["code"]["src/ratchet/training/loop.py"] = "0" * 64
    files.write_json(folder / "run.json", recorded)
    (message,) = unfinished(workspace, job(workspace, training__learning_rate=0.01, training__betas=[0.9, 0.999]))
    assert message == (
        f"this run starts at step 0. Another run is unfinished, at step 1,200 of 8,000, in {folder}. "
        "Differences: training.learning_rate was 0.05, is now 0.01; training.betas was [0.8, 0.9], "
        "is now [0.9, 0.999]; src/ratchet/training/loop.py changed. "
        f"To continue that one: restore these, and run again. To delete it: `rm -r {folder}`"
    )
    note(folder, theirs, total=8000)
    (message,) = unfinished(workspace, job(workspace))
    assert "one: `ratchet set training.learning_rate=0.05 'training.betas=[0.8, 0.9]'`, and run again" in message
    assert job(workspace, training__learning_rate=0.05, training__betas=[0.8, 0.9]).key == folder.name


def test_changed_code_is_refused_but_in_a_revision(workspace: Workspace) -> None:
    """All revisions share one folder, where a user cannot restore a file."""
    before = job(workspace)
    folder = interrupt(workspace, before)
    code = before.code | {"src/ratchet/training/loop.py": "0" * 64}
    now = replace(before, identity=before.identity | {"code": "1"}, parts=before.parts | {"code": code})
    with pytest.raises(TrainingError, match=f"training/loop.py changed since .* to start again: `rm -r {folder}`"):
        resumed(workspace, now)
    files.write_text(workspace.state / "project", str(workspace.root.parent))
    assert resumed(workspace, now) == now
    (message,) = unfinished(workspace, now)
    assert f"in {folder}. Differences: src/ratchet/training/loop.py changed" in message
    assert "To continue that one: choose its revision, and run again" in message
    assert resumed(workspace, before) == before


def test_unfinished_folder_without_record_is_reported(workspace: Workspace) -> None:
    folder = interrupt(workspace, job(workspace, seed=3))
    for content in (None, "[]", "{"):
        (folder / "run.json").unlink() if content is None else (folder / "run.json").write_text(content)
        (message,) = unfinished(workspace, job(workspace, seed=0))
        assert f"at step 1,200, in {workspace.running}" in message
        assert "Differences: its settings were not recorded. To delete it" in message


def test_only_the_latest_three_are_listed(workspace: Workspace) -> None:
    for seed in range(1, 6):
        interrupt(workspace, job(workspace, seed=seed))
    messages = unfinished(workspace, job(workspace, seed=0))
    assert len(messages) == 4
    assert messages[-1] == f"{workspace.running} has 2 older unfinished runs"
    assert "seed was 5" in messages[0]
