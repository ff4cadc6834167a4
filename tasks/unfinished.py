"""Trainings that were cut off and are not the one that begins now: what differs, and how to continue them."""

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet import files
from ratchet.settings import errors as settings_errors
from ratchet.workspace import Workspace
from tasks.training_job import TrainingJob

__all__ = ["Difference", "Unfinished", "note", "unfinished"]

_NOTE = "run.json"
_NAMED = 5  # files and settings that a sentence names
_SHOWN = 3  # trainings


@dataclass(frozen=True)
class Difference:
    """A setting or a file that is another than in a training that was cut off."""

    name: str  # as params.yaml, or the project folder, has it
    part: str  # settings, data, pretrained or code
    theirs: Any
    ours: Any

    @property
    def is_setting(self) -> bool:
        """Whether `ratchet set` can put it back."""
        return self.part in ("settings", "data") and "/" not in self.name


@dataclass(frozen=True)
class Unfinished:
    """A training that was cut off; its checkpoints are in `folder`."""

    folder: Path
    step: int
    total: int | None  # None: no note was left
    differences: tuple[Difference, ...]

    @property
    def words(self) -> str:
        """Where it is, what differs, how to continue it, how to delete it."""
        name = f"data/running/{self.folder.name}"
        total = f" of {self.total:,}" if self.total else ""
        settings = [one for one in self.differences if one.is_setting]
        files_ = [one for one in self.differences if not one.is_setting]
        differences = [
            f"{one.name} was {settings_errors.spell(one.theirs)}, is now {settings_errors.spell(one.ours)}"
            for one in settings
        ]
        differences += [f"{one.name} changed" for one in files_]
        more = f" and {len(differences) - _NAMED} more" if len(differences) > _NAMED else ""
        why = f"{'; '.join(differences[:_NAMED])}{more}" if differences else "its settings were not recorded"
        back = " ".join(shlex.quote(f"{one.name}={settings_errors.spell(one.theirs)}") for one in settings)
        how = [f"`ratchet set {back}`"] if back else []
        how += ["put the files back as they were (`git diff` shows your changes)"] if files_ else []
        fix = f" To continue that one: {', '.join(how)}, and run again." if how else ""
        return (
            f"this run starts at step 0; another one is unfinished, at step {self.step:,}{total}, in {name}. "
            f"What differs: {why}.{fix} To delete it: `rm -r {name}`"
        )


def note(folder: Path, course: TrainingJob, *, total: int) -> None:
    """Write beside the checkpoints what the training is, for `unfinished` of a later one."""
    folder.mkdir(parents=True, exist_ok=True)
    files.write_json(folder / _NOTE, {"total": total, **course.parts})


def unfinished(workspace: Workspace, course: TrainingJob) -> list[str]:
    """One sentence for each training that was cut off, the latest first, if `course` has no checkpoint itself."""
    if _steps(workspace.running / course.key):
        return []
    found = sorted(_others(workspace, course), key=lambda one: one.folder.stat().st_mtime, reverse=True)
    more = [f"data/running has {len(found) - _SHOWN} older unfinished runs"] if len(found) > _SHOWN else []
    return [one.words for one in found[:_SHOWN]] + more


def _others(workspace: Workspace, course: TrainingJob) -> Iterator[Unfinished]:
    for folder in workspace.running.glob("[!.]*/"):
        steps = _steps(folder)
        if folder.name == course.key or not steps:
            continue
        try:
            noted = files.read_json(folder / _NOTE)
            differences = tuple(_differences(noted, course.parts))
            yield Unfinished(folder, max(steps), int(noted["total"]), differences)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # an older one's, or damaged
            yield Unfinished(folder, max(steps), None, ())


def _differences(theirs: dict[str, Any], ours: dict[str, dict[str, Any]]) -> Iterator[Difference]:
    for part in ours:
        before, now = theirs[part], json.loads(json.dumps(ours[part]))  # tuples become lists
        if part == "data" and before["data/packed"] == now["data/packed"]:
            continue  # settings that made the same set
        if part == "pretrained" and theirs["settings"]["model.pretrained"] != ours["settings"]["model.pretrained"]:
            continue  # said already
        changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        if part == "data" and len(changed) > 1:
            changed.remove("data/packed")  # the settings say why
        for name in changed:
            yield Difference(name, part, before.get(name), now.get(name))


def _steps(folder: Path) -> list[int]:
    return [int(path.stem.removeprefix("step-")) for path in folder.glob("step-*.safetensors")]
