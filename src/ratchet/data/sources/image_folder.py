"""A folder of images: one folder per class, or train, validation and test folders of such folders.

Every file in it is a sample, except those that are hidden or that systems write. Files that cannot be read are
quarantined.
"""

import posixpath
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, cast

import polars as pl

from ratchet.data import quarantine
from ratchet.data.checks.label_spelling import in_order
from ratchet.data.reading.storage import LocalFolder, Storage, Tree
from ratchet.data.sources import listing
from ratchet.data.split import SplitName
from ratchet.errors import DataError

__all__ = ["ImageFolder"]

SPLIT_FOLDERS: dict[str, SplitName] = {
    "train": "train", "training": "train", "val": "validation", "valid": "validation", "validation": "validation",
    "dev": "validation", "test": "test", "testing": "test", "trainset": "train", "valset": "validation",
    "testset": "test",
}  # fmt: skip
LAYOUT = "put one folder per class into it, or train, validation and test folders with one folder per class"

_MIN_SHARED = 2  # folder names that several folders share: so many are not a coincidence
_MAX_STRAY = 0.05  # share of the files that may be beside class folders, such as a readme
_SHOWN = 8  # names in a message
_MAX_LEVELS = 8  # levels of folders that become columns


class ImageFolder:
    """Images in `storage`; ids are paths relative to it, with `/` between the parts.

    The class is the folder of level `label_level`, counted from 1 at the top or inside a split's folder. If the level
    is set, the folders of all other levels become columns `level_1`, `level_2` and so on. `group`: one of them, whose
    values are the groups.

    Raises:
        DataError: the folder cannot be listed, it has fewer than two class folders, a class is empty, the level of
            the class folders is ambiguous, or there is no level `group`.
    """

    targets = None  # there is no table

    def __init__(
        self,
        storage: Storage,
        label_level: int | Literal["auto"] = "auto",
        *,
        group: str | None = None,
        of: str = "images",
    ) -> None:
        self._of = of  # the samples, in messages
        self.name, self.read, self.is_local = storage.name, storage.read, storage.is_local
        self._where, self._storage = storage.where, storage
        self._level = 1 if label_level == "auto" else label_level
        tree = storage.tree()
        self.ignored = tree.ignored
        self._inner = tree.inner_folders()
        splits = self._find_splits(are_classes=label_level == 1)
        self.given: frozenset[SplitName] = frozenset(splits)
        self._tops: dict[SplitName | None, str] = dict(splits.items()) if splits else {None: ""}
        classes = {split: self._class_folders(top) for split, top in self._tops.items()}
        self.classes = tuple(classes["train" if splits else None])
        if label_level == "auto":
            self._check_names()
            self._check_level(tree)
        self._check_classes(classes, tree)
        listed, self.refused = self._list(tree, classes, levels=label_level != "auto" or group is not None)
        self.listing = self._grouped(listed, group) if group is not None else listed

    def _check_names(self) -> None:
        """Check that no class folders differ only by the name of a split, as seg_train and seg_test."""
        splits_of: defaultdict[tuple[str, ...], set[frozenset[SplitName]]] = defaultdict(set)  # by the other words
        for name in self.classes:
            parts = re.findall("[^\\W\\d_]+", re.sub("(?<=[a-z])(?=[A-Z])", " ", name).casefold())
            if splits := frozenset(SPLIT_FOLDERS[part] for part in parts if part in SPLIT_FOLDERS):
                splits_of[tuple(part for part in parts if part not in SPLIT_FOLDERS)].add(splits)
        if not any(len(names) > 1 and any("train" in splits for splits in names) for names in splits_of.values()):
            return
        raise DataError(
            f"{self._where}: the class folders have names of splits ({_some(self.classes)}). Fix: rename them to "
            "train, validation and test, with one folder per class in each; or set data.label_level=1 if they are the "
            "classes"
        )

    def _check_level(self, tree: Tree) -> None:
        """Check that only one level of folders can be the classes."""
        for split, top in self._tops.items():
            start = f"{top}/" if top else ""
            inner = {name: names for name in self._inner[top] if (names := self._inner[start + name])}
            counts = Counter(name for names in inner.values() for name in names)
            shared = sorted(name for name, count in counts.items() if count > 1)
            if len(inner) < 2 or len(shared) < _MIN_SHARED:
                continue
            depths = Counter(name.count("/", len(start)) for name in tree.names if name.startswith(start))
            if depths[1] > _MAX_STRAY * sum(depths.values()):  # many images are beside the inner folders
                continue
            place = self._place(split)
            if all(name.casefold() in SPLIT_FOLDERS for name in counts):
                raise DataError(
                    f"{place}: every class folder has split folders ({_some(shared)}). Fix: move them to the top, as "
                    f"train/{next(iter(inner))}, or set data.label_level=1, which draws new splits"
                )
            raise DataError(
                f"{place}: two levels of folders may be the classes: {_some(list(inner))}, each with folders "
                f"of the same names, {_some(shared)}. Fix: set data.label_level=2 if {shared[0]!r} is a class, or "
                f"data.label_level=1 if {next(iter(inner))!r} is one; the other level becomes a column for slices"
            )

    def _find_splits(self, *, are_classes: bool) -> dict[SplitName, str]:
        """Return the folder of each split; empty if the top level has class folders.

        `are_classes`: data.label_level says so. It decides about words that often name classes, such as training.
        """
        names = self._inner[""]
        meant = [name for name in names if name.casefold() in SPLIT_FOLDERS]
        train = next((name for name in meant if SPLIT_FOLDERS[name.casefold()] == "train"), None)
        shared = set.intersection(*(set(self._inner[name]) for name in meant)) if meant else set()
        is_layout = len(shared) >= _MIN_SHARED and not are_classes
        if not train and any(name.casefold() in ("dev", "testing") for name in meant) and not is_layout:
            return {}
        is_named = train and train.casefold() == "train"
        is_split = train and self._inner[train] and (is_named or (len(meant) > 1 and not are_classes))
        if not meant or (len(meant) < len(names) and not is_split):
            return {}
        others = [name for name in names if name not in meant]
        if others:
            raise DataError(
                f"{self._where}: has split folders ({', '.join(meant)}) beside others ({_some(others)}). "
                f"Fix: move the others away, or {LAYOUT}"
                + ("" if is_named else "; or set data.label_level=1 if all are classes")
            )
        splits: dict[SplitName, str] = {}
        for name in meant:
            split = SPLIT_FOLDERS[name.casefold()]
            if split in splits:
                raise DataError(f"{self._where}: both {splits[split]} and {name} mean {split}. Fix: keep one of them")
            splits[split] = name
        if "train" not in splits:
            raise DataError(f"{self._where}: has {', '.join(meant)} but no train folder. Fix: add it, or {LAYOUT}")
        return splits

    def _class_folders(self, top: str) -> list[str]:
        """Return the different names of the folders at the level of the classes below `top`, in order."""
        places = [top]
        for _ in range(self._level - 1):
            places = [f"{place}/{name}" if place else name for place in places for name in self._inner[place]]
        return sorted({name for place in places for name in self._inner[place]}, key=in_order)

    def _check_classes(self, classes: dict[SplitName | None, list[str]], tree: Tree) -> None:
        for split, names in classes.items():
            place = self._place(split)
            if not names:
                raise DataError(f"{place}: has no class folders{self._elsewhere(tree) or '. Fix:'} {self._layout()}")
            if split in (None, "train") and len(names) == 1:
                raise DataError(
                    f"{place}: has only one class ({names[0]!r}), but at least two are needed"
                    f"{self._deeper(self._tops[split], names[0])}"
                )
            odd = [name for name in names if not _is_text(name)]
            if odd:
                raise DataError(f"{place}: class folder {_some(odd)}: the name is not UTF-8. Fix: rename it")
            self._check_forms([*self.classes, *names], place)
            unknown = [name for name in names if name not in self.classes]
            if unknown:
                raise DataError(
                    f"{place}: {_some(unknown)} is not a class of {self._place('train')}, "
                    f"which has {_some(self.classes)}. Fix: rename or remove it, or add training {self._of}"
                )

    def _check_forms(self, names: Sequence[str], place: str) -> None:
        """Check that no two names are the same text in different Unicode forms."""
        forms: dict[str, str] = {}
        for name in names:
            other = forms.setdefault(unicodedata.normalize("NFC", name), name)
            if other != name:
                raise DataError(
                    f"{place}: class folder {name!r} has its name in two Unicode forms, {name!a} and "
                    f"{other!a}. Fix: rename one to the other, so that they are one class"
                )

    def _layout(self) -> str:
        if self._level == 1:
            return LAYOUT
        return f"data.label_level is {self._level}, so put {self._level} levels of folders into it, or lower the level"

    def _deeper(self, top: str, only: str) -> str:
        """Return the fix for one class: those below the only folder, or another one."""
        if self._level > 1:
            return ". Fix: correct data.label_level"
        inside, path = only, f"{top}/{only}" if top else only
        while len(names := self._inner[path]) == 1:
            inside, path = f"{inside}/{names[0]}", f"{path}/{names[0]}"
        if not names:
            return f". Fix: add a folder with {self._of} of another class beside it"
        place = self._where if not top else f"{self._where}/{top}"
        fix = f"set data.path={place}/{inside}" if not top else f"move the folders of {place}/{inside} to {place}"
        return f". {place}/{inside} has {len(names)} folders ({_some(names)}). Fix: {fix}"

    def _elsewhere(self, tree: Tree) -> str:
        """Return an addition to the message if the folder is one of several class folders; else nothing."""
        images = sum("/" not in name for name in tree.names)
        siblings = self._storage.siblings() if images and isinstance(self._storage, LocalFolder) else []
        if len(siblings) < 2:
            return ""
        above = posixpath.dirname(self._where)
        return (
            f" but {images:,} {'file' if images == 1 else 'files'}, and {above} has the folders {_some(siblings)}. "
            f"Fix: set data.path={above} if those are the classes; else"
        )

    def _list(
        self, tree: Tree, classes: Mapping[SplitName | None, Sequence[str]], *, levels: bool
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the listing, and the quarantine rows of files that cannot be samples."""
        depth = 1 if self.given else 0
        at = depth + self._level - 1
        parts = pl.col("id").str.splitn("/", at + 2)
        every = tree.files.sort("id").with_row_index("row")
        every = every.with_columns(
            fault=pl.col("id").replace_strict(tree.faults, default=None, return_dtype=pl.String),
            top=parts.struct[0] if self.given else pl.lit(""),
            folder=parts.struct[at],
            inside=parts.struct[at + 1].is_not_null(),
        )
        self._check_filled(set(every.filter("inside").select("top", "folder").unique().rows()), classes)
        fault = pl.when("inside").then("fault").otherwise(pl.lit("not in a class folder"))
        refused = every.select("id", "row", rule=pl.lit("unreadable"), fault=fault).drop_nulls("fault")
        good = every.filter(pl.col("inside") & pl.col("fault").is_null())
        labels = {name: label for label, name in enumerate(self.classes)}
        splits = {folder: split for split, folder in self._tops.items()}
        listed = listing({
            "row": good["row"], "id": good["id"], "stamp": good["stamp"],
            "label": good["folder"].replace_strict(labels, return_dtype=pl.Int64),
            "split": good["top"].replace_strict(splits, return_dtype=pl.String),
        })  # fmt: skip
        if levels:
            listed = listed.with_columns(self._levels(listed["id"], skipped=depth))
        return listed, quarantine.rows(refused.rows())

    def _grouped(self, listed: pl.DataFrame, group: str) -> pl.DataFrame:
        """Return the listing with the folders of a level as groups."""
        levels = [name for name in listed.columns if name.startswith("level_")]
        if group not in levels:
            allowed = ", ".join(levels) or "none, as class folders have no folders"
            raise DataError(
                f"data.group_column: found {group}. Allowed for {self._where}: {allowed}. Fix: `ratchet set "
                f"data.group_column={levels[0] if levels else 'group'}`, or list the {self._of} in a table"
            )
        return listed.with_columns(group=group).drop(group)

    def _levels(self, ids: pl.Series, *, skipped: int) -> list[pl.Series]:
        """Return a column for each level of folders except the classes; null if an image has no folder there."""
        folders = ids.str.replace("/[^/]*$", "").str.split("/").list.slice(skipped)
        deepest = min(int(cast("int", folders.list.len().max() or 0)), _MAX_LEVELS)
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
                    raise DataError(f"{place}: the class folder is empty. Fix: add {self._of}, or remove it")

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
