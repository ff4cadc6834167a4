"""Small real inputs: folders of images that are written here, and the shared data sets in RATCHET_DATASETS."""

import contextlib
import errno
import hashlib
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pytest
from PIL import Image

from ratchet import files
from ratchet.data.ingest import IngestTask, ingest
from ratchet.data.manifest import Manifest
from ratchet.data.reading.storage import LocalFolder
from ratchet.settings.model import DataSettings

Ingest = Callable[..., Manifest]
DEFAULTS = {name: field.default for name, field in DataSettings.model_fields.items()}


@contextlib.contextmanager
def no_free_descriptor() -> Iterator[None]:
    """Let this process open no further file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def failing_disk(name: str) -> Iterator[None]:
    """Let the disk fail, as a damaged or distant one does, where the file of this name is."""
    read = LocalFolder.read

    def fail(storage: LocalFolder, path: str) -> Any:
        if path.endswith(name):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(storage, path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalFolder, "read", fail)
        yield


class Place:
    """A project folder with the outputs of ingest."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.packed = root / "data" / "packed"
        self.quarantine = root / "data" / "quarantine.parquet"
        self.cache: Path | None = None
        self.releases: Path | None = None
        self.progress: list[tuple[int, int]] = []

    def ingest(self, *, sample: bool = False, **changes: object) -> Manifest:
        """Ingest the folder `images` with the shipped settings and these `changes`."""
        settings = DataSettings(**{**DEFAULTS, "source": "image-folder", "path": "images", **changes})
        return ingest(
            IngestTask(
                settings,
                packed=self.packed,
                quarantine=self.quarantine,
                root=self.root,
                report=lambda done, total: self.progress.append((done, total)),
                cache=self.cache,
                releases=self.releases,
                sample_timeout=0.5,
                sample=sample,
            )
        )

    @staticmethod
    def image(number: int, *, size: tuple[int, int] = (24, 20), mode: str = "RGB") -> Image.Image:
        """Return a different image for each number; `size` is (width, height)."""
        shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
        return Image.fromarray(np.random.default_rng(number).integers(0, 256, shape, dtype=np.uint8))

    def fill(
        self, folder: str, count: int, *, first: int = 0, mode: str = "RGB", size: tuple[int, int] = (24, 20)
    ) -> Path:
        """Write PNG images numbered from `first` into images/`folder`."""
        place = self.root / "images" / folder
        place.mkdir(parents=True, exist_ok=True)
        for number in range(first, first + count):
            self.image(number, mode=mode, size=size).save(place / f"{number:04d}.png")
        return place

    def index(self) -> pl.DataFrame:
        return pl.read_parquet(self.packed / "index.parquet")

    def bad(self) -> dict[str, set[str]]:
        """Return the broken rules by source."""
        table = pl.read_parquet(self.quarantine)
        return {source: set(rules) for source, rules in table.group_by("source").agg("rule").rows()}

    def problem(self) -> dict[str, Any]:
        """Return the problem that ingest chose, why, and its notes."""
        content: dict[str, Any] = files.read_json(self.packed / "profile.json")["problem"]
        return content

    def images(self, split: str) -> np.ndarray:
        shards = Manifest.read(self.packed).splits[split].arrays["images"]
        return np.concatenate([np.load(self.packed / shard.file, mmap_mode="r") for shard in shards])

    def bytes(self) -> dict[str, str]:
        """Return the digest of every file that ingest wrote."""
        data = self.root / "data"
        return {
            path.relative_to(data).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(data.rglob("*"))
            if path.is_file()
        }


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def make_place(tmp_path: Path) -> Callable[[str], Place]:
    def make(name: str) -> Place:
        (tmp_path / name).mkdir()
        return Place(tmp_path / name)

    return make


@pytest.fixture
def two_classes(place: Place) -> Place:
    """40 good images of each of two classes in place.root/images."""
    place.fill("cat", 40)
    place.fill("dog", 40, first=1000)
    return place


@pytest.fixture
def shared() -> Callable[[str], Path]:
    def find(inside: str) -> Path:
        named = os.environ.get("RATCHET_DATASETS")
        if not named:
            pytest.skip("RATCHET_DATASETS is not set: no shared data sets")
        if not (Path(named) / inside).is_dir():
            pytest.skip(f"RATCHET_DATASETS has no {inside}")
        return Path(named)

    return find


class TablePlace:
    """A project folder with a table, and the outputs of its ingest. Other kinds of data have subclasses."""

    kind = "table"
    changes: ClassVar[dict[str, object]] = {}

    def __init__(self, root: Path) -> None:
        self.root = root
        self.packed = root / "packed"
        self.quarantine = root / "quarantine.parquet"

    def write(self, content: str | bytes, name: str = "rows.csv") -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def ingest(self, path: object = "rows.csv", *, sample: bool = False, **changes: object) -> Manifest:
        """Ingest the source with the shipped settings and these `changes`."""
        settings = DataSettings(**{**DEFAULTS, "kind": self.kind, "path": str(path), **self.changes, **changes})
        task = IngestTask(settings, packed=self.packed, quarantine=self.quarantine, root=self.root, sample=sample)
        return ingest(task)

    def profile(self) -> dict[str, Any]:
        content: dict[str, Any] = files.read_json(self.packed / "profile.json")
        return content

    def types(self) -> dict[str, str]:
        return {column["name"]: column["type"] for column in self.profile()["columns"]}

    def index(self) -> pl.DataFrame:
        return pl.read_parquet(self.packed / "index.parquet")

    def array(self, name: str) -> np.ndarray:
        """Return an array of all splits, in the order of the index."""
        splits = Manifest.read(self.packed).splits.values()
        if name in ("targets", "keys"):
            return np.concatenate([np.load(self.packed / getattr(split, name).file) for split in splits])
        return np.concatenate([np.load(self.packed / shard.file) for split in splits for shard in split.arrays[name]])

    def bad(self) -> list[tuple[str, str, str]]:
        """Return source, rule and value of the quarantined rows."""
        return pl.read_parquet(self.quarantine).select("source", "rule", "value").rows()

    def digests(self) -> dict[str, str]:
        return {
            path.relative_to(self.root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in [*sorted(self.packed.rglob("*.*")), self.quarantine]
        }


@pytest.fixture
def table(tmp_path: Path) -> TablePlace:
    return TablePlace(tmp_path)


@pytest.fixture
def tabular() -> Callable[[str], Path]:
    """Function that returns a shared table, or skips the test."""

    def find(name: str) -> Path:
        path = Path(os.environ.get("RATCHET_DATASETS", "")) / "tabular" / name
        if not os.environ.get("RATCHET_DATASETS") or not path.is_file():
            pytest.skip(f"RATCHET_DATASETS has no tabular/{name}")
        return path

    return find
