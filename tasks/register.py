"""register: judge the evaluated model, and register it if it passes the gate. A refusal is a result, not an error."""

import json
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet import files, git
from ratchet.data.manifest import Manifest
from ratchet.errors import ChampionMoved
from ratchet.settings.model import Params
from ratchet.typed_json import from_plain, parse, to_plain
from ratchet.workspace import Workspace
from tasks.calibrated_model import calibrated
from tasks.gate_inputs import judge_model, parent_warning, samples_seen
from tasks.progress import StageProgress
from tasks.report import write_report
from tasks.trained_model import TrainedModel, record_training, run_name
from tasks.write_model_card import CardWriter

if TYPE_CHECKING:
    from ratchet.gate.verdict import Verdict
    from ratchet.kinds import ModelSpec
    from ratchet.registry.promotion import Promotions
    from ratchet.registry.provenance_record import Provenance
    from ratchet.registry.runs import Run
    from ratchet.registry.versions import Version

__all__ = ["Registration", "register", "result_tags"]

_STEPS = 5
_ATTEMPTS = 5  # judgements, if another model becomes champion meanwhile


@dataclass(frozen=True)
class Registration:
    """Result of the stage, in data/registration.json."""

    passed: bool
    summary: str  # one line, with the reason of each failed rule
    verdict: "Verdict"
    model: str  # registered name
    version: str | None  # None: refused
    aliases: tuple[str, ...]  # of the version
    run_id: str  # of the MLflow run
    provenance: str  # id of the record
    ledger: dict[str, Any] | None = None  # its head at that time. dvc.lock has this file's hash, and Git has dvc.lock
    is_new: bool = False  # this run of the stage registered it. Not stored: a later run reads the file

    @classmethod
    def load(cls, workspace: Workspace) -> "Registration":
        from ratchet.gate.verdict import Verdict

        content = files.read_json(workspace.registration)
        content |= {"aliases": tuple(content["aliases"]), "verdict": from_plain(Verdict, content["verdict"])}
        return cls(**content)

    def save(self, workspace: Workspace) -> None:
        content = {**vars(self), "verdict": to_plain(self.verdict)}
        del content["is_new"]
        files.write_json(workspace.registration, content)


def register(
    params: Params, workspace: Workspace, *, progress: StageProgress, flow_run: str | None = None
) -> Registration:
    """Judge the model and register it if it passes. Report, metrics and verdict go to MLflow in either case.

    The stage can be killed at any time and run again: it finds the MLflow run, its model and its version by their tags,
    and completes what the ledger already has. If another model becomes champion meanwhile, the model is judged again.
    Once the ledger has the version, only the ledger takes a later judgement: the version's files and run stay.

    Raises:
        TrackingUnavailable: MLflow does not answer. Training and evaluation are kept; only this stage runs again.
        NotAllowed: this user may not register models.
    """
    from ratchet.registry.access import require, user
    from ratchet.registry.alias_sync import require_agreement
    from ratchet.registry.names import registered_name
    from ratchet.registry.promotion import Promotions

    name = registered_name(params, workspace)
    require(params.access, "runners", user(), f"register {name}")
    require_agreement(workspace, params)  # before the model is exported and stored
    promotions = Promotions(workspace, params, name)
    candidate = _Candidate.store(params, workspace, progress, promotions, flow_run=flow_run)
    was_registered = candidate.run.is_closed
    result = replace(candidate.decide(), is_new=not was_registered)
    if result.version:
        candidate.run.journal.seal(candidate.weights)
        candidate.keep_commit()
    candidate.run.journal.close()
    if head := promotions.ledger.head:
        result = replace(result, ledger=head.to_json())
    result.save(workspace)
    progress.update(_STEPS, _STEPS, "done")
    return result


