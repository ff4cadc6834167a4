"""Inputs and targets survive JSON, and kinds decode what they describe.

Predictions of each target are those of torch, SciPy and plain arithmetic.
"""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import expit, softmax

from ratchet.kinds import (
    Array,
    ArraysInput,
    Column,
    ImageInput,
    Input,
    TableInput,
    TextInput,
    TokensInput,
    input_from_json,
    to_json,
)
from ratchet.kinds.registry import kind_of, takes_equal
from ratchet.problems import Classes, Labels, NextToken, Numbers, Target, target_from_json
from ratchet.problems.named_answers import named_answers

NUMBER = Column("height", "numeric", mean=1.5, std=0.25, quantiles=(1.0, 1.5, 2.0))
DATE = Column("seen", "datetime", mean=1e9, std=86400.0)
COLOUR = Column("colour", "categorical", categories=("blue", "grün", ""))
INPUTS: list[Input] = [
    ImageInput(8, 6, 3, (1.0, 2.0, 3.0), (4.0, 5.0, 6.0)),
    ImageInput(8, 8, 1, (0.1,), (0.2,), dtype="float32"),
    ImageInput(8, 8, 1, (0.1,), (0.2,), depth=12),
    TableInput((NUMBER, COLOUR, DATE)),
    TableInput((COLOUR,)),
    TextInput(),
    TextInput(tokenizer="words", vocabulary=("a", "b"), longest=128),
    TextInput(tokenizer="hashed", buckets=4096),
    TokensInput(),
    TokensInput(tokenizer="characters", vocabulary=("\n", " ", "ä"), context=64),
    ArraysInput((Array("codes", "int64", ()), Array("load", "float32", (3, 24), 1.5, 0.5)), "a.b:C", "a", "12", "/x"),
]
TARGETS: list[Target] = [
    Classes(("cat", "dög")),
    Labels(("sunny", "calm")),
    Numbers(("cnt", "price"), (1.25, -3e4), (0.5, 1e5)),
    NextToken(65),
]
DRAWN = np.random.default_rng(0).normal(0, 3, (7, 2)).astype(np.float32)


@pytest.mark.parametrize("described", INPUTS, ids=lambda described: described.kind)
def test_an_input_survives_json(described: Input) -> None:
    content = json.loads(json.dumps(to_json(described)))
    assert content["kind"] == described.kind
    assert input_from_json(content) == described
    assert to_json(input_from_json(content)) == to_json(described)


@pytest.mark.parametrize("described", TARGETS, ids=lambda described: described.problem)
def test_a_target_survives_json(described: Target) -> None:
    content = json.loads(json.dumps(to_json(described)))
    assert content["problem"] == described.problem
    assert target_from_json(content) == described


def test_defaults_are_left_out_of_json() -> None:
    assert to_json(TextInput()) == {"kind": "text"}
    assert "depth" not in to_json(INPUTS[0])
    assert to_json(INPUTS[2])["depth"] == 12


@pytest.mark.parametrize("content", [{}, {"kind": "video"}, {"kind": "image"}, {"kind": "table", "columns": 3}])
def test_what_is_no_input_raises(content: dict[str, object]) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        input_from_json(content)


@pytest.mark.parametrize(
    "content",
    [
        {}, None, [], {"problem": "ranking"}, {"problem": "regression", "names": ["a"]},
        {"problem": "classification", "names": "ab"}, {"problem": "classification", "names": [1, 2]},
        {"problem": "classification", "names": None}, {"problem": "next-token", "tokens": "9"},
        {"problem": "regression", "names": ["a"], "mean": ["0"], "std": [1]},
    ],
)  # fmt: skip
def test_what_is_no_target_raises(content: object) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        target_from_json(content)


def test_columns_of_a_table_are_sorted_by_type() -> None:
    table = TableInput((NUMBER, COLOUR, DATE))
    assert table.numeric == (NUMBER, DATE)
    assert table.categorical == (COLOUR,)
    assert table.description == "3 columns"


def test_16_bit_images_are_served_as_such() -> None:
    assert [INPUTS[place].raw_dtype for place in range(3)] == ["uint8", "float32", "uint16"]  # type: ignore[union-attr]


ANSWERED = [each for each in INPUTS if not kind_of(each).generates and each != TextInput()]


@pytest.mark.parametrize("spec", ANSWERED, ids=str)
def test_example_and_zeros_are_arrays_of_the_decoded_types(spec: Input) -> None:
    """The example of the documentation is decoded by the same kind."""
    kind = kind_of(spec)
    decoded = kind.decode(kind.example_values(spec), spec)
    assert len(decoded) == len(kind.array_names(spec))
    for arrays in (kind.example(spec, 1, seed=0), kind.zeros(spec, 1)):
        assert [array.dtype for array in arrays] == [array.dtype for array in decoded]
        assert [array.ndim for array in arrays] == [array.ndim for array in decoded]


