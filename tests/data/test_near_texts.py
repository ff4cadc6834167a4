"""Near-duplicates of texts: planted ones are found, others are not. The truth is the exact share of common pieces."""

import itertools
import random
from typing import Any

import polars as pl
import pytest

from ratchet.data.checks.near_texts import LEAST, near_pairs

VOCABULARY = [
    f"{start}{middle}{end}" for start, middle, end in itertools.product("bdfglmprst", "aeiou", ("nt", "sh", "ry"))
]


def drawn(count: int, length: int, seed: int = 0) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(chance.choices(VOCABULARY, k=length)) for _ in range(count)]


def pairs_of(texts: list[str], **columns: Any) -> pl.DataFrame:
    ids = [f"{row:04d}" for row in range(len(texts))]
    index = pl.DataFrame({"id": ids, "text": texts}, schema={"id": pl.String, "text": pl.String})
    given = {"split": "train", "class": "good", **columns}
    index = index.with_columns(**{name: pl.lit(values) for name, values in given.items() if isinstance(values, str)})
    index = index.with_columns(pl.Series(name, values) for name, values in given.items() if isinstance(values, list))
    return near_pairs(index.with_columns(normal=pl.col("text").str.to_lowercase()))


def pieces(text: str) -> set[str]:
    letters = "".join(letter for letter in text.lower() if letter.isalnum() or letter == " ")
    return {letters[place : place + 5] for place in range(len(letters) - 4)}


def change(text: str, count: int, seed: int) -> str:
    chance, parts = random.Random(seed), text.split()
    for place in chance.sample(range(len(parts)), count):
        parts[place] = "zzzz"
    return " ".join(parts)


@pytest.mark.parametrize("length", [20, 200])
def test_pairs_are_those_of_a_comparison_of_all_texts(length: int) -> None:
    texts = drawn(60, length)
    texts += [change(text, number % 5 * length // 20, number) for number, text in enumerate(texts)]
    expected = {}
    for (first, left), (second, right) in itertools.combinations(enumerate(texts), 2):
        both = pieces(left), pieces(right)
        share = len(both[0] & both[1]) / len(both[0] | both[1])
        if share >= LEAST and left != right:
            expected[f"{first:04d}", f"{second:04d}"] = pytest.approx(share)
    pairs = pairs_of(texts)
    assert dict(zip(pairs.select("one_id", "other_id").rows(), pairs["share"], strict=True)) == expected
    assert len(expected) > 10


def test_case_punctuation_and_spaces_do_not_count() -> None:
    text = drawn(1, 20)[0]
    (pair,) = pairs_of([text, text.upper().replace(" ", ",  ") + "!"]).to_dicts()
    assert pair["share"] == 1.0


def test_equal_and_short_texts_are_left_out() -> None:
    text = drawn(1, 20)[0]
    assert pairs_of([text, text]).is_empty()
    assert pairs_of(["very good film", "very good films"]).is_empty()
    assert pairs_of([]).is_empty()


def test_pairs_in_different_splits_come_first_with_their_classes() -> None:
    texts = drawn(2, 20)
    texts = [texts[0], texts[1], texts[1] + " more", change(texts[0], 1, 0)]
    pairs = pairs_of(texts, split=["train", "train", "train", "test"], **{"class": ["good", "bad", "bad", "bad"]})
    assert pairs.select("one_id", "other_id").rows() == [("0000", "0003"), ("0001", "0002")]
    assert pairs.row(0, named=True)["other_class"] == "bad"


def test_many_texts_of_one_form_are_paired_with_the_first() -> None:
    """The number of pairs does not grow with the square of the texts."""
    start = drawn(1, 60)[0]
    pairs = pairs_of([f"{start} {word}" for word in VOCABULARY])
    assert set(pairs["one_id"]) | set(pairs["other_id"]) == {f"{row:04d}" for row in range(len(VOCABULARY))}
    assert pairs.height < 60 * 50
