"""Classes with other shares than in train are found; rounding is not one."""

from ratchet.data.checks.class_shares import ClassShare, other_shares


def test_rounding_of_equal_shares_is_not_reported() -> None:
    counts = {"train": {"a": 7, "b": 8}, "validation": {"a": 2, "b": 1}, "test": {"a": 1, "b": 2}}
    assert other_shares(counts) == []


def test_other_shares_of_given_splits_are_found() -> None:
    counts = {"train": {"a": 47, "b": 53}, "validation": {"a": 10, "b": 11}, "test": {"a": 21, "b": 13}}
    assert other_shares(counts) == [ClassShare("test", "a", 21 / 34, 0.47), ClassShare("test", "b", 13 / 34, 0.53)]


def test_a_rare_class_that_test_lacks_is_found() -> None:
    counts = {"train": {"a": 980, "b": 20}, "validation": {"a": 100, "b": 1}, "test": {"a": 100, "b": 0}}
    assert other_shares(counts) == [ClassShare("test", "b", 0.0, 0.02)]


def test_data_without_classes_has_no_shares() -> None:
    assert other_shares({"train": {}, "validation": {}, "test": {}}) == []
