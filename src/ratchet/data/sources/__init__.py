"""Where samples come from. A source says what it is called, which classes it knows and which samples it has."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from PIL import Image

from ratchet.params import DataSettings

__all__ = ["Label", "Payload", "Sample", "Source", "SplitName", "open_source"]

SplitName = Literal["train", "validation", "test"]
Label = int | None
"""Class index; None where the source does not say."""

Payload = Path | Callable[[], tuple[Image.Image, Label]]
"""A picture file, or a function that makes the picture and its label, which any thread may call again and again."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample that is not read yet.

    `id` is unique in the source and the same on every machine; `split` is None where the source does not assign one;
    `group` names samples that must share a split; `fault` says why a sample cannot be used before anything is read.
    """

    id: str
    payload: Payload
    label: Label = None
    split: SplitName | None = None
    group: str | None = None
    fault: str | None = None


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

    def samples(self) -> Iterable[Sample]:
        """Every sample, in id order."""


def open_source(settings: DataSettings, *, root: Path) -> Source:
    """The source that the settings name; a relative `settings.path` is relative to `root`.

    Raises:
        DataError: the source is not there, or is not a set of classified pictures.
        SettingsError: no source has that name.
    """
    path = root / Path(settings.path).expanduser()
    if settings.source == "digits":
        from ratchet.data.sources.digits import Digits

        return Digits()
    if settings.source == "image-folder":
        from ratchet.data.sources.image_folder import ImageFolder

        return ImageFolder(path)
    from ratchet.data.sources.torchvision_set import TorchvisionSet

    return TorchvisionSet(settings.source, path=path, download=settings.download)
