"""Arrays of samples of a user's own kind in files, with labels. They are read where the user's class reads samples."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from ratchet.errors import TrainingError

__all__ = ["ARRAYS_FORMAT", "COLUMNS", "MadeArrays", "StoredArrays"]

CHOSEN_BY = {"kind": ("arrays",)}

COLUMNS = ".ratchet-arrays.json"
"""File with the format and the other columns. The arrays are NAME.npy beside it."""
ARRAYS_FORMAT = 1


class MadeArrays(dict[str, Any]):
    """Arrays by name that the user's class has made: a value that needs no `arrays`."""


class StoredArrays:
    """The samples in a folder, as an object of the user's class returns them."""

    def __init__(self, folder: Path) -> None:
        content = json.loads((folder / COLUMNS).read_bytes())
        if not isinstance(content, dict) or content.get("format") != ARRAYS_FORMAT:
            raise TrainingError(
                f"{folder / COLUMNS}: not of a format that this version reads. Allowed: format {ARRAYS_FORMAT}. Fix: "
                "write the data set again with the command that wrote it, or delete this file if the folder is your own"
            )
        self._columns: dict[str, list[Any]] = content["columns"]
        self._arrays = {path.stem: np.load(path, mmap_mode="r") for path in sorted(folder.glob("*.npy"))}

    def __len__(self) -> int:
        return len(next(iter(self._arrays.values())))

    def __getitem__(self, place: int) -> dict[str, Any]:
        cells = {name: values[place] for name, values in self._columns.items()}
        return cells | {"value": MadeArrays({name: np.array(each[place]) for name, each in self._arrays.items()})}
