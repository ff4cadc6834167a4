"""A user's own torch Dataset as a source: its name, its classes, and facts of every sample."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ratchet.data.reading import pool
from ratchet.data.split import SPLITS, SplitName, keys
from ratchet.errors import DataError, SettingsError
from ratchet.settings.model import DataSettings
from ratchet.training.augment import sample_bits
from ratchet.training.custom_samples import Factory, Faulty, Piece, Sample, id_of
from ratchet.training.sample_reader import SampleReader

__all__ = ["CustomSource", "SampleFacts"]

_CHUNK = 32  # samples per chunk of work


@dataclass(frozen=True, slots=True)
class SampleFacts:
    """Facts about a sample; None: not known.

    Attributes:
        returned: the Dataset returned something for this index.
        proper: it is an image with a label.
        problem: the reason if it is not.
        image: type and shape of the image, as a text.
        pixels: SHA-256 (hex) of the image's bytes.
        mean, variance, low, high: per channel, in the image's own values.
    """

    returned: bool = True
    proper: bool = True
    problem: str | None = None
    label: int | None = None
    image: str | None = None
    dtype: str | None = None
    channels: int | None = None
    height: int | None = None
    width: int | None = None
    finite: bool | None = None
    pixels: str | None = None
    mean: list[float] | None = None
    variance: list[float] | None = None
    low: list[float] | None = None
    high: list[float] | None = None


class CustomSource:
    """The three splits of `data.factory`.

    A sample that takes more than `sample_timeout` seconds ends the read with an error; 0: no limit.

    Raises:
        SettingsError: data.factory is not set.
        TrainingError: the function does not exist, or does not return a suitable Dataset.
        DataError: the splits have different classes.
    """

    def __init__(self, settings: DataSettings, *, root: Path, sample_timeout: float = 0.0) -> None:
        if settings.factory == "none":
            raise SettingsError(
                "params.yaml: data.factory: found none, and data.source is factory; allowed: package.module:function, "
                "your function that returns a torch Dataset"
            )
        self.factory = Factory(settings.factory, root, settings.code)
        self.name = settings.factory.rpartition(":")[2]
        workers = pool.threads(settings.workers)
        self._reader: SampleReader[list[SampleFacts]] = SampleReader(
            self.factory, _measure_all, workers=workers if workers > 1 else 0, timeout=sample_timeout
        )
        opened = {split: self._reader.open(split) for split in SPLITS}
        self.classes = tuple(opened["train"].classes)
        for split, dataset in opened.items():
            if tuple(dataset.classes) != self.classes:
                raise DataError(
                    f"data.factory: {settings.factory}({split!r}) has classes {list(dataset.classes)}, and 'train' has "
                    f"{list(self.classes)}. Fix: use the same classes in the same order for all splits"
                )
        self.ids: dict[SplitName, list[str]] = {
            split: [id_of(dataset, split, place) for place in range(len(dataset))] for split, dataset in opened.items()
        }

    def read(
        self, chosen: Mapping[SplitName, Sequence[int]]
    ) -> Iterator[tuple[SplitName, list[int], list[SampleFacts]]]:
        """Read the samples with these indices in the Datasets. Yield chunks: (split, indices, facts)."""
        chunks = [
            (split, places[start : start + _CHUNK])
            for split, places in chosen.items()
            for start in range(0, len(places), _CHUNK)
        ]
        wanted = (
            Piece(split, np.array(places), sample_bits(keys([self.ids[split][i] for i in places]), seed=0, epoch=0))
            for split, places in chunks
        )
        try:
            for (split, places), results in zip(chunks, self._reader.read(wanted), strict=True):
                yield split, list(places), results
        finally:
            self._reader.close()


def _measure_all(samples: list[Sample | Faulty]) -> list[SampleFacts]:
    return [_measure(sample) for sample in samples]


def _measure(sample: Sample | Faulty) -> SampleFacts:
    if isinstance(sample, Faulty):
        return SampleFacts(sample.rule != "raised", sample.rule != "not-a-sample", sample.problem)
    values = sample.image.contiguous().numpy()
    flat = values.reshape(len(values), -1).astype(np.float64)
    channels, height, width = values.shape
    with np.errstate(invalid="ignore", over="ignore"):  # a rule reports values that are not finite
        return SampleFacts(
            label=sample.label, image=sample.kind, dtype=str(values.dtype),
            channels=channels, height=height, width=width,
            finite=bool(np.isfinite(flat).all()), pixels=hashlib.sha256(values.tobytes()).hexdigest(),
            mean=flat.mean(1).tolist(), variance=flat.var(1).tolist(),
            low=flat.min(1).tolist(), high=flat.max(1).tolist(),
        )  # fmt: skip
