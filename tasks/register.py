"""register: judge the evaluated model, and register it if it passes the gate. A refusal is a result, not an error."""

import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet import files
from ratchet.data.manifest import Manifest
from ratchet.settings.model import Params
from ratchet.typed_json import from_plain, parse, to_plain
from ratchet.workspace import Workspace
from tasks.gate_inputs import judge_model
from tasks.model_card import attach_card
from tasks.progress import Watch
from tasks.report import write_report
from tasks.trained_model import TrainedModel, record_training

if TYPE_CHECKING:
    from ratchet.gate.verdict import Verdict
    from ratchet.registry.models import ModelRegistry
    from ratchet.registry.promotion import Promotions
    from ratchet.registry.provenance_record import Provenance
    from ratchet.registry.runs import Run
    from ratchet.registry.versions import Version
    from ratchet.training import ModelSpec

__all__ = ["Registration", "register"]

_STEPS = 5
_ATTEMPTS = 5  # judgements, if another model becomes champion meanwhile


@dataclass(frozen=True)
class Registration:
    """Result of the stage.

    Attributes:
        passed: the gate passed the model.
        summary: one line, with the reason of each failed rule.
        verdict: of the gate.
        model: registered name.
        version: registered version; None: refused.
        aliases: of the version.
        run_id: of the MLflow run.
        provenance: id of the provenance record.
        ledger: the ledger's head at that time. dvc.lock has the hash of this file, and Git has dvc.lock.
    """

    passed: bool
    summary: str
    verdict: "Verdict"
    model: str
    version: str | None
    aliases: tuple[str, ...]
    run_id: str
    provenance: str
    ledger: dict[str, Any] | None = None

    @classmethod
    def load(cls, workspace: Workspace) -> "Registration":
        """Read data/registration.json."""
        from ratchet.gate.verdict import Verdict

        content = files.read_json(workspace.registration)
        content |= {"aliases": tuple(content["aliases"]), "verdict": from_plain(Verdict, content["verdict"])}
        return cls(**content)

    def save(self, workspace: Workspace) -> None:
        """Write data/registration.json."""
        files.write_json(workspace.registration, {**vars(self), "verdict": to_plain(self.verdict)})


def register(params: Params, workspace: Workspace, *, watch: Watch, flow_run: str | None = None) -> Registration:
    """Judge the model and register it if it passes. Report, metrics and verdict go to MLflow in either case.

    The stage can be killed at any time and run again: it finds the MLflow run, its model and its version by their tags,
    and completes what the ledger already has. If another model becomes champion meanwhile, the model is judged again.

    Raises:
        TrackingUnavailable: MLflow does not answer. Training and evaluation are kept; only this stage runs again.
        NotAllowed: this user may not register models.
    """
    from ratchet.registry.access import require, user
    from ratchet.registry.promotion import Promotions
    from ratchet.registry.runs import Run

    trained, manifest = TrainedModel.load(workspace), Manifest.read(workspace.packed)
    name = manifest.name if params.registry.model == "auto" else params.registry.model
    require(params.access, "runners", user(), f"register {name}")
    run = Run(workspace, params, trained.key)
    _complete_run(run, params, workspace, manifest, flow_run=flow_run)
    run_id = run.send()
    watch.progress(1, _STEPS, "the training is in MLflow")

    promotions = Promotions(workspace, params, name)
    with tempfile.TemporaryDirectory() as folder:
        model_uri = promotions.registry.log_model(run_id, *_calibrated(workspace, Path(folder)))
    watch.progress(2, _STEPS, "the model is stored")
    candidate = _Candidate(run, run_id, model_uri, _provenance(promotions.registry, run, workspace, run_id))
    result = _decide_with_retries(candidate, promotions, params, workspace, watch)
    run.journal.close()
    if head := promotions.ledger.head:
        result = replace(result, ledger=head.to_json())
    result.save(workspace)
    watch.progress(_STEPS, _STEPS, "done")
    return result


