"""The trash of a project, .ratchet/trash: files that a clean-up moved, and the way back.

Each clean-up has a folder with its plan, which is written before anything moves. So after a kill at any time the rest
can be moved, or everything can return. A move is one rename on the same disk.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ratchet import files
from ratchet.errors import WorkspaceError
from ratchet.workspace import Workspace

__all__ = ["TrashFolder", "trash_folders"]

_PLAN = "plan.json"
_ERASING = ".erasing"  # at the end of a folder's name: nothing returns from it


@dataclass(frozen=True)
class TrashFolder:
    """Things that one clean-up moved: paths relative to the project, and MLflow runs."""

    project: Path
    folder: Path
    paths: tuple[str, ...]
    runs: tuple[str, ...]

    @classmethod
    def begin(cls, project: Workspace, paths: Sequence[str], runs: Sequence[str]) -> "TrashFolder":
        """Write the plan of a clean-up. Nothing moves yet."""
        for path in project.state.glob("trash/*/"):  # of a process that was killed before it wrote its plan
            if not (path / _PLAN).exists():
                files.remove_draft_files(path / _PLAN)
                with contextlib.suppress(OSError):  # has files, whose plan was deleted by hand
                    path.rmdir()
        name = f"{time.strftime('%Y-%m-%dT%H%M%S')}-{os.getpid()}"
        folder = project.state / "trash" / name
        files.write_json(folder / _PLAN, {"paths": list(paths), "runs": list(runs)})
        return cls(project.root, folder, tuple(paths), tuple(runs))

    @property
    def is_erasing(self) -> bool:
        """Whether `empty` has begun, perhaps before a kill."""
        return self.folder.name.endswith(_ERASING)

    def put(self, path: str) -> None:
        """Move a path of the plan into the folder."""
        _move(self.project / path, self.folder / path)

    def restore(self) -> Iterator[str]:
        """Move everything back. Yield the paths that exist again in the project; these stay in the trash."""
        for path in self.paths:
            if not os.path.lexists(self.folder / path):
                continue
            if os.path.lexists(self.project / path):
                yield path
            else:
                _move(self.folder / path, self.project / path)

    def erase_begun(self) -> "TrashFolder":
        """Mark the folder as one from which nothing returns."""
        if self.is_erasing:
            return self
        erasing = self.folder.with_name(self.folder.name + _ERASING)
        os.replace(self.folder, erasing)
        return TrashFolder(self.project, erasing, self.paths, self.runs)

    def erase(self) -> None:
        """Delete the folder, its plan last: a killed deletion goes on."""
        for path in self.folder.iterdir():
            if path.name != _PLAN:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.close()

    def close(self) -> None:
        """Delete the plan if nothing else is left."""
        for folder, _, names in os.walk(self.folder, topdown=False):
            if Path(folder) != self.folder and not names:
                with contextlib.suppress(OSError):  # not empty
                    os.rmdir(folder)
        if [path.name for path in self.folder.iterdir()] == [_PLAN]:
            (self.folder / _PLAN).unlink()
            self.folder.rmdir()


def trash_folders(project: Workspace) -> list[TrashFolder]:
    """Return the clean-ups in the trash, the latest first.

    Raises:
        WorkspaceError: a plan is damaged.
    """
    folders = []
    for path in sorted(project.state.glob("trash/*/"), reverse=True):
        plan = path / _PLAN
        if not plan.exists():  # another process is about to write it
            continue
        try:
            content = files.read_json(plan)
            paths, runs = (tuple(map(str, content[name])) for name in ("paths", "runs"))
        except (ValueError, KeyError, TypeError) as error:
            raise WorkspaceError(
                f"{plan}: damaged ({error}). Fix: restore it from a backup, or move the files in {path} back by hand: "
                "their paths there are those in the project"
            ) from error
        folders.append(TrashFolder(project.root, path, paths, runs))
    return folders


def _move(source: Path, to: Path) -> None:
    """Rename a file or folder. One that is gone was moved before a kill."""
    to.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.rename(source, to)
