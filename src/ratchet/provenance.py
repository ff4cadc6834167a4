"""The one record of where a model came from."""

import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any

from ratchet import files
from ratchet.data.versions import dvc_hashes
from ratchet.params import Params
from ratchet.workspace import Workspace

__all__ = ["record", "uncommitted"]

_PACKAGES = (
    "torch",
    "torchvision",
    "numpy",
    "safetensors",
    "scikit-learn",
    "prefect",
    "dvc",
    "mlflow",
    "pandera",
    "polars",
)


def record(workspace: Workspace, params: Params, *, flow_run: str | None) -> dict[str, Any]:
    """Everything that decided a training, as plain data; `id` is the digest of the rest.

    A part that does not exist (no GPU, no git, no flow) is None: the record always has the same keys.
    """
    content: dict[str, Any] = {
        "git_commit": _git(workspace.root, "rev-parse", "HEAD"),
        "git_uncommitted": _digest_or_none(uncommitted(workspace.root)),
        "dvc": dvc_hashes(workspace.root),
        "settings": params.digest,
        "lock": _lock_digest(workspace.root / "requirements.txt"),
        "seed": params.seed,
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "hardware": _hardware(),
        "prefect_flow_run": flow_run,
    }
    return {"id": files.digest_json(content)[:16], **content}


def uncommitted(root: Path) -> str | None:
    """What the working tree has that the commit has not, as a patch; None without git."""
    return _git(root, "diff", "HEAD", "--binary")


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None  # no git here, or no commit yet: the record says so
    return done.stdout.decode(errors="replace").strip()


def _digest_or_none(text: str | None) -> str | None:
    return files.digest_json(text) if text else None


def _lock_digest(path: Path) -> str | None:
    return files.digest_file(path) if path.exists() else None


def _hardware() -> dict[str, Any]:
    import torch

    cudnn: Any = torch.backends.cudnn
    found: dict[str, Any] = {
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "cuda": torch.version.cuda if torch.cuda.is_available() else None,
        "cudnn": cudnn.version() if torch.cuda.is_available() else None,
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "driver": _driver(),
    }
    return found


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _driver() -> str | None:
    version = Path("/proc/driver/nvidia/version")
    return version.read_text().splitlines()[0].strip() if version.exists() else None
