"""register: the model and its figures -> a verdict, and if it passes a registered version. A refusal is a result."""

import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet import files
from ratchet.data.manifest import Manifest
from ratchet.params import Params
from ratchet.workspace import Workspace
from tasks.evaluate import read_figures, slice_columns, split_ids
from tasks.train import TrainedModel, tell_training
from tasks.watch import Watch

if TYPE_CHECKING:
    from ratchet.evaluation.predictions import Predictions
    from ratchet.evaluation.verdict import RuleResult, Verdict
    from ratchet.registry.gate import ChampionRows
    from ratchet.registry.models import ModelRegistry, Version
    from ratchet.registry.runs import Run
    from ratchet.training import ModelSpec

__all__ = ["Registration", "register"]

_ANSWERED_ROWS = 256
_TOLERANCE = 1e-5  # of probabilities: a batch of another size may round differently


@dataclass(frozen=True)
class Registration:
    """What became of the model."""

    passed: bool
    words: str  # the verdict
    model: str
    version: str | None  # None: refused
    aliases: tuple[str, ...]
    run_id: str
    provenance: str

    @classmethod
    def load(cls, workspace: Workspace) -> "Registration":
        """What stands in data/registration.json."""
        content = files.read_json(workspace.registration)
        return cls(**{**content, "aliases": tuple(content["aliases"])})


def register(params: Params, workspace: Workspace, *, watch: Watch, flow_run: str | None = None) -> Registration:
    """Judge the model and register it if it passes; report, figures and verdict go to MLflow either way.

    Can be killed anywhere and run again: the MLflow run, its model and its version are found again by their tags.

    Raises:
        TrackingAway: MLflow does not answer; training and evaluation are kept, only this stage is left to do.
    """
    from ratchet.registry.models import ModelRegistry
    from ratchet.registry.runs import Run

    trained, manifest = TrainedModel.load(workspace), Manifest.read(workspace.packed)
    steps = 5
    run = Run(workspace, params, trained.key)
    _retell(run, params, workspace, manifest, flow_run=flow_run)
    run_id = run.send()
    watch.progress(1, steps, "MLflow has the training")

    registry = ModelRegistry(workspace, params)
    with tempfile.TemporaryDirectory() as folder:
        model_uri = registry.log_model(run_id, *_calibrated(workspace, Path(folder)))
    watch.progress(2, steps, "the model is stored")
    name = manifest.name if params.registry.model == "auto" else params.registry.model
    verdict = _judge(registry, name, run_id, model_uri, params, workspace)
    watch.progress(3, steps, "judged")

    record = _provenance(registry, name, run, workspace, run_id)
    _report(verdict, record, params, workspace, manifest)
    _tell_outcome(registry, run, run_id, verdict, workspace)
    _keep_provenance(registry, name, run, run_id, record, workspace)
    watch.progress(4, steps, "reported")
    version = _enter(registry, name, run_id, model_uri, verdict, record, params) if verdict.passed else None
    result = Registration(
        passed=verdict.passed,
        words=verdict.words,
        model=name,
        version=version.number if version else None,
        aliases=version.aliases if version else (),
        run_id=run_id,
        provenance=record["id"],
    )
    run.journal.close()
    files.write_json(workspace.registration, asdict(result))
    watch.progress(5, steps, "done")
    return result


def _retell(run: "Run", params: Params, workspace: Workspace, manifest: Manifest, *, flow_run: str | None) -> None:
    """Give a training that DVC brought from its cache, and this workspace never ran, its place in MLflow too."""
    if run.journal.is_empty:
        tell_training(run, params, workspace, manifest, flow_run=flow_run)
        for epoch in files.read_json(workspace.model / "history.json"):
            values = {name: value for name, value in epoch.items() if name not in ("epoch", "step")}
            run.metrics(values, step=int(epoch["epoch"]))
        run.status("FINISHED")
    numbers = files.read_json(workspace.reports / "metrics.json")
    # The bounds have a group of their own: among the figures they would triple the charts.
    bounds = {name for name in numbers if name.endswith(("_low", "_high"))}
    run.metrics(
        {f"{'test interval' if name in bounds else 'test'}/{name}": value for name, value in numbers.items()}, step=0
    )


