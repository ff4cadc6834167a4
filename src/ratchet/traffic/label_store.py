"""Labels that arrive after the answers, beside the request log.

The labels of a request become a small Parquet file, a segment, in the folder of its hour. Later the segments of an hour
become one file. So the time of a request does not grow with what is stored: of earlier labels this process holds eight
bytes each, and it reads only the files that have an earlier label of the same row. Older releases wrote a file for each
day; these are read as they are.
"""

import io
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from ratchet import files
from ratchet.kinds.protocol import go_on
from ratchet.traffic.log_reader import HOURS, clear_drafts, log_files, read_file, stored_files
from ratchet.traffic.retention import delete_old
from ratchet.traffic.schema import SHADOW, answer_time, row_schema

if TYPE_CHECKING:
    import polars

__all__ = ["LabelStore", "Stored"]

_MOST_SEGMENTS = 64  # of an hour; more become one file at once
_HOUR = 3600


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
        # By file: its inode, change and size when it was read, and sorted hashes of its rows.
        self._index: dict[Path, tuple[tuple[int, ...], NDArray[np.uint64]]] = {}
        self._segments = 0

    def logged(self, answers: set[str], check: Callable[[], None] = go_on) -> dict[tuple[str, int], str]:
        """Return the target, as `schema.target_id` returns it, of each logged row of these answers, by (answer, row).

        `check` is called before each file; what it raises ends the work.

        Raises:
            FileNotFoundError: the log has just merged or deleted a file. Fix: ask again.
        """
        import polars as pl

        known: dict[tuple[str, int], str] = {}
        wanted = set(answers)
        for path in _files_with(log_files(self._requests), answers):
            if not wanted:
                break
            check()
            rows = read_file(path, row_schema(), columns=("answer", "row", "target", "envelope"))
            rows = rows.filter(pl.col("answer").is_in(list(wanted)) & (pl.col("envelope") != SHADOW))
            known.update({(a, r): n for a, r, n in rows.select("answer", "row", "target").iter_rows()})
            wanted -= {*rows["answer"]}  # all rows of an answer are in one file
        return known

    def add(
        self,
        labels: Mapping[tuple[str, int], list[float]],
        *,
        problem: str,
        days: float,
        begin: Callable[[], None] = go_on,
    ) -> Stored:
        """Store labels by (answer, row), all or none, and delete those older than `days`.

        Args:
            labels: the index of the class, or the numbers.
            problem: classification or regression.
            begin: called before they are written. If it raises an exception, none is stored.
        """
        import polars as pl

        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / "lock"):
            clear_drafts(self.folder)  # of killed servers
            now = self._clock()
            delete_old(self.folder, stored_files(self.folder, "*.parquet*", f"{HOURS}/*.parquet*"), days=days, now=now)
            self._merge(_hour(now))
            self._look()
            known = self._known(labels)
            # After the clock was set back, a label is still later than the one that it corrects.
            times = {key: max(round(now * 1e6), known[key][1] + 1 if key in known else 0) for key in labels}
            given = _frame(labels, problem, times)
            # Equal labels compare as float32, as they are stored.
            stored = zip(labels, given["label"].to_list(), strict=True)
            is_new = [key not in known or known[key][0] != label for key, label in stored]
            rows = [key for key, new in zip(labels, is_new, strict=True) if new]
            if rows:
                begin()
                self._segments += 1
                name = f"{time.time_ns()}-{os.getpid()}-{self._segments}.parquet"
                _write(self.folder / _hour(now) / name, given.filter(pl.Series(is_new)))
        corrected = sum(key in known for key in rows)
        return Stored(len(rows) - corrected, corrected, len(labels) - len(rows))

    def _merge(self, now: str) -> None:
        """Make one file of the files of each past hour, and of many segments of the present one."""
        import polars as pl

        for hour in sorted(self.folder.glob(HOURS)):
            segments, wholes = stored_files(hour, "*.parquet"), stored_files(self.folder, f"{hour.name}.*.parquet")
            is_past = hour.name < now
            if not is_past and len(segments) < _MOST_SEGMENTS:
                continue
            takes_all = is_past or len(wholes) >= _MOST_SEGMENTS
            number = 0 if takes_all or not wholes else int(wholes[-1].suffixes[0][1:]) + 1
            whole = self.folder / f"{hour.name}.{number:05}.parquet"
            merged = [*wholes, *segments] if takes_all else segments
            if merged != [whole] and merged:
                rows = _distinct(pl.concat([read_file(path, _schema()) for path in merged]))
                if not rows.is_empty():
                    _write(whole, rows)
                for path in merged:
                    if path != whole:
                        path.unlink(missing_ok=True)  # a damaged one was renamed
            if is_past and not any(hour.iterdir()):
                hour.rmdir()

    def _look(self) -> None:
        """Index the files that are new or were changed, by this process or another."""
        index = {}
        for path in stored_files(self.folder, "*.parquet", f"{HOURS}/*.parquet"):
            stat, indexed = path.stat(), self._index.get(path)
            state = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if indexed is None or indexed[0] != state:
                rows = read_file(path, _schema(), columns=("answer", "row"))
                indexed = (state, np.sort(_hashes(rows)))
            index[path] = indexed
        self._index = index

    def _known(self, labels: Mapping[tuple[str, int], list[float]]) -> dict[tuple[str, int], tuple[list[float], int]]:
        """Return the newest stored label of each of these rows that has one, with its time (microseconds)."""
        import polars as pl

        given = _frame(labels, "", dict.fromkeys(labels, 0))
        keys = _hashes(given)
        paths = [path for path, (_, stored) in self._index.items() if _has_any(stored, keys)]
        frames = [read_file(path, _schema()) for path in paths]
        rows = pl.concat([given.clear(), *frames]).join(given, on=("answer", "row"), how="semi")
        rows = rows.sort("labelled").with_columns(pl.col("labelled").dt.epoch("us"))
        return {
            (a, r): (label, at) for a, r, label, at in rows.select("answer", "row", "label", "labelled").iter_rows()
        }

    def newest(self) -> "polars.DataFrame":
        """Return the newest label of each row: answer, row, label (float32 list), problem, labelled (UTC), corrected.

        `corrected`: whether an earlier label of the row was another.
        """
        import polars as pl

        rows = _distinct(pl.concat([_frame({}, "", {}), *self._frames()]))
        rows = rows.with_columns(corrected=pl.len().over("answer", "row") > 1)
        return rows.sort("labelled", maintain_order=True).unique(("answer", "row"), keep="last", maintain_order=True)

    def _frames(self) -> "list[polars.DataFrame]":
        """Return the content of all files; read again if the server merges some of them meanwhile."""
        while True:
            try:
                # Segments first: those that become one file after this list are gone when they are read.
                paths = stored_files(self.folder, f"{HOURS}/*.parquet", "*.parquet")
                return [read_file(path, _schema()) for path in paths]
            except FileNotFoundError:
                continue


