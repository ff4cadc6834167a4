"""A checkpoint of a sharded model: a folder with one safetensors file of each rank, and `index.json`, written last.

The index has the state as JSON, the whole shape of every tensor whose rows are shared, and the SHA-256 of each file.
Any number of ranks can read it: each reads the rows that it has from the files that hold them.
"""

import hashlib
import json
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedRandom
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from ratchet import files
from ratchet.checkpoint_names import INDEX
from ratchet.errors import CheckpointError, TrainingError

__all__ = [
    "TYPES",
    "StoredWeights",
    "check_shards",
    "digest_content",
    "read_index",
    "reading",
    "row_range",
    "shard_name",
    "tensor_bytes",
    "write_tensors",
]

_PIECE = 4 * 2**20  # bytes of a file that are compared at once

TYPES = {  # in the order of safetensors, which writes the last first
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.float32: "F32",
    torch.complex64: "C64",
    torch.float64: "F64",
    torch.int64: "I64",
    torch.uint64: "U64",
}


def row_range(rows: int, rank: int, count: int) -> range:
    """Return the rows of a tensor that a rank has, as FSDP shares them."""
    share = -(-rows // count)
    return range(min(rank * share, rows), min((rank + 1) * share, rows))


def shard_name(rank: int, count: int) -> str:
    """Return the name of a rank's file."""
    return f"shard-{rank}-of-{count}.safetensors"


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file, one tensor after another. It gets its name only after it was read back and compared.

    Its bytes are those of `safetensors.torch.save`, which copies all of them twice in memory and lets no other thread
    run meanwhile. At most one tensor is copied at a time, and a lazy mapping is asked for one at a time, three times.
    """
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    about = [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()]
    about.sort(key=lambda each: (-list(TYPES).index(each[1]), each[0]))
    end = 0
    for name, dtype, shape in about:
        start, end = end, end + dtype.itemsize * torch.Size(shape).numel()
        header[name] = {"dtype": TYPES[dtype], "shape": shape, "data_offsets": (start, end)}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)

    def contents() -> "Iterator[memoryview[int]]":
        yield memoryview(struct.pack("<Q", len(text)) + text)
        yield from (tensor_bytes(tensors[name]) for name, _, _ in about)

    with files.draft_file(path) as draft, draft.open("w+b") as file:
        for content in contents():
            file.write(content)
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        if not _has_only(file, contents()):
            raise CheckpointError(f"the file {path.name} read back differs from what was written")


def _has_only(file: BufferedRandom, contents: "Iterable[memoryview[int]]") -> bool:
    """Whether these contents are the rest of a file. Other threads can run while NumPy compares."""
    buffer = memoryview(bytearray(_PIECE))
    for content in contents:
        for start in range(0, len(content), _PIECE):
            piece = content[start : start + _PIECE]
            count = file.readinto(buffer[: len(piece)])
            if not np.array_equal(buffer[:count], piece):
                return False
    return not file.read(1)


def tensor_bytes(tensor: torch.Tensor) -> "memoryview[int]":
    """Return the memory of a tensor, or of its copy if it is on a GPU or not contiguous."""
    content: memoryview = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
    return content


@contextmanager
def reading(checkpoint: Path) -> Iterator[None]:
    """Turn the errors of reading a checkpoint into one that says whether it is damaged.

    Raises:
        CheckpointError: a file of it is missing, or is no checkpoint's.
        TrainingError: it cannot be read now, such as for want of rights, of open files or of the network's disk.
    """
    try:
        yield
    except (FileNotFoundError, ValueError, KeyError, SafetensorError) as error:
        raise CheckpointError(f"checkpoint {checkpoint} is damaged ({error})") from error
    except OSError as error:
        raise TrainingError(
            f"checkpoint {checkpoint} cannot be read ({error.strerror}), and is left as it is. Fix: make it "
            "readable, or move it away to continue at the one before; then run the same command again"
        ) from error


def read_index(folder: Path) -> dict[str, Any]:
    """Return the content of a checkpoint's index.

    Raises:
        CheckpointError: it is damaged.
    """
    with reading(folder):
        content = files.read_json(folder / INDEX)
        digest = content.pop("sha256")
    if files.digest_json(content) != digest:
        raise CheckpointError(f"checkpoint {folder} is damaged ({INDEX} does not match its digest)")
    return dict(content)


def check_shards(folder: Path) -> None:
    """Verify all files of a checkpoint.

    Raises:
        CheckpointError: one is missing or changed.
    """
    for name, digest in read_index(folder)["shards"].items():
        with reading(folder):
            is_same = files.digest_file(folder / name) == digest
        if not is_same:
            raise CheckpointError(f"checkpoint {folder} is damaged ({name} does not match its digest)")


class StoredWeights(Mapping[str, torch.Tensor]):
    """Tensors of a sharded checkpoint, each read from the files of all ranks when it is asked for.

    Args:
        group: beginning of their names, which is left out.
        rank, count: read only the rows that this one of so many ranks has.
    """

    def __init__(self, folder: Path, group: str = "", *, rank: int = 0, count: int = 1) -> None:
        index = read_index(folder)
        self.folder, self.group, self.rank, self.count = folder, group, rank, count
        self._shapes: dict[str, list[int]] = index["shapes"]
        self._shards = [folder / name for name in index["shards"]]
        self._names = [name.removeprefix(group) for name in index["tensors"] if name.startswith(group)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._names:
            raise KeyError(name)
        key = f"{self.group}{name}"
        if key not in self._shapes:
            return _read(self._shards[0], key)
        rows, mine = self._shapes[key][0], row_range(self._shapes[key][0], self.rank, self.count)
        parts = []
        for number, shard in enumerate(self._shards):
            stored = row_range(rows, number, len(self._shards))
            start, end = max(mine.start, stored.start), min(mine.stop, stored.stop)
            if start < end or (number == 0 and not mine):  # at least one part, for the type
                first, last = (start - stored.start, end - stored.start) if start < end else (0, 0)
                parts.append(_read(shard, key, slice(first, last)))
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def digest_content(folder: Path) -> str:
    """Return the SHA-256 (hex) of a checkpoint's state and tensors, which does not depend on the number of ranks."""
    index, stored = read_index(folder), StoredWeights(folder)
    del index["shards"]
    tensors = {name: hashlib.sha256(tensor_bytes(stored[name])).hexdigest() for name in stored}
    return files.digest_json({**index, "tensors": tensors})


def _read(path: Path, name: str, rows: slice | None = None) -> torch.Tensor:
    with reading(path.parent):
        path.open("rb").close()  # `safe_open` calls every file that it cannot open missing
        with safe_open(path, framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(name) if rows is None else file.get_slice(name)[rows]
            return tensor
