"""Pickles, found by what files hold and not by what they are called: a pickle runs code when it is loaded.

Looked at are a file's beginning, the members of zip and tar archives, and what gzip, zlib, bzip2 and xz compress.
Nothing is ever unpickled: `pickletools` reads the instructions one by one, and a stack of our own is kept beside them,
for text and pictures may well begin with a letter that is an instruction, too.
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
from typing import IO, Any, cast

__all__ = ["Finding", "files_under", "find_pickles"]

_LONGEST = 64 * 2**20  # bytes of a stream that are looked at
_DEEPEST = 4  # archives and compressions within one another
_MOST = 1_000_000  # instructions that are read; so many that fit each other are a pickle's
_NAME = re.compile(r"[A-Za-z_][\w.]*\.[A-Za-z_][\w.]*")  # what an instruction imports: module and name
_MARK = pickletools.markobject
_PUTS, _GETS = frozenset({"PUT", "BINPUT", "LONG_BINPUT"}), frozenset({"GET", "BINGET", "LONG_BINGET"})
_CALLS = frozenset({"REDUCE", "BUILD", "NEWOBJ", "NEWOBJ_EX", "INST", "OBJ"})
_ZLIB = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")


@dataclass(frozen=True)
class Finding:
    """A file that holds a pickle."""

    name: str
    what: str  # "a pickle of protocol 4", "a NumPy array of objects"
    why: str  # where in the file it lies and what it would import

    @property
    def words(self) -> str:
        """One line for a person."""
        return f"{self.name}: {self.what} ({self.why})"


def find_pickles(files: Iterable[tuple[str, Path]]) -> Iterator[Finding]:
    """The files that hold a pickle, each once; the first one found in it is told.

    Raises:
        OSError: a file cannot be read.
    """
    for name, path in files:
        with path.open("rb") as file:
            found = _look(file, depth=0)
        if found:
            yield Finding(name, *found)


def files_under(folder: Path) -> Iterator[tuple[str, Path]]:
    """Every file below a folder, by its path from there, for `find_pickles`."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.relative_to(folder).as_posix(), path


Found = tuple[str, str]  # what and why


def _look(file: IO[bytes], *, depth: int) -> Found | None:
    """What a stream that can be read from its start again holds."""
    head = file.read(512)
    file.seek(0)
    if depth > _DEEPEST or not head:
        return None
    if head.startswith(b"\x93NUMPY"):
        return _array(file)
    if head.startswith(b"PK\x03\x04"):
        return _zip(file, depth)
    if head[257:262] == b"ustar":
        return _tar(file, depth)
    unpacked = _unpacked(file, head)
    if unpacked is not None:
        found = _look(unpacked, depth=depth + 1)
        return found and (found[0], f"compressed; {found[1]}")
    return _stream(file)


def _array(file: IO[bytes]) -> Found | None:
    from numpy.lib import format as npy

    try:
        version = npy.read_magic(file)
        _, _, dtype = npy.read_array_header_1_0(file) if version == (1, 0) else npy.read_array_header_2_0(file)
    except ValueError:  # no array after all
        return None
    return ("a NumPy array of objects", f"its elements of dtype {dtype} are pickled") if dtype.hasobject else None


def _zip(file: IO[bytes], depth: int) -> Found | None:
    try:
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                with archive.open(member) as inside:
                    found = _look(_Rest(inside), depth=depth + 1)
                if found:
                    return found[0], f"{member.filename} in the archive; {found[1]}"
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError, zlib.error, OSError):
        return None  # cut off, encrypted or compressed in a way that Python does not read: nor does pickle
    return None


def _tar(file: IO[bytes], depth: int) -> Found | None:
    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            for member in archive:
                inside = archive.extractfile(member)
                found = _look(_Rest(inside), depth=depth + 1) if inside else None
                if found:
                    return found[0], f"{member.name} in the archive; {found[1]}"
    except (tarfile.TarError, OSError):
        return None
    return None


def _unpacked(file: IO[bytes], head: bytes) -> IO[bytes] | None:
    """What is compressed here, as a stream; None where nothing is."""
    if head.startswith(b"\x1f\x8b"):
        return _Rest(gzip.GzipFile(fileobj=file))
    if head.startswith(b"BZh"):
        return _Rest(bz2.BZ2File(file))
    if head.startswith((b"\xfd7zXZ\x00", b"\x5d\x00\x00")):
        return _Rest(lzma.LZMAFile(file))
    return _Rest(_Zlib(file)) if head.startswith(_ZLIB) else None


