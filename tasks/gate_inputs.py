"""Inputs of the gate: the model and the champion, measured on the same test images."""

import hashlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ratchet import files
from ratchet.counts import count_of
from ratchet.data.manifest import Manifest, split_ids
from ratchet.data.split import SPLITS
from ratchet.errors import ChampionMoved, DataError, RegistryError
from ratchet.kinds import Input
from ratchet.kinds.registry import kind_of
from ratchet.settings.model import Params
from ratchet.workspace import Workspace
from tasks.scratch_project import ScratchProject

if TYPE_CHECKING:
    from ratchet.evaluation.latency import Costs
    from ratchet.evaluation.predictions import Predictions
    from ratchet.exports.program import NotExported, Parity
    from ratchet.gate import Candidate, Champion
    from ratchet.gate.rules import ReloadResult
    from ratchet.gate.verdict import Verdict
    from ratchet.kinds import ModelSpec
    from ratchet.registry.promotion import Promotions
    from ratchet.registry.sample_digests import Samples
    from ratchet.training import Model, Split
    from tasks.champion_input import InputAdapter

__all__ = ["judge_model", "parent_warning", "samples_seen"]

_RELOADED_SAMPLES = 256  # that the stored model and its ONNX program answer
_PROMPTS, _GENERATED = 4, 32  # of a language model: prompts, and tokens of each answer
_TIMED_SAMPLES = 64  # in the batch that both models are timed on
_COMPARISON_SETTINGS = {"champion", "tolerance", "confidence", "classes", "minimum_rows"}
_TOLERANCE = 1e-5  # of probabilities: a batch of another size may round differently


def judge_model(
    promotions: "Promotions", run_id: str, model_uri: str, params: Params, workspace: Workspace, *, over: str | None
) -> "Verdict":
    """Apply the gate's rules to the stored model of a run, and record the try in the ledger.

    `over` is the version of the champion to compare with; None: there is none.

    Raises:
        ChampionMoved: another version has become champion.
        DataError: the predictions are not of the packed test images.
        RegistryError: the files of the champion or of the model cannot be read.
    """
    from ratchet.evaluation.predictions import read_predictions
    from ratchet.gate import Case, judge
    from ratchet.registry.sample_digests import split_samples
    from ratchet.registry.tries import TryKey

    path = workspace.reports / "predictions.parquet"
    predictions = read_predictions(path)
    if predictions.ids != split_ids(workspace.packed, "test"):
        raise DataError(f"{path}: its samples are not the test samples of data/packed. Fix: `dvc repro evaluate`")
    test_set = _TestSet(
        params, workspace, Manifest.read(workspace.packed), predictions, split_samples(workspace.packed, "test")
    )
    reloaded, exported = test_set.reload(promotions, model_uri)
    candidate, champion = test_set.candidate(exported), test_set.champion(promotions, over)
    gate, rows = params.gate, test_set.rows
    answers = hashlib.sha256(predictions.score.tobytes()).hexdigest()
    case, compared = Case(candidate, champion, gate, params.evaluation), np.zeros(len(rows), np.bool_)
    units = " ".join(units.digest(case.compared, len(rows)) for units in case.units)
    question = TryKey(run_id, over, answers, rows, gate.model_dump(include=_COMPARISON_SETTINGS), units)
    compared[case.compared] = True
    return promotions.decide(
        question,
        compared,
        lambda tries: judge(
            candidate, champion, gate, params.evaluation, reloaded=reloaded, tries=tries, seed=params.seed
        ),
    )


def samples_seen(workspace: Workspace, params: Params) -> "Samples":
    """Return the samples that a model was trained and selected on; with those of its parent, if they are known.

    Raises:
        RegistryError: the record of the parent's samples is not the one that was registered.
    """
    from ratchet.registry.sample_digests import split_samples

    own, others = split_samples(workspace.packed, "train", "validation"), _samples_of_parent(workspace, params)
    return own if others is None else own.joined(others)


def parent_warning(workspace: Workspace, params: Params) -> str | None:
    """Return a warning if the parent learned from test samples, or may have; None: it did not, or there is none.

    Preflight measures nothing, and its MLflow does not have the parent.
    """
    from ratchet.registry.parents import parent_of
    from ratchet.registry.sample_digests import split_samples

    if (parent := parent_of(workspace, params)) is None or isinstance(workspace, ScratchProject):
        return None
    if (others := _samples_of_parent(workspace, params)) is None:
        return (
            f"the samples that {parent} learned from are not recorded. If test samples are among them, the metrics are "
            "too good"
        )
    test = split_samples(workspace.packed, "test")
    if not (seen := np.count_nonzero(test.are_in(others))):
        return None
    return (
        f"{parent} learned from {seen:,} of {count_of(len(test), 'test sample')}, so the metrics are "
        "too good. The comparison with the champion leaves these out. Fix: use the splits of that version"
    )


