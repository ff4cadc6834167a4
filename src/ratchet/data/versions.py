"""Data versions as DVC records them in dvc.lock, which the flow and `dvc repro` write alike."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet import files

__all__ = ["DatasetVersion", "dvc_hashes", "dvc_inputs", "read_version"]

NO_RESULT = {"train": "the data version goes to MLflow only", "evaluate": "the data version goes to MLflow only"}


@dataclass(frozen=True)
class DatasetVersion:
    """A version of the packed data: its path and its DVC hash (MD5 of the folder's listing, ending in `.dir`)."""

    path: str
    dvc_hash: str
    files: int
    size: int  # bytes


def read_version(root: Path, path: str = "data/packed") -> DatasetVersion | None:
    """Return the recorded version of an output; None if DVC has not recorded it (a stage run by hand)."""
    out = _entries(root, "outs").get(path)
    if out is None:
        return None
    return DatasetVersion(path, str(out["md5"]), int(out.get("nfiles", 1)), int(out.get("size", 0)))


def dvc_hashes(root: Path, *stages: str) -> dict[str, str]:
    """Return the DVC hash of each output of these stages by path; without stages, of all stages."""
    return {path: str(out["md5"]) for path, out in sorted(_entries(root, "outs", *stages).items()) if "md5" in out}


def dvc_inputs(root: Path, *stages: str) -> dict[str, str]:
    """Return the DVC hash (in a bucket the ETag) of data that these stages read and no stage wrote, by path or URL."""
    deps, outs = _entries(root, "deps", *stages), _entries(root, "outs")
    hashes = {path: dep.get("md5") or dep.get("etag") for path, dep in sorted(deps.items()) if path not in outs}
    code = ("src/", "tasks/")
    return {path: str(value) for path, value in hashes.items() if value and not path.startswith(code)}


def _entries(root: Path, kind: str, *stages: str) -> dict[str, dict[str, Any]]:
    lock = root / "dvc.lock"
    if not lock.exists():
        return {}
    recorded = (files.read_yaml(lock) or {}).get("stages", {})
    wanted = [stage for name, stage in recorded.items() if not stages or name in stages]
    return {entry["path"]: entry for stage in wanted for entry in stage.get(kind, [])}
