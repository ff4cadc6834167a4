"""A folder of pictures: one folder per class, or train, validation and test folders of such folders.

Every file in it is a sample, hidden ones and Windows' Thumbs.db aside; what cannot be one is quarantined.
"""

from collections.abc import Collection, Mapping, Sequence

import polars as pl

from ratchet.data import quarantine
from ratchet.data.reading.storage import Storage, Tree
from ratchet.data.sources import listing
from ratchet.data.split import SplitName
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
        self.name, self.read, self.near = storage.name, storage.read, storage.near
        self._where = storage.where
        tree = storage.tree()
        splits = self._find_splits(tree)
        self.given: frozenset[SplitName] = frozenset(splits)
        self._tops: dict[SplitName | None, str] = dict(splits.items()) if splits else {None: ""}
        classes = {split: tree.inside(folder) for split, folder in self._tops.items()}
        self.classes = tuple(classes["train" if splits else None])
        self._check_classes(classes)
        self.listing, self.refused = self._list(tree, classes)

    def _find_splits(self, tree: Tree) -> dict[SplitName, str]:
        """Which folder is which split; empty where the top holds class folders."""
        names = tree.inside("")
        meant = [name for name in names if name.casefold() in SPLIT_FOLDERS]
        train = next((name for name in meant if name.casefold() == "train"), None)
        if not meant or (len(meant) < len(names) and not (train and tree.inside(train))):
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

    def _list(self, tree: Tree, classes: Mapping[SplitName | None, Sequence[str]]) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The listing, and what is refused."""
        told = {"id": tree.names, "stamp": tree.stamps}
        depth = 1 if self.given else 0
        parts = pl.col("id").str.splitn("/", depth + 2)
        found = pl.DataFrame(told, schema=dict.fromkeys(told, pl.String)).sort("id").with_row_index("row")
        found = found.with_columns(
            fault=pl.col("id").replace_strict(tree.faults, default=None, return_dtype=pl.String),
            top=parts.struct[0] if self.given else pl.lit(""),
            folder=parts.struct[depth],
            inside=parts.struct[depth + 1].is_not_null(),
        )
        self._check_filled(set(found.filter("inside").select("top", "folder").unique().rows()), classes)
        fault = pl.when("inside").then("fault").otherwise(pl.lit("not in a class folder"))
        refused = found.select("id", "row", rule=pl.lit("unreadable"), fault=fault).filter(
            pl.col("fault").is_not_null()
        )
        good = found.filter(pl.col("inside") & pl.col("fault").is_null())
        labels = {name: label for label, name in enumerate(self.classes)}
        splits = {folder: split for split, folder in self._tops.items()}
        columns = {
            "row": good["row"], "id": good["id"], "stamp": good["stamp"],
            "label": good["folder"].replace_strict(labels, return_dtype=pl.Int64),
            "split": good["top"].replace_strict(splits, return_dtype=pl.String),
        }  # fmt: skip
        return listing(columns), quarantine.rows(refused.rows())

    def _check_filled(
        self, filled: Collection[tuple[str, str]], classes: Mapping[SplitName | None, Sequence[str]]
    ) -> None:
        for split, names in classes.items():
            for name in names:
                if (self._tops[split], name) not in filled:
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
