"""Trainings that have written their outputs, until dvc.lock has these.

DVC removes the outputs of a stage before it runs the stage again. So the checkpoints of a finished training stay aside
until its outputs are recorded: a process that is killed before that loses nothing, and the same command writes them
again.
"""

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

from ratchet import files
from ratchet.data.versions import dvc_hashes
from ratchet.workspace import Workspace
from tasks.dvc_store import md5_of

__all__ = ["bring_back", "remove_recorded", "set_aside"]

NO_RESULT = "it keeps checkpoints aside until DVC has recorded the outputs of their training"

_ASIDE = ".finished"  # folder in data/running
_HASH = "model.md5"  # file with the hash that DVC gives data/model


def set_aside(workspace: Workspace, running: Path) -> None:
    """Move the checkpoints of a training aside, after its last output."""
    files.write_text(running / _HASH, _dvc_hash(workspace.model))
    (workspace.running / _ASIDE).mkdir(exist_ok=True)
    os.replace(running, workspace.running / _ASIDE / running.name)


def remove_recorded(workspace: Workspace) -> None:
    """Remove the checkpoints of finished trainings whose outputs are recorded."""
    recorded = dvc_hashes(workspace.root, "train").values()
    for folder in workspace.running.glob(f"{_ASIDE}/[!.]*"):
        if (folder / _HASH).read_text(encoding="utf-8") in recorded:
            # Removed atomically: from half of it the same command would make outputs without some checkpoints.
            removed = tempfile.mkdtemp(prefix=files.DRAFT, dir=folder.parent)
            os.replace(folder, removed)
            shutil.rmtree(removed)


def bring_back(workspace: Workspace) -> None:
    """Let finished trainings whose outputs are not recorded continue at their end."""
    files.clear_drafts(workspace.running / _ASIDE)  # only here: another training may be writing elsewhere
    remove_recorded(workspace)
    for folder in workspace.running.glob(f"{_ASIDE}/*"):
        os.replace(folder, workspace.running / folder.name)


def _dvc_hash(folder: Path) -> str:
    """Return DVC's hash of a folder: the MD5 of the list of its files. DVC itself takes a second to import."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    listing = [{"md5": md5_of(path), "relpath": path.relative_to(folder).as_posix()} for path in paths]
    listing.sort(key=lambda entry: entry["relpath"])
    return hashlib.md5(json.dumps(listing, sort_keys=True).encode(), usedforsecurity=False).hexdigest() + ".dir"