@dataclass(frozen=True)
class _Candidate:
    """The model that is judged, in MLflow."""

    run: "Run"
    run_id: str
    model_uri: str
    record: "Provenance"


def _decide_with_retries(
    candidate: _Candidate, promotions: "Promotions", params: Params, workspace: Workspace, watch: Watch
) -> Registration:
    """Decide, and decide again if another model becomes champion meanwhile."""
    from ratchet.errors import ChampionMoved

    for _ in range(_ATTEMPTS):
        try:
            return _decide(candidate, promotions, params, workspace, watch)
        except ChampionMoved as error:
            watch.say(f"{error}. Judging again, against the new champion")
    raise ChampionMoved(
        f"{promotions.name}: the champion changed {_ATTEMPTS} times during the judgement. Fix: run the same command "
        "again"
    )


def _decide(
    candidate: _Candidate, promotions: "Promotions", params: Params, workspace: Workspace, watch: Watch
) -> Registration:
    """Judge against the current champion, record the outcome, and register the model if it passed."""
    from ratchet.gate.text import message

    registry, name = promotions.registry, promotions.name
    over = promotions.synchronize().champion
    known = registry.version_of(name, candidate.run_id)
    verdict = _valid_verdict(promotions, known, over, _rules(params))
    if verdict is None:
        verdict = judge_model(promotions, candidate.run_id, candidate.model_uri, params, workspace, over=over)
    watch.progress(3, _STEPS, "judged")
    write_report(verdict, candidate.record, params, workspace)
    _record_outcome(registry, candidate, verdict, workspace)
    _store_provenance(registry, candidate, workspace)
    watch.progress(4, _STEPS, "reported")
    version = _enter(candidate, promotions, verdict, over, params, workspace) if verdict.passed or known else None
    return Registration(
        passed=verdict.passed,
        summary=message(verdict),
        verdict=verdict,
        model=name,
        version=version.number if version else None,
        aliases=version.aliases if version else (),
        run_id=candidate.run_id,
        provenance=candidate.record.id,
    )


def _enter(
    candidate: _Candidate,
    promotions: "Promotions",
    verdict: "Verdict",
    over: str | None,
    params: Params,
    workspace: Workspace,
) -> "Version | None":
    """Make the model a version with the alias that it earned. An existing version may lose its alias."""
    from ratchet.gate.text import message
    from ratchet.registry.provenance_record import record_tags
    from ratchet.registry.statement import write_statement

    tags = {"ratchet.verdict": json.dumps(to_plain(verdict)), **record_tags(candidate.record)}
    registry, why = promotions.registry, message(verdict)
    version = registry.add_version(promotions.name, candidate.run_id, candidate.model_uri, tags=tags)
    journal = candidate.run.journal
    attach_card(registry, version, verdict, candidate.record, journal=journal, params=params, workspace=workspace)
    write_statement(registry, version, files.read_json(workspace.reports / "metrics.json"))
    if not verdict.passed:
        promotions.withdraw(version, why=why, over=over, rules=_rules(params))
    else:
        promotions.register(version, why=why, over=over, rules=_rules(params))
        if params.registry.promotion == "automatic":
            promotions.promote_automatically(version, over=over)
    return registry.version_of(promotions.name, candidate.run_id)


def _rules(params: Params) -> str:
    """Return the digest of the settings that the gate uses."""
    return files.digest_json(params.model_dump(mode="json", include={"gate", "evaluation"}))


def _valid_verdict(
    promotions: "Promotions", version: "Version | None", over: str | None, rules: str
) -> "Verdict | None":
    """Return the verdict that the version passed with, if it is still valid. Compared with itself it would fail.

    It is valid for the champion, and for a version that was compared with the current champion by the same rules; and
    only if it is the verdict that the ledger recorded.
    """
    from ratchet.gate.verdict import Verdict

    last = promotions.last_judgement(version) if version else None
    if version is None or last is None or not last["passed"]:
        return None
    if version.number != over and (last["over"], last["rules"]) != (over, rules):
        return None
    tag = version.tags.get("ratchet.verdict")
    return parse(Verdict, tag) if tag and files.digest_json(tag) == last["evidence"]["verdict"] else None


