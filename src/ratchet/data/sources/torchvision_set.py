"""Any classification set of torchvision.datasets, by its class name."""

import inspect
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from PIL import Image

from ratchet.data import quarantine
from ratchet.data.sources import Label, listing
from ratchet.data.split import SplitName
from ratchet.data.system_files import Ignored
from ratchet.errors import DataError, SettingsError, first_line
from ratchet.settings import source_names

__all__ = ["TorchvisionSet"]

SPLIT_NAMES: dict[SplitName, tuple[str, ...]] = {
    "train": ("train",),
    "validation": ("val", "valid", "validation"),
    "test": ("test",),
}
LABEL_ATTRIBUTES = ("targets", "labels", "_labels", "y")


class TorchvisionSet:
    """A torchvision set with the splits that its constructor offers.

    The copy in `path` is used. If there is none, it is downloaded to `path` if `download` allows.

    Raises:
        SettingsError: torchvision has no such set.
        DataError: the set is not found and cannot be downloaded, or does not have images with one class each.
    """

    targets = None  # there is no table
    ignored = Ignored()

    refused = quarantine.rows([])
    is_local = False

    def __init__(self, name: str, *, path: Path, download: bool) -> None:
        self.name = name
        self._path, self._download = path, download
        if not download and not path.is_dir() and source_names.refusal(name) is None:
            raise self._absent("the folder does not exist", "data.download is false")  # without importing torch
        self._class = _find_class(name)
        self._parameters = inspect.signature(self._class.__init__).parameters
        if "root" not in self._parameters:
            raise DataError(f"data.source: {name} reads no local copy (its constructor takes no root). {_OTHERS}")
        self._datasets = self._open()
        self.given: frozenset[SplitName] = frozenset(split for split in self._datasets if split is not None)
        self._check_kind()
        self.classes = tuple(self._class_names())

    @property
    def listing(self) -> pl.DataFrame:
        """Ids are the split and the position in it."""
        ids: list[str] = []
        splits: list[SplitName | None] = []
        for split, dataset in self._datasets.items():
            ids += [f"{split}/{row:08d}" if split else f"{row:08d}" for row in range(len(dataset))]
            splits += [split] * len(dataset)
        return listing({"id": ids, "split": splits})

    def read(self, name: str) -> tuple[Image.Image, Label]:
        """Return an image with its class."""
        split, _, row = name.rpartition("/")
        return self._sample(next(key for key in self._datasets if (key or "") == split), int(row))

    def _sample(self, split: SplitName | None, row: int) -> tuple[Image.Image, Label]:
        image, target = self._datasets[split][row]
        label = _as_label(target)
        if not isinstance(image, Image.Image) or label is None:
            raise DataError(self._not_classified(image, target))
        return image, label

    def _open(self) -> dict[SplitName | None, Any]:
        if "train" in self._parameters:
            return {"train": self._construct(train=True), "test": self._construct(train=False)}
        if "split" not in self._parameters:
            return {None: self._construct()}
        datasets: dict[SplitName | None, Any] = {}
        for split, names in SPLIT_NAMES.items():
            for name in names:
                try:
                    datasets[split] = self._construct(split=name)
                    break
                except ValueError:  # torchvision has no such split
                    continue
        if "train" not in datasets:
            raise DataError(f"data.source: {self.name} has no split called train. {_OTHERS}")
        return datasets

    def _construct(self, **which: object) -> Any:
        """Open one split: the local copy, else a download. Raises ValueError if there is no such split."""
        needed = [
            key
            for key, parameter in list(self._parameters.items())[1:]
            if parameter.default is inspect.Parameter.empty
            and parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
            and key not in {"root", *which}
        ]
        if needed:
            raise DataError(
                f"data.source: {self.name} also needs {', '.join(needed)}, which no setting provides. {_OTHERS}"
            )
        try:
            return self._class(root=str(self._path), **which)
        except DataError:
            raise
        except Exception as error:  # each set reports missing or damaged files in its own way
            if isinstance(error, ValueError) and "split" in which:
                raise  # no such split
            local = f"{type(error).__name__}: {first_line(error)}"
        if self._download and "download" in self._parameters:
            return self._fetch(local, **which)
        why = "data.download is false" if not self._download else f"torchvision cannot download {self.name}"
        raise self._absent(local, why)

    def _absent(self, local: str, why: str) -> DataError:
        return DataError(
            f"data.source: no usable copy of {self.name} in {self._path} ({local}), and {why}. "
            "Fix: put its files there in torchvision's layout, set data.path to its folder, or set data.download=true"
        )

    def _fetch(self, local: str, **which: object) -> Any:
        """Download the set, without torchvision's own progress bars: beside the stage's each update is a line."""
        from torchvision.datasets import utils

        bar = utils.tqdm
        utils.tqdm = partial(bar, disable=True)
        try:
            return self._class(root=str(self._path), download=True, **which)
        except Exception as error:  # network, disk and checksum errors are all shown unchanged
            raise DataError(
                f"data.source: {self.name} is not in {self._path} ({local}) and its download failed "
                f"({type(error).__name__}: {error}). Fix: check network and disk, or put a copy there"
            ) from error
        finally:
            utils.tqdm = bar

    def _check_kind(self) -> None:
        for split, dataset in self._datasets.items():
            if not hasattr(dataset, "__len__") or len(dataset) == 0:
                raise DataError(f"data.source: {self.name} has no samples in {split or 'it'}. {_OTHERS}")
            try:
                self._sample(split, 0)
            except (TypeError, ValueError) as error:  # an item that is not a pair
                raise DataError(
                    f"data.source: {self.name} does not have images with one class each ({error}). {_OTHERS}"
                ) from error

    def _not_classified(self, image: object, target: object) -> str:
        item = f"{type(image).__name__} with target {type(target).__name__}"
        return f"data.source: {self.name} does not have images with one class each (an item is a {item}). {_OTHERS}"

    def _class_names(self) -> Sequence[str]:
        first = self._datasets["train" if self.given else None]
        names = getattr(first, "classes", None) or getattr(first, "categories", None)
        if names:
            return [", ".join(name) if isinstance(name, tuple | list) else str(name) for name in names]
        highest = -1
        for split, dataset in self._datasets.items():
            labels = _labels(dataset)
            known = labels if labels is not None else (self._sample(split, row)[1] for row in range(len(dataset)))
            highest = max(highest, *(label for label in map(_as_label, known) if label is not None))
        return [str(label) for label in range(highest + 1)]


