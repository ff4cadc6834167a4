"""Faults in the files of a local copy of a torchvision set. torchvision itself does not name the files."""

import hashlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["faults"]

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
        yield f"{path} is cut off or altered: {path.stat().st_size:,} bytes, not the published content (MD5 {md5})"


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
            yield f"{path} has {size:,} bytes, {expected:,} expected"
