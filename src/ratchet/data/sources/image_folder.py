"""A folder of pictures: one folder per class, or train, validation and test folders of such folders.

Every file in it is a sample, hidden ones and Windows' Thumbs.db aside; what cannot be one is quarantined.
"""

from collections.abc import Sequence
from typing import Any

import polars as pl

from ratchet.data import quarantine
from ratchet.data.sources import SplitName, listing
from ratchet.data.sources.storage import Storage
from ratchet.errors import DataError

__all__ = ["ImageFolder"]

SPLIT_FOLDERS: dict[str, SplitName] = {
    "train": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
}
LAYOUT = "put one folder per class into it, or train, validation and test folders that hold one folder per class"


class ImageFolder:
    """Pictures in `storage`; ids are paths relative to it, with `/` between the parts.

    Raises:
        DataError: the folder cannot be listed, holds no class folders or one only, or a class is empty.
    """

    def __init__(self, storage: Storage) -> None:
        self.name, self.read = storage.name, storage.open
        self._where = storage.where
        self._tree = storage.tree()
        splits = self._find_splits()
        self.given: frozenset[SplitName] = frozenset(splits)
        self._tops: dict[SplitName | None, str] = dict(splits.items()) if splits else {None: ""}
        classes = {split: self._tree.inside(folder) for split, folder in self._tops.items()}
        self.classes = tuple(classes["train" if splits else None])
        self._check_classes(classes)
        self.listing, self.refused = self._list()
        self._check_filled(classes)

    def _find_splits(self) -> dict[SplitName, str]:
        """Which folder is which split; empty where the top holds class folders."""
        names = self._tree.inside("")
        meant = [name for name in names if name.casefold() in SPLIT_FOLDERS]
        train = next((name for name in meant if name.casefold() == "train"), None)
        if not meant or (len(meant) < len(names) and not (train and self._tree.inside(train))):
            return {}
        others = [name for name in names if name not in meant]
        if others:
            raise DataError(
                f"{self._where}: holds split folders ({', '.join(meant)}) beside others ({_some(others)}): "
                f"move the others away, or {LAYOUT}"
            )
        splits: dict[SplitName, str] = {}
        for name in meant:
            split = SPLIT_FOLDERS[name.casefold()]
            if split in splits:
                raise DataError(f"{self._where}: both {splits[split]} and {name} mean {split}: keep one of them")
            splits[split] = name
        if "train" not in splits:
            raise DataError(f"{self._where}: holds {', '.join(meant)} but no train folder: add it, or {LAYOUT}")
        return splits

    def _check_classes(self, found: dict[SplitName | None, list[str]]) -> None:
        for split, names in found.items():
            place = self._place(split)
            if not names:
                raise DataError(f"{place}: holds no class folders: {LAYOUT}")
            if split in (None, "train") and len(names) == 1:
                raise DataError(f"{place}: holds one class only ({names[0]!r}): two or more are needed to tell apart")
            odd = [name for name in names if not _is_text(name)]
            if odd:
                raise DataError(f"{place}: class folder {_some(odd)}: the name is not UTF-8: rename it")
            unknown = [name for name in names if name not in self.classes]
            if unknown:
                raise DataError(
                    f"{place}: {_some(unknown)} is no class of {self._place('train')}, "
                    f"which has {_some(self.classes)}: rename or remove it, or add training pictures"
                )

    def _list(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The listing, and what is refused."""
        index = {name: label for label, name in enumerate(self.classes)}
        prefixes = {folder: split for split, folder in self._tops.items()}
        depth = 1 if self.given else 0
        columns: dict[str, list[Any]] = {name: [] for name in ("row", "id", "label", "split", "stamp")}
        refused: list[tuple[str, int, str, str]] = []
        for row, (name, stamp) in enumerate(sorted(zip(self._tree.names, self._tree.stamps, strict=True))):
            parts = name.split("/", depth + 1)
            fault = self._tree.faults.get(name) if len(parts) == depth + 2 else "not in a class folder"
            if fault is not None:
                refused.append((name, row, "unreadable", fault))
                continue
            split = prefixes.get(parts[0] if depth else "")
            for column, value in zip(columns.values(), (row, name, index[parts[depth]], split, stamp), strict=True):
                column.append(value)
        return listing(columns), quarantine.rows(refused)

    def _check_filled(self, found: dict[SplitName | None, list[str]]) -> None:
        depth = 2 if self.given else 1
        filled = {"/".join(parts[:depth]) for name in self._tree.names if len(parts := name.split("/")) > depth}
        for split, names in found.items():
            for name in names:
                if "/".join(part for part in (self._tops[split], name) if part) not in filled:
                    place = f"{self._place(split)}/{name}"
                    raise DataError(f"{place}: the class folder is empty: add pictures, or remove it")

    def _place(self, split: SplitName | None) -> str:
        return "/".join(part for part in (self._where, self._tops[split]) if part)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:8])
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown
