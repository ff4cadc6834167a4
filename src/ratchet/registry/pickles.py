"""Find pickles by the content of files, whatever their names: a pickle runs code when it is loaded.

Files, members of zip and tar archives, and gzip, zlib, bzip2 and xz streams are searched. Nothing is unpickled:
`pickletools` reads the opcodes. The stack is followed beside it, because text and images can begin like a pickle.
Memory and time are bounded: only the first bytes of each stream are read, and archives count towards a total.
"""

import bz2
import gzip
import io
import lzma
import pickletools
import re
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

__all__ = ["Finding", "files_under", "find_pickles"]

_MAX_STREAM = 64 * 2**20  # bytes of a stream that are read
_MAX_TOTAL = 4 * 2**30  # bytes that are read from all archives and compressed streams within one file
_MAX_DEPTH = 4  # archives and compressed streams within one another
_MAX_OPCODES = 1_000_000  # that are read; text does not have so many valid ones
_NAME = re.compile(r"[A-Za-z_][\w.]*\.[A-Za-z_][\w.]*")  # module and name that an opcode imports
_CALLS = frozenset({"REDUCE", "BUILD", "NEWOBJ", "NEWOBJ_EX", "INST", "OBJ"})
_MARK, _VALUE = object(), object()  # on the stack; of values only text is kept, because names are made of it
_CUT = "too long to be read to its end"
_OPCODES = frozenset(opcode.code.encode("latin-1") for opcode in pickletools.opcodes)
_ZLIB = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")
_UNREADABLE = (EOFError, OSError, RuntimeError, NotImplementedError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)


@dataclass(frozen=True)
class Finding:
    """A file with a pickle: its name, "a pickle of protocol N" or "a NumPy array of objects", and where and why."""

    name: str
    kind: str
    reason: str


def find_pickles(files: Iterable[tuple[str, Path]]) -> Iterator[Finding]:
    """Yield a finding for each file that contains a pickle. `files` are names and paths.

    Raises:
        OSError: a file cannot be read.
    """
    for name, path in files:
        with path.open("rb") as file:
            match = _Search().search(file)
        if match:
            yield Finding(name, *match)


def files_under(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield every file below a folder with its relative path, for `find_pickles`."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.relative_to(folder).as_posix(), path


Match = tuple[str, str]  # kind and reason


class _Search:
    """The search of one file."""

    def __init__(self) -> None:
        self._left = _MAX_TOTAL

    def search(self, file: IO[bytes], depth: int = 0) -> Match | None:
        """Search a seekable stream from its start."""
        head = file.read(512)
        file.seek(0)
        if depth > _MAX_DEPTH or not head:
            return None
        if head.startswith(b"\x93NUMPY"):
            return _search_array(file)
        if head.startswith(b"PK\x03\x04"):
            return self._search_members(_zip_members(file), depth)
        if head[257:262] == b"ustar":
            return self._search_members(_tar_members(file), depth)
        content = _decompressed(file, head)
        if content is not None:
            match = self._search_part(content, depth)
            return match and (match[0], f"compressed; {match[1]}")
        return _search_stream(_beginning(file)) if head[:1] in _OPCODES else None

    def _search_members(self, members: Iterator[tuple[str, Any]], depth: int) -> Match | None:
        try:
            for name, content in members:
                match = self._search_part(content, depth)
                if match:
                    return match[0], f"{name} in the archive; {match[1]}"
        except (*_UNREADABLE, tarfile.TarError):
            return None  # truncated, encrypted, or compressed in a way that Python, and so pickle, cannot read
        return None

    def _search_part(self, content: Any, depth: int) -> Match | None:
        part = _beginning(content)
        self._left -= part.getbuffer().nbytes
        if self._left < 0:
            return "more than can be searched", f"{_MAX_TOTAL:,} bytes of its content were read"
        return self.search(part, depth + 1)


def _search_array(file: IO[bytes]) -> Match | None:
    from numpy.lib import format as npy

    try:
        version = npy.read_magic(file)
        _, _, dtype = npy.read_array_header_1_0(file) if version == (1, 0) else npy.read_array_header_2_0(file)
    except ValueError:  # not an array
        return None
    return ("a NumPy array of objects", f"its elements of dtype {dtype} are pickled") if dtype.hasobject else None


def _zip_members(file: IO[bytes]) -> Iterator[tuple[str, Any]]:
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            try:
                content = archive.open(member)
            except _UNREADABLE:  # encrypted, for example; the other members can still have pickles
                continue
            with content:
                yield member.filename, content


def _tar_members(file: IO[bytes]) -> Iterator[tuple[str, Any]]:
    with tarfile.open(fileobj=file, mode="r:") as archive:
        for member in archive:
            content = archive.extractfile(member)
            if content:
                yield member.name, content


def _decompressed(file: IO[bytes], head: bytes) -> Any:
    """Return a stream with the decompressed content; None if the file is not compressed."""
    if head.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=file)
    if head.startswith(b"BZh"):
        return bz2.BZ2File(file)
    if head.startswith((b"\xfd7zXZ\x00", b"\x5d\x00\x00")):
        return lzma.LZMAFile(file)
    if head.startswith(_ZLIB):
        content = file.read(_MAX_STREAM)
        inflate = zlib.decompressobj()
        try:
            return io.BytesIO(inflate.decompress(content, _MAX_STREAM + 1))
        except zlib.error:
            return io.BytesIO()
    return None


