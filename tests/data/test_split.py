"""A sample's split depends on the sample alone."""

import hashlib

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.data import split

POSITIONS = [0.5374976153371496, 0.39531814126529186]
KEYS = [1367487835992287293, 15159650975114868542]
NAMES = st.lists(st.text(max_size=12), max_size=40)
FRACTION = st.floats(0.0, 0.49)


def _assign(names: list[str], validation: float = 0.15, test: float = 0.15) -> dict[str, str]:
    given_splits = [None] * len(names)
    chosen = split.assign(names, given_splits, declared=(), validation_fraction=validation, test_fraction=test)
    return dict(zip(names, chosen, strict=True))


@given(NAMES, NAMES, FRACTION, FRACTION)
def test_adding_samples_moves_no_old_one(old: list[str], new: list[str], validation: float, test: float) -> None:
    before = _assign(old, validation, test)
    after = _assign([*new, *old], validation, test)
    assert {name: after[name] for name in old} == before


@given(st.text(), FRACTION, FRACTION, FRACTION)
def test_a_larger_test_share_takes_but_never_gives_back(name: str, validation: float, low: float, high: float) -> None:
    low, high = sorted((low, high))
    if _assign([name], validation, low)[name] == "test":
        assert _assign([name], validation, high)[name] == "test"


@given(st.lists(st.tuples(st.text(), st.sampled_from(["validation", "test"])), min_size=1))
def test_given_splits_are_kept(samples: list[tuple[str, str]]) -> None:
    names, splits = zip(*samples, strict=True)
    declared = {"validation", "test"}
    chosen = split.assign(names, splits, declared=declared, validation_fraction=0.4, test_fraction=0.4)
    assert chosen == list(splits)


def test_declared_splits_are_not_carved_as_well() -> None:
    names = [str(number) for number in range(2000)]
    chosen = split.assign(names, ["train"] * 2000, declared={"test"}, validation_fraction=0.2, test_fraction=0.2)
    assert set(chosen) == {"train", "validation"}
    assert chosen.count("validation") == pytest.approx(400, abs=4 * (2000 * 0.2 * 0.8) ** 0.5)


@given(NAMES, st.integers(2, 12), FRACTION)
def test_every_sample_that_is_not_test_is_validation_in_one_fold_and_train_in_the_others(
    names: list[str], folds: int, test: float
) -> None:
    rounds = [
        split.assign(
            names, [None] * len(names), declared=(), validation_fraction=0.3, test_fraction=test, folds=folds, fold=fold
        )
        for fold in range(folds)
    ]
    for splits in zip(*rounds, strict=True):
        assert sorted(splits) == ["test"] * folds or sorted(splits) == ["train"] * (folds - 1) + ["validation"]


def test_folds_are_alike_in_size_and_leave_the_test_samples_where_they_are() -> None:
    names = [str(number) for number in range(4000)]
    plain = _assign(names)
    for fold in range(5):
        chosen = split.assign(
            names, [None] * 4000, declared=(), validation_fraction=0.15, test_fraction=0.15, folds=5, fold=fold
        )
        assert chosen.count("validation") == pytest.approx(680, abs=4 * (4000 * 0.17 * 0.83) ** 0.5)
        assert [name == "test" for name in chosen] == [plain[name] == "test" for name in names]


def test_shares_per_class_lie_within_four_standard_deviations() -> None:
    for label in range(20):
        chosen = list(_assign([hashlib.sha256(f"{label}/{n}".encode()).hexdigest() for n in range(1000)]).values())
        for name in ("validation", "test"):
            assert abs(chosen.count(name) - 150) < 4 * (1000 * 0.15 * 0.85) ** 0.5


def test_positions_and_keys_are_the_same_for_ever() -> None:
    """Changing these would move every sample of every data set: the figures are part of the format."""
    assert [split.position(name) for name in ("", "a")] == POSITIONS
    assert split.keys(["", "a"]).tolist() == KEYS
    assert split.keys([]).dtype == np.uint64


def test_adding_and_renaming_pictures_moves_no_old_one(two_classes) -> None:
    two_classes.ingest()
    before = dict(two_classes.index().select("content", "split").rows())
    for number, path in enumerate(sorted((two_classes.root / "pictures" / "cat").iterdir())):
        path.rename(path.with_name(f"renamed-{97 * number % 40}.png"))
    two_classes.fill("dog", 30, first=2000)
    two_classes.fill("emu", 30, first=3000)
    two_classes.ingest()
    after = dict(two_classes.index().select("content", "split").rows())
    assert len(after) == 140
    assert {content: after[content] for content in before} == before


def test_output_is_byte_identical_whatever_the_workers_and_the_folders_order(make_place) -> None:
    written = []
    for name, workers, backwards in (("one", 1, False), ("two", 2, True), ("eight", 8, False), ("again", 0, True)):
        place = make_place(name)
        numbers = [*range(30), *range(1000, 1030)]
        for number in reversed(numbers) if backwards else numbers:
            place.fill("cat" if number < 1000 else "dog", 1, first=number)
        (place.root / "pictures" / "dog" / "zero.png").write_bytes(b"")
        (place.root / "pictures" / "dog" / "cut.png").write_bytes(b"\x89PNG")
        place.ingest(workers=workers, max_bad_fraction=0.1)
        written.append(place.bytes())
    assert written[0] == written[1] == written[2] == written[3]
    assert len(written[0]) == 13


def test_ingesting_again_writes_the_same_bytes(two_classes) -> None:
    two_classes.ingest()
    first = two_classes.bytes()
    two_classes.ingest(workers=3)
    assert two_classes.bytes() == first
    assert pl.read_parquet(two_classes.quarantine).height == 0
