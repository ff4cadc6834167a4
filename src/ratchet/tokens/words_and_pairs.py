"""Tokenizer of the text baseline: ids of words and of pairs of neighbouring words, by a vocabulary of the training set.

A text is lower-cased and in the Unicode form NFKC. As in scikit-learn's TfidfVectorizer a word has at least two
letters, digits or underscores. A character of a script without spaces is a word of its own.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from ratchet.kinds import TextInput

__all__ = ["WORDS_AND_PAIRS", "encode_terms", "learn_terms", "terms_of"]

WORDS_AND_PAIRS = "words_and_pairs"  # TextInput.tokenizer
_FIRST = 2  # id of the first term; 0 is padding and 1 any other word, which the baseline does not use
_MOST_TERMS = 500_000
_NO_SPACES = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_WORD = re.compile(rf"[{_NO_SPACES}]|[^\W{_NO_SPACES}]{{2,}}")


def terms_of(text: str) -> list[str]:
    """Return the words of a text, and then its pairs of neighbouring words with a space between them."""
    singles = _WORD.findall(unicodedata.normalize("NFKC", text).lower())
    return [*singles, *map(" ".join, pairwise(singles))]


def learn_terms(texts: Iterable[str]) -> TextInput:
    """Return the tokenizer for these training texts: the 500,000 terms that are in the most texts, by the alphabet."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(set(terms_of(text)))
    terms = sorted(counts)
    if len(terms) > _MOST_TERMS:
        terms = sorted(sorted(terms, key=lambda term: -counts[term])[:_MOST_TERMS])
    return TextInput(WORDS_AND_PAIRS, vocabulary=tuple(terms))


def encode_terms(texts: Iterable[str], described: TextInput) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the ids of all texts, int32 (ids,), and where each text begins, int64 (texts + 1,).

    Terms that are not in the vocabulary are left out. `described.longest` is the largest number of ids; 0: no limit.
    """
    ids = {term: number for number, term in enumerate(described.vocabulary, _FIRST)}
    rows = [[ids[term] for term in terms_of(text) if term in ids][: described.longest or None] for text in texts]
    starts = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=starts[1:])
    return np.fromiter(chain.from_iterable(rows), np.int32, int(starts[-1])), starts
