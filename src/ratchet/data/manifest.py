"""Description of a packed set, packed/manifest.json. Training reads the same file with json alone."""

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import PlainValidator

from ratchet import files, typed_json
from ratchet.errors import DataError
from ratchet.hardware import cores
from ratchet.kinds import Input, to_json, without_facts
from ratchet.problems import Target, target_from_json

__all__ = ["FORMAT", "Manifest", "PackedFile", "Shard", "SplitFiles", "UnpackedRows", "split_ids"]

FORMAT = 2
_LOCATION = "manifest.json"
_REPACK = "Fix: `dvc repro --force ingest` packs the data again; if it happens again, check the disk"


@dataclass(frozen=True)
class PackedFile:
    """A file of the packed set: its path relative to the set, and the SHA-256 (hex) of its bytes."""

    file: str
    sha256: str


@dataclass(frozen=True)
class Shard:
    """A .npy file with some rows of an array."""

    file: str
    rows: int
    sha256: str


@dataclass(frozen=True)
class UnpackedRows:
    """Samples of a user's own kind that training reads (`packed = False`).

    Attributes:
        root: the project folder, relative to the packed set.
        path: the setting data.path.
        samples: number of samples at ingest.
        places: int64 (rows,), indices into the user's object.
        contents: uint8 (rows, 32), the SHA-256 of the arrays of each sample.
    """

    root: str
    path: str
    samples: int
    places: PackedFile
    contents: PackedFile


@dataclass(frozen=True)
class SplitFiles:
    """Files of one split, in the order of ids.

    Attributes:
        arrays: the input's arrays by name, each in shards. images: uint8 (rows, height, width, channels). Tables:
            numbers, float32 (rows, columns), and codes, int64 (rows, columns); see `TableInput`. Texts and token
            streams: text, uint8, UTF-8 without separators. Texts also: starts, int64 (rows + 1,), places in `text`.
        targets: int64 (rows,) of classes, float32 (rows, targets) of labels and numbers; see `ratchet.problems`.
        keys: uint64 (rows,), stable hashes of the ids.
        own: the samples of a user's own kind that are not packed; `arrays` is empty then.
    """

    rows: int
    arrays: Mapping[str, tuple[Shard, ...]]
    targets: PackedFile
    keys: PackedFile
    own: UnpackedRows | None = None


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Description of a packed set.

    Attributes:
        digest: digest of all fields above it, and so of every array. The fields below it are notes.
        released: samples released by hand: source, rule, content, reason, by, at.
    """

    format: int
    name: str
    input: Input
    target: Annotated[Target, PlainValidator(target_from_json)]
    splits: Mapping[str, SplitFiles]
    digest: str
    source: str
    quarantined: int
    quarantined_by_rule: Mapping[str, int]
    released: tuple[Mapping[str, str], ...] = ()

    @classmethod
    def sealed(cls, notes: Mapping[str, Any], **identity: Any) -> "Manifest":
        """Return a manifest with its digest: `identity` are the fields above `digest`, `notes` those below."""
        draft = cls(digest="", **notes, **identity)
        covered = {name: value for name, value in asdict(draft).items() if name in identity}
        covered["input"] = without_facts(covered["input"])
        return cls(digest=files.digest_json(covered), **notes, **identity)

    @classmethod
    def read(cls, packed: Path) -> "Manifest":
        """Read the manifest of the packed set in folder `packed`.

        Raises:
            DataError: it is missing, damaged, or of another format.
        """
        path = packed / _LOCATION
        try:
            content = path.read_bytes()
            format = json.loads(content)["format"]
            if format != FORMAT:
                raise DataError(f"{path}: format {format}, this version reads {FORMAT}. Fix: ingest the data again")
            return typed_json.parse(cls, content)
        except FileNotFoundError:
            raise DataError(f"{path}: not found. Fix: ingest the data first (`python -m tasks.ingest`)") from None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise DataError(f"{path}: damaged ({type(error).__name__}: {error}). Fix: ingest the data again") from error

    def check_files(self, packed: Path, *names: str) -> None:
        """Read the arrays of splits `names` once, and compare their digests: a disk may return other bytes later.

        Raises:
            DataError: a file is missing, or has other bytes than were packed.
        """
        splits = [self.splits[name] for name in names]
        stored: list[PackedFile | Shard] = [
            shard for split in splits for part in split.arrays.values() for shard in part
        ]
        for split in splits:
            stored += [split.targets, split.keys, *((split.own.places, split.own.contents) if split.own else ())]
        with ThreadPoolExecutor(len(cores())) as pool:
            try:
                digests = list(pool.map(files.digest_file, [packed / part.file for part in stored]))
            except OSError as error:
                raise DataError(f"{packed}: a packed file cannot be read ({error}). {_REPACK}") from error
        for part, digest in zip(stored, digests, strict=True):
            if digest != part.sha256:
                raise DataError(f"{packed / part.file}: has other bytes than were packed. {_REPACK}")

    def write(self, packed: Path) -> None:
        """Write manifest.json into folder `packed`."""
        content = asdict(self) | {"input": to_json(self.input), "target": to_json(self.target)}
        files.write_json(packed / _LOCATION, content)


def split_ids(packed: Path, split: str) -> tuple[str, ...]:
    """Return the sample ids of a split, in the order of its rows.

    Raises:
        DataError: there is no packed set, or it is damaged.
    """
    import polars

    Manifest.read(packed)
    index = polars.read_parquet(packed / "index.parquet", columns=["split", "row", "id"])
    return tuple(index.filter(polars.col("split") == split).sort("row")["id"].to_list())
