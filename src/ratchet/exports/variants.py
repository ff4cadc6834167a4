"""Variants of a model's program: their parity sheets, and which one is served."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from ratchet import files
from ratchet.errors import RegistryError
from ratchet.evaluation.intervals import Interval
from ratchet.exports.program import NotExported, Program
from ratchet.typed_json import from_plain, to_plain

__all__ = [
    "FOLDER",
    "FULL",
    "SHEETS",
    "VARIANTS",
    "Measured",
    "SlicePart",
    "Times",
    "Variant",
    "add_exported",
    "choose",
    "passed",
    "read",
    "write",
]

Name = Literal["int8-static", "int8-dynamic"]
VARIANTS: tuple[str, ...] = get_args(Name)
FULL = "fp32"
"""The program itself."""
FOLDER = "variants"
"""Folder of a stored model with a folder for each variant that passed."""
SHEETS = "variants.json"
"""File with the parity sheets."""


@dataclass(frozen=True)
class Times:
    """Seconds of one call with one thread: the 10 % quantile of many calls."""

    single: float  # one sample
    batch: float  # `Measured.batch` samples


@dataclass(frozen=True)
class SlicePart:
    """A slice of the test samples: mean score of the variant minus that of the model, on the same samples."""

    column: str
    value: str
    rows: int
    difference: Interval  # of a level that is corrected for the number of slices


@dataclass(frozen=True)
class Measured:
    """Comparison of a variant with the model on the test samples, and with the fp32 program in time and size."""

    rows: int
    metric: str  # whose mean over the samples follows
    unit: float  # of the metric: the score times this
    share: bool  # shown in per cent
    value: Interval  # of the metric
    difference: Interval  # mean score of the variant minus that of the model; larger scores are better
    slices: tuple[SlicePart, ...]
    largest_difference: float  # of a probability, or of a number in standard deviations
    independent: bool  # an answer does not depend on the other samples of its batch
    batch: int
    times: Times
    full_times: Times  # of the fp32 program, measured in alternation
    size: int  # bytes on disk
    full_size: int

    @property
    def speedup(self) -> Times:
        """Time of the fp32 program divided by that of the variant."""
        return Times(self.full_times.single / self.times.single, self.full_times.batch / self.times.batch)


@dataclass(frozen=True)
class Variant:
    """One variant with its parity sheet."""

    name: str
    reasons: tuple[str, ...]  # for which it was refused; empty: it passed
    measured: Measured | None = None  # None: it could not be made or run

    @property
    def passed(self) -> bool:
        return not self.reasons


@dataclass(frozen=True)
class _Sheets:
    model: str  # digest of the weights and the spec that they were made from
    variants: tuple[Variant, ...]


def write(folder: Path, variants: tuple[Variant, ...], *, model: Path) -> None:
    """Write the parity sheets of all variants of the model in folder `model` to variants.json in `folder`."""
    files.write_json(folder / SHEETS, {"format": 1, **to_plain(_Sheets(_digest(model), variants))})


def _digest(model: Path) -> str:
    return files.digest_tree(model, ("model.safetensors", "model.json"))


def read(folder: Path) -> tuple[Variant, ...]:
    """Return the parity sheets in `folder`; none if it has no variants.json."""
    if not (folder / SHEETS).exists():
        return ()
    return _read(folder).variants


def passed(folder: Path) -> dict[str, Measured]:
    """Return the variants of the model in `folder` that passed, by name."""
    return {sheet.name: sheet.measured for sheet in read(folder) if sheet.passed and sheet.measured}


def _read(folder: Path) -> _Sheets:
    content = files.read_json(folder / SHEETS)
    return from_plain(_Sheets, {name: content[name] for name in ("model", "variants")})


def add_exported(source: Path, model: Path) -> None:
    """Copy the program, the parity sheets and each variant that passed to the folder of the model.

    Raises:
        RegistryError: it was made from another model.
    """
    if not (source / SHEETS).exists() or _read(source).model != _digest(model):
        problem = "was made from another model" if (source / SHEETS).exists() else "not found"
        raise RegistryError(f"{source}: {problem}. Fix: `dvc repro`, or `python -m tasks.export`")
    if (source / FULL).exists():
        shutil.copytree(source / FULL, model, dirs_exist_ok=True)
    if read(source):
        shutil.copy(source / SHEETS, model / SHEETS)
    for name in passed(source):
        shutil.copytree(source / name, model / FOLDER / name)


def choose(folder: Path, wanted: str, *, called: str) -> tuple[str, Program | NotExported | None]:
    """Return the name and the program of a stored model's variant.

    Args:
        wanted: name of the variant, or auto: the fastest that passed, on batches; fp32 if none did.

    Raises:
        RegistryError: the model has no such variant.
    """
    known = passed(folder)
    if wanted == "auto":
        faster = {name: sheet.speedup.batch for name, sheet in known.items() if sheet.speedup.batch > 1.0}
        wanted = max(faster, key=faster.__getitem__, default=FULL)
    if wanted == FULL:
        return FULL, Program.of(folder)
    if wanted not in known:
        raise RegistryError(
            f"{called}: has no variant {wanted}. It has {', '.join([FULL, *known])}. "
            f"{_refusal(folder, wanted)}Fix: `ratchet set serving.variant=auto`"
        )
    return wanted, Program.of(folder / FOLDER / wanted)


def _refusal(folder: Path, name: str) -> str:
    sheet = next((sheet for sheet in read(folder) if sheet.name == name), None)
    return f"It was refused: {'; '.join(sheet.reasons)}. " if sheet else ""
