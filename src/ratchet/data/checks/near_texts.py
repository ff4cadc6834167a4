"""Near-duplicates of texts: texts that differ in a few characters, such as a corrected word or another ending.

A text is the set of its pieces of 5 characters, in lower case and without punctuation. Two texts are near-duplicates if
they share at least 80 % of the pieces of both. Candidates have an equal part of their MinHash signature (Broder 1997):
32 minima of random hashes in 8 parts of 4. Two texts that share 80 % of their pieces have an equal part with a
probability of 98 %, and every candidate is compared exactly.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

__all__ = ["LEAST", "near_pairs"]

LEAST = 0.8  # share of the pieces of both texts that near-duplicates have in common
_PIECE = 5  # characters
_SHORTEST = 30  # characters; shorter texts are alike by chance
_PARTS, _MINIMA = 8, 4  # of a signature, and of each part
_BLOCK = 256  # texts whose hashes are in memory at once
_CROWD = 50  # texts with an equal part that are compared in pairs; of more, each with the first
_FACTOR = np.uint64(0x9E37_79B9_7F4A_7C15)  # odd, so that the products of different values differ

Hashes = NDArray[np.uint64]


def near_pairs(index: pl.DataFrame) -> pl.DataFrame:
    """Return pairs of near-duplicates whose normal forms differ.

    Args:
        index: columns id, split, class, text, and normal (digest of the normalised text).

    Returns:
        one_id, one_split, one_class, one_text, the same of the other, and `share` of the pieces in common; the texts
        in different splits first, then by share.
    """
    texts = index["text"].str.to_lowercase().str.replace_all(r"[^\w\s]+", "").str.replace_all(r"\s+", " ")
    forms = texts.str.strip_chars().to_list()
    first = index.select("normal").with_row_index("row").unique("normal", keep="first", maintain_order=True)["row"]
    rows = np.array([row for row in first.to_list() if len(forms[row]) >= _SHORTEST], np.int64)
    pairs = _candidates(rows, _signatures([forms[row] for row in rows.tolist()]))
    pieces = {row: np.unique(_hashes(forms[row])) for row in np.unique(pairs).tolist()}
    shares = np.array([_share(pieces[left], pieces[right]) for left, right in pairs.tolist()], np.float64)
    near = shares >= LEAST
    named = index.select("id", "split", "class", "text")
    left, right = (named[pairs[near, side]] for side in (0, 1))
    joined = left.rename(lambda name: f"one_{name}").hstack(right.rename(lambda name: f"other_{name}"))
    joined = joined.with_columns(share=pl.Series(shares[near]))
    across = pl.col("one_split") != pl.col("other_split")
    ordered: pl.DataFrame = joined.sort(across, "share", "one_id", "other_id", descending=[True, True, False, False])
    return ordered


def _signatures(texts: Sequence[str]) -> Hashes:
    """Return the minima of each text's hashes, uint64 (texts, parts * minima). Texts have a piece at least."""
    random = np.random.default_rng(0)
    factors = random.integers(1, 1 << 62, _PARTS * _MINIMA, dtype=np.uint64) | np.uint64(1)
    blocks = [np.zeros((0, len(factors)), np.uint64)]
    for start in range(0, len(texts), _BLOCK):
        some = texts[start : start + _BLOCK]
        ends = np.cumsum([len(text) for text in some])
        bounds = np.stack([np.append(0, ends[:-1]), ends - _PIECE + 1], 1).ravel()  # of the pieces inside each text
        hashes = np.append(_hashes("".join(some)), np.uint64(0))  # reduceat needs a place behind the last piece
        minima = [np.minimum.reduceat(_mixed(hashes * factor), bounds)[::2] for factor in factors]
        blocks.append(np.stack(minima, 1))
    return np.concatenate(blocks)


def _hashes(text: str) -> Hashes:
    """Return the hash of each piece of a text, uint64 (characters - 4,)."""
    letters = np.frombuffer(text.encode("utf-32-le"), np.uint32).astype(np.uint64)
    count = max(0, len(letters) - _PIECE + 1)
    hashes = np.zeros(count, np.uint64)
    for place in range(_PIECE):
        hashes = (hashes + letters[place : place + count]) * _FACTOR
    return _mixed(hashes)


def _mixed(values: Hashes) -> Hashes:
    """Return hashes whose high bits depend on all bits (the finish of splitmix64, Steele et al. 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return values ^ (values >> np.uint64(31))


def _candidates(rows: NDArray[np.int64], signatures: Hashes) -> NDArray[np.int64]:
    """Return pairs of rows with an equal part of their signatures, int64 (pairs, 2), each pair once."""
    pairs = [np.zeros((0, 2), np.int64)]
    for part in range(_PARTS):
        minima = signatures[:, part * _MINIMA : (part + 1) * _MINIMA]
        keys = pl.DataFrame({"row": rows, **{f"{number}": column for number, column in enumerate(minima.T)}})
        groups = keys.group_by(pl.exclude("row"), maintain_order=True).agg("row").filter(pl.col("row").list.len() > 1)
        for group in groups["row"].to_list():
            members = np.array(group, np.int64)
            left, right = np.triu_indices(min(len(members), _CROWD), 1)
            pairs.append(np.stack([members[left], members[right]], 1))
            pairs.append(np.stack([np.full(len(members[_CROWD:]), members[0]), members[_CROWD:]], 1))
    return np.unique(np.concatenate(pairs), axis=0)


def _share(left: Hashes, right: Hashes) -> float:
    """Return the share of the pieces of both texts that they have in common (Jaccard index)."""
    common = len(np.intersect1d(left, right, assume_unique=True))
    return common / (len(left) + len(right) - common)
