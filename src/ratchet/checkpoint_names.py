"""Names of checkpoints: `step-K.safetensors`, or of a sharded model a folder `step-K` that has an index."""

from pathlib import Path

__all__ = ["INDEX", "checkpoint_paths", "checkpoint_step", "unfinished_folders"]

INDEX = "index.json"
_STEP = "step-" + 12 * "[0-9]"


def checkpoint_paths(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, files or folders, by step. Damaged ones have other names."""
    return sorted([*folder.glob(f"{_STEP}.safetensors"), *(index.parent for index in folder.glob(f"{_STEP}/{INDEX}"))])


def checkpoint_step(path: Path) -> int:
    """Return the step of a checkpoint by its name."""
    return int(path.stem.removeprefix("step-"))


def unfinished_folders(folder: Path) -> list[Path]:
    """Return what a killed process left of checkpoints that it was deleting."""
    return [path for path in folder.glob(f"{_STEP}/") if not (path / INDEX).exists()]