class _Zlib:
    """`read` of a zlib stream, for which the library has none."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._inflate = file, zlib.decompressobj()

    def read(self, size: int) -> bytes:
        """Up to `size` bytes, none at the end."""
        while not self._inflate.eof:
            content = self._inflate.unconsumed_tail or self._file.read(65536)
            if not content:
                return b""
            found = self._inflate.decompress(content, size)
            if found:
                return found
        return b""


class _Rest(io.BytesIO):
    """The beginning of another stream in memory: as much as is looked at, and what can be had if it is cut off."""

    def __init__(self, file: Any) -> None:
        super().__init__()
        while self.tell() <= _LONGEST:
            try:
                content = file.read(65536)
            except (EOFError, OSError, zlib.error, lzma.LZMAError, zipfile.BadZipFile):
                break
            if not content:
                break
            self.write(content)
        self.seek(0)


def _stream(file: IO[bytes]) -> Found | None:
    """Read the instructions of a pickle, up to the first that calls something, or the last."""
    reader, machine = _Limited(file), _Machine()
    try:
        return _follow(reader, machine)
    except (ValueError, OverflowError, MemoryError, _NoPickle):
        return (machine.words, "too long to be read to its end") if machine.begun and reader.is_spent else None


def _follow(reader: "_Limited", machine: "_Machine") -> Found | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of escapes in text that is no pickle's
        for count, (opcode, argument, _) in enumerate(pickletools.genops(cast(IO[bytes], reader))):
            machine.take(opcode, argument)
            if machine.calls:
                return machine.words, f"it calls {machine.imports}"
            if count == _MOST:
                return machine.words, "too long to be read to its end"
    # Text may spell a pickle that calls nothing: then it is one to the last letter.
    if machine.stack or not (machine.begun or not reader.read(1)):
        return None
    return machine.words, f"it imports {machine.imports}" if machine.imports else "it calls nothing"


class _NoPickle(Exception):
    """An instruction takes what is not there."""


class _Machine:
    """The stack and the memo of a pickle as it is read; of values only text is kept, for names are made of it."""

    def __init__(self) -> None:
        self.begun, self.calls, self.imports, self._protocol = False, False, "", 0
        self.stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    @property
    def words(self) -> str:
        return f"a pickle of protocol {self._protocol}"

    def take(self, opcode: Any, argument: Any) -> None:
        """Follow one instruction.

        Raises:
            _NoPickle: it cannot follow those before it.
        """
        name = opcode.name
        self.begun |= name == "PROTO"
        self._protocol = max(self._protocol, argument if name == "PROTO" else opcode.proto)
        if name in _PUTS or name == "MEMOIZE":
            if not self.stack or self.stack[-1] is _MARK:
                raise _NoPickle
            self._memo[len(self._memo) if name == "MEMOIZE" else argument] = self.stack[-1]
            return
        taken = self._pop(opcode)
        if name in _GETS:
            if argument not in self._memo:
                raise _NoPickle
            self.stack.append(self._memo[argument])
        else:
            self.stack += [argument] if isinstance(argument, str) and opcode.stack_after else opcode.stack_after
        if name in ("GLOBAL", "INST", "STACK_GLOBAL") and not self.imports:
            parts = taken if name == "STACK_GLOBAL" else argument.split(" ")
            self.imports = ".".join(map(str, parts))
        self.calls = name in _CALLS and _NAME.fullmatch(self.imports) is not None

    def _pop(self, opcode: Any) -> list[Any]:
        """Take off the stack what an instruction takes."""
        needs = opcode.stack_before
        if _MARK in needs:
            if _MARK not in self.stack:
                raise _NoPickle
            start = len(self.stack) - 1 - self.stack[::-1].index(_MARK) - needs.index(_MARK)
        else:
            start = len(self.stack) - len(needs)
            if start >= 0 and _MARK in self.stack[start:] and opcode.name != "POP":
                raise _NoPickle
        if start < 0:
            raise _NoPickle
        taken, self.stack[start:] = self.stack[start:], []
        return taken


class _Limited:
    """So much of a stream as is looked at, for `pickletools`."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._left = file, _LONGEST

    @property
    def is_spent(self) -> bool:
        """Whether there was more than is looked at."""
        return self._left <= 0

    def read(self, size: int) -> bytes:
        found = self._file.read(min(size, self._left + 1))
        self._left -= len(found)
        return found

    def readline(self) -> bytes:
        found = self._file.readline(self._left + 1)
        self._left -= len(found)
        return found
