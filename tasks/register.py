"""register: the model and its figures -> a verdict, and if it passes a registered version. A refusal is a result."""

import json
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet import files
from ratchet.data.manifest import Manifest
from ratchet.settings.model import Params
from ratchet.workspace import Workspace
from tasks.gate_inputs import judge_model
from tasks.model_card import attach_card
from tasks.progress import Watch
from tasks.report import write_report
from tasks.train import TrainedModel, tell_training

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
_ROUNDS = 5  # times that another model may become champion while this one is judged


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
    ledger: dict[str, Any] | None = None  # the ledger's head then: dvc.lock has the hash of this file, Git has dvc.lock

    @classmethod
    def load(cls, workspace: Workspace) -> "Registration":
        """What stands in data/registration.json."""
        content = files.read_json(workspace.registration)
        return cls(**{**content, "aliases": tuple(content["aliases"])})


def register(params: Params, workspace: Workspace, *, watch: Watch, flow_run: str | None = None) -> Registration:
    """Judge the model and register it if it passes; report, figures and verdict go to MLflow either way.

    Can be killed anywhere and run again: the MLflow run, its model and its version are found again by their tags, and
    what the ledger already holds is finished. Should another model become champion meanwhile, it is judged again.

    Raises:
        TrackingAway: MLflow does not answer; training and evaluation are kept, only this stage is left to do.
        NotAllowed: this user may not register.
    """
    from ratchet.registry.access import require, user
    from ratchet.registry.promotion import Promotions
    from ratchet.registry.runs import Run

    trained, manifest = TrainedModel.load(workspace), Manifest.read(workspace.packed)
    name = manifest.name if params.registry.model == "auto" else params.registry.model
    require(params.access, "runners", user(), f"register {name}")
    run = Run(workspace, params, trained.key)
    _retell(run, params, workspace, manifest, flow_run=flow_run)
    run_id = run.send()
    watch.progress(1, _STEPS, "MLflow has the training")

    succession = Promotions(workspace, params, name)
    with tempfile.TemporaryDirectory() as folder:
        model_uri = succession.registry.log_model(run_id, *_calibrated(workspace, Path(folder)))
    watch.progress(2, _STEPS, "the model is stored")
    candidate = _Candidate(run, run_id, model_uri, _provenance(succession.registry, run, workspace, run_id))
    result = _decide_in_peace(candidate, succession, params, workspace, watch)
    run.journal.close()
    if head := succession.ledger.head:
        result = replace(result, ledger=head.to_json())
    files.write_json(workspace.registration, asdict(result))
    watch.progress(_STEPS, _STEPS, "done")
    return result


@dataclass(frozen=True)
class _Candidate:
    """The model that asks to be let in, as MLflow has it."""

    run: "Run"
    run_id: str
    model_uri: str
    record: "Provenance"


def _decide_in_peace(
    candidate: _Candidate, succession: "Promotions", params: Params, workspace: Workspace, watch: Watch
) -> Registration:
    """Decide, and again as often as another model becomes champion meanwhile."""
    from ratchet.errors import ChampionMoved

    for _ in range(_ROUNDS):
        try:
            return _decide(candidate, succession, params, workspace, watch)
        except ChampionMoved as error:
            watch.say(f"{error}: it is judged again, against that one")
    raise ChampionMoved(f"{succession.name}: others become champion without a pause: run the same again")


def _decide(
    candidate: _Candidate, succession: "Promotions", params: Params, workspace: Workspace, watch: Watch
) -> Registration:
    """Judge against the champion that there is now, tell the outcome, and enter the model or not."""
    registry, name = succession.registry, succession.name
    over = succession.synchronize().champion
    known = registry.version_of(name, candidate.run_id)
    verdict = _standing_verdict(succession, known, over, _rules(params))
    if verdict is None:
        verdict = judge_model(succession, candidate.run_id, candidate.model_uri, params, workspace, over=over)
    watch.progress(3, _STEPS, "judged")
    write_report(verdict, candidate.record, params, workspace)
    _tell_outcome(registry, candidate, verdict, workspace)
    _keep_provenance(registry, candidate, workspace)
    watch.progress(4, _STEPS, "reported")
    version = _enter(candidate, succession, verdict, over, params, workspace) if verdict.passed or known else None
    return Registration(
        passed=verdict.passed,
        words=verdict.words,
        model=name,
        version=version.number if version else None,
        aliases=version.aliases if version else (),
        run_id=candidate.run_id,
        provenance=candidate.record.id,
    )


