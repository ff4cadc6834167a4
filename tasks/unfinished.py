"""Interrupted trainings that the new one does not continue, and what differs from it."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ratchet import files
from ratchet.checkpoint_names import checkpoint_paths, checkpoint_step
from ratchet.settings.messages import spell
from ratchet.typed_json import to_plain
from ratchet.workspace import Workspace
from tasks.training_job import TrainingJob

__all__ = ["NOTE", "note", "unfinished"]

NO_RESULT = "it finds interrupted trainings"

NOTE = "run.json"
_DIFFERENCES_SHOWN = 5
_TRAININGS_SHOWN = 3


def note(folder: Path, job: TrainingJob, *, total: int) -> None:
    """Record what decides the training beside its checkpoints; a later training reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    more = {"identity": job.identity, "code_changes": [to_plain(change) for change in job.code_changes]}
    files.write_json(folder / NOTE, {"total": total, **more, **job.parts})


def unfinished(workspace: Workspace, job: TrainingJob) -> list[str]:
    """Return one sentence for each interrupted training, the latest first; [] if `job` has a checkpoint itself."""
    if checkpoint_paths(workspace.running / job.key):
        return []
    folders = [folder for folder in workspace.running.glob("[!.]*/") if folder.name != job.key]
    others = [folder for folder in folders if checkpoint_paths(folder)]
    others.sort(key=lambda folder: folder.stat().st_mtime, reverse=True)
    hidden = len(others) - _TRAININGS_SHOWN
    more = [f"{workspace.running} has {hidden} older unfinished runs"] if hidden > 0 else []
    return [_message(folder, job, workspace) for folder in others[:_TRAININGS_SHOWN]] + more


def _message(folder: Path, job: TrainingJob, workspace: Workspace) -> str:
    """Return where a training is, what differs, and how to continue or delete it."""
    try:
        recorded = files.read_json(folder / NOTE)
        total, differences = f" of {int(recorded['total']):,}", list(_differences(recorded, job.parts))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # missing or damaged
        total, differences = "", []
    hidden, step = len(differences) - _DIFFERENCES_SHOWN, checkpoint_step(checkpoint_paths(folder)[-1])
    more = f" and {hidden} more" if hidden > 0 else ""
    shown = "; ".join(sentence for sentence, _ in differences[:_DIFFERENCES_SHOWN])
    why = f"{shown}{more}" if differences else "its settings were not recorded"
    restored = [shlex.quote(assignment) for _, assignment in differences]
    how = f"`ratchet set {' '.join(restored)}`" if all(assignment for _, assignment in differences) else "restore these"
    if workspace.is_checkout:  # its settings and files are not the user's to restore
        how = "choose its revision"
    fix = f" To continue that one: {how}, and run again." if differences else ""
    return (
        f"this run starts at step 0. Another run is unfinished, at step {step:,}{total}, in "
        f"{folder}. Differences: {why}.{fix} To delete it: `rm -r {shlex.quote(str(folder))}`"
    )


def _differences(recorded: dict[str, Any], parts: dict[str, dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield each recorded setting with another value now and its assignment, and each file with other content."""
    for kind, current in json.loads(json.dumps(parts)).items():  # tuples become lists
        before = recorded[kind]
        if kind == "data" and before["data/packed"] == current["data/packed"]:
            continue  # other settings that give the same data
        if kind == "pretrained":  # the normalization of the weights may be new
            before = dict.fromkeys(current) | before
        for name, value in before.items():
            if value != current.get(name):
                if kind not in ("settings", "data") or "/" in name:
                    yield f"{name} changed", ""
                elif name in current:
                    yield f"{name} was {spell(value)}, is now {spell(current[name])}", f"{name}={spell(value)}"
                else:  # of an earlier release
                    yield f"{name} was {spell(value)}, is removed", ""
