"""packed/manifest.json: what a packed set says of itself. Training reads the same file with json alone."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ratchet import files
from ratchet.errors import DataError

__all__ = ["FORMAT", "Manifest", "OwnDataset", "OwnRows", "PackedFile", "Shard", "SplitFiles", "split_ids"]

FORMAT = 1
_LOCATION = "manifest.json"


@dataclass(frozen=True)
class PackedFile:
    """A file of the packed set: its path inside it, and the SHA-256 (hex) of its bytes."""

    file: str
    sha256: str


@dataclass(frozen=True)
class Shard:
    """A .npy file of pictures, uint8 (rows, height, width, channels)."""

    file: str
    rows: int
    sha256: str


@dataclass(frozen=True)
class OwnRows:
    """Where rows that are not packed are, in a user's own Dataset: `places` int64 (rows,), indices into it.

    `samples` is the length it had; `pixels` uint8 (rows, 32), the SHA-256 of each image as it was read.
    """

    samples: int
    places: PackedFile
    pixels: PackedFile


@dataclass(frozen=True)
class SplitFiles:
    """One split's rows: pictures in shards; labels int64 (rows,) and keys uint64 (rows,) in the same order.

    The order is by id; where the pictures stay with a user's own Dataset there are no shards, and the order is its own.
    """

    rows: int
    shards: tuple[Shard, ...]
    labels: PackedFile
    keys: PackedFile
    own: OwnRows | None = None


@dataclass(frozen=True)
class OwnDataset:
    """The function that makes the user's own Dataset, and the code it is made of, as they were at ingest."""

    function: str  # package.module:function
    root: str  # the project folder, from the packed set's
    code: str  # file or folder, from the project folder
    code_digest: str
    low: tuple[float, ...]  # of the training images, per channel: what is shown as black
    high: tuple[float, ...]  # and as white


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A packed set. `mean` and `std` are of the training pixels, per channel, as they are stored; `std` is never 0.

    Pixels are of type `dtype`: uint8, or float32 where a user's own Dataset gives them so. With a `factory` they are
    not packed at all but read from that Dataset. `depth`: bits of the value of 16-bit images that became 255; None: all
    images had 8 bits.

    `digest` covers everything above it, and so every array; what stands below it is told, not identified.
    """

    format: int
    kind: str
    name: str
    classes: tuple[str, ...]
    height: int
    width: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    splits: Mapping[str, SplitFiles]
    dtype: str = "uint8"
    factory: OwnDataset | None = None
    depth: int | None = None
    digest: str
    source: str
    quarantined: int
    quarantined_by_rule: Mapping[str, int]
    released: tuple[Mapping[str, str], ...] = ()  # samples let in by hand: source, rule, content, reason, by, at

    @classmethod
    def sealed(cls, told: Mapping[str, Any], **identity: Any) -> "Manifest":
        """The manifest with its digest worked out: `identity` are the fields above `digest`, `told` those below."""
        draft = cls(digest="", **told, **identity)
        covered = {name: value for name, value in asdict(draft).items() if name in identity}
        return cls(digest=files.digest_json(covered), **told, **identity)

    @classmethod
    def read(cls, packed: Path) -> "Manifest":
        """The manifest of the packed set in folder `packed`.

        Raises:
            DataError: there is none, it is damaged, or it is of another format.
        """
        path = packed / _LOCATION
        try:
            content = files.read_json(path)
            if content["format"] != FORMAT:
                raise DataError(
                    f"{path}: format {content['format']}, this version reads {FORMAT}: ingest the data again"
                )
            splits = {name: _split(split) for name, split in content.pop("splits").items()}
            content |= {name: tuple(content[name]) for name in ("classes", "mean", "std", "released")}
            factory = content.pop("factory", None)
            return cls(splits=splits, factory=_own_dataset(factory) if factory else None, **content)
        except FileNotFoundError:
            raise DataError(f"{path}: not there: ingest the data first (`python -m tasks.ingest`)") from None
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(f"{path}: damaged ({type(error).__name__}: {error}): ingest the data again") from error

    def write(self, packed: Path) -> None:
        """Write manifest.json into folder `packed`."""
        content = asdict(self)
        if self.depth is None:
            del content["depth"]
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


def _split(content: dict[str, Any]) -> SplitFiles:
    return SplitFiles(
        rows=content["rows"],
        shards=tuple(Shard(**shard) for shard in content["shards"]),
        labels=PackedFile(**content["labels"]),
        keys=PackedFile(**content["keys"]),
        own=_own_rows(content["own"]) if content.get("own") else None,
    )


def _own_rows(content: dict[str, Any]) -> OwnRows:
    places, pixels = (PackedFile(**content[name]) for name in ("places", "pixels"))
    return OwnRows(content["samples"], places, pixels)


def _own_dataset(content: dict[str, Any]) -> OwnDataset:
    return OwnDataset(**{**content, "low": tuple(content["low"]), "high": tuple(content["high"])})