def _calibrated(workspace: Workspace, folder: Path) -> "tuple[Path, ModelSpec]":
    """The folder of the model to store: one that answers as evaluation had it answer."""
    from ratchet.training import load_model, save_model

    model, spec = load_model(workspace.model)
    measured = files.read_json(workspace.reports / "metrics.json")
    if measured["temperature"] == 1.0 and not measured["flip_average"]:
        return workspace.model, spec
    model.temperature.fill_(measured["temperature"])
    spec = replace(spec, flip_average=bool(measured["flip_average"]))
    save_model(
        folder,
        model.state_dict(),
        spec,
        about={"training": files.read_json(workspace.model / "model.json")["training"]},
    )
    return folder, spec


def _judge(
    registry: "ModelRegistry", name: str, run_id: str, model_uri: str, params: Params, workspace: Workspace
) -> "Verdict":
    from ratchet.evaluation.predictions import read_predictions
    from ratchet.evaluation.verdict import Verdict
    from ratchet.registry.gate import CandidateFigures, judge

    judged = registry.verdict_of(name, run_id)
    if judged is not None:  # registered already, then cut off: compared with itself it would fail
        return Verdict.from_json(judged)
    predictions = read_predictions(workspace.reports / "predictions.parquet")
    manifest = Manifest.read(workspace.packed)
    candidate = CandidateFigures(
        accuracy=read_figures(workspace).accuracy,
        ids=predictions.ids,
        correct=predictions.correct,
        classes=predictions.classes,
        input_shape=(manifest.height, manifest.width, manifest.channels),
        parts=slice_columns(workspace, params.evaluation),
    )
    champion = _champion_rows(registry, name, workspace)
    answers = _answers(registry, model_uri, predictions, workspace)
    return judge(candidate, champion, params.gate, params.evaluation, answers=answers, seed=params.seed)


def _champion_rows(registry: "ModelRegistry", name: str, workspace: Workspace) -> "ChampionRows | None":
    """The champion, loaded and asked the very rows the candidate was."""
    import numpy as np

    from ratchet.registry.gate import ChampionRows
    from ratchet.training import Split, load_model, predict_logits

    with tempfile.TemporaryDirectory() as folder:
        champion = registry.champion(name, Path(folder))
        if champion is None:
            return None
        model, spec = load_model(champion.folder)
    test = Split.open(workspace.packed, "test")
    shape = (spec.height, spec.width, spec.channels)
    packed = Manifest.read(workspace.packed)
    fits = (packed.height, packed.width, packed.channels) == shape and packed.dtype == spec.dtype
    logits = predict_logits(model, test) if fits else None
    return ChampionRows(
        name=f"{name} version {champion.version.number}",
        ids=split_ids(workspace, "test"),
        correct=logits.argmax(1) == test.labels if logits is not None else np.zeros(len(test), np.bool_),
        classes=spec.classes,
        input_shape=shape,
    )


def _answers(
    registry: "ModelRegistry", model_uri: str, predictions: "Predictions", workspace: Workspace
) -> "RuleResult":
    """Load the model as MLflow's users will and compare its answers with the evaluation's."""
    import numpy as np
    import torch

    from ratchet.evaluation.calibration import log_softmax
    from ratchet.registry.gate import answers_rule
    from ratchet.training import Split

    served = registry.load(model_uri)
    rows = np.arange(min(_ANSWERED_ROWS, len(predictions.ids)))
    images, _ = Split.open(workspace.packed, "test").batch(rows, torch.device("cpu"))
    answered = served.predict(images.permute(0, 2, 3, 1).numpy())
    measured = np.exp(log_softmax(predictions.logits[rows]))
    difference = float(np.abs(answered - measured).max())
    return answers_rule(rows=len(rows), largest_difference=difference, tolerance=_TOLERANCE)


