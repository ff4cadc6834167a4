"""Splits in the order of time: the gap between them, and groups that stay whole.

The truth is recomputed from the rows of the file: bike rentals by hour for two years, and prices of electricity.
"""

import csv
import datetime
import html
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet import settings
from ratchet.data.split import SPLITS
from ratchet.data.tables.time_splits import in_order
from ratchet.errors import DataError, RatchetError, SettingsError
from ratchet.reports.data_card import card
from ratchet.settings.model import DataSettings

HOURS = 17_379  # rows of bike-sharing/hour.csv


def _spans(index: pl.DataFrame, column: str) -> list[tuple[Any, Any]]:
    """Return the first and the last value of each split; dates of the file as dates."""
    values = [
        datetime.datetime.strptime(value, "%m/%d/%y") if "/" in str(value) else float(value) for value in index[column]
    ]
    splits = index["split"].to_list()
    by_split = [[value for value, split in zip(values, splits, strict=True) if split == name] for name in SPLITS]
    return [(min(part), max(part)) for part in by_split]


def _distances(index: pl.DataFrame, column: str) -> list[Any]:
    return [late[0] - early[1] for early, late in pairwise(_spans(index, column))]


def _bikes(table: Any, tabular: Any, **changes: Any) -> pl.DataFrame:
    table.ingest(tabular("bike-sharing/hour.csv"), label_column="cnt", **changes)
    return table.index()


def test_days_stay_whole_in_splits_by_hour(table, tabular) -> None:
    index = _bikes(table, tabular, order_by="instant", group_column="dteday")
    assert all(distance > 0 for distance in _distances(index, "instant"))
    assert index.group_by("group").agg(pl.col("split").n_unique())["split"].unique().to_list() == [1]
    left_out = table.profile()["left_out"]["group"]
    assert 0 < sum(left_out.values()) < 48
    assert index.height + sum(left_out.values()) == HOURS
    (note,) = table.profile()["notes"]
    assert note == (
        f"{left_out['train']} train and {left_out['validation']} validation rows of 2 groups are left out: the same "
        "value of 'dteday' is in a later split (data.group_column)"
    )
    assert note in html.unescape(card(table.packed, table.quarantine, changed=None))
    assert table.bad() == []


def test_test_rows_are_those_without_a_gap_or_groups(table, tabular) -> None:
    plain = _bikes(table, tabular, order_by="dteday").filter(split="test")["id"].to_list()
    apart = _bikes(table, tabular, order_by="dteday", gap="7d")
    assert apart.filter(split="test")["id"].to_list() == plain
    assert min(_distances(apart, "dteday")) >= datetime.timedelta(days=7)
    assert HOURS - apart.height == sum(table.profile()["left_out"]["gap"].values())
    assert "less than 7d before the next split" in table.profile()["notes"][0]


def test_a_gap_and_groups_hold_together(table, tabular) -> None:
    index = _bikes(table, tabular, order_by="instant", group_column="dteday", gap=30.0)
    assert min(_distances(index, "instant")) >= 30
    assert index.group_by("group").agg(pl.col("split").n_unique())["split"].unique().to_list() == [1]


def test_a_gap_of_numbers_is_in_their_units(table, tabular) -> None:
    rows = list(csv.DictReader(tabular("elec.csv").read_text().splitlines()))
    table.ingest(tabular("elec.csv"), label_column="class", order_by="period", gap=0.05)
    assert min(_distances(table.index(), "period")) >= 0.05
    assert table.index().height < len(rows)


def test_folds_by_time_train_on_earlier_rows_only(table, tabular) -> None:
    validations, tests = list[str](), set[tuple[str, ...]]()
    for fold in range(3):
        index = _bikes(table, tabular, order_by="dteday", gap="1d", folds=3, fold=fold)
        assert min(_distances(index, "dteday")) >= datetime.timedelta(days=1)
        tests.add(tuple(index.filter(split="test")["id"]))
        validations += index.filter(split="validation")["id"].to_list()
    assert len(tests) == 1
    assert len(validations) == len(set(validations))
    assert "left_out" not in table.profile() or "fold" not in table.profile()["left_out"]


