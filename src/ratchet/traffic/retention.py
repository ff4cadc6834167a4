"""Deletion of old and excess files. A wrong clock deletes nothing, and each deletion is logged."""

import calendar
import json
import logging
import re
import time
from collections.abc import Iterable
from pathlib import Path

from ratchet import files

__all__ = ["delete_excess", "delete_old", "time_of"]

_LOG = logging.getLogger(__name__)
_NOTE = "expired.json"  # files that one reading of the clock calls too old, with that reading
_CONFIRM = 86_400.0  # seconds after which a second reading must call them too old as well
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)(?:T(\d\d))?")
_DAY, _HOUR, _MIB = 86_400.0, 3_600.0, 1 << 20


def time_of(path: Path) -> float:
    """Return the end of the hour or day that the name of a file or of its folder begins with, else its change.

    Returns:
        Seconds since 1970.
    """
    return _span_of(path)[1]


def _span_of(path: Path) -> tuple[float, float]:
    for name in (path.name, path.parent.name):
        if match := _TIME.match(name):
            day, hour = match.groups()
            try:
                start = calendar.timegm(time.strptime(f"{day}T{hour or '00'}", "%Y-%m-%dT%H"))
            except ValueError:  # digits that are not a date
                continue
            return start, start + (_HOUR if hour else _DAY)
    changed = path.stat().st_mtime
    return changed, changed


def delete_old(folder: Path, paths: Iterable[Path], *, days: float, now: float) -> None:
    """Delete the files that are older than `days`, if a reading of the clock a day before said so too.

    Args:
        folder: keeps the note of the first reading.
        now: the clock, seconds since 1970.
    """
    note = folder / _NOTE
    noted = _read_note(note)
    expired: dict[str, float] = {}
    for path in paths:
        age = now - time_of(path)
        if age <= days * _DAY:
            continue
        name = path.relative_to(folder).as_posix()
        first = min(noted.get(name, now), now)  # a reading from the future was wrong
        if now - first >= _CONFIRM:
            path.unlink(missing_ok=True)
            _LOG.warning("%s deleted: %.1f days old, limit %g days", path, age / _DAY, days)
        else:
            expired[name] = first
    if expired != noted:
        if fresh := len(expired.keys() - noted.keys()):
            _LOG.warning(
                "%s: %d files are older than %g days. They are deleted in a day, if the clock still says so",
                folder,
                fresh,
                days,
            )
        files.write_json(note, expired)


def delete_excess(paths: Iterable[Path], *, mib: float, now: float) -> list[Path]:
    """Delete the oldest files until the others take at most `mib`. The newest file stays.

    Files whose time begins more than an hour after `now` count as the oldest: a clock that was ahead has named them,
    and else each new file would be deleted until that time.

    Returns:
        Those of them that stay.
    """

    def order(path: Path) -> tuple[bool, float, float, str]:
        start, end = _span_of(path)
        return start <= now + _HOUR, end, path.stat().st_mtime, path.name

    newest_first = sorted(paths, key=order, reverse=True)
    total, ahead = 0, []
    for number, path in enumerate(newest_first):
        total += path.stat().st_size
        if number and total > mib * _MIB:
            path.unlink(missing_ok=True)
            _LOG.warning("%s deleted: the log is larger than %g MiB", path, mib)
        elif not order(path)[0]:
            ahead.append(path)
    return ahead


def _read_note(path: Path) -> dict[str, float]:
    """Return the noted files. A damaged note counts as none: then the first reading is the next one."""
    try:
        return {str(name): float(first) for name, first in files.read_json(path).items()}
    except FileNotFoundError:
        return {}
    except (json.JSONDecodeError, UnicodeDecodeError, AttributeError, TypeError, ValueError) as error:
        _LOG.warning("%s is damaged (%s): written again", path, error)
        return {}
