"""Faults in the files of a local copy of a torchvision set. torchvision itself does not name the files."""

import hashlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["faults"]

_SIZES = {
    "c99cafc152244af753f735de768cd75f": 31_035_704,
    "d4bba439e000b95fd0a9bffe97cbabec": 31_035_320,
    "54ebc095f3ab1f0389bbae665268c751": 31_035_999,
    "634d18415352ddfa80567beed471001a": 31_035_696,
    "482c414d41f54cd18b22e5b47cb7c3cb": 31_035_623,
    "40351d587109b95175f43aff81a1287e": 31_035_526,
    "5ff9c542aee3614f3951f8cda6e48888": 158,
}
"""MD5 -> size in bytes of CIFAR-10's files; torchvision only has the digests."""

_PIXELS = {"CIFAR100": {"train": 50_000 * 3_072, "test": 10_000 * 3_072}}
"""Set and file -> bytes of its pixels, the least size of the file."""

_ITEM_BYTES = {8: 1, 9: 1, 11: 2, 12: 4, 13: 4, 14: 8}
_SHOWN = 4


def faults(cls: Any, folder: Path) -> str | None:
    """Return the faults of the files of set `cls` in `folder`; None: there is no copy, or it has no known fault."""
    messages = [*_listed_faults(cls, folder), *_idx_faults(cls, folder)]
    if not messages or all(message.endswith("is missing") for message in messages):
        return None
    more = f"; and {len(messages) - _SHOWN} more" if len(messages) > _SHOWN else ""
    return "; ".join(messages[:_SHOWN]) + more


def _listed_faults(cls: Any, folder: Path) -> Iterator[str]:
    """Yield faults of a set that lists its files with their MD5, such as CIFAR."""
    listed = [*getattr(cls, "train_list", ()), *getattr(cls, "test_list", ())]
    meta = getattr(cls, "meta", None)
    if isinstance(meta, dict) and {"filename", "md5"} <= set(meta):
        listed.append((meta["filename"], meta["md5"]))
    base = folder / str(getattr(cls, "base_folder", ""))
    for entry in listed:
        name, md5 = entry[0], entry[1]
        path = base / name
        if not path.is_file():
            yield f"{path} is missing"
            continue
        with path.open("rb") as file:
            if hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest() == md5:
                continue
        size, least = path.stat().st_size, _PIXELS.get(cls.__name__, {}).get(name, 0)
        expected = _SIZES.get(md5)
        if expected is not None and expected != size:
            yield f"{path} {_differs(size, expected)}"
        elif size < least:
            yield f"{path} is cut off: {size:,} bytes, more than {least:,} expected"
        else:
            yield f"{path} is altered: {size:,} bytes, but not the published content (MD5 {md5})"


def _idx_faults(cls: Any, folder: Path) -> Iterator[str]:
    """Yield faults of a set like MNIST, whose files have their size in the first bytes."""
    for path in sorted((folder / cls.__name__ / "raw").glob("*-ubyte")):
        with path.open("rb") as file:
            head = file.read(4)
            dimensions = [int.from_bytes(file.read(4), "big") for _ in range(head[3] if len(head) == 4 else 0)]
        size, item = path.stat().st_size, _ITEM_BYTES.get(head[2]) if len(head) == 4 else None
        if item is None or head[:2] != b"\0\0" or not dimensions:
            yield f"{path} is damaged: {size:,} bytes, without the header of an IDX file"
            continue
        expected = 4 + 4 * len(dimensions) + item * math.prod(dimensions)
        if size != expected:
            yield f"{path} {_differs(size, expected)}"


def _differs(size: int, expected: int) -> str:
    how = "is cut off" if size < expected else "is too long"
    return f"{how}: {size:,} bytes, {expected:,} expected"
