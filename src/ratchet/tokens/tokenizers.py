"""Tokenizers of texts: from strings to token ids, with NumPy alone.

A text becomes its words, lower-cased and in the Unicode form NFKC. A word is a run of letters, digits and apostrophes;
every other visible character is a word of its own, and so is every character of a script without spaces.

hashed: the distinct words of a text, its distinct pairs of neighbouring words, and the first 4 and 6 characters of its
    words, by a stable hash. No vocabulary is stored, and most words that training has not seen share their first
    characters with words that it has. Features with the same hash share an id.
words: the words in order, by their place in a vocabulary of the training texts. Any other word has the id UNKNOWN.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice, pairwise

import numpy as np
from numpy.typing import NDArray

from ratchet.errors import TrainingError
from ratchet.kinds import TextInput
from ratchet.tokens.words_and_pairs import WORDS_AND_PAIRS, encode_terms

__all__ = ["PADDING", "UNKNOWN", "TokenRows", "encode", "fit_tokenizer", "id_count", "stored_texts", "words_of"]

Numbers = NDArray[np.int64]
Hashes = NDArray[np.uint64]

PADDING, UNKNOWN = 0, 1  # ids
_FIRST = 2  # id of the first word
_BUCKETS = 1 << 18
_MAX_VOCABULARY = 30_000
_LONGEST = {"hashed": 4096, "words": 512}  # words of a text: bounds the memory of a batch with one very long text
_BEGINNINGS = (4, 6)  # characters
_TEXTS_AT_ONCE = 4096

# Combining marks of Latin, Hebrew, Arabic and the scripts of India belong to words; Python's \w leaves them out.
_MARKS = "\u0300-\u036f\u0591-\u05bd\u064b-\u065f\u0900-\u0963\u0966-\u0dff"
_NO_SPACES = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_LETTER = rf"(?![{_NO_SPACES}])[\w{_MARKS}]"
_WORD = re.compile(rf"[{_NO_SPACES}]|(?:{_LETTER})+(?:['\u2019](?:{_LETTER})+)*|\S")
_ASCII_WORD = re.compile(r"\w+(?:'\w+)*|\S", re.ASCII)

_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no character is lost in the products
_MIX = np.uint64(0xBF58476D1CE4E5B9)  # of SplitMix64 (Steele, Lea and Flood 2014)


@dataclass(frozen=True)
class TokenRows:
    """The token ids of several texts, one after the other.

    Attributes:
        values: int32 (tokens,).
        starts: place of each text's first id, int64 (texts + 1,).
    """

    values: NDArray[np.int32]
    starts: Numbers

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, filled up to the longest."""
        return 8 * len(self) * int(np.diff(self.starts).max(initial=1))

    def gather(self, rows: Numbers) -> Numbers:
        """Return the ids of `rows`, int64 (n, longest of them), filled up with PADDING. It has at least one column."""
        begins, lengths = self.starts[rows], self.starts[rows + 1] - self.starts[rows]
        columns = np.arange(max(int(lengths.max(initial=0)), 1))
        inside = columns < lengths[:, None]
        ids = np.full(inside.shape, PADDING, np.int64)
        ids[inside] = self.values[(begins[:, None] + columns)[inside]]
        return ids


def words_of(text: str) -> list[str]:
    """Return the words of a text, in order."""
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())
    return _WORD.findall(unicodedata.normalize("NFKC", text).lower())


def stored_texts(values: NDArray[np.uint8], starts: Numbers) -> Iterator[str]:
    """Yield the texts of a packed split: UTF-8 uint8 (bytes,), and where each text begins, int64 (texts + 1,)."""
    for start, end in pairwise(starts.tolist()):
        yield values[start:end].tobytes().decode()


def fit_tokenizer(texts: Iterable[str], kind: str, *, longest: int = 0) -> TextInput:
    """Return a tokenizer for these training texts.

    Args:
        texts: the training texts. The vocabulary of `words` has their commonest words, at most 30,000, by the number of
            occurrences and then by the alphabet. Words that occur once are left out, unless all do.
        kind: hashed or words.
        longest: words of a text that are used; 0: as many as the longest text has, but at most 4,096 (hashed) or 512.

    Raises:
        TrainingError: there is no such tokenizer.
    """
    if kind not in _LONGEST:
        raise TrainingError(f"model.tokenizer: found {kind!r}. Allowed for texts: {', '.join(_LONGEST)}")
    counts: Counter[str] = Counter()
    most = 1
    for text in texts:
        split = words_of(text)
        counts.update(split)
        most = max(most, len(split))
    longest = longest or min(most, _LONGEST[kind])
    characters = "".join(sorted(set(chain.from_iterable(counts))))
    if kind == "hashed":
        return TextInput(kind, buckets=_BUCKETS, longest=longest, characters=characters)
    common = [word for word, count in counts.items() if count > 1] or list(counts)
    common.sort(key=lambda word: (-counts[word], word))
    return TextInput(kind, vocabulary=tuple(common[:_MAX_VOCABULARY]), longest=longest, characters=characters)


