"""Data versions as DVC knows them, read from dvc.lock: it is the same after the flow and after `dvc repro`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet import files

__all__ = ["DatasetVersion", "dvc_hashes", "dvc_inputs", "read_version"]


@dataclass(frozen=True)
class DatasetVersion:
    """One version of the packed data: its path and its DVC hash (MD5 of the folder's listing, ending in `.dir`)."""

    path: str
    dvc_hash: str
    files: int
    size: int  # bytes


def read_version(root: Path, path: str = "data/packed") -> DatasetVersion | None:
    """The recorded version of an output; None when DVC has not recorded it (a stage run by hand)."""
    out = _outs(root).get(path)
    if out is None:
        return None
    return DatasetVersion(path, str(out["md5"]), int(out.get("nfiles", 1)), int(out.get("size", 0)))


def dvc_hashes(root: Path, *stages: str) -> dict[str, str]:
    """The DVC hash of every recorded output of these stages, by path; of no stage named, of all."""
    return {path: str(out["md5"]) for path, out in sorted(_outs(root, *stages).items()) if "md5" in out}


def dvc_inputs(root: Path, *stages: str) -> dict[str, str]:
    """The DVC hash (in a bucket the ETag) of whatever data these stages read that no stage made, by path or URL."""
    deps, made = _listed(root, "deps", *stages), _outs(root)
    found = {path: dep.get("md5") or dep.get("etag") for path, dep in sorted(deps.items()) if path not in made}
    code = ("src/", "tasks/")
    return {path: str(value) for path, value in found.items() if value and not path.startswith(code)}


def _outs(root: Path, *stages: str) -> dict[str, dict[str, Any]]:
    return _listed(root, "outs", *stages)


def _listed(root: Path, kind: str, *stages: str) -> dict[str, dict[str, Any]]:
    lock = root / "dvc.lock"
    if not lock.exists():
        return {}
    recorded = (files.read_yaml(lock) or {}).get("stages", {})
    wanted = [stage for name, stage in recorded.items() if not stages or name in stages]
    return {one["path"]: one for stage in wanted for one in stage.get(kind, [])}