def _samples_of_parent(workspace: Workspace, params: Params) -> "Samples | None":
    """Return the samples that the parent was trained and selected on; None: no parent, or MLflow has no record."""
    from ratchet.registry.alias_sync import AliasSync
    from ratchet.registry.parents import parent_of
    from ratchet.registry.versions import Versions

    if (parent := parent_of(workspace, params)) is None:
        return None
    try:
        version = Versions(workspace, params).find(parent)
    except RegistryError:  # it was deleted; the training that continued it is complete
        return None
    with tempfile.TemporaryDirectory() as folder:
        return AliasSync(workspace, params, version.name).training_samples(version, Path(folder))


@dataclass(frozen=True)
class _TestSet:
    """The test images, and the candidate's answers to them as the stage evaluate recorded them."""

    params: Params
    workspace: Workspace
    manifest: Manifest
    predictions: "Predictions"
    rows: "Samples"

    @cached_property
    def model_input(self) -> Input:
        """Input of the candidate."""
        from ratchet.kinds import ModelSpec

        return ModelSpec.from_json(files.read_json(self.workspace.model / "model.json")["spec"]).input

    def reload(self, promotions: "Promotions", model_uri: str) -> "tuple[ReloadResult, Parity | NotExported | None]":
        """Load the model as MLflow's users do; compare it with the evaluation, and its ONNX program with it."""
        from ratchet.exports import program
        from ratchet.gate import reload_rule

        target = self.predictions.target
        kind = kind_of(self.model_input)
        if kind.generates:
            return self._reload_language_model(promotions, model_uri)
        rows = np.arange(min(_RELOADED_SAMPLES, len(self.rows)))
        raw = kind.samples(self._open(self.model_input), rows, self.manifest.input)
        with promotions.registry.opened(model_uri) as (served, folder):
            answers: NDArray[np.float32] = np.asarray(served.predict(raw))
            exported = program.compare(folder, kind.decode(raw, self.model_input), answers, target)
        evaluated = target.predictions(self.predictions.outputs[rows])
        difference = target.largest_difference(answers, evaluated)
        return reload_rule(images=len(rows), largest_difference=difference, tolerance=_TOLERANCE), exported

    def _reload_language_model(
        self, promotions: "Promotions", model_uri: str
    ) -> "tuple[ReloadResult, Parity | NotExported | None]":
        """Compare texts that the stored model generates with the model's own, and its ONNX program's probabilities.

        The difference is the share of the texts that are not the same.
        """
        import torch

        from ratchet.exports import program
        from ratchet.gate import reload_rule
        from ratchet.tokens.token_ids import decode, tokens
        from ratchet.training import load_model
        from ratchet.training.generate import Generator, Sampling

        model, spec = load_model(self.workspace.model)
        stream, split = spec.stream, self._open(spec.input)
        (ids,), _ = split.batch(np.arange(min(_PROMPTS, len(split))), torch.device("cpu"))
        unknown = None if stream.tokenizer == "bytes" else tokens(stream) - 1
        classes = [
            list(takewhile(lambda token: token != unknown, part.tolist()))
            for part in ids[:, : max(1, stream.context // 2)]
        ]
        prompts = [decode(part or [0], stream) for part in classes]
        with torch.inference_mode():
            probabilities = spec.target.served(model(ids)).numpy()
        with promotions.registry.opened(model_uri) as (served, folder):
            generated: NDArray[np.object_] = np.asarray(served.predict(prompts, {"max_tokens": _GENERATED})).ravel()
            exported = program.compare(folder, (ids.numpy(),), probabilities, spec.target)
        expected = Generator(model, spec.input).texts(prompts, Sampling(max_tokens=_GENERATED))
        different = float(np.mean([ours != theirs for ours, theirs in zip(expected, generated, strict=True)]))
        return reload_rule(images=len(prompts), largest_difference=different, tolerance=_TOLERANCE), exported

    def candidate(self, exported: "Parity | NotExported | None") -> "Candidate":
        from ratchet.evaluation.problems import read_metrics
        from ratchet.evaluation.slices import slice_columns
        from ratchet.gate import Candidate
        from tasks.champion_input import finite_score

        metrics, manifest = read_metrics(self.workspace.reports), self.manifest
        ece = metrics.named().get("ece")
        return Candidate(
            score=finite_score(self.predictions.score, self.predictions.outputs),
            unit=self.predictions.answers.unit,
            metrics=metrics.named(),
            default_metric=metrics.default_metric,
            target=self.predictions.target,
            labels=self.predictions.targets if self.predictions.target.classes else None,
            kind=manifest.input.kind,
            input_shape=manifest.input.shape,
            calibration_error=ece.interval if ece else None,
            baseline=metrics.baseline,
            constant=metrics.constant,
            slices=slice_columns(self.workspace.packed, self.params.evaluation),
            exported=exported,
            saw=self.rows.are_in(samples_seen(self.workspace, self.params)),
            units=self.rows.units,
        )

    def champion(self, promotions: "Promotions", over: str | None) -> "Champion | None":
        """Measure the champion on the candidate's test images; time both models if a rule needs it."""
        from ratchet.gate import Champion
        from ratchet.training import load_model
        from tasks.champion_input import InputAdapter, comparable, finite_score, score_as

        name = promotions.name
        with tempfile.TemporaryDirectory() as folder:
            champion = promotions.registry.champion(name, Path(folder))
            version = champion.version.number if champion else None
            if version != over:
                raise ChampionMoved(f"{name}: version {version} became champion meanwhile")
            if champion is None:
                return None
            model, spec = load_model(champion.folder)
            seen = promotions.training_samples(champion.version, Path(folder))
            same_weights = self._is_candidate(model, spec)
        target, adapter = self.predictions.target, InputAdapter(self.model_input, spec.input)
        saw, unknown = self._seen(seen, adapter) if seen else (None, "")
        score, costs = np.zeros(len(self.rows)), None
        if comparable(target, spec.target) and not adapter.mismatch:
            test = self._open(spec.input)
            predictions = self._with_thresholds(lambda split: adapter.outputs(model, split), spec)
            outputs = adapter.outputs(model, test)
            score = finite_score(score_as(predictions, outputs, spec.target), outputs)
            costs = self._costs(model, test, adapter)
        return Champion(
            name=f"{name} version {version}",
            score=score,
            target=spec.target,
            input_shape=spec.input.shape,
            costs=costs,
            saw=saw,
            unknown=unknown,
            mismatch=adapter.mismatch,
            same_weights=same_weights,
        )

    def _seen(self, seen: "Samples", adapter: "InputAdapter") -> "tuple[NDArray[np.bool_] | None, str]":
        """Return which rows the champion was trained on, or why they cannot be recognised."""
        from ratchet.registry.sample_digests import split_samples, with_packed

        by_group = self.rows.have_groups and seen.have_groups
        if by_group or self.manifest.input.row_identity == adapter.wanted.row_identity:
            return self.rows.are_in(seen), ""
        if (digests := adapter.packed_digests(self._open(adapter.packed))) is not None:
            return with_packed(self.rows, digests).are_in(seen), ""
        if split_samples(self.workspace.packed, *SPLITS).are_in(seen).any():
            return self.rows.are_in(seen), ""
        return None, "it was trained with other code of data.kind"

    def _is_candidate(self, model: "Model", spec: "ModelSpec") -> bool:
        """Return whether a stored model is the candidate, bit for bit. Its temperature changes no answer."""
        import torch

        from ratchet.training import code_digests, load_model

        ours, our_spec = load_model(self.workspace.model)
        flips = bool(files.read_json(self.workspace.reports / "metrics.json")["flip_average"])
        if replace(our_spec, flip_average=flips).identity != spec.identity:
            return False
        weights, others = ours.state_dict(), model.state_dict()
        return code_digests(our_spec) == code_digests(spec) and all(
            name == "temperature" or (name in others and torch.equal(weights[name], others[name])) for name in weights
        )

    def _with_thresholds(self, outputs: "Callable[[Split], NDArray[np.float32]]", spec: "ModelSpec") -> "Predictions":
        """Return the predictions with the champion's thresholds: of labels, each model has its own."""
        from ratchet.evaluation.problems import in_terms_of, thresholds_for

        target = self.predictions.target
        if not self.predictions.answers.own_thresholds:
            return self.predictions
        held_out = self._open(spec.input, "validation")
        thresholds = thresholds_for(
            target,
            self.params.evaluation,
            lambda: (in_terms_of(target, outputs(held_out), spec.target), np.asarray(held_out.targets)),
        )
        return replace(self.predictions, thresholds=thresholds)

    def _costs(self, champion: "Model", test: "Split", adapter: "InputAdapter") -> "Costs | None":
        """Measure latency and size of both models, as they would be served."""
        import torch

        from ratchet.evaluation.latency import compare
        from ratchet.training import load_model

        gate = self.params.gate
        if not (gate.latency_factor or gate.size_factor):
            return None
        model, _ = load_model(self.workspace.model)
        model.flip_average = bool(files.read_json(self.workspace.reports / "metrics.json")["flip_average"])
        rows, cpu = np.arange(min(_TIMED_SAMPLES, len(test))), torch.device("cpu")
        inputs, _ = self._open(self.model_input).batch(rows, cpu)
        theirs = adapter.inputs(test.batch(rows, cpu)[0])
        champion = champion.to("cpu").eval()
        return compare(model, champion, inputs, champion_inputs=theirs, limit=gate.latency_factor)

    def _open(self, input_spec: Input, split: str = "test") -> "Split":
        """Open the samples of a split as a model with this input reads them."""
        from ratchet.training import open_split

        return open_split(self.workspace.packed, split, input_spec)