def _enter(
    candidate: _Candidate,
    succession: "Promotions",
    verdict: "Verdict",
    over: str | None,
    params: Params,
    workspace: Workspace,
) -> "Version | None":
    """Make the model a version with the alias that is its due; one that is a version already may lose it."""
    from ratchet.registry.provenance_record import record_tags
    from ratchet.registry.statement import write_statement

    tags = {"ratchet.verdict": json.dumps(verdict.to_json()), **record_tags(candidate.record)}
    registry = succession.registry
    version = registry.add_version(succession.name, candidate.run_id, candidate.model_uri, tags=tags)
    journal = candidate.run.journal
    attach_card(registry, version, verdict, candidate.record, journal=journal, params=params, workspace=workspace)
    write_statement(registry, version, files.read_json(workspace.reports / "metrics.json"))
    if not verdict.passed:
        succession.withdraw(version, why=verdict.words, over=over, rules=_rules(params))
    else:
        succession.register(version, why=verdict.words, over=over, rules=_rules(params))
        if params.registry.promotion == "automatic":
            succession.promote_automatically(version, over=over)
    return registry.version_of(succession.name, candidate.run_id)


def _rules(params: Params) -> str:
    """The digest of what the gate judges by."""
    return files.digest_json(params.model_dump(mode="json", include={"gate", "evaluation"}))


def _standing_verdict(
    succession: "Promotions", version: "Version | None", over: str | None, rules: str
) -> "Verdict | None":
    """The verdict that the version was let in by, while it still counts: compared with itself it would fail.

    It counts for the champion, and for a version that was compared with the champion that there is now, by the same
    rules; and only if it is the one that the ledger speaks of.
    """
    from ratchet.gate.verdict import Verdict

    last = succession.last_judgement(version) if version else None
    if version is None or last is None or not last["passed"]:
        return None
    if version.number != over and (last["over"], last["rules"]) != (over, rules):
        return None
    tag = succession.registry.verdict_tag(version)
    return Verdict.from_json(json.loads(tag)) if tag and files.digest_json(tag) == last["evidence"]["verdict"] else None


def _retell(run: "Run", params: Params, workspace: Workspace, manifest: Manifest, *, flow_run: str | None) -> None:
    """Give a training that DVC brought from its cache, and this workspace never ran, its place in MLflow too."""
    from ratchet.registry.statement import evaluation_metrics

    if run.journal.is_empty:
        tell_training(run, params, workspace, manifest, flow_run=flow_run)
        for epoch in files.read_json(workspace.model / "history.json"):
            values = {name: value for name, value in epoch.items() if name not in ("epoch", "step")}
            run.metrics(values, step=int(epoch["epoch"]))
        run.status("FINISHED")
    numbers = files.read_json(workspace.reports / "metrics.json")
    run.measured(evaluation_metrics(numbers))


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


def _provenance(registry: "ModelRegistry", run: "Run", workspace: Workspace, run_id: str) -> "Provenance":
    """The record made when the training began, with what is known only now; of a registered one the record it has."""
    from ratchet.provenance.record import finish_record

    known = registry.provenance_of(run_id)
    return known or finish_record(run.journal.folder, workspace, mlflow_run=run_id, training=run.key)


def _tell_outcome(registry: "ModelRegistry", candidate: _Candidate, verdict: "Verdict", workspace: Workspace) -> None:
    run = candidate.run
    run.tags({"ratchet.gate": "passed" if verdict.passed else "refused", "mlflow.note.content": verdict.words})
    run.send()
    registry.log_files(
        candidate.run_id,
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


def _keep_provenance(registry: "ModelRegistry", candidate: _Candidate, workspace: Workspace) -> None:
    """Store what a rebuild needs, and which samples the model saw, and tag the run with its record.

    Once there is a version the files stay its own.
    """
    from ratchet.registry.provenance_record import record_tags
    from ratchet.registry.samples import TRAINING_SAMPLES, split_samples, write_samples

    run = candidate.run
    if registry.provenance_of(candidate.run_id) is None:
        kept = [workspace.reports / "provenance.json", run.journal.folder / "uncommitted.patch", workspace.params]
        lock = workspace.root / "dvc.lock"
        with tempfile.TemporaryDirectory() as folder:
            seen = Path(folder, TRAINING_SAMPLES)
            write_samples(seen, split_samples(workspace.packed, "train", "validation"))
            wanted = [*kept, seen, *([lock] if lock.exists() else [])]
            registry.log_files(candidate.run_id, dict.fromkeys(wanted, "provenance"))
    run.tags(record_tags(candidate.record))
    run.send()


if __name__ == "__main__":
    from tasks.stage_runner import run as run_stage

    run_stage(register, unit="steps")
