"""Sources of samples. A source has a name, classes, a listing of its samples, and a function that reads one."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import polars as pl
from PIL import Image

from ratchet.data.split import SplitName
from ratchet.data.system_files import Ignored
from ratchet.settings.model import DataSettings

if TYPE_CHECKING:
    from ratchet.data.tables.targets import TargetTable

__all__ = ["LISTING", "Label", "Reader", "Source", "listing", "open_source"]

Label = int | None
"""Class index, or place among the targets that are no classes; None if the source does not know it."""

Reader = Callable[[str], bytes | BinaryIO | tuple[Image.Image, Label]]
"""Function from a sample's id to the content of its file, to an open seekable file if it is large, or to an image with
its label. It is called from any thread."""

LISTING: Mapping[str, Any] = {
    "row": pl.Int64, "id": pl.String, "label": pl.Int64, "split": pl.String, "group": pl.String, "stamp": pl.String
}  # fmt: skip
"""Columns that are known of every sample before it is read; null: not known.

row: its number in the source, for messages. id: unique, and the same on every machine. label: see Label. split: if
the source assigns one. group: samples of one group share a split. stamp: a text that changes whenever the file does.
"""


class Source(Protocol):
    """Interface of all sources."""

    @property
    def name(self) -> str:
        """Name of the data, which is the default name of the registered model."""

    @property
    def classes(self) -> Sequence[str]:
        """Class names; a label is an index into them. Empty if the targets are no classes."""

    @property
    def targets(self) -> "TargetTable | None":
        """Targets of a table; a label that is no class is a place among them. None: there is no table."""

    @property
    def given(self) -> frozenset[SplitName]:
        """The splits that the source assigns."""

    @property
    def listing(self) -> pl.DataFrame:
        """One row per sample, by id: the columns of LISTING, then extra columns, which the index keeps."""

    @property
    def refused(self) -> pl.DataFrame:
        """Quarantine rows of samples that cannot be read. Their `row` continues that of the listing."""

    @property
    def ignored(self) -> Ignored:
        """Files of the folder that are no samples."""

    @property
    def read(self) -> Reader:
        """Function that reads a sample."""

    @property
    def is_local(self) -> bool:
        """Whether `read` opens local files, so that other processes can call it too."""


def listing(columns: Mapping[str, Sequence[Any] | pl.Series]) -> pl.DataFrame:
    """Return a listing, sorted by id. Missing columns are null, and `row` is the position by id."""
    given = pl.DataFrame([pl.Series(name, values, dtype=LISTING[name]) for name, values in columns.items()])
    missing = [pl.lit(None, kind).alias(name) for name, kind in LISTING.items() if name not in columns]
    frame = given.with_columns(missing).select(*LISTING).sort("id", maintain_order=True)
    return frame if "row" in columns else frame.with_columns(row=pl.int_range(pl.len(), dtype=pl.Int64))


def open_source(settings: DataSettings, *, root: Path) -> Source:
    """Open the source that the settings name; a relative `settings.path` is relative to `root`.

    Raises:
        DataError: the source is not found, or is not a set of classified images.
        SettingsError: no source has this name.
    """
    if settings.source == "digits":
        from ratchet.data.sources.digits import Digits

        return Digits()
    if settings.source in ("image-folder", "image-manifest"):
        from ratchet.data.reading.storage import open_storage

        storage = open_storage(settings.path, root=root)
        if settings.source == "image-folder":
            from ratchet.data.sources.image_folder import ImageFolder

            return ImageFolder(storage, settings.label_level, group=settings.named_group)
        from ratchet.data.sources.image_manifest import ImageManifest

        return ImageManifest(storage, settings)
    from ratchet.data.reading.storage import expanded
    from ratchet.data.sources.torchvision_set import TorchvisionSet

    path = root / expanded(settings.path)
    return TorchvisionSet(settings.source, path=path, download=settings.download)