def _provenance(registry: "ModelRegistry", name: str, run: "Run", workspace: Workspace, run_id: str) -> dict[str, Any]:
    """The record made when the training began, with what is known only now; of a registered one the record it has."""
    from ratchet import provenance

    known = registry.record_of(name, run_id)
    return known or provenance.finished(run.journal.folder, workspace, mlflow_run=run_id, training=run.key)


def _report(
    verdict: "Verdict", record: dict[str, Any], params: Params, workspace: Workspace, manifest: Manifest
) -> None:
    from ratchet.evaluation.predictions import read_predictions
    from ratchet.evaluation.report import Example, ReportContent, render
    from ratchet.training import Split

    predictions = read_predictions(workspace.reports / "predictions.parquet")
    worst = predictions.worst_errors()
    pictures = Split.open(workspace.packed, "test").gather(worst)
    examples = [
        Example(
            image=picture,
            id=predictions.ids[row],
            truth=predictions.classes[predictions.labels[row]],
            answer=predictions.classes[predictions.predicted[row]],
            confidence=float(predictions.probability[row]),
        )
        for row, picture in zip(worst, pictures, strict=True)
    ]
    page = render(
        ReportContent(
            title=f"{manifest.name}, {params.model.called}",
            verdict=verdict,
            figures=read_figures(workspace),
            history=files.read_json(workspace.model / "history.json"),
            examples=examples,
            manifest=_data_words(manifest, workspace),
            settings=params.model_dump(mode="json", exclude={"platform", "tracking"}),
            lineage=record,
        )
    )
    files.write_text(workspace.report, page)
    files.write_json(workspace.reports / "provenance.json", record)


def _data_words(manifest: Manifest, workspace: Workspace) -> dict[str, Any]:
    """What the report says of the data: figures a person reads, not files and digests."""
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


def _tell_outcome(registry: "ModelRegistry", run: "Run", run_id: str, verdict: "Verdict", workspace: Workspace) -> None:
    run.tags({"ratchet.gate": "passed" if verdict.passed else "refused", "mlflow.note.content": verdict.words})
    run.send()
    registry.log_files(
        run_id,
        {
            workspace.report: "report",
            workspace.reports / "figures.json": "report",
            workspace.reports / "confusion.png": "report",
            workspace.reports / "predictions.parquet": "report",
            workspace.packed / "profile.json": "data",
            **({workspace.card: "data"} if workspace.card.exists() else {}),  # not where DVC brought the data
            **dict.fromkeys((run.journal.folder / "profile").glob("*"), "profile"),
        },
    )


def _keep_provenance(
    registry: "ModelRegistry", name: str, run: "Run", run_id: str, record: dict[str, Any], workspace: Workspace
) -> None:
    """Store what a rebuild needs, and tag the run with its record; once there is a version the files stay its own."""
    from ratchet.registry.records import record_tags

    if registry.version_of(name, run_id) is None:
        kept = [workspace.reports / "provenance.json", run.journal.folder / "uncommitted.patch", workspace.params]
        lock = workspace.root / "dvc.lock"
        registry.log_files(run_id, dict.fromkeys([*kept, *([lock] if lock.exists() else [])], "provenance"))
    run.tags(record_tags(record))
    run.send()


def _enter(
    registry: "ModelRegistry",
    name: str,
    run_id: str,
    model_uri: str,
    verdict: "Verdict",
    record: dict[str, Any],
    params: Params,
) -> "Version":
    import json

    from ratchet.registry.records import record_tags

    tags = {
        "ratchet.verdict": json.dumps(verdict.to_json()),
        **record_tags(record),
    }
    version = registry.register(name, run_id, model_uri, tags=tags, description=verdict.words)
    return registry.promote(version) if params.registry.promotion == "automatic" else version


if __name__ == "__main__":
    from tasks.command import run as run_stage

    run_stage(register, unit="steps")
