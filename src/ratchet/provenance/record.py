"""The one record of where a model came from."""

import importlib.metadata
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ratchet import files, urls
from ratchet.data.versions import dvc_hashes, dvc_inputs
from ratchet.provenance import git_patch
from ratchet.settings.model import Params
from ratchet.workspace import Workspace

__all__ = ["PACKAGES", "begun", "finished", "installed", "python", "record"]

PACKAGES = (
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
_MADE = ("ingest", "train", "evaluate")  # the stages whose outputs a record names; register's come after it


def record(
    workspace: Workspace, params: Params, *, flow_run: str | None, inputs: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Everything that decides a training, as plain data; `id` is the digest of the rest.

    A part that does not exist (no GPU, no git, no flow) is None: the record always has the same keys. `inputs` are the
    digests of data, settings, code and pretrained weights that name the training.
    """
    return _begun(workspace, params, _changes(workspace, params), flow_run=flow_run, inputs=inputs)


def begun(
    folder: Path, workspace: Workspace, params: Params, *, flow_run: str | None, inputs: Mapping[str, str] | None
) -> dict[str, Any]:
    """The record of a training that begins, and its patch, kept in `folder`; of one under way, what is kept there.

    The code that started the training is the code that made it, whatever is edited meanwhile.
    """
    kept = folder / "provenance.json"
    if not kept.exists():
        changes = _changes(workspace, params)
        files.write_bytes(folder / "uncommitted.patch", changes.patch if changes else b"")
        files.write_json(kept, _begun(workspace, params, changes, flow_run=flow_run, inputs=inputs))
    content: dict[str, Any] = files.read_json(kept)
    return content


def finished(folder: Path, workspace: Workspace, *, mlflow_run: str, training: str) -> dict[str, Any]:
    """The record kept in `folder` with what is known only when the model has been made and measured."""
    content = {
        **files.read_json(folder / "provenance.json"),
        "dvc": dvc_hashes(workspace.root, *_MADE),
        "dvc_inputs": dvc_inputs(workspace.root, *_MADE),
        "weights": files.digest_file(workspace.model / "model.safetensors"),
        "mlflow_run": mlflow_run,
        "training": training,
    }
    return _sealed(content)


def python() -> str:
    """The version of Python that runs."""
    return platform.python_version()


def installed() -> dict[str, str]:
    """Package -> version, of those that a record names."""
    return {name: importlib.metadata.version(name) for name in PACKAGES}


def _changes(workspace: Workspace, params: Params) -> "git_patch.Changes | None":
    return git_patch.changes(
        workspace.root, data=("data", params.data.path), code=(params.model.code, params.data.code)
    )


def _begun(
    workspace: Workspace,
    params: Params,
    changes: "git_patch.Changes | None",
    *,
    flow_run: str | None,
    inputs: Mapping[str, str] | None,
) -> dict[str, Any]:
    origin = git_patch.git_line(workspace.root, "remote", "get-url", "origin")
    return _sealed(
        {
            "git_commit": git_patch.git_line(workspace.root, "rev-parse", "HEAD"),
            "git_origin": urls.bare(origin) if origin else None,
            "git_uncommitted": changes.digest if changes else None,
            "git_left_out": list(changes.left_out) if changes else [],
            "dvc": dvc_hashes(workspace.root, "ingest"),
            "dvc_inputs": dvc_inputs(workspace.root, "ingest"),
            "inputs": dict(inputs) if inputs else None,
            "settings": params.digest,
            "lock": _lock_digest(workspace.root / "requirements.txt"),
            "seed": params.seed,
            "python": python(),
            "packages": installed(),
            "hardware": _hardware(),
            "prefect_flow_run": flow_run,
            # Known when the training is over
            "weights": None,
            "mlflow_run": None,
            "training": None,
        }
    )


def _sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    covered = {name: value for name, value in content.items() if name != "id"}
    return {"id": files.digest_json(covered)[:16], **covered}


def _lock_digest(path: Path) -> str | None:
    return files.digest_file(path) if path.exists() else None


def _hardware() -> dict[str, Any]:
    import torch

    cudnn: Any = torch.backends.cudnn
    found: dict[str, Any] = {
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),  # by which PyTorch chooses its kernels
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
