"""Digests of rows, for all rows at once: equal rows have equal digests on every machine.

Two lanes of 64 bits are mixed as in SplitMix64 (Steele, Lea and Flood 2014). This finds copies; it is no protection
against an attacker who makes two rows with the same digest.
"""

import hashlib
from binascii import hexlify
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["array_digests", "by_text", "coded", "column_digests", "hexadecimal", "repeats", "row_ids", "uniform"]

Bits = NDArray[np.uint64]

_SEEDS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_EXPANDED = (0xD6E8FEB86659FD93, 0xA0761D6478BD642F)
_MISSING = 0x7FF8_0000_0000_0001
_BLOCK = 1 << 14  # rows
_DIGITS = 7  # of the number in an id, at least
_SAMPLE = 1000  # texts that show whether they repeat


def column_digests(columns: Sequence[pl.Series], rows: int) -> Bits:
    """Return the digest of each row, uint64 (rows, 2), from its numbers, texts or categories."""
    read = [_numbers_or_codes(values) for values in columns]
    digests = np.empty((rows, len(_SEEDS)), np.uint64)
    for start in range(0, rows, _BLOCK):  # small copies stay in the processor's cache
        bits = [_bits(values[start : start + _BLOCK], known) for values, known in read]
        digests[start : start + _BLOCK] = row_digests(bits, len(digests[start : start + _BLOCK]))
    return digests


def _numbers_or_codes(values: pl.Series) -> tuple[NDArray[Any], Bits | None]:
    """Return numbers, or for texts their places among hashes, and these hashes."""
    if values.dtype.is_numeric():
        return values.cast(pl.Float64).to_numpy(), None
    values = coded(values)
    assert isinstance(values.dtype, pl.Enum), "the texts are coded"
    distinct = values.dtype.categories
    hashed = b"".join(hashlib.blake2b(text.encode(), digest_size=8).digest() for text in distinct)
    known = np.append(np.frombuffer(hashed, "<u8").astype(np.uint64), np.uint64(_MISSING))
    places = values.to_physical()
    if places.null_count():
        places = places.cast(pl.Int64).fill_null(len(distinct))
    return places.to_numpy(), known


def _bits(values: NDArray[Any], known: Bits | None) -> Bits:
    """Return a number for each value, uint64 (n,): the bits of a float, the hash of a text."""
    if known is not None:
        hashes: Bits = known[values]
        return hashes
    numbers = values + 0.0  # -0 is 0
    bits, is_missing = numbers.view(np.uint64), np.isnan(numbers)
    return np.where(is_missing, np.uint64(_MISSING), bits) if is_missing.any() else bits  # NaN has several forms


