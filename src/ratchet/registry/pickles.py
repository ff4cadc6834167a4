"""Find pickles by the content of files, whatever their names: a pickle runs code when it is loaded.

Files, members of zip archives, and gzip, zlib, bzip2 and xz streams are searched. Nothing is unpickled: `pickletools`
reads the opcodes. Only the first bytes of each stream are read.
"""

import bz2
import gzip
import io
import lzma
import pickletools
import re
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

__all__ = ["find_pickles"]

_MAX_STREAM = 64 * 2**20  # bytes of a stream that are read
_MAX_TOTAL = 4 * 2**30  # bytes that are read from all archives and compressed streams within one file
_MAX_OPCODES = 1_000_000  # that are read; text does not have so many valid ones
_MAX_DEPTH = 4  # archives and compressed streams within one another
_NAME = re.compile(r"[A-Za-z_][\w.]* [A-Za-z_][\w.]*")  # module and name that an opcode imports
_CALLS = frozenset({"REDUCE", "BUILD", "NEWOBJ", "NEWOBJ_EX", "INST", "OBJ"})
_OPCODES = frozenset(opcode.code.encode("latin-1") for opcode in pickletools.opcodes)
_CUT = "a pickle, too long to be read to its end"
_UNREADABLE = (EOFError, OSError, RuntimeError, NotImplementedError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)


def find_pickles(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the relative path of each file below a folder that contains a pickle, and what was found in it.

    Raises:
        OSError: a file cannot be read.
    """
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                finding = _Search().search(file)
            if finding:
                yield path.relative_to(folder).as_posix(), finding


class _Search:
    """The search of one file. A nested archive can expand without end, so all that is read of it is limited."""

    def __init__(self) -> None:
        self._left = _MAX_TOTAL

    def search(self, file: IO[bytes], depth: int = 0) -> str | None:
        """Search a seekable stream from its start."""
        head = file.read(8)
        file.seek(0)
        if head.startswith(b"\x93NUMPY"):
            return _search_array(file)
        if head.startswith(b"PK\x03\x04"):
            return self._search_members(file, depth) if depth < _MAX_DEPTH else None
        opened = next((opened for magic, opened in _COMPRESSED.items() if head.startswith(magic)), None)
        if opened and depth < _MAX_DEPTH:
            finding = self._search_part(opened(file), depth)
            return finding and f"{finding}, compressed"
        return _search_opcodes(_beginning(file)) if head[:1] in _OPCODES else None

    def _search_members(self, file: IO[bytes], depth: int) -> str | None:
        try:
            with zipfile.ZipFile(file) as archive:
                for member in archive.infolist():
                    if member.flag_bits & 1:  # encrypted; the other members can still have pickles
                        continue
                    with archive.open(member) as content:
                        finding = self._search_part(content, depth)
                    if finding:
                        return f"{finding}, in its member {member.filename}"
        except _UNREADABLE:
            pass  # truncated, or compressed in a way that Python, and so pickle, cannot read
        return None

    def _search_part(self, content: Any, depth: int) -> str | None:
        part = _beginning(content)
        self._left -= part.getbuffer().nbytes
        if self._left < 0:
            return f"more than can be searched ({_MAX_TOTAL:,} bytes of its content were read)"
        return self.search(part, depth + 1)


def _search_array(file: IO[bytes]) -> str | None:
    from numpy.lib import format as npy

    try:
        version = npy.read_magic(file)
        _, _, dtype = npy.read_array_header_1_0(file) if version == (1, 0) else npy.read_array_header_2_0(file)
    except ValueError:  # not an array
        return None
    return "a NumPy array of pickled objects" if dtype.hasobject else None


def _search_opcodes(stream: io.BytesIO) -> str | None:
    """Read the opcodes of a pickle up to the first call, or the end."""
    has_header = has_import = has_arguments = False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about escapes in other text
            for count, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
                name = opcode.name
                has_header |= name == "PROTO"
                has_import |= name == "STACK_GLOBAL" or bool(_NAME.fullmatch(str(argument)))
                has_arguments |= name in ("MARK", "EMPTY_TUPLE")
                # Other text can begin like a pickle without a header, but it has no call with arguments.
                if name in _CALLS and has_import and (has_header or has_arguments):
                    return "a pickle with a call"
                if count == _MAX_OPCODES:
                    return _CUT
    except (ValueError, OverflowError, MemoryError):
        is_cut = stream.getbuffer().nbytes > _MAX_STREAM
        return _CUT if has_header and is_cut else None
    return "a pickle" if has_header else None


def _beginning(file: Any) -> io.BytesIO:
    """Return up to `_MAX_STREAM` bytes, and one more if there are more; of a truncated stream what can be read."""
    content = io.BytesIO()
    try:
        while (left := _MAX_STREAM + 1 - content.tell()) and (block := file.read(min(65536, left))):
            content.write(block)
    except _UNREADABLE:
        pass
    content.seek(0)
    return content


def _inflated(file: IO[bytes]) -> io.BytesIO:
    try:
        return io.BytesIO(zlib.decompressobj().decompress(file.read(_MAX_STREAM), _MAX_STREAM + 1))
    except zlib.error:
        return io.BytesIO()


_COMPRESSED: dict[bytes, Any] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
    b"\x5d\x00\x00": lzma.open,
    **dict.fromkeys((b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda"), _inflated),
}
"""First bytes of a compressed stream -> the function that opens it."""
