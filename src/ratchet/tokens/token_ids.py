"""Tokenizers of language models: from text to token ids and back.

bytes       256 ids, the bytes of the text as UTF-8
characters  an id for each character of the training text
words       an id for each of the 30,000 most frequent words of the training text

A word is what `_WORDS` matches: letters and digits, or one other character, each with the space before it, or one white
space. The matches of a text are the whole text, so `decode(encode(text))` is the text if all its tokens are known. All
other characters or words have one id, the last. Vocabularies are learned from the training split only.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ratchet.errors import TrainingError
from ratchet.kinds import TokensInput

__all__ = [
    "LARGEST_VOCABULARY",
    "TOKENIZERS",
    "UNKNOWN",
    "decode",
    "encode",
    "encode_utf8",
    "fit",
    "text_tokens",
    "tokens",
    "unknown",
]

Ids = NDArray[np.int64]

TOKENIZERS = ("bytes", "characters", "words")
LARGEST_VOCABULARY = 30_000  # words
UNKNOWN = "\ufffd"  # stands for an unknown token in decoded text
_WORDS = re.compile(r" ?\w+| ?[^\w\s]|\s")
_PIECE = 1 << 22  # bytes of a stream that are decoded at a time
_NEW_LINE = 10


def fit(text: str | NDArray[np.uint8], kind: str, *, context: int) -> TokensInput:
    """Return the tokenizer `kind`, with the vocabulary of a training text and room for `context` tokens.

    Args:
        text: the text, or its UTF-8 as uint8 (bytes,).

    Raises:
        TrainingError: there is no such tokenizer.
    """
    if kind not in TOKENIZERS:
        raise TrainingError(f"model.tokenizer: found {kind!r}. Allowed: {', '.join(TOKENIZERS)}")
    described = TokensInput(kind, (), context)
    if kind == "bytes":
        return described
    counts: Counter[str] = Counter()
    for piece in [text] if isinstance(text, str) else _pieces(text):
        counts.update(_split(piece, kind))
    if kind == "characters":
        return replace(described, vocabulary=tuple(sorted(counts)))
    most_frequent = sorted(counts, key=lambda word: (-counts[word], word))[:LARGEST_VOCABULARY]
    return replace(described, vocabulary=tuple(most_frequent))


def tokens(described: TokensInput) -> int:
    """Return the number of ids: those of the vocabulary and that of unknown tokens."""
    return 256 if described.tokenizer == "bytes" else len(described.vocabulary) + 1


def encode(text: str, described: TokensInput) -> Ids:
    """Return the ids of a text, int64 (tokens,)."""
    if described.tokenizer == "bytes":
        return np.frombuffer(text.encode(), np.uint8).astype(np.int64)
    places = _places(described.vocabulary)
    other = len(places)
    if described.tokenizer == "words":
        return np.array([places.get(word, other) for word in _WORDS.findall(text)], np.int64)
    points = np.frombuffer(text.encode("utf-32-le"), "<u4")
    table = _character_table(described.vocabulary)
    ids: Ids = table[np.minimum(points, len(table) - 1)]
    return ids


def encode_utf8(content: NDArray[np.uint8], described: TokensInput) -> NDArray[np.integer]:
    """Return the ids of a stream from its UTF-8, uint8 (bytes,), in the smallest type that holds them: (tokens,)."""
    if described.tokenizer == "bytes":
        return content
    smallest = np.min_scalar_type(tokens(described) - 1)
    parts = [encode(piece, described).astype(smallest) for piece in _pieces(content)]
    return np.concatenate([np.zeros(0, smallest), *parts])


def decode(ids: Iterable[int], described: TokensInput) -> str:
    """Return the text of ids. An unknown token, or a byte that is not UTF-8, becomes U+FFFD."""
    if described.tokenizer == "bytes":
        return bytes(map(int, ids)).decode(errors="replace")
    vocabulary = (*described.vocabulary, UNKNOWN)
    return "".join(vocabulary[token] for token in ids)


def text_tokens(text: str, described: TokensInput) -> Sequence[str]:
    """Return the characters or words of a text, one for each of its ids."""
    return _split(text, described.tokenizer)


def unknown(text: str, described: TokensInput) -> list[str]:
    """Return the different tokens of a text that the vocabulary does not have, in the order of the text."""
    if described.tokenizer == "bytes":
        return []
    places = _places(described.vocabulary)
    return list(dict.fromkeys(token for token in _split(text, described.tokenizer) if token not in places))


def _split(text: str, kind: str) -> Sequence[str]:
    return text if kind == "characters" else _WORDS.findall(text)


def _pieces(content: NDArray[np.uint8]) -> Iterator[str]:
    """Yield the text in pieces that end with a line. No token crosses the end of a line."""
    start = 0
    while start < len(content):
        end = start + _PIECE
        if end >= len(content):
            end = len(content)
        else:
            ends = np.flatnonzero(content[start:end] == _NEW_LINE)
            while not len(ends) and end < len(content):  # a line longer than a piece
                ends = np.flatnonzero(content[end : end + _PIECE] == _NEW_LINE) + (end - start)
                end += _PIECE
            end = start + int(ends[-1]) + 1 if len(ends) else len(content)
        yield content[start:end].tobytes().decode()
        start = end


@lru_cache(maxsize=4)
def _places(vocabulary: tuple[str, ...]) -> dict[str, int]:
    return {token: place for place, token in enumerate(vocabulary)}


@lru_cache(maxsize=4)
def _character_table(vocabulary: tuple[str, ...]) -> Ids:
    """Return the id of each code point up to one after the largest of the vocabulary, int64."""
    points = [ord(character) for character in vocabulary]
    table = np.full(max(points, default=-1) + 2, len(vocabulary), np.int64)
    table[points] = np.arange(len(points))
    return table
