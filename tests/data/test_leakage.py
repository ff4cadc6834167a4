"""Columns that reveal the class are named, and no others."""

import numpy as np
import polars as pl
import pytest

from ratchet import files
from ratchet.data.checks.leakage import revealing_columns
from ratchet.reports.data_card import card

DRAWN = np.random.default_rng(0)
COUNT = 400
LABELS = np.arange(COUNT) % 2


def index(**extra: object) -> pl.DataFrame:
    columns = {"format": ["png"] * COUNT, "width": [32] * COUNT, "height": [32] * COUNT, **extra}
    splits = np.array(["train", "train", "train", "validation"])[DRAWN.integers(0, 4, COUNT)]
    return pl.DataFrame({"split": splits, "label": LABELS, **columns})


@pytest.mark.parametrize(
    "values",
    [
        [f"ward {label}" for label in LABELS],
        (LABELS * 100 + DRAWN.integers(0, 50, COUNT)).tolist(),
        (LABELS + DRAWN.normal(0, 0.2, COUNT)).tolist(),
        [None if label else 3.5 for label in LABELS],
        [bool(label) for label in LABELS],
    ],
)
def test_a_column_that_reveals_the_class_is_named_with_accuracy(values: list[object]) -> None:
    (column,) = revealing_columns(index(ward=values), extra=["ward"])["class"]
    assert column["column"] == "ward"
    assert column["right"] > 0.95
    assert 0.3 < column["commonest"] < 0.7


@pytest.mark.parametrize(
    "values",
    [
        DRAWN.choice(["a", "b", "c"], COUNT).tolist(),
        DRAWN.normal(0, 1, COUNT).tolist(),
        [f"{number:04d}" for number in range(COUNT)],  # a different name for each sample
        [None if number % 3 else 1 for number in range(COUNT)],
    ],
)
def test_other_columns_are_not_named(values: list[object]) -> None:
    assert revealing_columns(index(note=values), extra=["note"]) == {"constant": [], "class": []}


def test_a_constant_extra_column_is_named() -> None:
    """Constant facts about the file, such as its format, are not."""
    assert revealing_columns(index(camera=["X1"] * COUNT), extra=["camera"]) == {"constant": ["camera"], "class": []}


def test_a_format_that_reveals_the_class_is_on_the_card(place) -> None:
    for label, first in (("cat", 0), ("dog", 1000)):
        folder = place.root / "images" / label
        folder.mkdir(parents=True)
        for number in range(first, first + 60):
            kind = "JPEG" if label == "cat" else "PNG"
            place.image(number).save(folder / f"{number}.{'jpg' if label == 'cat' else 'png'}", kind)
    place.ingest()
    profile = files.read_json(place.packed / "profile.json")
    assert [entry["column"] for entry in profile["telling"]["class"]] == ["format"]
    assert "Possible data leakage: format alone predicts the class of 100 % of" in card(
        place.packed, place.quarantine, changed=None
    ).replace("\N{NO-BREAK SPACE}", " ")