def _beginning(file: Any) -> io.BytesIO:
    """Return up to `_MAX_STREAM` bytes, and one more if there are more; of a truncated stream what can be read."""
    content = io.BytesIO()
    while content.tell() <= _MAX_STREAM:
        try:
            block = file.read(min(65536, _MAX_STREAM + 1 - content.tell()))
        except _UNREADABLE:
            break
        if not block:
            break
        content.write(block)
    content.seek(0)
    return content


def _search_stream(stream: io.BytesIO) -> Match | None:
    """Read the opcodes of a pickle up to the first call, or the end."""
    machine = _Machine()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about escapes in other text
            for count, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
                machine.follow(opcode, argument)
                if machine.calls:
                    return machine.kind, f"it calls {machine.imports}"
                if count == _MAX_OPCODES:
                    return machine.kind, _CUT
    except (ValueError, OverflowError, MemoryError, LookupError):
        is_cut = stream.getbuffer().nbytes > _MAX_STREAM
        return (machine.kind, _CUT) if machine.has_header and is_cut else None
    # Text can be a valid pickle without a header and without calls. It counts if nothing follows.
    if machine.stack or not (machine.has_header or not stream.read(1)):
        return None
    return machine.kind, f"it imports {machine.imports}" if machine.imports else "it calls nothing"


class _Machine:
    """The stack and the memo of a pickle while its opcodes are read."""

    def __init__(self) -> None:
        self.has_header, self.calls, self.imports, self._protocol = False, False, "", 0
        self.stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    @property
    def kind(self) -> str:
        return f"a pickle of protocol {self._protocol}"

    def follow(self, opcode: Any, argument: Any) -> None:
        """Follow one opcode.

        Raises:
            LookupError: it takes something that the opcodes before did not leave: this is not a pickle.
        """
        name = opcode.name
        self.has_header |= name == "PROTO"
        self._protocol = max(self._protocol, argument if name == "PROTO" else opcode.proto)
        if "PUT" in name or name == "MEMOIZE":
            if self.stack[-1] is _MARK:
                raise LookupError
            self._memo[len(self._memo) if name == "MEMOIZE" else argument] = self.stack[-1]
            return
        taken = self._take(opcode)
        if name in ("GET", "BINGET", "LONG_BINGET"):
            self.stack.append(self._memo[argument])
        elif name == "MARK":
            self.stack.append(_MARK)
        else:
            value = argument if isinstance(argument, str) else _VALUE
            self.stack += [value] * len(opcode.stack_after)
        if name in ("GLOBAL", "INST", "STACK_GLOBAL") and not self.imports:
            self.imports = ".".join(map(str, taken if name == "STACK_GLOBAL" else argument.split(" ")))
        self.calls = name in _CALLS and _NAME.fullmatch(self.imports) is not None

    def _take(self, opcode: Any) -> list[Any]:
        """Pop what an opcode takes: a number of values, or everything above the last mark, and values below it."""
        needs = opcode.stack_before
        taken = []
        if pickletools.markobject in needs:
            while self.stack.pop() is not _MARK:
                pass
            needs = needs[: needs.index(pickletools.markobject)]
        for _ in needs:
            taken.append(self.stack.pop())
            if taken[-1] is _MARK and opcode.name != "POP":
                raise LookupError
        return taken[::-1]
