"""Columns that tell the class by themselves are named; columns that do not, are not."""

import numpy as np
import polars as pl
import pytest

from ratchet import files
from ratchet.data.checks.leakage import telling
from ratchet.reports.data_card import card

DRAWN = np.random.default_rng(0)
COUNT = 400
LABELS = np.arange(COUNT) % 2


def index(**own: object) -> pl.DataFrame:
    columns = {"format": ["png"] * COUNT, "width": [32] * COUNT, "height": [32] * COUNT, **own}
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
def test_a_column_that_tells_the_class_is_named_with_how_well_it_does(values: list[object]) -> None:
    (found,) = telling(index(ward=values), own=["ward"])["class"]
    assert found["column"] == "ward"
    assert found["right"] > 0.95
    assert 0.3 < found["commonest"] < 0.7


@pytest.mark.parametrize(
    "values",
    [
        DRAWN.choice(["a", "b", "c"], COUNT).tolist(),
        DRAWN.normal(0, 1, COUNT).tolist(),
        [f"{number:04d}" for number in range(COUNT)],  # a name for each sample
        [None if number % 3 else 1 for number in range(COUNT)],
    ],
)
def test_a_column_that_does_not_is_not(values: list[object]) -> None:
    assert telling(index(note=values), own=["note"]) == {"constant": [], "class": []}


def test_a_column_that_is_always_the_same_is_named_and_a_files_own_facts_are_not() -> None:
    assert telling(index(camera=["X1"] * COUNT), own=["camera"]) == {"constant": ["camera"], "class": []}


def test_a_class_that_is_saved_in_another_format_is_on_the_card(place) -> None:
    for label, first in (("cat", 0), ("dog", 1000)):
        folder = place.root / "pictures" / label
        folder.mkdir(parents=True)
        for number in range(first, first + 60):
            kind = "JPEG" if label == "cat" else "PNG"
            place.picture(number).save(folder / f"{number}.{'jpg' if label == 'cat' else 'png'}", kind)
    place.ingest()
    profile = files.read_json(place.packed / "profile.json")
    assert [found["column"] for found in profile["telling"]["class"]] == ["format"]
    assert "Possible data leakage: format alone predicts the class of 100 % of" in card(
        place.packed, place.quarantine, changed=None
    ).replace("\N{NO-BREAK SPACE}", " ")
