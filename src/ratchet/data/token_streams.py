"""Ingest of text for language models: check the files, cut or assign them to splits, and pack each split's text.

Files are decoded as texts with labels are. A file that is no text is quarantined. One file, or fewer than ten, are cut
at line ends: the first part of each is for training, then validation, then test, so that the model is tested on text
that follows. Ten files and more are assigned whole, by the hash of their content. Folders and files that are called
like splits keep them. A split is the text of its files in the order of their names; each file ends with a line end.
"""

import hashlib
import os
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath

import numpy as np
import polars as pl

from ratchet import files
from ratchet.data import overrides, pack, quarantine
from ratchet.data.manifest import Manifest
from ratchet.data.packed_set import Arrays, IngestTask, PackedSet, without_copies
from ratchet.data.profile import contract, copies
from ratchet.data.reading.storage import Storage, expanded, is_url, open_storage, read_whole
from ratchet.data.sources.decoding import Decoded, decode, encoding_of
from ratchet.data.sources.image_folder import SPLIT_FOLDERS
from ratchet.data.sources.typed_files import json_object
from ratchet.data.split import SPLITS, SplitName, assign, for_folds
from ratchet.data.system_files import Ignored
from ratchet.data.tables.targets import TargetTable
from ratchet.errors import DataError, first_line
from ratchet.kinds import TokensInput
from ratchet.kinds.pieces import piece_bounds
from ratchet.problems import NextToken
from ratchet.settings.model import DataSettings

__all__ = ["ingest_tokens"]

CHOSEN_BY = {"kind": ("tokens",)}

_FEWEST_WHOLE = 10  # files that are assigned whole; fewer are cut
_SAMPLE_FILES, _SAMPLE_BYTES = 20, 1 << 16  # of a preflight
_WORDS = "|".join(SPLIT_FOLDERS)
_TABLES = (".csv", ".tsv", ".json", ".parquet")
_LINE_END = b"\n"
_AT_ONCE = 1 << 23  # bytes that are decoded at a time
_MOST_FREQUENT = 20  # characters that the profile lists


@dataclass(frozen=True)
class _File:
    """A file of the source, or a part of one."""

    row: int  # among all files, by name
    id: str
    content: bytes
    digest: str  # SHA-256 (hex) of the file's bytes
    split: SplitName | None = None

    @cached_property
    def packed(self) -> str:
        """SHA-256 (hex) of the text, without its last line ends: they are alike in every packed file."""
        end = len(self.content)
        while end and self.content[end - 1] == _LINE_END[0]:
            end -= 1
        return hashlib.sha256(memoryview(self.content)[:end]).hexdigest()


