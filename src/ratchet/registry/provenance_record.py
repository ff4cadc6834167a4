"""The provenance record of a training, and how MLflow keeps it: in tags where it fits, and as a file of the run."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

from ratchet import files
from ratchet.errors import RegistryError
from ratchet.registry.mlflow_store import run_file
from ratchet.typed_json import STRICT, parse, to_plain
from ratchet.weights_sources import WeightsSource

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from pydantic import ConfigDict

__all__ = [
    "PACKED",
    "PROVENANCE_FILE",
    "PROVENANCE_TAG",
    "RECORD_TAG",
    "ContinuedCode",
    "Hardware",
    "Provenance",
    "parse_object",
    "read_record",
    "record_tags",
]

PACKED = "data/packed"
"""The DVC output whose hash identifies a data version."""
PROVENANCE_FILE = "provenance/provenance.json"
"""Path of the record among a run's artifacts."""
PROVENANCE_TAG, RECORD_TAG = "ratchet.provenance", "ratchet.provenance_record"
_MAX_TAG = 5000  # characters of a tag that every MLflow store accepts


@dataclass(frozen=True)
class Hardware:
    """The machine that trained. Fields about GPUs are None, or empty, on a machine without one."""

    __pydantic_config__: ClassVar["ConfigDict"] = STRICT

    machine: str
    system: str
    processor: str
    instructions: str  # the CPU capability by which PyTorch chooses its kernels
    threads: int
    cuda: str | None
    cudnn: int | None
    gpus: tuple[str, ...]
    driver: str | None


@dataclass(frozen=True)
class ContinuedCode:
    """Code that changed while a training was interrupted, and with which a user let it go on."""

    __pydantic_config__: ClassVar["ConfigDict"] = STRICT

    step: int  # of the checkpoint from which it went on
    files: tuple[str, ...]
    git_commit: str | None

    @classmethod
    def load(cls, content: Mapping[str, Any]) -> "ContinuedCode":
        """Read what a file of JSON has."""
        return cls(content["step"], tuple(content["files"]), content["git_commit"])

    def __str__(self) -> str:
        return f"{', '.join(self.files)} from step {self.step:,}"


@dataclass(frozen=True)
class Provenance:
    """Everything that decides a training. A value that does not exist (no git, no flow) is None.

    `inputs` are the digests of data, settings, code and pretrained weights that name the training. `weights`,
    `mlflow_run` and `training` are None until the training is over. A new field needs a default: records are kept
    permanently, and old ones must still be readable.
    """

    __pydantic_config__: ClassVar["ConfigDict"] = STRICT

    id: str  # the first 16 characters of the digest of all other fields
    git_commit: str | None
    git_origin: str | None
    git_uncommitted: str | None  # SHA-256 (hex) of the patch of uncommitted changes
    git_left_out: tuple[str, ...]  # untracked files that are not in the patch
    dvc: dict[str, str]  # output -> DVC hash
    dvc_inputs: dict[str, str]
    inputs: dict[str, str] | None
    settings: str
    lock: str | None  # SHA-256 (hex) of requirements.txt
    seed: int
    python: str
    packages: dict[str, str]  # name -> version
    hardware: Hardware
    prefect_flow_run: str | None
    weights: str | None = None  # SHA-256 (hex) of model.safetensors
    mlflow_run: str | None = None
    training: str | None = None
    code_changes: tuple[ContinuedCode, ...] = ()  # since the training began
    search: str | None = None  # study and trial that chose its settings, as STUDY/NUMBER
    parent: str | None = None  # the registered version whose weights it began with, as models:/NAME/VERSION
    pretrained: WeightsSource | None = None  # source of the initial weights, if it is known

    def with_id(self) -> "Provenance":
        """Return the record with the id that its other fields give."""
        covered = {name: value for name, value in to_plain(self).items() if name != "id"}
        return replace(self, id=files.digest_json(covered)[:16])


def record_tags(record: Provenance) -> dict[str, str]:
    """Return the tags of a run or version: the record's id and, where it is short enough for a tag, all of it."""
    content = json.dumps(to_plain(record))
    return {PROVENANCE_TAG: record.id, **({RECORD_TAG: content} if len(content) <= _MAX_TAG else {})}


def parse_object(content: str | bytes) -> dict[str, Any] | None:
    """Return a JSON object; None for any other content: truncated, of another type, not text."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def read_record(client: "MlflowClient", run_id: str, tags: Mapping[str, str]) -> Provenance | None:
    """Read the record of a run or version from its tags, else from the run's file; None where there is none.

    To be called in `reachable`.

    Raises:
        RegistryError: the tag or the file is not a provenance record; the message names it and the wrong field.
    """
    if RECORD_TAG in tags:
        place, content = f"the tag {RECORD_TAG}", tags[RECORD_TAG].encode(errors="surrogatepass")
    elif PROVENANCE_TAG in tags:
        with TemporaryDirectory() as folder:
            path = run_file(client, run_id, PROVENANCE_FILE, Path(folder))
            if path is None:  # the run was cut off before the gate, or the file was deleted
                return None
            place, content = PROVENANCE_FILE, path.read_bytes()
    else:
        return None
    try:
        return parse(Provenance, content)
    except ValueError as error:
        raise RegistryError(
            f"MLflow run {run_id}: {place} is damaged: it is not a provenance record ({error}). Fix: restore it from a "
            "backup of MLflow"
        ) from error
