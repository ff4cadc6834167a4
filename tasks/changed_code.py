"""An interrupted training whose code changed since it began: refused, unless the user lets it go on.

Then the change is recorded beside its checkpoints, and from there in the provenance record of the model.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ratchet import files, git
from ratchet.data.manifest import Manifest
from ratchet.errors import TrainingError
from ratchet.registry.provenance_record import CodeChange
from ratchet.settings.model import Params
from ratchet.typed_json import to_plain
from ratchet.workspace import Workspace
from tasks.training_job import TrainingJob
from tasks.unfinished import NOTE, checkpoint_steps

__all__ = ["accept_changed_code", "changes_of", "resumed"]

NO_RESULT = "it decides which interrupted training goes on; what that was is in its identity"


@dataclass(frozen=True)
class _Interrupted:
    """An interrupted training that differs in code only, if at all."""

    folder: Path
    note: dict[str, Any]

    @property
    def step(self) -> int:
        return max(checkpoint_steps(self.folder))

    def changed(self, job: TrainingJob) -> list[str]:
        """Return the files that differ from the code it used last."""
        before, now = self.note["code"], job.code
        return [path for path in sorted({**before, **now}) if before.get(path) != now.get(path)]


def resumed(workspace: Workspace, job: TrainingJob) -> TrainingJob:
    """Return the job with the identity of the interrupted training that it continues, if there is one.

    Raises:
        TrainingError: there is one, and its code changed since it began.
    """
    others = list(_interrupted(workspace, job))
    for other in others:
        if not other.changed(job):
            return replace(job, identity=other.note["identity"])
    if not others:
        return job
    name, total = f"data/running/{others[0].folder.name}", others[0].note["total"]
    raise TrainingError(
        f"{', '.join(others[0].changed(job))} changed since the interrupted training in {name} (step "
        f"{others[0].step:,} of {total:,}) used it. Fix: restore it, or `ratchet train --continue-with-changed-code`, "
        f"which the provenance record names; to start again: `rm -r {name}`"
    )


def accept_changed_code(params: Params, workspace: Workspace) -> str:
    """Let the interrupted training of these settings and data go on with the present code. Return a message."""
    if workspace.packed.exists():
        job = TrainingJob.of(params, workspace, Manifest.read(workspace.packed))
        others = list(_interrupted(workspace, job))
        if others and all(other.changed(job) for other in others):
            return _accept(others[0], job, workspace)
    return "no interrupted training waits for changed code"


def _accept(other: _Interrupted, job: TrainingJob, workspace: Workspace) -> str:
    changed = other.changed(job)
    change = CodeChange(other.step, tuple(changed), git.line(workspace.root, "rev-parse", "HEAD"))
    note = {**other.note, "code": job.code, "code_changes": [*other.note["code_changes"], to_plain(change)]}
    files.write_json(other.folder / NOTE, note)
    return f"the training in data/running/{other.folder.name} goes on with changed code: {', '.join(changed)}"


def changes_of(folder: Path) -> tuple[CodeChange, ...]:
    """Return the changes of code that the training in `folder` has gone on with."""
    changes = _note(folder)["code_changes"] if (folder / NOTE).exists() else []
    return tuple(CodeChange(change["step"], tuple(change["files"]), change["git_commit"]) for change in changes)


def _interrupted(workspace: Workspace, job: TrainingJob) -> Iterator[_Interrupted]:
    """Yield the interrupted trainings with the same data, settings and initial weights, the latest first."""
    folders = [folder for folder in workspace.running.glob("[!.]*/") if checkpoint_steps(folder)]
    wanted = {**job.identity, "code": ""}
    for folder in sorted(folders, key=lambda folder: folder.stat().st_mtime, reverse=True):
        note = _note(folder)
        if {**note["identity"], "code": ""} == wanted:
            yield _Interrupted(folder, note)


def _note(folder: Path) -> dict[str, Any]:
    """Read the note; of a missing or damaged one, or one of an earlier Ratchet, nothing fits."""
    empty: dict[str, Any] = {"identity": {}, "code": {}, "code_changes": [], "total": 0}
    try:
        return empty | dict(files.read_json(folder / NOTE))
    except (OSError, ValueError, TypeError):
        return empty
