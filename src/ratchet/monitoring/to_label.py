"""Logged rows that should be labelled next: half of them at random, half those whose answers are least certain.

The random half is a fair sample of the traffic, so quality can be estimated from it. The other half teaches most. Which
rows were chosen by entropy is recorded beside the log.
"""

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ratchet import files
from ratchet.kinds import ModelSpec
from ratchet.monitoring.features import matrix_of
from ratchet.monitoring.labelled_rows import SpecOf, has_input, logged_columns
from ratchet.monitoring.windows import first_hour, pieces
from ratchet.problems.named_answers import named_answers
from ratchet.traffic.label_store import LabelStore
from ratchet.traffic.schema import target_id

if TYPE_CHECKING:
    import polars

__all__ = ["chosen_by_entropy", "rows_to_label", "write_rows_to_label"]

_ROWS = 200
_END, _HOUR = 1 << 40, 3600


def write_rows_to_label(
    path: Path, requests: Path, spec_of: SpecOf, *, seed: int, may_train: Callable[[int], bool] = lambda hour: True
) -> "polars.DataFrame":
    """Write the rows that `rows_to_label` returns to a Parquet file, and record which were chosen by entropy.

    The record is never short of a row of the file, also after a kill: such a row would count as chosen at random.
    """
    import polars as pl
    from filelock import FileLock

    rows = rows_to_label(requests, spec_of, seed=seed, may_train=may_train)
    if rows.is_empty():
        _write(rows, path, private=True)
        return rows
    keys, record = rows.select("answer", "row", "chosen"), _record(requests)
    with FileLock(record.with_suffix(".lock")):  # a training may choose rows at the same time
        chosen = pl.concat([chosen_by_entropy(requests), keys.filter(pl.col("chosen") == "entropy").drop("chosen")])
        chosen = chosen.unique().sort("answer", "row")
        _write(chosen, record)
        _write(rows, path, private=True)
        random = keys.filter(pl.col("chosen") == "random")
        _write(chosen.join(random, on=("answer", "row"), how="anti", maintain_order="left"), record)
    return rows


def chosen_by_entropy(requests: Path) -> "polars.DataFrame":
    """Return answer and row of all rows that were chosen because their answers were uncertain, and not at random."""
    import polars as pl

    path = _record(requests)
    return pl.read_parquet(path) if path.exists() else pl.DataFrame(schema={"answer": pl.String, "row": pl.Int32})


def rows_to_label(
    requests: Path, spec_of: SpecOf, *, seed: int, may_train: Callable[[int], bool] = lambda hour: True
) -> "polars.DataFrame":
    """Return up to 200 rows of the log which have their input and no label, neither their own nor of an equal input.

    Columns: answer, row, time, version, chosen (entropy or random), entropy, and those of the log. Entropy is null for
    numbers, and for hours since 1970 whose rows cannot be training rows: none of them is chosen by it.
    """
    import polars as pl

    labels = LabelStore(requests).newest().select("answer", "row")
    begin = first_hour(requests)
    read = partial(pieces, requests, begin, _END, window=_HOUR) if begin is not None else lambda **_: iter(())
    inputs = [piece.rows.join(labels, on=("answer", "row"), how="semi") for piece in read(columns=["input_sha256"])]
    labelled = pl.concat(
        [pl.DataFrame(schema={"input_sha256": pl.String}), *(e.select("input_sha256") for e in inputs)]
    )
    rows = pl.DataFrame()
    for piece in read():
        spec = spec_of(piece.version)
        if spec is None or not (answers := named_answers(spec.target)).takes_labels:
            continue
        new = _with_input(piece.rows, spec).join(labelled, on="input_sha256", how="anti", maintain_order="left")
        if new.is_empty():
            continue
        entropy = answers.entropy(matrix_of(new["prediction"]).astype(np.float64))
        entropy = entropy if may_train(piece.start // _HOUR) else np.full(len(new), np.nan)
        keys = new.select("answer", "row").iter_rows()
        order = [hashlib.sha256(f"{seed} {answer} {row}".encode()).hexdigest() for answer, row in keys]
        new = new.with_columns(
            pl.lit(piece.version).alias("version"),
            pl.Series("entropy", entropy, dtype=pl.Float64, nan_to_null=True),
            pl.Series("order", order, dtype=pl.String),
        )
        rows = _candidates(pl.concat([rows, new], how="diagonal_relaxed"))
    return _chosen(rows).drop("order", "model", "key", "served", "start") if len(rows) else pl.DataFrame()


def _record(requests: Path) -> Path:
    return requests.parent / "chosen-by-entropy.parquet"


def _write(rows: "polars.DataFrame", path: Path, *, private: bool = False) -> None:
    with files.draft_file(path, private=private) as draft:
        rows.write_parquet(draft)


def _with_input(rows: "polars.DataFrame", spec: ModelSpec) -> "polars.DataFrame":
    """Return the rows that can become samples: with the whole input, and an answer to the problem of the version."""
    import polars as pl

    if not set(logged_columns(spec.input)) <= set(rows.columns):
        return rows.clear()
    return rows.filter(has_input(spec.input) & (pl.col("target") == target_id(spec.target)))


def _candidates(rows: "polars.DataFrame") -> "polars.DataFrame":
    """Return all rows that `_chosen` can choose, also after more rows: the first in random order and by entropy."""
    import polars as pl

    rows = rows.sort("order").unique("input_sha256", keep="first", maintain_order=True)
    least = rows.sort("entropy", descending=True, nulls_last=True, maintain_order=True).head(_ROWS)
    return pl.concat([rows.head(_ROWS), least]).unique(("answer", "row"), maintain_order=True)


def _chosen(rows: "polars.DataFrame") -> "polars.DataFrame":
    """Return half of the rows in random order, then those with the largest entropy among the others."""
    import polars as pl

    rows = rows.sort("order")
    others = rows[_ROWS // 2 :].drop_nulls("entropy")
    least = others.sort("entropy", descending=True, maintain_order=True).head(_ROWS // 2)
    random = rows.join(least, on=("answer", "row"), how="anti", maintain_order="left").head(_ROWS - len(least))
    chosen = [least.with_columns(chosen=pl.lit("entropy")), random.with_columns(chosen=pl.lit("random"))]
    return pl.concat(chosen, how="diagonal_relaxed").sort("time", "answer", "row")
