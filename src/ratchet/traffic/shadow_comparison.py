"""Comparison of a shadow version's answers with those that were given, from the request log."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ratchet.errors import DataError
from ratchet.evaluation.intervals import Interval, mean_of, share_interval
from ratchet.evaluation.slices import thirds
from ratchet.problems.named_answers import NAMED_ANSWERS
from ratchet.traffic.log_reader import read, read_shadow
from ratchet.traffic.schema import SLICE

if TYPE_CHECKING:
    import polars

__all__ = ["ShadowComparison", "comparisons"]

_CONFIDENCE = 0.95


@dataclass(frozen=True)
class ShadowComparison:
    """Answers of two versions to the same rows.

    Attributes:
        served, shadow: NAME/VERSION.
        requests: that both answered.
        failed: requests that the shadow version failed to answer, or answered without finite numbers.
        rows: of all these requests.
        agreement: share of rows with the same best class or the same labels, with its 95 % interval, which takes the
            rows for independent; None: the versions predict numbers. Rows of a failed request do not agree.
        difference: mean absolute difference of a number in the other rows, with its 95 % interval; None: of other
            predictions, or of one row.
        seconds: median time in which the shadow version computed a request.
        served_seconds: median time to the answer of the served version.
        part: value of the column whose slices are compared; empty: all rows.
    """

    served: str
    shadow: str
    requests: int
    failed: int
    rows: int
    agreement: Interval | None
    difference: Interval | None
    seconds: float
    served_seconds: float
    part: str = ""


def comparisons(requests: Path, *, by: str = "") -> list[ShadowComparison]:
    """Return the comparison of each pair of versions; with `by`, one of each slice of that column.

    Numbers are in slices of a third of the logged rows each.

    Args:
        requests: folder of the log.
        by: column of serving.log_columns.

    Raises:
        DataError: the log does not have this column.
    """
    import polars as pl

    needed = ("prediction", "seconds", "target")
    served, shadow = read(requests, columns=(*needed, SLICE)), read_shadow(requests, columns=needed)
    if shadow.is_empty() or served.is_empty():
        return []
    columns = ["answer", "row", "model", "version", "prediction", "seconds", "target"]
    parts = served.with_columns(part=_parts(served, by) if by else pl.lit(""))
    pairs = parts.select(*columns, "part").join(
        shadow.select(columns), on=("answer", "row", "target"), suffix="_shadow"
    )
    pairs = pairs.with_columns(
        served=pl.format("{}/{}", "model", "version"), shadow=pl.format("{}/{}", "model_shadow", "version_shadow")
    )
    keys = ("served", "shadow", "part")
    groups = pairs.sort(keys).group_by(keys, maintain_order=True)
    return [_compared(group, *map(str, names)) for names, group in groups]


def _compared(rows: "polars.DataFrame", served: str, shadow: str, part: str) -> ShadowComparison:
    """Return the comparison of the rows that two versions answered."""
    import polars as pl

    given, other = (np.array(rows[name].to_list(), np.float64) for name in ("prediction", "prediction_shadow"))
    answers = rows.unique("answer")
    failed = rows["answer"].filter(pl.Series(~np.isfinite(other).all(axis=1))).n_unique()
    seconds, served_seconds = (float(np.median(answers[name].to_numpy())) for name in ("seconds_shadow", "seconds"))
    agreement, difference = _agreement(rows["target"][0].partition(" ")[0], given, other)
    return ShadowComparison(
        served, shadow, len(answers) - failed, failed, len(rows), agreement, difference, seconds, served_seconds, part
    )


def _parts(rows: "polars.DataFrame", by: str) -> "polars.Series":
    """Return the slice of each row."""
    import polars as pl

    known = [name.removeprefix(SLICE) for name in rows.columns if name.startswith(SLICE)]
    if by not in known:
        raise DataError(
            f"--by: found {by}; the log has {', '.join(known) or 'no column'}. Fix: `ratchet set serving.log_columns="
            f"'[{by}]'`, and start the model server again"
        )
    values = rows[SLICE + by]
    if values.dtype.is_numeric():
        numbers = values.cast(pl.Float64).to_numpy()
        values = pl.Series(thirds(numbers, reference=numbers) or ["all"] * len(numbers), dtype=pl.String)
    return values.cast(pl.String).fill_null("(missing)")


def _agreement(
    problem: str, given: NDArray[np.float64], other: NDArray[np.float64]
) -> tuple[Interval | None, Interval | None]:
    """Return the share of equal rows, or the mean difference of numbers."""
    is_answered, same = np.isfinite(other).all(axis=1), NAMED_ANSWERS[problem].equal_rows(given, other)
    if same is None:
        each = np.abs(given - other)[is_answered].mean(axis=1)
        return None, mean_of(each, confidence=_CONFIDENCE) if len(each) > 1 else None
    same &= is_answered
    return share_interval(int(same.sum()), len(same), confidence=_CONFIDENCE), None
