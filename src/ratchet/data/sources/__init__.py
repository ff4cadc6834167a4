"""Where samples come from. A source says what it is called, which classes it knows, what it holds and how to read."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import polars as pl
from PIL import Image

from ratchet.data.split import SplitName
from ratchet.settings.model import DataSettings

__all__ = ["LISTING", "Label", "Reader", "Source", "listing", "open_source"]

Label = int | None
"""Class index; None where the source does not say."""

Reader = Callable[[str], bytes | BinaryIO | tuple[Image.Image, Label]]
"""From a sample's id to what its file holds, to the file, open and seekable, if it is large, or to the picture itself
with its label; from any thread."""

LISTING: dict[str, Any] = {
    "row": pl.Int64, "id": pl.String, "label": pl.Int64, "split": pl.String, "group": pl.String, "stamp": pl.String
}  # fmt: skip
"""What is known of every sample before it is read; null: not known.

row: which one in the source, for a person. id: unique and the same on every machine. label: class index. split: where
the source assigns one. group: samples of one group share a split. stamp: a text that changes whenever the file does.
"""


class Source(Protocol):
    """What every source offers."""

    @property
    def name(self) -> str:
        """What the data is called: a registered model's default name."""

    @property
    def classes(self) -> Sequence[str]:
        """Class names; a label is an index into them."""

    @property
    def given(self) -> frozenset[SplitName]:
        """The splits that the source itself assigns."""

    @property
    def listing(self) -> pl.DataFrame:
        """One row per sample, by id: the columns of LISTING, then any of the source's own, which the index keeps."""

    @property
    def refused(self) -> pl.DataFrame:
        """The quarantine rows of what the source holds but cannot be read; `row` counts on with the listing's."""

    @property
    def read(self) -> Reader:
        """How a sample is read."""

    @property
    def near(self) -> bool:
        """Whether `read` opens files of this machine, which other processes can do as well."""


def listing(columns: Mapping[str, Sequence[Any] | pl.Series]) -> pl.DataFrame:
    """A listing from some of its columns, by id; the others are null, and `row` is the place by id."""
    given = pl.DataFrame([pl.Series(name, values, dtype=LISTING[name]) for name, values in columns.items()])
    missing = [pl.lit(None, kind).alias(name) for name, kind in LISTING.items() if name not in columns]
    frame = given.with_columns(missing).select(*LISTING).sort("id", maintain_order=True)
    return frame if "row" in columns else frame.with_columns(row=pl.int_range(pl.len(), dtype=pl.Int64))


def open_source(settings: DataSettings, *, root: Path) -> Source:
    """The source that the settings name; a relative `settings.path` is relative to `root`.

    Raises:
        DataError: the source is not there, or is not a set of classified pictures.
        SettingsError: no source has that name.
    """
    if settings.source == "digits":
        from ratchet.data.sources.digits import Digits

        return Digits()
    if settings.source in ("image-folder", "image-manifest"):
        from ratchet.data.reading.storage import open_storage

        storage = open_storage(settings.path, root=root)
        if settings.source == "image-folder":
            from ratchet.data.sources.image_folder import ImageFolder

            return ImageFolder(storage, settings.label_level)
        from ratchet.data.sources.image_manifest import ImageManifest

        return ImageManifest(storage, settings)
    from ratchet.data.sources.torchvision_set import TorchvisionSet

    path = root / Path(settings.path).expanduser()
    return TorchvisionSet(settings.source, path=path, download=settings.download)