def id_count(described: TextInput) -> int:
    """Return the number of ids, with those of padding and of unknown words: the rows of an embedding."""
    return described.buckets if described.tokenizer == "hashed" else _FIRST + len(described.vocabulary)


def encode(texts: Iterable[str], described: TextInput) -> TokenRows:
    """Return the ids of all texts, of which the first `described.longest` words are used.

    The tokenizer may also be that of the baseline, `tokens.words_and_pairs`.
    """
    if described.tokenizer == WORDS_AND_PAIRS:
        return TokenRows(*encode_terms(texts, described))
    ids = {word: number for number, word in enumerate(described.vocabulary, _FIRST)}
    blocks, lengths = [np.zeros(0, np.int32)], [np.zeros(1, np.int64)]
    remaining = iter(texts)
    while block := [words_of(text)[: described.longest or None] for text in islice(remaining, _TEXTS_AT_ONCE)]:
        counts = np.fromiter(map(len, block), np.int64, len(block))
        tokens = chain.from_iterable(block)
        if described.tokenizer == "hashed":
            values, counts = _hashed(list(tokens), counts, described.buckets)
        else:
            values = np.fromiter((ids.get(word, UNKNOWN) for word in tokens), np.int32, int(counts.sum()))
        blocks.append(values)
        lengths.append(counts)
    return TokenRows(np.concatenate(blocks), np.cumsum(np.concatenate(lengths)))


def _hashed(tokens: list[str], counts: Numbers, buckets: int) -> tuple[NDArray[np.int32], Numbers]:
    """Return the distinct ids of each text in ascending order, and their number."""
    if not tokens:
        return np.zeros(0, np.int32), counts
    numbers = {word: number for number, word in enumerate(dict.fromkeys(tokens))}
    number = np.fromiter(map(numbers.__getitem__, tokens), np.int64, len(tokens))
    text = np.repeat(np.arange(len(counts), dtype=np.uint64), counts)
    word, *beginnings = (hashes[number] for hashes in _word_hashes(list(numbers)))
    first = np.flatnonzero(text[1:] == text[:-1])  # words with a next one
    hashes = np.concatenate([word, *beginnings, _mixed(word[first] * _BASE + word[first + 1])])
    texts = np.concatenate([text] * (1 + len(beginnings)) + [text[first]])
    # Sorted by text and id, and without repetitions. `np.unique` takes ten times as long.
    pairs = np.sort(texts << np.uint64(32) | (hashes % np.uint64(buckets - _FIRST) + np.uint64(_FIRST)))
    pairs = pairs[np.concatenate([[True], pairs[1:] != pairs[:-1]])]
    lengths = np.bincount((pairs >> np.uint64(32)).astype(np.int64), minlength=len(counts))
    return (pairs & np.uint64(0xFFFFFFFF)).astype(np.int32), lengths


def _word_hashes(distinct: list[str]) -> list[Hashes]:
    """Return the hashes of words, and of their first characters for each of _BEGINNINGS.

    The hash of some characters is a polynomial of their code points, mixed.
    """
    letters = np.frombuffer("".join(distinct).encode("utf-32-le", "surrogatepass"), "<u4").astype(np.uint64)
    lengths = np.fromiter(map(len, distinct), np.int64, len(distinct))
    starts = np.cumsum(lengths) - lengths
    place = np.arange(len(letters)) - np.repeat(starts, lengths)
    terms = letters * np.cumprod(np.full(int(lengths.max()), _BASE))[place]
    beginnings = [_mixed(np.add.reduceat(np.where(place < size, terms, 0), starts) + _MIX) for size in _BEGINNINGS]
    return [_mixed(np.add.reduceat(terms, starts)), *beginnings]


def _mixed(values: Hashes) -> Hashes:
    """Return well mixed 64-bit hashes of numbers; overflow wraps around."""
    values = (values ^ (values >> np.uint64(30))) * _MIX
    result: Hashes = values ^ (values >> np.uint64(27))
    return result * _BASE ^ (result >> np.uint64(31))
