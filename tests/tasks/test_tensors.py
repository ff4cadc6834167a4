"""Bitwise comparison of two sets of tensors."""

import torch

from commands.reproduce import describe_weights
from commands.tensors import TensorComparison, TensorDifference, compare_tensors

TENSORS = {"a": torch.tensor([0.0, 1.0]), "b": torch.tensor([[2.0]], dtype=torch.bfloat16), "n": torch.tensor(3)}


def test_equal_bits_are_identical() -> None:
    comparison = compare_tensors(TENSORS, {name: tensor.clone() for name, tensor in TENSORS.items()})
    assert comparison == TensorComparison(3, 4, (), {})
    assert comparison.identical
    assert comparison.largest is None
    assert describe_weights(comparison) == "all 3 tensors, 4 numbers, are identical"
    nan = {"a": torch.tensor(float("nan"))}
    assert compare_tensors(nan, {"a": torch.tensor(float("nan"))}).identical


def test_minus_zero_differs_from_zero() -> None:
    comparison = compare_tensors(TENSORS, TENSORS | {"a": torch.tensor([-0.0, 1.0])})
    assert not comparison.identical
    assert comparison.differences == (TensorDifference("a", elements=2, different=1, largest=0.0),)


def test_largest_difference_names_its_tensor() -> None:
    other = TENSORS | {"a": torch.tensor([0.25, 1.0]), "b": torch.tensor([[1.5]], dtype=torch.bfloat16)}
    comparison = compare_tensors(TENSORS, other)
    assert comparison.different == 2
    assert comparison.largest == TensorDifference("b", elements=1, different=1, largest=0.5)
    assert describe_weights(comparison) == "2 of 4 numbers differ, by up to 0.5, in b"


def test_difference_from_nan_is_infinite() -> None:
    comparison = compare_tensors(TENSORS, TENSORS | {"a": torch.tensor([0.0, float("nan")])})
    assert comparison.largest is not None
    assert comparison.largest.largest == float("inf")


def test_missing_tensors_other_shapes_and_types_are_mismatches() -> None:
    other = {"a": TENSORS["a"].reshape(1, 2), "b": TENSORS["b"].float(), "x": torch.tensor(1)}
    comparison = compare_tensors(TENSORS, other)
    assert comparison.mismatches == {
        "a": "is torch.float32 (2,), then torch.float32 (1, 2)",
        "b": "is torch.bfloat16 (1, 1), then torch.float32 (1, 1)",
        "n": "is in one only",
        "x": "is in one only",
    }
    assert not comparison.identical
