"""Bitwise comparison of two sets of tensors."""

import torch

from commands.tensors import TensorDifference, compare_tensors, describe_weights

TENSORS = {"a": torch.tensor([0.0, 1.0]), "b": torch.tensor([[2.0]], dtype=torch.bfloat16), "n": torch.tensor(3)}


def test_equal_bits_are_identical() -> None:
    assert compare_tensors(TENSORS, {name: tensor.clone() for name, tensor in TENSORS.items()}) == []
    assert describe_weights(TENSORS, []) == "all 3 tensors, 4 numbers, are identical"
    nan = {"a": torch.tensor(float("nan"))}
    assert compare_tensors(nan, {"a": torch.tensor(float("nan"))}) == []


def test_minus_zero_differs_from_zero() -> None:
    differences = compare_tensors(TENSORS, TENSORS | {"a": torch.tensor([-0.0, 1.0])})
    assert differences == [TensorDifference("a", elements=2, different=1, largest=0.0)]
    assert describe_weights(TENSORS, differences) == "1 of 4 numbers differ, by up to 0, in a"


def test_largest_difference_names_its_tensor() -> None:
    other = TENSORS | {"a": torch.tensor([0.25, 1.0]), "b": torch.tensor([[1.5]], dtype=torch.bfloat16)}
    differences = compare_tensors(TENSORS, other)
    assert differences == [TensorDifference("a", 2, 1, 0.25), TensorDifference("b", 1, 1, 0.5)]
    assert describe_weights(TENSORS, differences) == "2 of 4 numbers differ, by up to 0.5, in b"


def test_difference_from_nan_is_infinite() -> None:
    (difference,) = compare_tensors(TENSORS, TENSORS | {"a": torch.tensor([0.0, float("nan")])})
    assert difference.largest == float("inf")


def test_missing_tensors_other_shapes_and_types_are_mismatches() -> None:
    other = {"a": TENSORS["a"].reshape(1, 2), "b": TENSORS["b"].float(), "x": torch.tensor(1)}
    differences = compare_tensors(TENSORS, other)
    assert {difference.name: difference.mismatch for difference in differences} == {
        "a": "is torch.float32 (2,), then torch.float32 (1, 2)",
        "b": "is torch.bfloat16 (1, 1), then torch.float32 (1, 1)",
        "n": "is in one only",
        "x": "is in one only",
    }
    assert describe_weights(TENSORS, differences) == "a, b, n, x: in one only, or of another shape or type"
