"""Logged rows that should be labelled next: half of them those whose answers are least certain, half at random.

The random half is a fair sample of the traffic, so quality can be estimated from it. The other half teaches most.
"""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ratchet.monitoring.features import matrix_of
from ratchet.monitoring.labelled_rows import SpecOf
from ratchet.monitoring.windows import first_hour, pieces
from ratchet.problems.named_answers import named_answers
from ratchet.traffic.label_store import LabelStore

if TYPE_CHECKING:
    import polars

__all__ = ["rows_to_label"]

_ROWS = 200
_END, _HOUR = 1 << 40, 3600


def rows_to_label(requests: Path, spec_of: SpecOf, *, seed: int, version: str = "") -> "polars.DataFrame":
    """Return up to 200 rows of the log without a label, of all versions or of NAME/VERSION.

    Columns: answer, row, time, version, chosen (entropy or random), entropy (null for numbers), and those of the log.
    """
    import polars as pl

    labelled = LabelStore(requests).newest().select("answer", "row")
    parts: list[pl.DataFrame] = []
    begin = first_hour(requests)
    for piece in pieces(requests, begin, _END, window=_HOUR) if begin is not None else ():
        rows = piece.rows.join(labelled, on=("answer", "row"), how="anti", maintain_order="left")
        spec = spec_of(piece.version)
        if spec is None or not len(rows) or version not in ("", piece.version):
            continue
        entropy = named_answers(spec.target).entropy(matrix_of(rows["prediction"]).astype(np.float64))
        keys = rows.select("answer", "row").iter_rows()
        order = [hashlib.sha256(f"{seed} {answer} {row}".encode()).hexdigest() for answer, row in keys]
        rows = rows.with_columns(
            pl.lit(piece.version).alias("version"),
            pl.Series("entropy", entropy, dtype=pl.Float64, nan_to_null=True),
            pl.Series("order", order, dtype=pl.String),
        )
        parts = [_chosen(pl.concat([*parts, rows], how="diagonal_relaxed"))]
    return parts[0].drop("order", "model", "key", "served", "start") if parts else pl.DataFrame()


def _chosen(rows: "polars.DataFrame") -> "polars.DataFrame":
    import polars as pl

    rows = rows.sort("entropy", "order", descending=(True, False), nulls_last=True)
    least = rows.filter(pl.col("entropy").is_not_null()).head(_ROWS // 2)
    rest = rows.join(least, on=("answer", "row"), how="anti").sort("order").head(_ROWS - len(least))
    chosen = [least.with_columns(chosen=pl.lit("entropy")), rest.with_columns(chosen=pl.lit("random"))]
    return pl.concat(chosen, how="diagonal_relaxed").sort("time", "answer", "row")
