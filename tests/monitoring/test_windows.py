"""Rows of the request log by windows, while a server writes and merges its files."""

from pathlib import Path

import numpy as np
import pytest

from ratchet.monitoring import windows
from ratchet.monitoring.windows import first_hour, pieces
from ratchet.traffic.log_reader import log_files
from ratchet.traffic.request_log import RequestLog
from ratchet.traffic.schema import Logged

BEGIN, HOUR, HOURS = 1_760_000_400 // 3600 * 3600, 3600, 12


def write(folder: Path, numbers: list[int], *, now: int) -> None:
    """Log one request in the middle of each of these hours."""
    log = RequestLog(folder, share=1.0, inputs="none", days=1e6, mib=64.0, clock=lambda: now)
    for number in numbers:
        answers = np.zeros((1, 2), np.float32)
        time = BEGIN + number % HOURS * HOUR + 1800.0
        request = Logged(f"{number:032x}", time, 0.1, "own", "digits", "3", "", "", {}, answers)
        log.add(request.answer, lambda request=request: request)
    log.close()
    assert not log.lost


def read(folder: Path) -> list[tuple[int, int]]:
    """Return the start of each piece, in hours, with its answers' numbers."""
    return [
        ((piece.start - BEGIN) // HOUR, int(answer, 16))
        for piece in pieces(folder, BEGIN, BEGIN + HOURS * HOUR, window=HOUR)
        for answer in piece.rows["answer"]
    ]


def test_log_is_listed_once_for_all_hours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list for each file takes the square of their number."""
    write(tmp_path, [*range(HOURS)], now=BEGIN + HOURS * HOUR)
    assert first_hour(tmp_path) == BEGIN
    lists = []

    def counted(folder: Path) -> list[Path]:
        lists.append(folder)
        return log_files(folder)

    monkeypatch.setattr(windows, "log_files", counted)
    assert read(tmp_path) == [(hour, hour) for hour in range(HOURS)]
    assert len(lists) == 1


def test_rows_that_are_merged_meanwhile_come_once(tmp_path: Path) -> None:
    """The first hour is merged before, and gets a late part; the others have two parts each."""
    write(tmp_path, [0], now=BEGIN + HOUR)
    for first in (HOURS, 1):
        write(tmp_path, [*range(first, first + HOURS - 1)], now=BEGIN)
    assert len(list(tmp_path.glob("*.parquet"))) == 1
    reader = pieces(tmp_path, BEGIN, BEGIN + HOURS * HOUR, window=HOUR)
    answers = [*next(reader).rows["answer"]]
    write(tmp_path, [], now=BEGIN + HOURS * HOUR)
    assert not list(tmp_path.glob("*/*.parquet")), "every part is merged"
    for piece in reader:
        answers += piece.rows["answer"].to_list()
    assert sorted(int(answer, 16) for answer in answers) == [*range(2 * HOURS - 1)]


def test_hours_that_are_deleted_meanwhile_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, [*range(HOURS)], now=BEGIN + HOURS * HOUR)
    reader = pieces(tmp_path, BEGIN, BEGIN + HOURS * HOUR, window=HOUR)
    next(reader)
    for path in log_files(tmp_path)[3:]:
        path.unlink()
    assert len([*reader]) == 2
