"""Model card and SBOM of a registered version, among the artifacts of its MLflow run."""

import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet import files, settings, urls
from ratchet.counts import count_of
from ratchet.data.manifest import Manifest
from ratchet.evaluation.problems import read_metrics
from ratchet.settings.model import Params
from ratchet.workspace import Workspace
from tasks.gate_inputs import parent_warning
from tasks.trained_model import TrainedModel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ratchet.exports.variants import Variant
    from ratchet.gate.verdict import Verdict
    from ratchet.registry.journal import Journal
    from ratchet.registry.models import ModelRegistry
    from ratchet.registry.provenance_record import Provenance
    from ratchet.registry.versions import Version
    from ratchet.reports.model_card import CardContent
    from ratchet.training import Model

__all__ = ["CardWriter"]

_OUTPUTS = ("data/packed", "data/model", "data/checkpoints")
# The other sections only locate things.
_SHOWN_SETTINGS = ("seed", "data", "model", "training", "evaluation", "export", "gate", "registry")


@dataclass(frozen=True)
class CardWriter:
    """Materials of the model card and the SBOM of a registered version; `journal` is that of the training run."""

    registry: "ModelRegistry"
    version: "Version"
    verdict: "Verdict"
    record: "Provenance"
    journal: "Journal"
    params: Params
    workspace: Workspace

    def write(self) -> None:
        """Write the model card and the SBOM. A repetition writes the same files.

        Raises:
            TrackingUnavailable: MLflow does not answer.
        """
        from ratchet.registry.sbom import SbomSubject, build_sbom
        from ratchet.reports import model_card

        content, version = self._content(), self.version
        data, weights = content.data, content.checksums.get("model.safetensors")
        begun = datetime.fromtimestamp(self.journal.entries(0)[0].time // 1000, UTC)
        subject = SbomSubject(version.name, version.number, weights, data["name"], data["version"], begun, self.record)
        texts = {
            "card.md": model_card.render_markdown(content),
            "card.html": model_card.render_html(content),
            "sbom.cdx.json": build_sbom(subject),
        }
        with tempfile.TemporaryDirectory() as folder:
            for name, text in texts.items():
                files.write_text(Path(folder, name), text)
            self.registry.log_files(version.run_id, {Path(folder, name): "card" for name in texts})
        self.registry.describe(version, model_card.description(content))

    def _content(self) -> "CardContent":
        from ratchet.registry.runs import total_cost
        from ratchet.reports.model_card import CardContent

        params, workspace, record = self.params, self.workspace, self.record
        manifest, checksums = Manifest.read(workspace.packed), self.registry.checksums(self.version)
        return CardContent(
            name=self.version.name,
            number=self.version.number,
            purpose=params.registry.purpose,
            verdict=self.verdict,
            metrics=read_metrics(workspace.reports),
            input=manifest.input,
            data=_data(manifest, workspace, record),
            rows={name: split.rows for name, split in manifest.splits.items()},
            quarantined=dict(manifest.quarantined_by_rule),
            model=_model(params, workspace, record),
            settings=settings.changed(params, _SHOWN_SETTINGS),
            cost=total_cost(self.journal),
            checksums=checksums,
            address=urls.redacted(params.tracking.uri),
            lineage=_lineage(record, parent_warning(workspace, params)),
            variants=_variants(checksums, workspace),
        )


def _variants(checksums: "Mapping[str, str]", workspace: Workspace) -> "tuple[Variant, ...]":
    """Return the parity sheets if they are those of the version: it keeps the variants with which it was registered."""
    from ratchet.exports.variants import SHEETS, read

    path = workspace.variants / SHEETS
    is_own = path.exists() and checksums.get(SHEETS) == files.digest_file(path)
    return read(workspace.variants) if is_own else ()


def _data(manifest: Manifest, workspace: Workspace, record: "Provenance") -> dict[str, Any]:
    profile = files.read_json(workspace.packed / "profile.json")
    return {
        "name": manifest.name,
        "source": urls.redacted(manifest.source),
        "version": record.dvc.get("data/packed"),
        "target": manifest.target.description,
        "copies within splits": profile["copies_within_splits"],
        "samples with several labels": profile["label_conflicts"]["groups"],
    }


def _model(params: Params, workspace: Workspace, record: "Provenance") -> dict[str, Any]:
    from ratchet.training import load_model

    model, _ = load_model(workspace.model)
    name, source = params.model.pretrained, record.pretrained
    trained, measured = TrainedModel.load(workspace), files.read_json(workspace.reports / "metrics.json")
    return {
        "model": trained.name,
        "parameters": _numbers(model),
        "initial weights": source.description if source else name if name != "none" else "random weights",
        **({"normalization": source.normalization} if source else {}),
        "trained for": count_of(trained.steps, "step"),
        "best epoch": trained.best_epoch,
        trained.best_metric: trained.best_value,
        "temperature": measured["temperature"],
        "averages over mirror images": bool(measured["flip_average"]),
    }


def _numbers(model: "Model") -> int:
    """Return the number of weights that were trained; of a baseline, which has none, of all its tensors."""
    trained: int = sum(tensor.numel() for tensor in model.parameters())
    fitted: int = sum(tensor.numel() for tensor in model.network.state_dict().values())
    return trained or fitted


def _lineage(record: "Provenance", warning: str | None) -> dict[str, Any]:
    """Return the provenance record without the versions of packages, which are in the SBOM; a warning of the parent."""
    facts = {
        "provenance": record.id,
        "commit": record.git_commit,
        "uncommitted changes": record.git_uncommitted,
        "continued from": record.parent,
        "code changed while interrupted": "; ".join(map(str, record.code_changes)) or None,
        "settings": record.settings,
        "lock": record.lock,
        "MLflow run": record.mlflow_run,
        "Prefect flow run": record.prefect_flow_run,
        "seed": record.seed,
        "Python": record.python,
        "processor": record.hardware.processor,
        "GPUs": ", ".join(record.hardware.gpus) or None,
    }
    facts |= {"samples of that version": warning} if warning else {}
    return facts | {f"DVC {path}": record.dvc[path] for path in _OUTPUTS if path in record.dvc}