def _complete_run(
    run: "Run", params: Params, workspace: Workspace, manifest: Manifest, *, flow_run: str | None
) -> None:
    """Record a training in MLflow that DVC restored from its cache and that never ran in this workspace."""
    from ratchet.registry.statement import evaluation_metrics

    if run.journal.is_empty:
        record_training(run, params, workspace, manifest, flow_run=flow_run)
        for epoch in files.read_json(workspace.model / "history.json"):
            values = {name: value for name, value in epoch.items() if name not in ("epoch", "step")}
            run.metrics(values, step=int(epoch["epoch"]))
        run.status("FINISHED")
    numbers = files.read_json(workspace.reports / "metrics.json")
    run.measured(evaluation_metrics(numbers))


def _calibrated(workspace: Workspace, folder: Path) -> "tuple[Path, ModelSpec]":
    """Return the folder and the spec of the model to store, with the temperature and flips of the evaluation."""
    from ratchet.training import load_model, save_model

    model, spec = load_model(workspace.model)
    metrics = files.read_json(workspace.reports / "metrics.json")
    if metrics["temperature"] == 1.0 and not metrics["flip_average"]:
        return workspace.model, spec
    model.temperature.fill_(metrics["temperature"])
    spec = replace(spec, flip_average=bool(metrics["flip_average"]))
    save_model(
        folder,
        model.state_dict(),
        spec,
        about={"training": files.read_json(workspace.model / "model.json")["training"]},
    )
    return folder, spec


def _provenance(registry: "ModelRegistry", run: "Run", workspace: Workspace, run_id: str) -> "Provenance":
    """Return the provenance record: of a registered model the stored one, else the one begun with the training."""
    from ratchet.provenance.record import finish_record

    known = registry.provenance_of(run_id)
    return known or finish_record(run.journal.folder, workspace, mlflow_run=run_id, training=run.key)


def _record_outcome(registry: "ModelRegistry", candidate: _Candidate, verdict: "Verdict", workspace: Workspace) -> None:
    """Write the verdict and the reports to the MLflow run."""
    from ratchet.gate.text import message

    run = candidate.run
    run.tags({"ratchet.gate": "passed" if verdict.passed else "refused", "mlflow.note.content": message(verdict)})
    run.send()
    registry.log_files(
        candidate.run_id,
        {
            workspace.report: "report",
            workspace.reports / "evaluation.json": "report",
            workspace.reports / "confusion.png": "report",
            workspace.reports / "predictions.parquet": "report",
            workspace.packed / "profile.json": "data",
            **({workspace.card: "data"} if workspace.card.exists() else {}),  # missing where DVC restored the data
            **dict.fromkeys((run.journal.folder / "profile").glob("*"), "profile"),
        },
    )


def _store_provenance(registry: "ModelRegistry", candidate: _Candidate, workspace: Workspace) -> None:
    """Store the files that a rebuild needs and the samples that the model saw, and tag the run with its record.

    Files that are already stored are not replaced.
    """
    from ratchet.registry.provenance_record import record_tags
    from ratchet.registry.samples import TRAINING_SAMPLES, split_samples, write_samples

    run = candidate.run
    if registry.provenance_of(candidate.run_id) is None:
        sources = [workspace.reports / "provenance.json", run.journal.folder / "uncommitted.patch", workspace.params]
        lock = workspace.root / "dvc.lock"
        with tempfile.TemporaryDirectory() as folder:
            seen = Path(folder, TRAINING_SAMPLES)
            write_samples(seen, split_samples(workspace.packed, "train", "validation"))
            wanted = [*sources, seen, *([lock] if lock.exists() else [])]
            registry.log_files(candidate.run_id, dict.fromkeys(wanted, "provenance"))
    run.tags(record_tags(candidate.record))
    run.send()


if __name__ == "__main__":
    from tasks.stage_runner import run as run_stage

    run_stage(register, unit="steps")