def coded(values: pl.Series) -> pl.Series:
    """Return texts as Enum, with the different texts in their order."""
    if values.dtype == pl.Enum:
        return values
    for some in (values.gather_every(len(values) // _SAMPLE + 1), values):  # a sample has all of a few categories
        read = values.cast(pl.Enum(some.unique().drop_nulls().sort()), strict=False)
        if read.null_count() == values.null_count():
            break
    return read


def by_text(values: pl.Series) -> tuple[pl.Series, pl.Series | None]:
    """Return the different texts in order and the place of each row's text; all texts and None if few repeat."""
    values = values if values.dtype == pl.Enum else values.cast(pl.String)
    if 2 * values.gather_every(len(values) // _SAMPLE + 1).n_unique() > _SAMPLE:
        return values.cast(pl.String), None
    values = coded(values)
    return values.dtype.categories.alias(values.name), values.to_physical()  # type: ignore[attr-defined]


def row_digests(columns: Iterable[Bits], rows: int) -> Bits:
    """Return the digest of each row, uint64 (n, 2), from the bits of its columns in order."""
    lanes = [np.full(rows, seed, np.uint64) for seed in _SEEDS]
    spare = np.empty(rows, np.uint64)
    for bits in columns:
        for lane, seed, factor in zip(lanes, _SEEDS, _FACTORS, strict=True):
            lane ^= bits
            lane += np.uint64(seed)
            lane *= np.uint64(factor)
            np.right_shift(lane, np.uint64(29), out=spare)
            lane ^= spare
    for lane, factor in zip(lanes, _FACTORS[::-1], strict=True):
        lane *= np.uint64(factor)
        lane ^= lane >> np.uint64(32)
    return np.stack(lanes, axis=1)


def uniform(digests: Bits) -> NDArray[np.float64]:
    """Return u in [0, 1) for each digest, uint64 (n, 2)."""
    mixed = (digests[:, 0] ^ (digests[:, 1] >> np.uint64(7))) * np.uint64(_EXPANDED[0])
    mixed ^= mixed >> np.uint64(31)
    result: NDArray[np.float64] = ((mixed * np.uint64(_EXPANDED[1])) >> np.uint64(11)) / 2.0**53
    return result


def repeats(digests: Bits) -> Bits:
    """Return a first lane for each row that is a copy of another one, uint64: k - 1 times if k rows have it."""
    ordered: Bits = np.sort(digests[:, 0])  # NumPy sorts faster than polars hashes
    result: Bits = ordered[1:][ordered[1:] == ordered[:-1]]
    return result


def hexadecimal(digests: Bits) -> "pa.Array":
    """Return digests, uint64 (n, 2), as texts of 64 hexadecimal digits."""
    import pyarrow as pa  # not in an offline bundle, which imports this module

    lanes = np.empty((len(digests), 4), ">u8")
    lanes[:, :2] = digests
    for place, factor in enumerate(map(np.uint64, _EXPANDED)):
        np.multiply(digests[:, place] ^ factor, factor, out=lanes[:, 2 + place])
    ends = np.arange(len(lanes) + 1, dtype=np.int64) * 64
    return pa.LargeStringArray.from_buffers(len(lanes), pa.py_buffer(ends), pa.py_buffer(hexlify(lanes.data)))


def row_ids(rows: NDArray[np.int64]) -> "pa.Array":
    """Return the ids of rows by their numbers in the file, such as "row 0000012"."""
    import pyarrow as pa

    digits = max(_DIGITS, len(str(rows.max(initial=0))))
    texts, rest = np.empty((len(rows), 4 + digits), np.uint8), rows.astype(np.uint32)
    texts[:, :4] = np.frombuffer(b"row ", np.uint8)
    for place in range(3 + digits, 3, -1):
        rest, texts[:, place] = np.divmod(rest, np.uint32(10))
    texts[:, 4:] += ord("0")
    ends = np.arange(len(rows) + 1, dtype=np.int64) * texts.shape[1]
    if digits > _DIGITS:  # only leading zeros up to the usual number of digits are written
        is_written = np.ones(texts.shape, bool)
        is_written[:, 4:-_DIGITS] = rows[:, None] >= 10 ** np.arange(digits - 1, _DIGITS - 1, -1)
        ends, texts = np.append(0, np.cumsum(is_written.sum(1))), texts[is_written]
    return pa.LargeStringArray.from_buffers(len(rows), pa.py_buffer(ends), pa.py_buffer(texts))


def array_digests(arrays: Sequence[NDArray[np.float32] | NDArray[np.int64]], rows: int) -> Bits:
    """Return the digest of each row of arrays, (rows, columns), uint64 (rows, 2)."""
    digests = np.empty((rows, len(_SEEDS)), np.uint64)
    for start in range(0, rows, _BLOCK):  # small copies stay in the processor's cache
        blocks = [values[start : start + _BLOCK] for values in arrays]
        bits = [column for block in blocks for column in _matrix_bits(block)]
        digests[start : start + _BLOCK] = row_digests(bits, len(digests[start : start + _BLOCK]))
    return digests


def _matrix_bits(values: NDArray[np.float32] | NDArray[np.int64]) -> list[Bits]:
    """Return the bits of the rows of an array, (n, columns), as columns of 64 bits. -0 is 0."""
    halves = (values + np.float32(0.0)).view(np.uint32) if values.dtype == np.float32 else values.astype(np.uint32)
    even = halves.shape[1] // 2 * 2
    pairs = np.ascontiguousarray(halves[:, :even]).view(np.uint64)
    return [*pairs.T, *halves[:, even:].T.astype(np.uint64)]
