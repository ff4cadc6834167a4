"""A folder of pictures: one folder per class, or train, validation and test folders of such folders.

Every file in it is a sample, hidden ones and Windows' Thumbs.db aside; what cannot be one is quarantined.
"""

import posixpath
import unicodedata
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, cast

import polars as pl

from ratchet.data import quarantine
from ratchet.data.reading.storage import LocalFolder, Storage, Tree
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


_SHARED = 2  # folder names that several folders share: so many are no chance
_STRAY = 0.05  # of the files: so many may lie beside folders of classes, such as a text about them
_SHOWN = 8  # names in a message
_DEEPEST = 8  # levels of folders that become columns


class ImageFolder:
    """Pictures in `storage`; ids are paths relative to it, with `/` between the parts.

    The class is the folder of level `label_level`, counted from 1 at the top or inside a split's folder. With a level
    that is set, the folders of all other levels become columns `level_1`, `level_2` and so on.

    Raises:
        DataError: the folder cannot be listed, holds no class folders or one only, a class is empty, or it is not clear
            which level of folders is the class.
    """

    def __init__(self, storage: Storage, label_level: int | Literal["auto"] = "auto") -> None:
        self.name, self.read, self.near = storage.name, storage.read, storage.near
        self._where, self._storage = storage.where, storage
        self._level = 1 if label_level == "auto" else label_level
        tree = storage.tree()
        splits = self._find_splits(tree)
        self.given: frozenset[SplitName] = frozenset(splits)
        self._tops: dict[SplitName | None, str] = dict(splits.items()) if splits else {None: ""}
        classes = {split: _folders(tree, folder, self._level) for split, folder in self._tops.items()}
        self.classes = tuple(classes["train" if splits else None])
        if label_level == "auto":
            self._check_level(tree)
        self._check_classes(classes, tree)
        self.listing, self.refused = self._list(tree, classes, levels=label_level != "auto")

    def _check_level(self, tree: Tree) -> None:
        """Refuse folders of folders in which another level may be the class.

        Raises:
            DataError: it is not clear which level it is.
        """
        children = _children(tree)
        for split, top in self._tops.items():
            start = f"{top}/" if top else ""
            inner = {name: names for name in children[top] if (names := children[start + name])}
            counts = Counter(name for names in inner.values() for name in names)
            shared = sorted(name for name, count in counts.items() if count > 1)
            if len(inner) < 2 or len(shared) < _SHARED:
                continue
            depths = Counter(name.count("/", len(start)) for name in tree.names if name.startswith(start))
            if depths[1] > _STRAY * sum(
                depths.values()
            ):  # pictures beside the folders: those are no level of their own
                continue
            place = self._place(split)
            if all(name.casefold() in SPLIT_FOLDERS for name in counts):
                raise DataError(
                    f"{place}: every class folder holds split folders ({_some(shared)}). Fix: move them to the top, as "
                    f"train/{next(iter(inner))}, or set data.label_level=1, which draws new splits"
                )
            raise DataError(
                f"{place}: two levels of folders may be the classes: {_some(list(inner))}, each of which holds folders "
                f"of the same names, {_some(shared)}. Fix: set data.label_level=2 if {shared[0]!r} is a class, or "
                f"data.label_level=1 if {next(iter(inner))!r} is one; the other level becomes a column for slices"
            )

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

    def _check_classes(self, found: dict[SplitName | None, list[str]], tree: Tree) -> None:
        for split, names in found.items():
            place = self._place(split)
            if not names:
                raise DataError(f"{place}: holds no class folders{self._elsewhere(tree)}: {self._layout()}")
            if split in (None, "train") and len(names) == 1:
                raise DataError(
                    f"{place}: holds one class only ({names[0]!r}): two or more are needed to tell apart"
                    f"{self._deeper(tree, self._tops[split], names[0])}"
                )
            odd = [name for name in names if not _is_text(name)]
            if odd:
                raise DataError(f"{place}: class folder {_some(odd)}: the name is not UTF-8: rename it")
            self._check_forms([*self.classes, *names], place)
            unknown = [name for name in names if name not in self.classes]
            if unknown:
                raise DataError(
                    f"{place}: {_some(unknown)} is no class of {self._place('train')}, "
                    f"which has {_some(self.classes)}: rename or remove it, or add training pictures"
                )

    def _check_forms(self, names: Sequence[str], place: str) -> None:
        """Refuse two folders whose names are the same text in two Unicode forms.

        Raises:
            DataError: there are such.
        """
        forms: dict[str, str] = {}
        for name in names:
            other = forms.setdefault(unicodedata.normalize("NFC", name), name)
            if other != name:
                raise DataError(
                    f"{place}: class folder {name!r} has its name in two Unicode forms, {name!a} and "
                    f"{other!a}: rename one as the other, so that they are one class"
                )

    def _layout(self) -> str:
        if self._level == 1:
            return LAYOUT
        return f"data.label_level is {self._level}, so put {self._level} levels of folders into it, or lower it"

    def _deeper(self, tree: Tree, top: str, only: str) -> str:
        """What to set where the classes are below the only folder; nothing where there are none."""
        if self._level > 1:
            return ". Fix: correct data.label_level"
        inside, path = only, f"{top}/{only}" if top else only
        while len(names := tree.inside(path)) == 1:
            inside, path = f"{inside}/{names[0]}", f"{path}/{names[0]}"
        if not names:
            return ""
        place = self._where if not top else f"{self._where}/{top}"
        fix = f"set data.path={place}/{inside}" if not top else f"move the folders of {place}/{inside} to {place}"
        return f". {place}/{inside} holds {len(names)} folders ({_some(names)}). Fix: {fix}"

    def _elsewhere(self, tree: Tree) -> str:
        """Where the classes are, if the folder is one of them."""
        images = sum("/" not in name for name in tree.names)
        siblings = self._storage.siblings() if images and isinstance(self._storage, LocalFolder) else []
        if len(siblings) < 2:
            return ""
        above = posixpath.dirname(self._where)
        return (
            f" but {images:,} {'file' if images == 1 else 'files'}, and {above} holds the folders {_some(siblings)}. "
            f"Fix: set data.path={above} if those are the classes. Else"
        )

    def _list(
        self, tree: Tree, classes: Mapping[SplitName | None, Sequence[str]], *, levels: bool
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The listing, and what is refused."""
        told = {"id": tree.names, "stamp": tree.stamps}
        depth = 1 if self.given else 0
        at = depth + self._level - 1
        parts = pl.col("id").str.splitn("/", at + 2)
        found = pl.DataFrame(told, schema=dict.fromkeys(told, pl.String)).sort("id").with_row_index("row")
        found = found.with_columns(
            fault=pl.col("id").replace_strict(tree.faults, default=None, return_dtype=pl.String),
            top=parts.struct[0] if self.given else pl.lit(""),
            folder=parts.struct[at],
            inside=parts.struct[at + 1].is_not_null(),
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
        listed = listing(columns)
        if levels:
            listed = listed.with_columns(self._levels(listed["id"], skipped=depth))
        return listed, quarantine.rows(refused.rows())

    def _levels(self, ids: pl.Series, *, skipped: int) -> list[pl.Series]:
        """A column for each level of folders but the classes'; null where a picture has none."""
        folders = ids.str.replace("/[^/]*$", "").str.split("/").list.slice(skipped)
        deepest = min(int(cast("int", folders.list.len().max() or 0)), _DEEPEST)
        return [
            folders.list.get(level - 1, null_on_oob=True).alias(f"level_{level}")
            for level in range(1, deepest + 1)
            if level != self._level
        ]

    def _check_filled(
        self, filled: Collection[tuple[str, str]], classes: Mapping[SplitName | None, Sequence[str]]
    ) -> None:
        for split, names in classes.items():
            for name in names:
                if (self._tops[split], name) not in filled:
                    place = self._place(split) + f"/{'*/' * (self._level - 1)}{name}"
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
    shown = ", ".join(repr(name) for name in names[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown


def _children(tree: Tree) -> dict[str, list[str]]:
    """The names of the folders in each folder ("": the top), sorted."""
    found: dict[str, list[str]] = {folder: [] for folder in ("", *tree.folders)}
    for folder in sorted(tree.folders):
        above, _, name = folder.rpartition("/")
        found[above].append(name)
    return found


def _folders(tree: Tree, top: str, level: int) -> list[str]:
    """The different names of the folders that are so many levels below `top`, sorted."""
    children, places = _children(tree), [top]
    for _ in range(level - 1):
        places = [f"{place}/{name}" if place else name for place in places for name in children[place]]
    return sorted({name for place in places for name in children[place]})
