"""Interrupted trainings that the new one does not continue: their differences, and how to continue them."""

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet import files
from ratchet.settings.errors import dotted_keys, spell
from ratchet.settings.model import Params
from ratchet.typed_json import to_plain
from ratchet.workspace import Workspace
from tasks.training_job import TrainingJob

__all__ = ["NOTE", "SettingDifference", "Unfinished", "checkpoint_steps", "note", "unfinished"]

NO_RESULT = "it finds interrupted trainings"

NOTE = "run.json"
_DIFFERENCES_SHOWN = 5
_TRAININGS_SHOWN = 3


@dataclass(frozen=True)
class SettingDifference:
    """A setting or a file that differs from an interrupted training."""

    name: str  # key in params.yaml, or path in the project folder
    kind: str  # settings, data, pretrained or code
    before: Any
    now: Any

    @property
    def is_setting(self) -> bool:
        return self.kind in ("settings", "data") and "/" not in self.name

    @property
    def is_removed(self) -> bool:
        """True for a setting of an earlier release, which `ratchet set` cannot restore."""
        return self.is_setting and self.name not in dotted_keys(Params)


@dataclass(frozen=True)
class Unfinished:
    """An interrupted training with checkpoints in `folder`."""

    folder: Path
    step: int
    total: int | None  # None: not recorded
    differences: tuple[SettingDifference, ...]
    is_checkout: bool  # of a revision: its settings and files are not the user's to restore

    @property
    def message(self) -> str:
        """Sentence that says where it is, what differs, how to continue it and how to delete it."""
        total = f" of {self.total:,}" if self.total else ""
        settings = [change for change in self.differences if change.is_setting]
        changed_files = [change for change in self.differences if not change.is_setting]
        sentences = [
            f"{each.name} was {spell(each.before)}, is {'removed' if each.is_removed else f'now {spell(each.now)}'}"
            for each in settings
        ]
        sentences += [f"{file.name} changed" for file in changed_files]
        hidden = len(sentences) - _DIFFERENCES_SHOWN
        more = f" and {hidden} more" if hidden > 0 else ""
        why = f"{'; '.join(sentences[:_DIFFERENCES_SHOWN])}{more}" if sentences else "its settings were not recorded"
        assignments = " ".join(
            shlex.quote(f"{setting.name}={spell(setting.before)}") for setting in settings if not setting.is_removed
        )
        steps = [f"`ratchet set {assignments}`"] if assignments else []
        steps += ["restore the files (`git diff` shows your changes)"] if changed_files else []
        steps = ["choose its revision"] if steps and self.is_checkout else steps
        if any(setting.is_removed and setting.kind == "settings" for setting in settings):
            steps = []  # this release cannot continue it
        fix = f" To continue that one: {', '.join(steps)}, and run again." if steps else ""
        return (
            f"this run starts at step 0. Another run is unfinished, at step {self.step:,}{total}, in {self.folder}. "
            f"Differences: {why}.{fix} To delete it: `rm -r {shlex.quote(str(self.folder))}`"
        )


def note(folder: Path, job: TrainingJob, *, total: int) -> None:
    """Record what decides the training beside its checkpoints; a later training reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    more = {"identity": job.identity, "code_changes": [to_plain(change) for change in job.code_changes]}
    files.write_json(folder / NOTE, {"total": total, **more, **job.parts})


def unfinished(workspace: Workspace, job: TrainingJob) -> list[str]:
    """Return one sentence for each interrupted training, the latest first; [] if `job` has a checkpoint itself."""
    if checkpoint_steps(workspace.running / job.key):
        return []
    others = sorted(_others(workspace, job), key=lambda other: other.folder.stat().st_mtime, reverse=True)
    hidden = len(others) - _TRAININGS_SHOWN
    more = [f"{workspace.running} has {hidden} older unfinished runs"] if hidden > 0 else []
    return [other.message for other in others[:_TRAININGS_SHOWN]] + more


def _others(workspace: Workspace, job: TrainingJob) -> Iterator[Unfinished]:
    for folder in workspace.running.glob("[!.]*/"):
        steps = checkpoint_steps(folder)
        if folder.name == job.key or not steps:
            continue
        try:
            recorded = files.read_json(folder / NOTE)
            differences = tuple(_differences(recorded, job.parts))
            yield Unfinished(folder, max(steps), int(recorded["total"]), differences, workspace.is_checkout)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # missing or damaged
            yield Unfinished(folder, max(steps), None, (), workspace.is_checkout)


def _differences(recorded: dict[str, Any], current: dict[str, dict[str, Any]]) -> Iterator[SettingDifference]:
    usual = json.loads(json.dumps(dotted_keys(Params)))  # of settings that an earlier release did not have
    for kind in current:
        before, now = recorded[kind], json.loads(json.dumps(current[kind]))  # tuples become lists
        if kind == "data" and before["data/packed"] == now["data/packed"]:
            continue  # other settings that give the same data
        same_pretrained = recorded["settings"]["model.pretrained"] == current["settings"]["model.pretrained"]
        if kind == "pretrained" and not same_pretrained:
            continue  # the setting is a difference already
        values = {name: [part.get(name, usual.get(name)) for part in (before, now)] for name in {**before, **now}}
        changed = [name for name, (old, new) in values.items() if old != new]
        if kind == "data" and len(changed) > 1:
            changed.remove("data/packed")  # the changed settings are the reason
        for name in changed:
            yield SettingDifference(name, kind, *values[name])


def checkpoint_steps(folder: Path) -> list[int]:
    """Return the steps of the checkpoints in a folder."""
    return [int(path.stem.removeprefix("step-")) for path in folder.glob("step-*.safetensors")]
