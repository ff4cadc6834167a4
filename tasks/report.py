"""Report page of the last evaluation, with the gate's verdict."""

from typing import TYPE_CHECKING, Any

from ratchet import files
from ratchet.data.manifest import Manifest
from ratchet.evaluation.metrics import read_metrics
from ratchet.settings.model import Params
from ratchet.typed_json import to_plain
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from ratchet.gate.verdict import Verdict
    from ratchet.registry.provenance_record import Provenance

__all__ = ["write_report"]


def write_report(verdict: "Verdict", record: "Provenance", params: Params, workspace: Workspace) -> None:
    """Write report.html and provenance.json into data/reports; `record` is the provenance record."""
    from ratchet.evaluation.explanations import read_explanations
    from ratchet.evaluation.predictions import read_predictions
    from ratchet.reports.run_report import Example, ReportContent, render
    from ratchet.training import open_split

    manifest = Manifest.read(workspace.packed)
    predictions = read_predictions(workspace.reports / "predictions.parquet")
    worst = predictions.worst_errors()
    images = open_split(workspace.packed, "test", sample_timeout=params.training.sample_timeout).gather(worst)
    explanations = read_explanations(workspace.reports / "explanations.safetensors")
    examples = [
        Example(
            image=image,
            id=predictions.ids[row],
            truth=predictions.classes[predictions.labels[row]],
            answer=predictions.classes[predictions.predicted[row]],
            confidence=float(predictions.probability[row]),
            contributions=explanations.of(row),
        )
        for row, image in zip(worst, images, strict=True)
    ]
    page = render(
        ReportContent(
            title=f"{manifest.name}, {params.model.called}",
            verdict=verdict,
            metrics=read_metrics(workspace.reports),
            history=files.read_json(workspace.model / "history.json"),
            examples=examples,
            unexplained=explanations.reason,
            manifest=_data_facts(manifest, workspace),
            settings=params.model_dump(mode="json", exclude={"access", "platform", "tracking"}),
            lineage=to_plain(record),
        )
    )
    files.write_text(workspace.report, page)
    files.write_json(workspace.reports / "provenance.json", to_plain(record))


def _data_facts(manifest: Manifest, workspace: Workspace) -> dict[str, Any]:
    """Return the facts about the data that the report shows: counts for people, no files or digests."""
    profile = files.read_json(workspace.packed / "profile.json")
    return {
        "name": manifest.name,
        "source": manifest.source,
        "classes": len(manifest.classes),
        "image": f"{manifest.height} x {manifest.width} x {manifest.channels}",
        "quarantined": manifest.quarantined,
        "copies within splits": profile["copies_within_splits"],
        "label conflicts": profile["label_conflicts"]["groups"],
        "rows": profile["rows"],
        "training rows of each class": profile["classes"]["train"],
        "quarantined by rule": dict(manifest.quarantined_by_rule),
    }