def _files_with(paths: list[Path], answers: set[str]) -> list[Path]:
    """Return the files of the log that may have answers: of their hours, if their ids have times, else all.

    First those of the very hour. Of the parts, first those that were written after the earliest answer.
    """
    by_hour: dict[str, list[Path]] = {}
    for path in paths:
        name = path.name if path.name[10:11] == "T" else path.parent.name  # a part is in the folder of its hour
        by_hour.setdefault(name[:13], []).append(path)
    times = [answer_time(answer) for answer in answers]
    distances: dict[Path, int] = {}
    for hour in {None if seconds is None else seconds // _HOUR for seconds in times}:
        # A request is logged in the hour in which it began, which may be the one before.
        shifts = [] if hour is None else [(abs(shift), _hour((hour + shift) * _HOUR)) for shift in (0, -1, 1)]
        near = {path: distance for distance, name in shifts for path in by_hour.get(name, ())}
        if not near:  # the id is of an older release
            return paths
        distances |= {path: min(distance, distances.get(path, 1)) for path, distance in near.items()}
    first = str(min((seconds for seconds in times if seconds is not None), default=""))
    return sorted(distances, key=lambda path: (distances[path], path.name < first, path.name))


def _hour(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H", time.gmtime(seconds))


def _hashes(rows: "polars.DataFrame") -> "NDArray[np.uint64]":
    """Return a hash of the answer and row of each row."""
    hashes: NDArray[np.uint64] = rows.select("answer", "row").hash_rows().to_numpy()
    return hashes


def _has_any(stored: "NDArray[np.uint64]", keys: "NDArray[np.uint64]") -> bool:
    """Return whether one of the keys is among the sorted ones."""
    places = np.searchsorted(stored, keys)
    return bool(len(stored)) and bool((stored[np.minimum(places, len(stored) - 1)] == keys).any())


def _distinct(rows: "polars.DataFrame") -> "polars.DataFrame":
    """Return each row once: after a merge that was interrupted two files have it."""
    return rows.unique(("answer", "row", "labelled"), maintain_order=True)


def _write(path: Path, rows: "polars.DataFrame") -> None:
    content = io.BytesIO()
    rows.write_parquet(content)
    files.write_bytes(path, content.getvalue(), private=True)


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
