"""Inputs of the gate: the model and the champion, measured on the same test images."""

import hashlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ratchet import files
from ratchet.data.manifest import Manifest, split_ids
from ratchet.errors import ChampionMoved, DataError
from ratchet.settings.model import Params
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from ratchet.evaluation.latency import Costs
    from ratchet.evaluation.predictions import Predictions
    from ratchet.gate import Candidate, Champion
    from ratchet.gate.verdict import ReloadResult, Verdict
    from ratchet.registry.promotion import Promotions
    from ratchet.registry.samples import Samples
    from ratchet.serving.program import NotExported, Parity
    from ratchet.training import Classifier, Split
    from tasks.champion_input import InputAdapter

__all__ = ["judge_model"]

_RELOADED_IMAGES = 256  # that the stored model and its ONNX program answer
_TIMED_IMAGES = 64  # in the batch that both models are timed on
_COMPARISON_SETTINGS = {"champion", "tolerance", "confidence", "classes", "minimum_rows", "reserved_fraction"}
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
    from ratchet.registry.samples import split_samples
    from ratchet.registry.tries import Question

    path = workspace.reports / "predictions.parquet"
    predictions = read_predictions(path)
    if predictions.ids != split_ids(workspace.packed, "test"):
        raise DataError(f"{path}: its images are not the test images of data/packed. Fix: `dvc repro evaluate`")
    test_set = _TestSet(
        params, workspace, Manifest.read(workspace.packed), predictions, split_samples(workspace.packed, "test")
    )
    reloaded, exported = test_set.reload(promotions, model_uri)
    candidate, champion = test_set.candidate(exported), test_set.champion(promotions, over)
    gate, rows = params.gate, test_set.rows
    answers = hashlib.sha256(predictions.score.tobytes()).hexdigest()
    question = Question(run_id, over, answers, rows, gate.model_dump(include=_COMPARISON_SETTINGS))
    compared = np.zeros(len(rows), np.bool_)
    compared[Case(candidate, champion, gate, params.evaluation).compared] = True
    return promotions.decide(
        question,
        compared,
        lambda tries: judge(
            candidate, champion, gate, params.evaluation, reloaded=reloaded, tries=tries, seed=params.seed
        ),
        reserved=gate.reserved_fraction,
    )


@dataclass(frozen=True)
class _TestSet:
    """The test images, and the candidate's answers to them as the stage evaluate recorded them."""

    params: Params
    workspace: Workspace
    manifest: Manifest
    predictions: "Predictions"
    rows: "Samples"

    def reload(self, promotions: "Promotions", model_uri: str) -> "tuple[ReloadResult, Parity | NotExported | None]":
        """Load the model as MLflow's users do; compare it with the evaluation, and its ONNX program with it."""
        import torch

        from ratchet.data.depth import raw_values
        from ratchet.evaluation.calibration import log_softmax
        from ratchet.gate import reload_rule
        from ratchet.serving import program

        rows = np.arange(min(_RELOADED_IMAGES, len(self.rows)))
        images, _ = self._open().batch(rows, torch.device("cpu"))
        pixels = images.permute(0, 2, 3, 1).numpy()
        if self.manifest.depth is not None:
            pixels = raw_values(pixels, self.manifest.depth)  # as a client of the served model sends them
        with promotions.registry.opened(model_uri) as (served, folder):
            probabilities = served.predict(pixels)
            exported = program.compare(folder, pixels, probabilities)
        evaluated = np.exp(log_softmax(self.predictions.logits[rows]))
        difference = float(np.abs(probabilities - evaluated).max())
        return reload_rule(images=len(rows), largest_difference=difference, tolerance=_TOLERANCE), exported

    def candidate(self, exported: "Parity | NotExported | None") -> "Candidate":
        from ratchet.evaluation.metrics import read_metrics
        from ratchet.evaluation.slices import slice_columns
        from ratchet.gate import Candidate
        from ratchet.registry.samples import split_samples

        metrics, manifest = read_metrics(self.workspace.reports), self.manifest
        return Candidate(
            accuracy=metrics.accuracy,
            score=self.predictions.score,
            labels=self.predictions.labels,
            classes=self.predictions.classes,
            input_shape=(manifest.height, manifest.width, manifest.channels),
            calibration_error=metrics.ece,
            slices=slice_columns(self.workspace.packed, self.params.evaluation),
            exported=exported,
            saw=self.rows.are_in(split_samples(self.workspace.packed, "train", "validation")),
            uniform=self.rows.uniform,
        )

    def champion(self, promotions: "Promotions", over: str | None) -> "Champion | None":
        """Measure the champion on the candidate's test images; time both models if a rule needs it."""
        from ratchet.gate import Champion
        from ratchet.training import load_model
        from tasks.champion_input import InputAdapter, right_answers

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
        test, classes = self._open(), self.predictions.classes
        adapter = InputAdapter.of(spec, self.manifest)
        score, costs = np.zeros(len(test)), None
        if set(classes) & set(spec.classes) and not adapter.mismatch:
            logits = adapter.logits(model, test)
            score = right_answers(logits, self.predictions.labels, classes=classes, known=spec.classes)
            costs = self._costs(model, test, adapter)
        return Champion(
            name=f"{name} version {version}",
            score=score,
            classes=spec.classes,
            input_shape=(spec.height, spec.width, spec.channels),
            costs=costs,
            saw=None if seen is None else self.rows.are_in(seen),
            mismatch=adapter.mismatch,
        )

    def _costs(self, champion: "Classifier", test: "Split", adapter: "InputAdapter") -> "Costs | None":
        """Measure latency and size of both models, as they would be served."""
        import torch

        from ratchet.evaluation.latency import compare
        from ratchet.training import load_model

        gate = self.params.gate
        if not (gate.latency_factor or gate.size_factor):
            return None
        model, _ = load_model(self.workspace.model)
        model.flip_average = bool(files.read_json(self.workspace.reports / "metrics.json")["flip_average"])
        images, _ = test.batch(np.arange(min(_TIMED_IMAGES, len(test))), torch.device("cpu"))
        return compare(
            model,
            champion.to("cpu").eval(),
            images,
            champion_images=adapter.images(images),
            limit=gate.latency_factor,
        )

    def _open(self) -> "Split":
        from ratchet.training import open_split

        return open_split(self.workspace.packed, "test")