def result_tags(workspace: Workspace, verdict: "Verdict") -> dict[str, str]:
    """Return name and description of the MLflow run, and the columns of its table: headline metric and verdict."""
    from ratchet.evaluation.problems import read_metrics
    from ratchet.evaluation.wording import trivial_text, value_text
    from ratchet.gate.verdict_text import message
    from ratchet.registry.runs import NAME

    metrics, doubts = read_metrics(workspace.reports), [rule.name for rule in verdict.doubts]
    headline, trivial = metrics.headline, f"; {trivial_text(metrics.constant)}" if metrics.constant else ""
    gate, value = "passed" if verdict.passed else "refused", value_text(headline)
    data, model = Manifest.read(workspace.packed).name, TrainedModel.load(workspace).name
    return {
        NAME: run_name(data, model, f"{value} {gate}{' in doubt' if verdict.passed and doubts else ''}"),
        "ratchet.result": f"{headline.name} {value}{trivial}",
        "ratchet.gate": f"{gate}; not shown: {', '.join(doubts)}" if verdict.passed and doubts else gate,
        "mlflow.note.content": message(verdict),
    }


@dataclass(frozen=True)
class _Candidate:
    """The model that is judged, in MLflow."""

    params: Params
    workspace: Workspace
    progress: StageProgress
    promotions: "Promotions"
    run: "Run"
    run_id: str
    model_uri: str
    record: "Provenance"
    weights: str  # SHA-256 (hex) of model.safetensors

    @classmethod
    def store(
        cls,
        params: Params,
        workspace: Workspace,
        progress: StageProgress,
        promotions: "Promotions",
        *,
        flow_run: str | None,
    ) -> "_Candidate":
        """Store the trained model and its training in MLflow, as far as they are not there."""
        from ratchet.provenance.record import finish_record

        trained, registry = TrainedModel.load(workspace), promotions.registry
        weights = files.digest_file(workspace.model / "model.safetensors")
        run = _open_run(promotions, trained.key, weights)
        _complete_run(run, trained, params, workspace, flow_run=flow_run)
        run_id = run.send()
        progress.update(1, _STEPS, "the training is in MLflow")
        with calibrated(workspace) as (folder, spec):
            beside = _stored_beside(workspace, spec)
            model_uri = registry.log_model(run_id, folder, spec, exported=workspace.variants, beside=beside)
        progress.update(2, _STEPS, "the model is stored")
        record = registry.provenance_of(run_id)  # of a registered model; else the one begun with the training
        record = record or finish_record(run.journal.folder, workspace, mlflow_run=run_id, training=run.key)
        return cls(params, workspace, progress, promotions, run, run_id, model_uri, record, weights)

    def decide(self) -> Registration:
        """Judge and register, and again if another model becomes champion meanwhile."""
        for _ in range(_ATTEMPTS):
            try:
                return self._decide_once()
            except ChampionMoved as error:
                self.progress.say(f"{error}. Judging again, against the new champion")
        raise ChampionMoved(
            f"{self.promotions.name}: the champion changed {_ATTEMPTS} times during the judgement. Fix: run the same "
            "command again"
        )

    def _decide_once(self) -> Registration:
        from ratchet.gate.verdict_text import message

        promotions = self.promotions
        over = promotions.synchronize().champion
        version = promotions.registry.version_of(promotions.name, self.run_id)
        self.run.is_closed = _is_sealed(promotions, self.run)  # perhaps by the judgement before
        verdict = self._valid_verdict(version, over) if version else None
        if verdict is not None and version is not None and version.number == over:
            self.progress.say(f"{promotions.name} version {over} is the champion: it keeps the verdict it passed with")
        if verdict is None:
            verdict = judge_model(promotions, self.run_id, self.model_uri, self.params, self.workspace, over=over)
        self.progress.update(3, _STEPS, "judged")
        if warning := parent_warning(self.workspace, self.params):
            self.progress.say(f"warning: {warning}")
        write_report(verdict, self.record, self.params, self.workspace)
        if not self.run.is_closed:
            self._record_outcome(verdict)
            self._store_provenance()
        self.progress.update(4, _STEPS, "reported")
        version = self._enter(verdict, over) if verdict.passed or version else None
        return Registration(
            passed=verdict.passed,
            summary=message(verdict),
            verdict=verdict,
            model=promotions.name,
            version=version.number if version else None,
            aliases=version.aliases if version else (),
            run_id=self.run_id,
            provenance=self.record.id,
        )

    def keep_commit(self) -> None:
        """Let git keep the commit that `ratchet reproduce` needs."""
        try:
            if self.record.git_commit:
                git.keep(self.workspace.root, self.record.git_commit)
        except git.GitError as error:
            self.progress.say(f"the commit of this version may be deleted when no branch has it any more: {error}")

    @property
    def _rules(self) -> str:
        """Digest of the settings that the gate uses."""
        return files.digest_json(self.params.model_dump(mode="json", include={"gate", "evaluation"}))

    def _valid_verdict(self, version: "Version", over: str | None) -> "Verdict | None":
        """Return the verdict that the version passed with, if it is still valid. Compared with itself it would fail.

        It is valid for the champion, and for a version that was compared with the current champion by the same rules;
        and only if it is the verdict that the ledger recorded.
        """
        from ratchet.gate.verdict import Verdict

        last = self.promotions.last_judgement(version)
        if last is None or not last["passed"]:
            return None
        if version.number != over and (last["over"], last["rules"]) != (over, self._rules):
            return None
        tag = version.tags.get("ratchet.verdict")
        recorded = tag and files.digest_json(tag) == last["evidence"]["verdict"]
        return parse(Verdict, tag) if tag and recorded else None

    def _record_outcome(self, verdict: "Verdict") -> None:
        """Write the verdict and the reports to the MLflow run."""
        workspace = self.workspace
        self.run.tags(result_tags(workspace, verdict))
        self.run.send()
        reports = [workspace.reports / name for name in ("evaluation.json", "predictions.parquet")]
        cards = [workspace.card] if workspace.card.exists() else []  # DVC restores the data without it
        self.promotions.registry.log_files(
            self.run_id,
            {
                **dict.fromkeys([workspace.report, *reports], "report"),
                **dict.fromkeys([workspace.packed / "profile.json", *cards], "data"),
                **dict.fromkeys((self.run.journal.folder / "profile").glob("*"), "profile"),
            },
        )

    def _store_provenance(self) -> None:
        """Store the files that a rebuild needs and the samples that the model saw, and tag the run with its record.

        Files that are already stored are not replaced.
        """
        from ratchet.registry.provenance_record import record_tags
        from ratchet.registry.sample_digests import TRAINING_SAMPLES, write_samples

        registry, workspace = self.promotions.registry, self.workspace
        if registry.provenance_of(self.run_id) is None:
            patch, lock = self.run.journal.folder / "uncommitted.patch", workspace.root / "dvc.lock"
            with tempfile.TemporaryDirectory() as folder:
                names = (TRAINING_SAMPLES, "params.yaml", "settings.json")
                seen, params, completed = (Path(folder, name) for name in names)
                as_read = workspace.settings_as_read  # the file may have been edited since
                shutil.copyfile(as_read if as_read.exists() else workspace.params, params)
                files.write_json(completed, self.params.model_dump(mode="json"))
                write_samples(seen, samples_seen(workspace, self.params))
                wanted = [workspace.reports / "provenance.json", patch, params, completed, seen]
                wanted += [lock] if lock.exists() else []
                registry.log_files(self.run_id, dict.fromkeys(wanted, "provenance"))
        self.run.tags(record_tags(self.record))
        if self.record.code_changes:
            self.run.tags({"ratchet.code_changes": "; ".join(map(str, self.record.code_changes))})
        self.run.send()

    def _enter(self, verdict: "Verdict", over: str | None) -> "Version | None":
        """Make the model a version with the alias that it earned. An existing version may lose its alias."""
        from ratchet.gate.verdict_text import message
        from ratchet.registry.provenance_record import record_tags
        from ratchet.registry.statement import write_statement

        promotions, params, workspace = self.promotions, self.params, self.workspace
        registry, record = promotions.registry, self.record
        tags = {"ratchet.verdict": json.dumps(to_plain(verdict)), **record_tags(record)}
        version = registry.add_version(promotions.name, self.run_id, self.model_uri, tags=tags)
        if not self.run.is_closed:
            CardWriter(registry, version, verdict, record, self.run.journal, params, workspace).write()
            write_statement(registry, version, files.read_json(workspace.reports / "metrics.json"))
        enter = promotions.register if verdict.passed else promotions.withdraw
        enter(version, why=message(verdict), over=over, rules=self._rules)
        if verdict.passed and params.registry.promotion == "automatic":
            promotions.promote_automatically(version, over=over)
        return registry.version_of(promotions.name, self.run_id)