@pytest.mark.parametrize("spec", [*INPUTS[:3], TableInput((NUMBER, DATE)), INPUTS[-1]], ids=str)
def test_packed_arrays_become_values_that_decode_to_them(spec: Input) -> None:
    kind = kind_of(spec)
    packed = kind.packed(kind.example(spec, 4, seed=1), spec)
    again = kind.packed(kind.decode(kind.values(packed, spec), spec), spec)
    for array, other in zip(packed, again, strict=True):
        np.testing.assert_allclose(array, other, rtol=1e-5)


@pytest.mark.parametrize("values", [("a", "b b"), pd.Series(["a", "b b"]), pd.DataFrame({"text": ["a", "b b"]})])
def test_texts_may_be_a_tuple_a_series_or_a_frame(values: object) -> None:
    spec = TextInput(tokenizer="words", vocabulary=("a", "b"), longest=128)
    for array, same in zip(kind_of(spec).decode(values, spec), kind_of(spec).decode(["a", "b b"], spec), strict=True):
        assert np.array_equal(array, same)


def test_models_of_one_kind_take_equal_arrays_whatever_their_scale() -> None:
    images = ImageInput(8, 8, 1, (0.1,), (0.2,))
    assert takes_equal(images, ImageInput(8, 8, 1, (9.0,), (2.0,)))
    assert not takes_equal(images, ImageInput(8, 8, 1, (0.1,), (0.2,), depth=12))
    assert not takes_equal(images, TextInput())


@pytest.mark.parametrize("shift", [0.0, 1e4])
def test_class_probabilities_are_scipys_softmax(shift: float) -> None:
    """Large logits do not overflow."""
    target, outputs = Classes(("a", "b")), DRAWN + np.float32(shift)
    result = target.predictions(outputs)
    np.testing.assert_allclose(result, softmax(outputs.astype(np.float64), axis=1), rtol=1e-12)
    np.testing.assert_allclose(result, torch.from_numpy(outputs).double().softmax(1).numpy(), rtol=1e-12)


def test_label_probabilities_are_scipys_logistic_function() -> None:
    outputs = np.concatenate([DRAWN, [[-40.0, 40.0]]]).astype(np.float32)
    result = Labels(("a", "b")).predictions(outputs)
    np.testing.assert_allclose(result, expit(outputs.astype(np.float64)), rtol=1e-12)
    np.testing.assert_allclose(result, torch.from_numpy(outputs).double().sigmoid().numpy(), rtol=1e-12)


def test_very_sure_labels_overflow_nowhere() -> None:
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        assert Labels(("a", "b")).predictions(np.array([[-800.0, 800.0]], np.float32)).tolist() == [[0.0, 1.0]]


def test_numbers_are_in_their_own_units() -> None:
    target = Numbers(("cnt", "price"), (1.25, -3e4), (0.5, 1e5))
    np.testing.assert_array_equal(target.predictions(np.zeros((3, 2), np.float32)), [[1.25, -3e4]] * 3)
    np.testing.assert_array_equal(target.predictions(np.array([[2.0, -1.0]], np.float32)), [[2.25, -1.3e5]])


@pytest.mark.parametrize("target", [target for target in TARGETS if not isinstance(target, NextToken)])
def test_a_served_model_answers_with_the_same_predictions(target: Target) -> None:
    outputs = DRAWN[:, : target.outputs]
    assert not isinstance(target, NextToken)
    served = target.served(torch.from_numpy(outputs)).numpy()
    expected = target.predictions(outputs)
    assert served.dtype == np.float32
    np.testing.assert_allclose(served, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())


def test_next_tokens_are_served_as_probabilities_at_each_place() -> None:
    outputs = torch.from_numpy(DRAWN.reshape(1, 7, 2))
    np.testing.assert_allclose(NextToken(2).served(outputs).numpy(), softmax(outputs.numpy(), axis=-1), rtol=1e-5)


def test_targets_are_described_for_people() -> None:
    described = [target.description for target in TARGETS]
    assert described == ["2 classes", "2 labels", "numbers cnt, price", "next token"]
    assert [target.outputs for target in TARGETS] == [2, 2, 2, 65]


@pytest.mark.parametrize(
    ("names", "value", "place"),
    [
        (("0", "1"), 1, 1),
        (("0", "1"), 0.0, 0),
        (("False", "True"), True, 1),
        (("a", "0.5"), 0.5, 1),
        (("0", "1"), "1", 1),
    ],
)
def test_a_class_may_be_given_as_its_value(names: tuple[str, ...], value: object, place: int) -> None:
    assert named_answers(Classes(names)).label(value) == [place]


@pytest.mark.parametrize("value", [2, True, "01", None, [1], float("nan"), float("inf")])
def test_another_value_is_no_class(value: object) -> None:
    with pytest.raises(ValueError, match="0, 1"):
        named_answers(Classes(("0", "1"))).label(value)
