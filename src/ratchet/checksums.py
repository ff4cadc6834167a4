"""Checksums of the files of a stored model. A model with a changed, missing or added file is not loaded."""

import os
from pathlib import Path

from ratchet import files
from ratchet.errors import TrainingError

__all__ = ["CHECKSUMS", "seal", "verify"]

CHECKSUMS = "checksums.json"
_LISTED = 3  # of each kind of difference


def seal(folder: Path) -> dict[str, str]:
    """Write the checksums of all files in `folder`, and return them: SHA-256 (hex) by path from `folder`.

    From then on `verify` refuses any change in the folder.
    """
    digests = _digests(folder)
    files.write_json(folder / CHECKSUMS, {"format": 1, "sha256": digests})
    return digests


def verify(folder: Path) -> dict[str, str] | None:
    """Check every file against its checksum, and return the checksums; None if the folder has no checksums.

    Raises:
        TrainingError: a file was changed, removed or added, or the checksums cannot be read.
    """
    path = folder / CHECKSUMS
    if not path.exists():
        return None
    try:
        expected: dict[str, str] = dict(files.read_json(path)["sha256"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrainingError(
            f"{path}: the checksums cannot be read ({error}); nothing was loaded. Fix: restore the files of the model"
        ) from error
    actual = _digests(folder)
    differences = {
        "changed": sorted(name for name in expected.keys() & actual.keys() if expected[name] != actual[name]),
        "missing": sorted(expected.keys() - actual.keys()),
        "added": sorted(actual.keys() - expected.keys()),
    }
    problems = [f"{kind}: {_listed(names)}" for kind, names in differences.items() if names]
    if problems:
        raise TrainingError(
            f"{folder}: differs from the stored model ({'; '.join(problems)}); nothing was loaded. Fix: restore these "
            "files from a backup, or use another version"
        )
    return expected


def _digests(folder: Path) -> dict[str, str]:
    """Return the digest of every file except the checksums, also of compiled code and of link targets."""
    digests = {}
    for place, _, names in os.walk(folder, followlinks=True):
        for name in names:
            path = Path(place, name)
            digests[path.relative_to(folder).as_posix()] = files.digest_file(path)
    digests.pop(CHECKSUMS, None)
    return digests


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
