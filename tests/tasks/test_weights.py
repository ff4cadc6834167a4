"""Weights beside weights: bits decide."""

import torch

from commands.weights import compare

ONE = {"a": torch.tensor([0.0, 1.0]), "b": torch.tensor([[2.0]], dtype=torch.bfloat16), "n": torch.tensor(3)}


def test_the_same_bits_are_the_same_weights() -> None:
    found = compare(ONE, {name: tensor.clone() for name, tensor in ONE.items()})
    assert found.identical
    assert found.words == "all 3 tensors, 4 numbers, are the same to the bit"
    assert compare({"a": torch.tensor(float("nan"))}, {"a": torch.tensor(float("nan"))}).identical


def test_minus_zero_is_another_number() -> None:
    found = compare(ONE, ONE | {"a": torch.tensor([-0.0, 1.0])})
    assert (found.identical, found.different, found.largest, found.where) == (False, 1, 0.0, "a")


def test_the_largest_difference_is_named_with_its_tensor() -> None:
    found = compare(ONE, ONE | {"a": torch.tensor([0.25, 1.0]), "b": torch.tensor([[1.5]], dtype=torch.bfloat16)})
    assert (found.different, found.largest, found.where) == (2, 0.5, "b")
    assert found.words == "2 of 4 numbers differ, by up to 0.5, in b"


def test_a_number_beside_nan_is_infinitely_far() -> None:
    assert compare(ONE, ONE | {"a": torch.tensor([0.0, float("nan")])}).largest == float("inf")


def test_tensors_of_one_alone_of_another_shape_or_type_are_named() -> None:
    other = {"a": ONE["a"].reshape(1, 2), "b": ONE["b"].float(), "x": torch.tensor(1)}
    found = compare(ONE, other)
    assert found.unlike == ("a", "b", "n", "x")
    assert not found.identical