REFUSED = {
    "gap that leaves no rows": (
        {"order_by": "dteday", "gap": "400d"}, r"leaves no validation rows. Allowed: at most 108d.*data.gap=27d`",
        {"order_by": "dteday", "gap": "27d"},
    ),
    "groups that all cross": (
        {"order_by": "dteday", "group_column": "hr"}, r"all 24 groups of column 'hr'.*data.order_by=none` keeps groups",
        {"group_column": "hr"},
    ),
    "groups that all cross, with a gap": (
        {"order_by": "dteday", "group_column": "hr", "gap": "1d"}, r"order_by=none data.gap=0`.*group_column=group",
        {"order_by": "dteday", "gap": "1d"},
    ),
    "number for dates": (
        {"order_by": "dteday", "gap": 7.0}, r"data.gap: found 7, and column 'dteday'.*has dates.*data.gap=7d`",
        {"order_by": "dteday", "gap": "7d"},
    ),
    "no order": ({"gap": "7d"}, r"data.gap: found 7d, and data.order_by is none.*data.gap=0`", {"gap": 0.0}),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused_gaps_and_groups_name_a_working_fix(table, tabular, case: str) -> None:
    changes, message, fixed = REFUSED[case]
    with pytest.raises(RatchetError, match=message):
        _bikes(table, tabular, **changes)
    assert not table.packed.exists()
    assert _bikes(table, tabular, **fixed).height


@pytest.mark.parametrize("distance", [1.0061, 9.996, 100_600])
def test_largest_gap_of_the_message_is_allowed(distance: float) -> None:
    times, shares = pl.Series([distance * row for row in range(3)]), DataSettings(order_by="time", gap=9e9)
    shares = shares.model_copy(update={"validation_fraction": 0.34, "test_fraction": 0.34})
    with pytest.raises(DataError) as caught:
        in_order(times, shares, groups=None, gap=9e9)
    [most] = re.findall(r"at most (\S+), the shortest", str(caught.value))
    assert in_order(times, shares, groups=None, gap=float(most)).places.tolist() == [0, 1, 2]


@pytest.mark.parametrize("value", ["7 days", "7m", "-1", "d", "1e3d"])
def test_other_lengths_of_time_are_refused(tmp_path: Path, value: str) -> None:
    (tmp_path / "params.yaml").write_text(settings.template(), encoding="utf-8")
    with pytest.raises(SettingsError, match=r"data\.gap: found .*30min, 12h, 7d or 2w"):
        settings.plan(tmp_path / "params.yaml", settings.parse_assignments([f"data.gap={value}"]))


@given(
    rows=st.lists(st.tuples(st.integers(0, 30), st.sampled_from([None, *"abcdefgh"])), min_size=1, max_size=40),
    gap=st.integers(0, 4),
    folds=st.sampled_from([(0, 0), (2, 0), (3, 2)]),
)
def test_any_rows_are_apart_and_groups_whole(rows, gap: int, folds: tuple[int, int]) -> None:
    shares = DataSettings(order_by="time", gap=float(gap), folds=folds[0], fold=folds[1])
    times, groups = pl.Series([time for time, _ in rows]), pl.Series([group for _, group in rows], dtype=pl.String)
    try:
        assigned = in_order(times, shares, groups=groups, gap=float(gap))
    except DataError:
        return
    places = [
        (time, group, place) for (time, group), place in zip(rows, assigned.places.tolist(), strict=True) if place >= 0
    ]
    for time, group, place in places:
        for other_time, other_group, other_place in places:
            if place < other_place:
                assert other_time > time
                assert other_time - time >= gap
                assert group is None or group != other_group
    plain = in_order(times, shares, groups=None, gap=0.0)
    assert np.array_equal(plain.places == 2, assigned.places == 2)
    counted = sum(count for reason in assigned.left_out.values() for count in reason.values())
    assert counted == int((~assigned.kept).sum())
