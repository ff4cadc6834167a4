"""Differences between two versions: each kind of change, and each sample counted once."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.data.difference import COLUMNS, difference

ROWS = [("a", "train", "cat", "1"), ("b", "train", "cat", "2"), ("c", "test", "dog", "3"), ("d", "train", "dog", "3")]


def index(rows) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=dict.fromkeys(COLUMNS, pl.String), orient="row")


@pytest.mark.parametrize(
    ("after", "counts"),
    [
        (ROWS, {}),
        (ROWS[::-1], {}),
        ([*ROWS, ("e", "train", "cat", "9")], {"added": 1}),
        (ROWS[1:], {"removed": 1}),
        ([("z", "train", "cat", "1"), *ROWS[1:]], {"renamed": 1}),
        ([("a", "train", "cat", "7"), *ROWS[1:]], {"altered": 1}),
        ([("a", "train", "dog", "1"), *ROWS[1:]], {"relabelled": 1}),
        ([("a", "test", "cat", "1"), *ROWS[1:]], {"moved": 1}),
        ([("z", "test", "dog", "1"), *ROWS[1:]], {"renamed": 1, "relabelled": 1, "moved": 1}),
        ([*ROWS[:2], ("y", "test", "dog", "3"), ("z", "train", "dog", "3")], {"renamed": 2}),
        ([*ROWS[:2], ("y", "test", "dog", "3")], {"removed": 1, "renamed": 1}),
    ],
)
def test_each_kind_of_change_is_recognised(after, counts: dict[str, int]) -> None:
    assert difference(index(ROWS), index(after)).counts() == counts


def test_the_summary_has_every_kind_with_its_number() -> None:
    summary = difference(
        index(ROWS), index([*ROWS[1:], ("x", "train", "cat", "8"), ("y", "train", "cat", "9")])
    ).summary
    assert summary == "4 samples before, 5 after: 2 added, 1 removed"
    assert difference(index(ROWS), index(ROWS)).summary == "4 samples before, 4 after: no sample differs"


SAMPLES = st.dictionaries(
    st.sampled_from("abcdefgh"),
    st.tuples(st.sampled_from(["train", "test"]), st.sampled_from(["cat", "dog"]), st.sampled_from("123")),
)


@given(SAMPLES, SAMPLES)
def test_every_sample_is_counted_once(before, after) -> None:
    changes = difference(*(index([(name, *rest) for name, rest in side.items()]) for side in (before, after)))
    counts = {name: len(table) for name, table in vars(changes).items() if name != "rows"}
    stayed = len(before.keys() & after.keys())
    assert counts["removed"] + counts["renamed"] + stayed == len(before)
    assert counts["added"] + counts["renamed"] + stayed == len(after)
    assert counts["altered"] == sum(before[name][2] != after[name][2] for name in before.keys() & after.keys())
