"""A folder of pictures: one folder per class, or train, validation and test folders of such folders.

Hidden files and Windows' Thumbs.db are passed over. Everything else is a sample; what cannot be one is quarantined.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from ratchet.data.sources import Sample, SplitName
from ratchet.errors import DataError

__all__ = ["ImageFolder"]

SPLIT_FOLDERS: dict[str, SplitName] = {
    "train": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
}
IGNORED = frozenset({"thumbs.db"})
LAYOUT = "put one folder per class into it, or train, validation and test folders that hold one folder per class"


class ImageFolder:
    """Pictures under `path`; ids are paths relative to it, with `/` between the parts.

    Links to folders are followed, except back up to a folder they lie in, so a loop ends.

    Raises:
        DataError: the folder is missing, cannot be listed, holds no class folders or one only, or a class is empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = Path(os.path.abspath(path)).name
        if not path.is_dir():
            found = "is a file" if path.is_file() else "is not there"
            raise DataError(f"data.path: {path} {found}: name a folder with your pictures; {LAYOUT}")
        self._splits = self._find_splits()
        self.given: frozenset[SplitName] = frozenset(self._splits)
        self._tops: dict[SplitName | None, str] = dict(self._splits.items()) if self._splits else {None: ""}
        classes = {split: _folders(path / folder) for split, folder in self._tops.items()}
        self.classes = tuple(classes["train" if self._splits else None])
        self._check_classes(classes)
        self._samples = sorted(self._walk(), key=lambda sample: sample.id)
        self._check_filled(classes)

    def samples(self) -> Iterator[Sample]:
        """Every file that is not passed over, by id."""
        return iter(self._samples)

    def _find_splits(self) -> dict[SplitName, str]:
        """Which folder is which split; empty where `path` holds class folders."""
        names = _folders(self.path)
        meant = [name for name in names if name.casefold() in SPLIT_FOLDERS]
        train = next((name for name in meant if name.casefold() == "train"), None)
        if not meant or (len(meant) < len(names) and not (train and _folders(self.path / train))):
            return {}
        others = [name for name in names if name not in meant]
        if others:
            raise DataError(
                f"{self.path}: holds split folders ({', '.join(meant)}) beside others ({_some(others)}): "
                f"move the others away, or {LAYOUT}"
            )
        splits: dict[SplitName, str] = {}
        for name in meant:
            split = SPLIT_FOLDERS[name.casefold()]
            if split in splits:
                raise DataError(f"{self.path}: both {splits[split]} and {name} mean {split}: keep one of them")
            splits[split] = name
        if "train" not in splits:
            raise DataError(f"{self.path}: holds {', '.join(meant)} but no train folder: add it, or {LAYOUT}")
        return splits

    def _check_classes(self, found: dict[SplitName | None, list[str]]) -> None:
        for split, names in found.items():
            place = self.path / self._tops[split]
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
                    f"{place}: {_some(unknown)} is no class of {self.path / self._splits['train']}, "
                    f"which has {_some(self.classes)}: rename or remove it, or add training pictures"
                )

    def _check_filled(self, found: dict[SplitName | None, list[str]]) -> None:
        filled = {(sample.split, sample.label) for sample in self._samples}
        for split, names in found.items():
            for name in names:
                if (split, self.classes.index(name)) not in filled:
                    place = self.path / self._tops[split] / name
                    raise DataError(f"{place}: the class folder is empty: add pictures, or remove it")

    def _walk(self) -> Iterator[Sample]:
        index = {name: label for label, name in enumerate(self.classes)}
        prefixes: dict[tuple[str, ...], SplitName | None] = {
            (folder,) if folder else (): split for split, folder in self._tops.items()
        }
        for parts, path, fault in _files(self.path, (), ()):
            depth = 1 if self._splits else 0
            split = prefixes.get(parts[:depth])
            inside = len(parts) > depth + 1
            if not inside:
                fault = "not in a class folder"
            label = index[parts[depth]] if inside else None
            name = "/".join(parts)
            if not _is_text(name):
                fault, name = "name is not UTF-8", name.encode("utf-8", "backslashreplace").decode()
            yield Sample(name, path, label, split, fault=fault)


def _files(
    folder: Path, parts: tuple[str, ...], above: tuple[tuple[int, int], ...]
) -> Iterator[tuple[tuple[str, ...], Path, str | None]]:
    """(parts of the relative path, path, fault) of all files below; `above` identifies the folders on the way here."""
    here = folder.stat()
    above = (*above, (here.st_dev, here.st_ino))
    for entry in _entries(folder):
        path, place = Path(entry.path), (*parts, entry.name)
        try:
            kind = path.stat()
        except OSError as error:
            yield place, path, f"cannot be reached: {error.strerror}"
            continue
        if not stat.S_ISDIR(kind.st_mode):
            yield place, path, None if stat.S_ISREG(kind.st_mode) else "not a regular file"
        elif (kind.st_dev, kind.st_ino) not in above:
            yield from _files(path, place, above)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """What `folder` holds, by name, without what is passed over."""
    try:
        with os.scandir(folder) as entries:
            kept = [e for e in entries if not e.name.startswith(".") and e.name.casefold() not in IGNORED]
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be listed ({error.strerror}): let this user read it, or remove it"
        ) from error
    return sorted(kept, key=lambda entry: entry.name)


def _folders(folder: Path) -> list[str]:
    return [entry.name for entry in _entries(folder) if os.path.isdir(entry.path)]


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _some(names: list[str] | tuple[str, ...]) -> str:
    shown = ", ".join(repr(name) for name in names[:8])
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown
