"""The trained model as later stages see it, and its record in MLflow."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ratchet import files
from ratchet.counts import count_of
from ratchet.data.manifest import Manifest
from ratchet.registry.provenance_record import ContinuedCode, Provenance
from ratchet.registry.runs import NAME
from ratchet.settings.model import Params
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from ratchet.registry.runs import Run

__all__ = ["TrainedModel", "record_training", "run_name"]

_LONGEST = 16  # characters of a name in the name of a run


@dataclass(frozen=True)
class TrainedModel:
    """Summary of a finished training."""

    name: str
    key: str  # of the training: a digest of its data, settings and code
    best_epoch: int
    best_metric: str
    best_value: float
    steps: int
    code_changes: tuple[ContinuedCode, ...] = ()  # those with which an interrupted training went on

    @classmethod
    def load(cls, workspace: Workspace) -> "TrainedModel":
        """Read it from data/model."""
        content = files.read_json(workspace.model / "model.json")
        spec = content["spec"]
        name = spec["name"] if spec.get("factory", "none") == "none" else spec["factory"]
        if "baseline" in content:
            baseline = content["baseline"]["name"]
            name = f"average of {name} and {baseline}" if name.startswith("blend:") else f"baseline {baseline}"
        changes = tuple(map(ContinuedCode.load, content["training"].pop("code_changes", ())))
        return cls(name=name, code_changes=changes, **content["training"])

    @property
    def summary(self) -> str:
        """One line: the model, its best epoch and its steps."""
        best = f"best {self.best_metric} {self.best_value:.4f} at epoch {self.best_epoch}"
        return f"{self.name}: {best}, {count_of(self.steps, 'step')}"


def record_training(
    run: "Run",
    params: Params,
    workspace: Workspace,
    *,
    flow_run: str | None,
    inputs: Mapping[str, str] | None = None,
    code_changes: tuple[ContinuedCode, ...],
) -> Provenance:
    """Record settings, data and provenance of a training in MLflow, before its first step. Return the provenance.

    `flow_run`: the id of the Prefect flow run; `inputs`: digests that identify the training; `code_changes` since then.
    """
    from ratchet.data.versions import read_version
    from ratchet.provenance.record import begin_record

    manifest = Manifest.read(workspace.packed)
    values: dict[str, object] = {"seed": params.seed}
    for section in ("model", "training", "data"):
        values |= {f"{section}.{name}": value for name, value in getattr(params, section).model_dump().items()}
    run.settings(values)
    version = read_version(workspace.root) if workspace.packed == Workspace(workspace.root).packed else None
    rows = {name: split.rows for name, split in manifest.splits.items()}
    run.dataset(
        name=manifest.name,
        digest=version.dvc_hash if version else manifest.digest,
        source=manifest.source if params.data.source == "digits" else params.data.path,
        profile={"target": manifest.target.description, "rows": rows, "quarantined": manifest.quarantined},
    )
    record = begin_record(
        run.journal.folder, workspace, params, flow_run=flow_run, inputs=inputs, code_changes=code_changes
    )
    name = run_name(manifest.name, params.model.called, run.journal.uid[:6])
    run.tags({"ratchet.key": run.key, "ratchet.provenance": record.id, NAME: name})
    if record.git_commit:
        run.tags({"mlflow.source.git.commit": record.git_commit})  # MLflow's own name: shown beside the source
    further = {"ratchet.parent": record.parent, "ratchet.prefect_flow_run": flow_run}
    run.tags({name: value for name, value in further.items() if value})
    run.status("RUNNING")
    return record


def run_name(data: str, model: str, end: str) -> str:
    """Return the name of an MLflow run: data, model, and its result or, until there is one, its id."""
    return " ".join([*(name.rpartition(":")[2][:_LONGEST] for name in (data, model)), end])
