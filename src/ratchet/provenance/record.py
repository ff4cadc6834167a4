"""Create the provenance record of a training: where its model came from."""

import importlib.metadata
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ratchet import files, git, urls
from ratchet.data.versions import dvc_hashes, dvc_inputs
from ratchet.errors import WorkspaceError
from ratchet.hardware import processor
from ratchet.provenance.git_patch import UncommittedChanges, uncommitted_changes
from ratchet.registry.parents import parent_of
from ratchet.registry.provenance_record import ContinuedCode, Hardware, Provenance
from ratchet.settings.model import Params
from ratchet.settings.search_space import winner_of
from ratchet.typed_json import parse, to_plain
from ratchet.weights_sources import find
from ratchet.workspace import Workspace

__all__ = ["PACKAGES", "begin_record", "finish_record", "installed_packages", "new_record", "read_record_file"]

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
_EXTRAS = ("timm",)  # where it is installed
_STAGES = ("ingest", "train", "evaluate")  # whose outputs a record names; register runs after it is complete


def new_record(
    workspace: Workspace,
    params: Params,
    *,
    flow_run: str | None,
    inputs: Mapping[str, str] | None = None,
    changes: UncommittedChanges | None = None,
) -> Provenance:
    """Return the record of a training that would begin now.

    `inputs` are the digests of data, settings, code and pretrained weights that name the training; `changes` are those
    of the working tree if they are known.

    Raises:
        WorkspaceError: git cannot read the working tree.
    """
    if changes is None:
        changes = _changes(workspace, params)
    origin = git.line(workspace.root, "config", "--get", "remote.origin.url")
    lock = workspace.root / "requirements.txt"
    return Provenance(
        id="",
        git_commit=changes.commit,
        git_origin=urls.bare(origin) if origin else None,
        git_uncommitted=changes.digest,
        git_left_out=changes.left_out,
        dvc=dvc_hashes(workspace.root, "ingest"),
        dvc_inputs=dvc_inputs(workspace.root, "ingest"),
        inputs=dict(inputs) if inputs else None,
        settings=params.digest,
        lock=files.digest_file(lock) if lock.exists() else None,
        seed=params.seed,
        python=platform.python_version(),
        packages=installed_packages(),
        hardware=_hardware(),
        prefect_flow_run=flow_run,
        search=winner_of(params),
        parent=parent_of(workspace, params),
        pretrained=find(workspace.pretrained, params.model.pretrained),
    ).with_id()


def begin_record(
    folder: Path,
    workspace: Workspace,
    params: Params,
    *,
    flow_run: str | None,
    inputs: Mapping[str, str] | None,
    code_changes: tuple[ContinuedCode, ...],
) -> Provenance:
    """Write the record and the patch of a training that begins to `folder`; return the one there if it has begun.

    A resumed training keeps its first record: the code that started it made the model. If a user lets it go on with
    changed code, the record names the `code_changes`.

    Raises:
        WorkspaceError: git cannot read the working tree, or the record in `folder` is damaged.
    """
    path = folder / "provenance.json"
    if path.exists():
        record = read_record_file(path)
        if record.code_changes == code_changes:
            return record
    else:
        changes = _changes(workspace, params)
        files.write_bytes(folder / "uncommitted.patch", changes.patch)
        record = new_record(workspace, params, flow_run=flow_run, inputs=inputs, changes=changes)
    record = replace(record, code_changes=code_changes).with_id()
    files.write_json(path, to_plain(record))
    return record


def finish_record(folder: Path, workspace: Workspace, *, mlflow_run: str, training: str) -> Provenance:
    """Return the record in `folder` with the values that are known when the model is trained and evaluated.

    Raises:
        WorkspaceError: the record in `folder` is damaged.
    """
    return replace(
        read_record_file(folder / "provenance.json"),
        dvc=dvc_hashes(workspace.root, *_STAGES),
        dvc_inputs=dvc_inputs(workspace.root, *_STAGES),
        weights=files.digest_file(workspace.model / "model.safetensors"),
        mlflow_run=mlflow_run,
        training=training,
    ).with_id()


def read_record_file(path: Path) -> Provenance:
    """Read the record that a training wrote to its journal.

    Raises:
        WorkspaceError: it is damaged; the message names the file and the field.
    """
    try:
        return parse(Provenance, path.read_bytes())
    except ValueError as error:
        raise WorkspaceError(
            f"{path}: is not a provenance record ({error}). Fix: delete the folder {path.parent}, then train again"
        ) from error


def installed_packages() -> dict[str, str]:
    """Return package -> version of the packages that a record names."""
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    for name in _EXTRAS:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def _changes(workspace: Workspace, params: Params) -> UncommittedChanges:
    return uncommitted_changes(
        workspace.root, data=("data", params.data.path), code=(params.model.code, params.data.code)
    )


def _hardware() -> Hardware:
    import torch

    has_gpu, cudnn = torch.cuda.is_available(), torch.backends.cudnn
    version: Any = cudnn.version() if has_gpu else None  # type: ignore[no-untyped-call]
    return Hardware(
        machine=platform.machine(),
        system=f"{platform.system()} {platform.release()}",
        processor=processor(),
        instructions=torch.backends.cpu.get_cpu_capability(),
        threads=torch.get_num_threads(),
        cuda=torch.version.cuda if has_gpu else None,
        cudnn=version,
        gpus=tuple(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())),
        driver=_driver(),
    )


def _driver() -> str | None:
    version = Path("/proc/driver/nvidia/version")
    return version.read_text().splitlines()[0].strip() if version.exists() else None
