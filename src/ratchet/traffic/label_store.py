"""Labels that arrive after the answers: one Parquet file for each day, beside the request log."""

import io
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from ratchet import files
from ratchet.kinds.protocol import go_on
from ratchet.traffic.log_reader import log_files, read_file, stored_files
from ratchet.traffic.retention import delete_old
from ratchet.traffic.schema import SHADOW, row_schema

if TYPE_CHECKING:
    import polars

__all__ = ["LabelStore", "Stored"]


@dataclass(frozen=True)
class Stored:
    """Numbers of labels: new ones, corrections of earlier ones, and those that were stored before."""

    new: int
    corrected: int
    known: int


class LabelStore:
    """The labels of logged answers. Corrections keep the earlier label; the newest counts."""

    def __init__(self, requests: Path, *, clock: Callable[[], float] = time.time) -> None:
        """Use the folder `labels` beside the folder of the request log. `clock`: seconds since 1970."""
        self._requests, self.folder, self._clock = requests, requests.parent / "labels", clock

    def logged(self, answers: set[str], check: Callable[[], None] = go_on) -> dict[tuple[str, int], str]:
        """Return the target, as `schema.target_id` returns it, of each logged row of these answers, by (answer, row).

        `check` is called before each file; what it raises ends the work.

        Raises:
            FileNotFoundError: the log has just merged or deleted a file. Fix: ask again.
        """
        import polars as pl

        known: dict[tuple[str, int], str] = {}
        for path in log_files(self._requests):
            check()
            rows = read_file(path, row_schema(), columns=("answer", "row", "target", "envelope"))
            rows = rows.filter(pl.col("answer").is_in(list(answers)) & (pl.col("envelope") != SHADOW))
            known.update({(a, r): n for a, r, n in rows.select("answer", "row", "target").iter_rows()})
        return known

    def add(self, labels: Mapping[tuple[str, int], list[float]], *, problem: str, days: float) -> Stored:
        """Store labels by (answer, row), all or none, and delete those older than `days`.

        Args:
            labels: the index of the class, or the numbers.
            problem: classification or regression.
        """
        import polars as pl

        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / "lock"):
            files.clear_drafts(self.folder)  # of killed servers
            now = self._clock()
            delete_old(self.folder, stored_files(self.folder, "*.parquet*"), days=days, now=now)
            newest = self.newest().with_columns(pl.col("labelled").dt.epoch("us"))
            columns = newest.select("answer", "row", "label", "labelled").iter_rows()
            known = {(answer, row): (label, labelled) for answer, row, label, labelled in columns}
            # After the clock was set back, a label is still later than the one that it corrects.
            times = {key: max(round(now * 1e6), known[key][1] + 1 if key in known else 0) for key in labels}
            given = _frame(labels, problem, times)
            # Equal labels compare as float32, as they are stored.
            stored = zip(labels, given["label"].to_list(), strict=True)
            is_new = [key not in known or known[key][0] != label for key, label in stored]
            rows = [key for key, new in zip(labels, is_new, strict=True) if new]
            if rows:
                path = self.folder / f"{time.strftime('%Y-%m-%d', time.gmtime(now))}.parquet"
                earlier = [read_file(path, _schema())] if path.exists() else []
                content = io.BytesIO()
                pl.concat([*earlier, given.filter(pl.Series(is_new))]).write_parquet(content)
                files.write_bytes(path, content.getvalue(), private=True)
        corrected = sum(key in known for key in rows)
        return Stored(len(rows) - corrected, corrected, len(labels) - len(rows))

    def newest(self) -> "polars.DataFrame":
        """Return the newest label of each row: answer, row, label (float32 list), problem, labelled (UTC), corrected.

        `corrected`: whether an earlier label of the row was another.
        """
        import polars as pl

        frames = [read_file(path, _schema()) for path in stored_files(self.folder, "*.parquet")]
        rows = pl.concat([_frame({}, "", {}), *frames])
        rows = rows.with_columns(corrected=pl.len().over("answer", "row") > 1)
        return rows.sort("labelled", maintain_order=True).unique(("answer", "row"), keep="last", maintain_order=True)


def _schema() -> "polars.Schema":
    import polars as pl

    keys = {"answer": pl.String(), "row": pl.Int32(), "label": pl.List(pl.Float32)}
    return pl.Schema({**keys, "problem": pl.String(), "labelled": pl.Datetime("us", "UTC")})


def _frame(
    labels: Mapping[tuple[str, int], list[float]], problem: str, times: Mapping[tuple[str, int], int]
) -> "polars.DataFrame":
    """Return the rows of labels. `times`: microseconds since 1970."""
    import polars as pl

    rows = [(answer, row, label, problem, times[answer, row]) for (answer, row), label in labels.items()]
    schema = _schema()
    frame = pl.DataFrame(rows, pl.Schema({**schema, "labelled": pl.Int64()}), orient="row")
    return frame.cast({"labelled": schema["labelled"]})