def ingest_tokens(task: IngestTask) -> Manifest:
    """Ingest text for language models; see `ratchet.data.ingest`."""
    settings = task.settings
    storage, names, ignored = _source(settings, task.root)
    task.say_ignored(ignored)
    given = _given(names, storage.where)
    if task.sample:
        names = names[:: -(-len(names) // _SAMPLE_FILES)]
    good, bad = _read(storage, names, given, task)
    whole = [file if file.split else replace(file, split="train") for file in good]
    kept, bad = _without_copies(whole, bad)  # before one of them is cut
    parts = _split([file for file in good if file.id in kept], settings)
    del good, whole  # a second copy of the text
    kept, bad = _without_copies(parts, bad)
    parts = [part for part in parts if part.id in kept]
    task.check_quarantine(bad, total=len(names))
    _require_text(parts, storage)
    packed = PackedSet(
        name=PurePosixPath(settings.path.rstrip("/")).stem, source=settings.path, index=_piece_index(parts),
        labels=TargetTable(NextToken, "", (), np.zeros(0, np.int64), pl.Series(dtype=pl.String), {}),
        bad=bad, released=overrides.read(None), keys=np.zeros(0, np.uint64),
        rows={split: sum(map(len, _texts(parts, split))) for split in SPLITS},
    )  # fmt: skip

    def write(folder: Path, part: slice) -> Arrays:
        text = np.frombuffer(b"".join(_texts(parts, folder.name)), np.uint8)
        return {"text": pack.write_shards_of(folder, "text", text)}

    with files.draft_directory(task.packed) as draft:
        return packed.write(draft, arrays=write, describe=lambda: (TokensInput(), _profile(parts, packed)))


def _without_copies(parts: Sequence[_File], bad: pl.DataFrame) -> tuple[set[str], pl.DataFrame]:
    """Return the names of files whose text is in no split of a higher rank, and the quarantine rows with the others."""
    index, bad = without_copies(_index(parts), bad, digest="packed")
    return set(index["id"]), bad


def _source(settings: DataSettings, root: Path) -> tuple[Storage, list[str], Ignored]:
    """Return the folder of the files, their names, sorted, and the files that are ignored."""
    path = settings.path
    is_file = bool(PurePosixPath(path).suffix) if is_url(path) else os.path.isfile(root / expanded(path))
    if is_file:
        folder, _, name = path.rpartition("/")
        _refuse_tables([name])
        return open_storage(folder or ".", root=root), [name], Ignored()
    storage = open_storage(path, root=root)
    if not storage.can_list:
        raise DataError(f"data.path: found {path}. A web server lists no files. Fix: name the address of a text file")
    tree = storage.tree()
    names = sorted(tree.names)
    if not names:
        raise DataError(f"data.path: {storage.where} has no files. Fix: put text files (UTF-8) into it")
    _refuse_tables(names)
    return storage, names, tree.ignored


def _refuse_tables(names: Sequence[str]) -> None:
    """Refuse files whose syntax a model would learn beside their texts. JSON Lines are read: `_field`.

    Raises:
        DataError: naming one.
    """
    tables = [name for name in names if name.casefold().endswith(_TABLES)]
    if tables:
        others = f" and {len(tables) - 1:,} others" if len(tables) > 1 else ""
        raise DataError(
            f"data.path: {tables[0]}{others}: a model of kind tokens would learn its syntax beside its texts. "
            "Allowed: texts, or JSON Lines (.jsonl) whose objects have the key that data.text_column names. Fix: "
            "convert it, move it out of the folder, or rename it to .txt if the model is to write this syntax"
        )


def _read(
    storage: Storage, names: Sequence[str], given: Mapping[str, SplitName], task: IngestTask
) -> tuple[list[_File], pl.DataFrame]:
    """Return the good files, and the quarantine table of the others."""
    good: list[_File] = []
    failures: list[tuple[str, int, str, str]] = []
    for row, name in enumerate(names):
        try:
            raw = read_whole(storage, name)
            content, decoded = _checked(raw)
            if decoded.rule is None and name.casefold().endswith((".jsonl", ".ndjson")):
                content, decoded = _field(content, task.settings.text_column)
        except OSError as error:
            content, decoded = b"", Decoded(None, "unreadable-text", error.strerror or first_line(error))
        if decoded.rule is not None:
            failures.append((name, row, decoded.rule, str(decoded.problem)))
        else:
            content = content[: _boundary(content, _SAMPLE_BYTES)] if task.sample else content
            good.append(_File(row, name, content, hashlib.sha256(raw).hexdigest(), given.get(name)))
        task.report(row + 1, len(names))
    return good, quarantine.rows(failures)


def _checked(raw: bytes) -> tuple[bytes, Decoded]:
    """Return the text of a file as UTF-8, in which CRLF and CR are LF. Its rule and problem are set if it is no text.

    UTF-8 is decoded in pieces, because a string may take four times the memory of its bytes.
    """
    encoding, mark = encoding_of(raw)
    decoded, characters = Decoded(""), 0
    for start, end in _line_pieces(raw) if encoding == "utf-8" else [(0, len(raw))]:
        decoded = decode(raw[start:end], offset=start, marked=start == 0)
        if decoded.text is None:
            return b"", decoded
        if (place := decoded.text.find("\0")) >= 0:
            return b"", Decoded(None, "nul-character", f"U+0000 as character {characters + place + 1:,}")
        characters += len(decoded.text)
    if not characters:
        return b"", Decoded(None, "empty-text", f"{len(raw)} bytes")
    content = raw[mark:] if encoding == "utf-8" else str(decoded.text).encode()
    return content.replace(b"\r\n", _LINE_END).replace(b"\r", _LINE_END), Decoded("")


def _field(content: bytes, column: str) -> tuple[bytes, Decoded]:
    """Return the texts of JSON Lines, one after the other: a model would learn the syntax from the file itself."""
    texts = []
    for number, line in enumerate(content.decode().split("\n"), start=1):
        if line.strip():
            text = (json_object(line, nan=True) or {}).get(column)
            if not isinstance(text, str):
                return b"", Decoded(None, "no-text-key", f"line {number} is no JSON object with a text {column!r}")
            if "\0" in text or re.search("[\ud800-\udfff]", text):
                return b"", Decoded(None, "not-text", f"line {number} has U+0000 or half of a surrogate pair")
            texts.append(text.rstrip("\r\n") + "\n")
    return "".join(texts).replace("\r\n", "\n").replace("\r", "\n").encode(), Decoded("")


def _line_pieces(content: bytes) -> Iterator[tuple[int, int]]:
    """Yield start and end of pieces of whole lines, of some MiB each."""
    start = 0
    while start < len(content):
        end = content.find(_LINE_END, start + _AT_ONCE) + 1 or len(content)
        yield start, end
        start = end


def _given(names: Sequence[str], where: str) -> dict[str, SplitName]:
    """Return the splits of the files that have one: by the top folder, by an inner one, or as in wiki.train.tokens.

    Names below the top count only if two of them differ by train and another split alone: a text may be called test.

    Raises:
        DataError: some files have names of splits, and fewer files of their endings have not.
    """
    if top := _named(names, lambda name: name.split("/")[:-1][:1]):
        return top
    inner = _named(names, lambda name: name.split("/")[:-1])
    if _divides(inner, lambda name: re.split(f"/(?:{_WORDS})/", f"/{name.casefold()}")[0]):
        return inner
    plain = {name: re.sub("(?<=[a-z])(?=[A-Z])", " ", name).casefold() for name in names}
    own = _named(names, lambda name: re.findall("[a-z]+", PurePosixPath(plain[name]).name))
    if not _divides(own, lambda name: re.sub(rf"(?<![a-z])(?:{_WORDS})(?![a-z])|\d+", "", plain[name])):
        return {}
    others = [name for name in names if name not in own]
    endings = {PurePosixPath(name).suffix.casefold() for name in own}
    if sum(PurePosixPath(name).suffix.casefold() in endings for name in others) >= len(own):
        return {}
    if others:
        raise DataError(
            f"data.path: {where}: {next(iter(own))!r} names a split, and {others[0]!r} names none. Fix: move "
            f"{others[0]!r} away, or rename it, such as to {posixpath.join(posixpath.dirname(others[0]), 'train-')}"
            f"{PurePosixPath(others[0]).name}; or, if these are no splits, move all files into a folder 'train'"
        )
    return own


def _named(names: Sequence[str], parts: Callable[[str], Sequence[str]]) -> dict[str, SplitName]:
    """Return the split of each file whose parts name one."""
    folded = {name: [part.casefold() for part in parts(name)] for name in names}
    splits = {name: {SPLIT_FOLDERS[part] for part in each if part in SPLIT_FOLDERS} for name, each in folded.items()}
    return {name: next(iter(each)) for name, each in splits.items() if len(each) == 1}


def _divides(given: Mapping[str, SplitName], rest: Callable[[str], str]) -> bool:
    """Return whether names with the same rest are of train and of another split."""
    splits: dict[str, set[SplitName]] = {}
    for name, split in given.items():
        splits.setdefault(rest(name), set()).add(split)
    return any("train" in alike and len(alike) > 1 for alike in splits.values())


def _split(whole: Sequence[_File], settings: DataSettings) -> list[_File]:
    """Return the files, or parts of them, with their splits, in the order of their names."""
    named = {file.split for file in whole if file.split is not None}
    given, declared = for_folds(pl.Series([file.split for file in whole], dtype=pl.String), settings, declared=named)
    whole = [replace(file, split=split) for file, split in zip(whole, given, strict=True)]
    complete = {"validation", "test"} <= {*declared}
    free = [file for file in whole if file.split in (None, "train")]
    if not complete and len(free) < _FEWEST_WHOLE:
        cut = [part for file in free for part in _cut(file, settings, declared)]
        return sorted([*cut, *(file for file in whole if file.split not in (None, "train"))], key=lambda part: part.row)
    splits = assign([file.packed for file in whole], [file.split for file in whole], settings, declared=declared)
    return [replace(file, split=split) for file, split in zip(whole, splits, strict=True)]


def _cut(file: _File, settings: DataSettings, declared: Collection[SplitName]) -> Iterator[_File]:
    """Yield the parts of a file in order: train, validation, train again with folds, test. Empty parts are left out."""
    end = 1.0 - (0.0 if "test" in declared else settings.test_fraction)
    start, stop = end - settings.validation_fraction, end
    if settings.folds:
        start, stop = (place / settings.folds * end for place in (settings.fold, settings.fold + 1))
    if "validation" in declared:
        start = stop = end
    size = len(file.content)
    places = [0, *(_line_start(file.content, round(share * size)) for share in (start, stop, end)), size]
    names: tuple[SplitName, ...] = ("train", "validation", "train", "test")
    for split, first, last in zip(names, places, places[1:], strict=False):
        if first < last:
            yield replace(file, id=f"{file.id}[{first}:{last}]", content=file.content[first:last], split=split)


def _line_start(content: bytes, place: int) -> int:
    """Return the last start of a line at or before `place`; in a very long line, the start of a character."""
    if place >= len(content):
        return len(content)
    start = content.rfind(_LINE_END, 0, place) + 1
    return start if start > place * 0.95 else _boundary(content, place)


def _boundary(content: bytes, place: int) -> int:
    """Return the start of the character at `place`."""
    place = min(place, len(content))
    while 0 < place < len(content) and content[place] & 0xC0 == 0x80:  # inside a character
        place -= 1
    return place


def _require_text(parts: Sequence[_File], storage: Storage) -> None:
    """Check that every split has text.

    Raises:
        DataError: a split has none.
    """
    for split in SPLITS:
        if not any(part.split == split for part in parts):
            fraction = "" if split == "train" else f", or raise data.{split}_fraction"
            raise DataError(f"split {split} of {storage.where} has no text. Fix: add text{fraction}")


def _index(parts: Sequence[_File]) -> pl.DataFrame:
    """Return a row for each file or part: its split, its name and place, and the digests of its bytes and text."""
    columns = {
        "row": [part.row for part in parts],
        "split": [part.split for part in parts],
        "id": [part.id for part in parts],
        "source": [part.id for part in parts],
        "content": [part.digest for part in parts],
        "packed": [part.packed for part in parts],
    }
    return pl.DataFrame(columns, schema={name: pl.Int64 if name == "row" else pl.String for name in columns})


def _piece_index(parts: Sequence[_File]) -> pl.DataFrame:
    """Return the rows of index.parquet: a row for each piece, on which models are compared."""
    tables = []
    for split in SPLITS:
        text = b"".join(_texts(parts, split))
        view = memoryview(text)
        bounds = piece_bounds(np.frombuffer(text, np.uint8))
        digests = [hashlib.sha256(view[start:end]).hexdigest() for start, end in bounds]
        pieces = pl.DataFrame({"content": digests}, schema={"content": pl.String}).with_row_index("row")
        tables.append(pieces.select(
            pl.lit(split).alias("split"), pl.col("row").cast(pl.Int64), pl.format(f"{split} {{}}", "row").alias("id"),
            pl.lit("").alias("class"), "content",
        ))  # fmt: skip
    return pl.concat(tables).with_columns(source=pl.col("id"))


def _texts(parts: Sequence[_File], split: str) -> Iterator[bytes]:
    for part in parts:
        if part.split == split:
            yield part.content if part.content.endswith(_LINE_END) else part.content + _LINE_END


def _profile(parts: Sequence[_File], packed: PackedSet) -> dict[str, object]:
    """Return what the profile has of text. Characters are Unicode code points."""
    counts = {split: Counter[str]() for split in SPLITS}
    for split in SPLITS:
        for content in _texts(parts, split):
            for start, end in _line_pieces(content):
                counts[split].update(content[start:end].decode())
    train = counts["train"]
    return {
        "characters": {split: number.total() for split, number in counts.items()},
        "lines": {split: number["\n"] for split, number in counts.items()},
        "files": {split: sum(part.split == split for part in parts) for split in SPLITS},
        "distinct_characters": len(train),
        "most_frequent": [[text, number / train.total()] for text, number in train.most_common(_MOST_FREQUENT)],
        "unseen_characters": {split: sorted(counts[split].keys() - train.keys()) for split in SPLITS[1:]},
        **copies(_index(parts), packed.labels, digest="packed"),
        "near_duplicates": None,
        "telling": {"constant": [], "class": []},
        **contract({}, ()),
    }
