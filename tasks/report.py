"""Report page of the last evaluation, with the gate's verdict."""

from typing import TYPE_CHECKING, Any

from ratchet import files
from ratchet.data.manifest import Manifest
from ratchet.evaluation.problems import read_metrics
from ratchet.kinds.registry import kind_of
from ratchet.settings.model import Params
from ratchet.typed_json import to_plain
from ratchet.workspace import Workspace
from tasks.trained_model import TrainedModel

if TYPE_CHECKING:
    from ratchet.evaluation.explanations import Explanations
    from ratchet.evaluation.predictions import Predictions
    from ratchet.gate.verdict import Verdict
    from ratchet.registry.provenance_record import Provenance
    from ratchet.reports.inline_images import ErrorExample

__all__ = ["error_examples", "write_report"]


def write_report(verdict: "Verdict", record: "Provenance", params: Params, workspace: Workspace) -> None:
    """Write report.html and provenance.json into data/reports; `record` is the provenance record."""
    from ratchet.evaluation.details import read_details
    from ratchet.evaluation.explanations import read_explanations
    from ratchet.evaluation.predictions import read_predictions
    from ratchet.exports import variants
    from ratchet.reports.run_report import ReportContent, render

    manifest = Manifest.read(workspace.packed)
    predictions = read_predictions(workspace.reports / "predictions.parquet")
    details = read_details(workspace.reports)
    explanations = read_explanations(workspace.reports / "explanations.safetensors")
    kind = kind_of(manifest.input)
    page = render(
        ReportContent(
            title=f"{manifest.name}, {TrainedModel.load(workspace).name}",
            verdict=verdict,
            metrics=read_metrics(workspace.reports),
            history=files.read_json(workspace.model / "history.json"),
            examples=error_examples(predictions, explanations, params, workspace) if kind.has_pixels else (),
            predictions=predictions,
            kind=kind.name,
            unexplained=explanations.reason,
            importance=details.importance,
            texts=details.texts,
            generated=details.generated,
            variants=variants.read(workspace.variants),
            manifest=_data_facts(manifest, workspace),
            settings=params.model_dump(mode="json", exclude={"access", "platform", "tracking"}),
            lineage=to_plain(record),
        )
    )
    files.write_text(workspace.report, page)
    files.write_json(workspace.reports / "provenance.json", to_plain(record))


def error_examples(
    predictions: "Predictions", explanations: "Explanations", params: Params, workspace: Workspace, *, count: int = 24
) -> "list[ErrorExample]":
    """Return the images with the most confident wrong predictions. Other samples are shown as texts."""
    from ratchet.reports.inline_images import ErrorExample
    from ratchet.training import ImageSplit, open_split

    worst = predictions.worst_errors(count)
    test = open_split(workspace.packed, "test", sample_timeout=params.training.sample_timeout)
    assert isinstance(test, ImageSplit), "the input is an image"
    return [
        ErrorExample(
            image,
            predictions.ids[row],
            predictions.truth(row),
            predictions.answer(row),
            predictions.sureness(row),
            explanations.of(row),
        )
        for row, image in zip(worst, test.images(worst), strict=True)
    ]


def _data_facts(manifest: Manifest, workspace: Workspace) -> dict[str, Any]:
    """Return the facts about the data that the report shows: counts for people, no files or digests."""
    profile = files.read_json(workspace.packed / "profile.json")
    return {
        "name": manifest.name,
        "source": manifest.source,
        "target": manifest.target.description,
        "input": manifest.input.description,
        "quarantined": manifest.quarantined,
        "copies within splits": profile["copies_within_splits"],
        "label conflicts": profile["label_conflicts"]["groups"],
        kind_of(manifest.input).unit.replace("samples", "rows"): profile["rows"],
        "quarantined by rule": dict(manifest.quarantined_by_rule),
    }
