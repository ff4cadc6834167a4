"""Labels that arrive after the answers: one Parquet file for each day, beside the request log."""

import io
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from ratchet import files
from ratchet.traffic.reading import log_files
from ratchet.traffic.schema import SHADOW

if TYPE_CHECKING:
    import polars

__all__ = ["LabelStore", "Stored"]

_DAY = 86_400.0


@dataclass(frozen=True)
class Stored:
    """Numbers of labels: new ones, corrections of earlier ones, and those that were stored before."""

    new: int
    corrected: int
    known: int


class LabelStore:
    """The labels of logged answers. Corrections keep the earlier label; the newest counts."""

    def __init__(self, requests: Path) -> None:
        """Use the folder `labels` beside the folder of the request log."""
        self._requests, self.folder = requests, requests.parent / "labels"

    def logged(self, answers: set[str]) -> dict[tuple[str, int], str]:
        """Return the target, as `schema.target_id` returns it, of each logged row of these answers, by (answer, row).

        Raises:
            FileNotFoundError: the log has just merged or deleted a file. Fix: ask again.
        """
        import polars as pl

        known: dict[tuple[str, int], str] = {}
        for path in log_files(self._requests):
            rows = pl.scan_parquet(path).filter(pl.col("answer").is_in(list(answers)) & (pl.col("envelope") != SHADOW))
            known.update({(a, r): n for a, r, n in rows.select("answer", "row", "target").collect().iter_rows()})
        return known

    def add(self, labels: Mapping[tuple[str, int], list[float]], *, problem: str, days: float) -> Stored:
        """Store labels by (answer, row), all or none, and delete those older than so many days.

        Args:
            labels: the index of the class, or the numbers.
            problem: classification or regression.
        """
        import polars as pl

        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / "lock"):
            now = time.time()
            for path in self.folder.glob("*.parquet"):
                if now - path.stat().st_mtime > days * _DAY:
                    path.unlink()
            known = {(a, r): label for a, r, label in self.newest().select("answer", "row", "label").iter_rows()}
            # Equal labels compare as float32, as they are stored.
            given = _frame(labels, problem, now)
            rows = [key for key, label in zip(labels, given["label"].to_list(), strict=True) if known.get(key) != label]
            if rows:
                path = self.folder / f"{time.strftime('%Y-%m-%d', time.gmtime(now))}.parquet"
                earlier = [pl.read_parquet(path)] if path.exists() else []
                content = io.BytesIO()
                pl.concat([*earlier, _frame({key: labels[key] for key in rows}, problem, now)]).write_parquet(content)
                files.write_bytes(path, content.getvalue(), private=True)
        corrected = sum(key in known for key in rows)
        return Stored(len(rows) - corrected, corrected, len(labels) - len(rows))

    def newest(self) -> "polars.DataFrame":
        """Return the newest label of each row: answer, row, label (float32 list), problem and labelled (UTC)."""
        import polars as pl

        frames = [pl.read_parquet(path) for path in sorted(self.folder.glob("*.parquet"))]
        rows = pl.concat([_frame({}, "", 0.0), *frames])
        return rows.unique(("answer", "row"), keep="last", maintain_order=True)


def _frame(labels: Mapping[tuple[str, int], list[float]], problem: str, seconds: float) -> "polars.DataFrame":
    import polars as pl

    schema = pl.Schema([("answer", pl.String()), ("row", pl.Int32()), ("label", pl.List(pl.Float32))])
    rows = [(answer, row, label) for (answer, row), label in labels.items()]
    stamp = pl.lit(round(seconds * 1e6)).cast(pl.Datetime("us", "UTC"))
    return pl.DataFrame(rows, schema, orient="row").with_columns(problem=pl.lit(problem), labelled=stamp)
