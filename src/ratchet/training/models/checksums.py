"""SHA-256 of every file of a stored model, beside them: what was changed, lost or added since is named, not loaded."""

import os
from pathlib import Path

from ratchet import files
from ratchet.errors import TrainingError

__all__ = ["CHECKSUMS", "seal", "verify"]

CHECKSUMS = "checksums.json"
_LISTED = 3  # of each kind of difference


def seal(folder: Path) -> dict[str, str]:
    """Write the checksums of all that lies in `folder`; from now on it loads as it is or not at all.

    By path from `folder`: the SHA-256 (hex) of each file.
    """
    found = _digests(folder)
    files.write_json(folder / CHECKSUMS, {"format": 1, "sha256": found})
    return found


def verify(folder: Path) -> dict[str, str] | None:
    """Hold every file against its checksum; the checksums. None: the folder has none, as before they were written.

    Raises:
        TrainingError: a file was changed, is missing or was added, or the checksums cannot be read.
    """
    path = folder / CHECKSUMS
    if not path.exists():
        return None
    try:
        expected: dict[str, str] = dict(files.read_json(path)["sha256"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrainingError(
            f"{path}: the checksums cannot be read ({error}): nothing was loaded; restore the model's files"
        ) from error
    found = _digests(folder)
    differences = {
        "changed": sorted(name for name in expected.keys() & found.keys() if expected[name] != found[name]),
        "missing": sorted(expected.keys() - found.keys()),
        "added": sorted(found.keys() - expected.keys()),
    }
    told = [f"{kind}: {_listed(names)}" for kind, names in differences.items() if names]
    if told:
        raise TrainingError(
            f"{folder}: is not what was stored ({'; '.join(told)}): nothing was loaded; restore these files from a "
            "backup, or use another version"
        )
    return expected


def _digests(folder: Path) -> dict[str, str]:
    """Of every file but the checksums' own, compiled code and what links lead to included: Python would import it."""
    found = {}
    for place, _, names in os.walk(folder, followlinks=True):
        for name in names:
            path = Path(place, name)
            found[path.relative_to(folder).as_posix()] = files.digest_file(path)
    found.pop(CHECKSUMS, None)
    return found


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
