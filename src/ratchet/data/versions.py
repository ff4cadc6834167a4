"""Data versions as DVC knows them, read from dvc.lock: it is the same after the flow and after `dvc repro`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["DatasetVersion", "dvc_hashes", "read_version"]


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


def dvc_hashes(root: Path) -> dict[str, str]:
    """The DVC hash of every recorded output, by path."""
    return {path: str(out["md5"]) for path, out in sorted(_outs(root).items()) if "md5" in out}


def _outs(root: Path) -> dict[str, dict[str, Any]]:
    lock = root / "dvc.lock"
    if not lock.exists():
        return {}
    from ruamel.yaml import YAML

    stages = (YAML(typ="safe", pure=True).load(lock.read_text(encoding="utf-8")) or {}).get("stages", {})
    return {out["path"]: out for stage in stages.values() for out in stage.get("outs", [])}
