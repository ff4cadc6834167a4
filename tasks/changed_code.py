"""An interrupted training whose code changed since it began: refused, unless the user lets it go on.

The change is recorded beside the checkpoints and with the model, and from there in its provenance record.
"""

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ratchet import files, git
from ratchet.checkpoint_names import checkpoint_paths, checkpoint_step
from ratchet.errors import TrainingError
from ratchet.registry.provenance_record import ContinuedCode
from ratchet.workspace import Workspace
from tasks.training_job import TrainingJob
from tasks.unfinished import NOTE

__all__ = ["ALLOWED_VARIABLE", "resumed"]

NO_RESULT = "it decides which interrupted training goes on; what that was is in its identity"
ALLOWED_VARIABLE = "RATCHET_CONTINUE_WITH_CHANGED_CODE"  # of the run's environment: set by the option of that name


@dataclass(frozen=True)
class _Interrupted:
    """An interrupted training that differs in code only, if at all."""

    folder: Path
    note: dict[str, Any]

    @property
    def step(self) -> int:
        return checkpoint_step(checkpoint_paths(self.folder)[-1])

    def continued(self, job: TrainingJob, *changes: ContinuedCode) -> TrainingJob:
        """Return the job with this training's identity and the code changes so far, and further `changes`."""
        before = (ContinuedCode.load(change) for change in self.note["code_changes"])
        return replace(job, identity=self.note["identity"], code_changes=(*before, *changes))

    def changed(self, job: TrainingJob) -> list[str]:
        """Return the files that differ from the code it used last."""
        before, now = self.note["code"], job.code
        return [path for path in sorted({**before, **now}) if before.get(path) != now.get(path)]


def resumed(workspace: Workspace, job: TrainingJob) -> TrainingJob:
    """Return the job as it continues an interrupted training, if there is one. Nothing is written yet.

    A run of a revision starts at step 0 if the code changed: that revision's code was asked for.

    Raises:
        TrainingError: there is one, its code changed since it began, and the user has not allowed that.
    """
    others = list(_interrupted(workspace, job))
    for other in others:
        if not other.changed(job):
            return other.continued(job)
    if not others:
        return job
    other, changed = others[0], others[0].changed(job)
    if os.environ.get(ALLOWED_VARIABLE):
        commit = git.commit(workspace.root)
        return other.continued(job, ContinuedCode(other.step, tuple(changed), commit))
    if workspace.is_checkout and not checkpoint_paths(workspace.running / job.key):
        return job
    raise TrainingError(
        f"{', '.join(changed)} changed since the interrupted training in {other.folder} (step {other.step:,} of "
        f"{other.note['total']:,}) used it. Fix: restore it, or `ratchet train --continue-with-changed-code`, which "
        f"the provenance record names; to start again: `rm -r {shlex.quote(str(other.folder))}`"
    )


def _interrupted(workspace: Workspace, job: TrainingJob) -> Iterator[_Interrupted]:
    """Yield the interrupted trainings with the same data, settings and initial weights, the latest first."""
    folders = [folder for folder in workspace.running.glob("[!.]*/") if checkpoint_paths(folder)]
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