def _open_run(promotions: "Promotions", key: str, weights: str) -> "Run":
    """Open the run of a training, closed if the ledger has sealed it.

    A run is one version of one model. Other weights of equal settings, and another registered name, get a new run.
    """
    from ratchet.registry.runs import Run

    workspace, params, registry = promotions.registry.workspace, promotions.params, promotions.registry
    run = Run(workspace, params, key)
    first = run.journal
    is_same = first.sealed in (None, weights)
    if not is_same or (first.run_id and registry.models_of(first.run_id) - {promotions.name}):
        first.close()
        folder = first.folder.with_name(f"{key}-{files.digest_json([promotions.name, weights])[:6]}")
        run = Run(workspace, params, key, folder=folder)
        for name in ("provenance.json", "uncommitted.patch") if is_same and run.journal.is_empty else ():
            shutil.copy2(first.folder / name, folder)
    run.is_closed = _is_sealed(promotions, run)
    return run


def _stored_beside(workspace: Workspace, spec: "ModelSpec") -> dict[str, object]:
    """Return what is stored with the model: the bins of its test rows, and the calibration of what it may add."""
    from ratchet.evaluation.coverage import served
    from ratchet.evaluation.predictions import read_predictions
    from ratchet.evaluation.problems import read_metrics
    from ratchet.monitoring.reference import reference_of_test_rows
    from ratchet.monitoring.sketch import REFERENCE
    from ratchet.problems.abstention import ABSTENTION
    from ratchet.problems.named_answers import named_answers
    from ratchet.problems.novelty import NOVELTY, Novelty
    from ratchet.problems.regions import CALIBRATION

    reference = reference_of_test_rows(workspace.packed, workspace.reports / "predictions.parquet", spec)
    metrics = read_metrics(workspace.reports)
    coverage, abstention = metrics.coverage, metrics.abstention
    beside: dict[str, object] = {REFERENCE: reference, CALIBRATION: coverage and coverage.calibration}
    beside[ABSTENTION] = abstention and abstention.thresholds
    if named_answers(spec.target).has_confidence:
        test = read_predictions(workspace.reports / "predictions.parquet")
        beside[NOVELTY] = Novelty.of(served(test.target, test.outputs))
    return {name: value for name, value in beside.items() if value is not None}


def _is_sealed(promotions: "Promotions", run: "Run") -> bool:
    """Return whether the ledger has the run's version, with the digests of its files."""
    run_id = run.journal.run_id
    version = promotions.registry.version_of(promotions.name, run_id) if run_id else None
    return version is not None and promotions.recorded_evidence(version) is not None


def _complete_run(
    run: "Run", trained: TrainedModel, params: Params, workspace: Workspace, *, flow_run: str | None
) -> None:
    """Record a training in MLflow that DVC restored from its cache and that never ran in this workspace."""
    from ratchet.registry.statement import evaluation_metrics

    if run.journal.is_empty:
        record_training(run, params, workspace, flow_run=flow_run, code_changes=trained.code_changes)
        for epoch in files.read_json(workspace.model / "history.json"):
            values = {name: value for name, value in epoch.items() if name not in ("epoch", "step")}
            run.metrics(values, step=int(epoch["epoch"]))
        run.status("FINISHED")
    run.measured(evaluation_metrics(files.read_json(workspace.reports / "metrics.json")))


if __name__ == "__main__":
    from tasks.stage_runner import run as run_stage

    run_stage(register, unit="steps")