_OTHERS = (
    "Fix: choose a classification set such as CIFAR10, FashionMNIST or Flowers102, or export it to an image-folder"
)


def _find_class(name: str) -> Any:
    if unknown := source_names.refusal(name):
        raise SettingsError(f"params.yaml: {unknown}")
    import torchvision.datasets as sets

    cls = getattr(sets, name, None)
    if name in sets.__all__ and inspect.isclass(cls):
        return cls
    raise SettingsError(f"params.yaml: data.source: found {name!r}; allowed: {', '.join(source_names.OWN)}")


def _labels(dataset: Any) -> Any:
    """Return the labels of a split if it has them as a list or array of one number per sample."""
    for attribute in LABEL_ATTRIBUTES:
        labels = getattr(dataset, attribute, None)
        if labels is None or not hasattr(labels, "__len__") or len(labels) != len(dataset):
            continue
        if _as_label(labels[0]) is not None:
            return labels
    return None


def _as_label(target: Any) -> Label:
    if isinstance(target, bool):
        return None
    if isinstance(target, int | np.integer):
        return int(target)
    if getattr(target, "shape", None) == () and not getattr(target, "is_floating_point", lambda: False)():
        value = target.item()  # a tensor or an array without dimensions
        return value if isinstance(value, int) and not isinstance(value, bool) else None
    return None
