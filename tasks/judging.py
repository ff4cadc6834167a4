"""The model and the champion side by side on the same rows: what the gate's rules are held against."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet import files
from ratchet.data.manifest import Manifest
from ratchet.errors import ChampionMoved
from ratchet.params import Params
from ratchet.workspace import Workspace
from tasks.evaluate import read_figures, slice_columns, split_ids

if TYPE_CHECKING:
    from ratchet.evaluation.latency import Costs
    from ratchet.evaluation.predictions import Predictions
    from ratchet.evaluation.verdict import RuleResult, Verdict
    from ratchet.registry.gate import ChampionRows
    from ratchet.registry.models import ModelRegistry
    from ratchet.serving.program import NotExported, Parity
    from ratchet.training import Classifier, Split

__all__ = ["judge_model"]

_ANSWERED_ROWS = 256
_TIMED_ROWS = 64  # of the batch that both models are timed on
_TOLERANCE = 1e-5  # of probabilities: a batch of another size may round differently


def judge_model(
    registry: "ModelRegistry", name: str, model_uri: str, params: Params, workspace: Workspace, *, over: str | None
) -> "Verdict":
    """Hold the gate's rules against the model at `model_uri`, as stored, beside the champion of `name`, version `over`.

    Raises:
        ChampionMoved: another version is champion by now.
        RegistryError: the champion's files, or the model's, cannot be read.
    """
    from ratchet.evaluation.predictions import read_predictions
    from ratchet.registry.gate import CandidateFigures, judge

    predictions = read_predictions(workspace.reports / "predictions.parquet")
    manifest = Manifest.read(workspace.packed)
    figures = read_figures(workspace)
    answers, exported = _answers(registry, model_uri, predictions, workspace)
    candidate = CandidateFigures(
        accuracy=figures.accuracy,
        ids=predictions.ids,
        correct=predictions.correct,
        classes=predictions.classes,
        input_shape=(manifest.height, manifest.width, manifest.channels),
        calibration_error=figures.ece,
        parts=slice_columns(workspace, params.evaluation),
        exported=exported,
    )
    timed = bool(params.gate.latency_factor or params.gate.size_factor)
    champion = _champion_rows(registry, name, workspace, over, timed=timed)
    return judge(candidate, champion, params.gate, params.evaluation, answers=answers, seed=params.seed)


def _champion_rows(
    registry: "ModelRegistry", name: str, workspace: Workspace, over: str | None, *, timed: bool
) -> "ChampionRows | None":
    """The champion, loaded and asked the very rows the candidate was; `timed`: what both cost is measured, too."""
    import numpy as np

    from ratchet.registry.gate import ChampionRows
    from ratchet.training import load_model, open_split, predict_logits

    with tempfile.TemporaryDirectory() as folder:
        champion = registry.champion(name, Path(folder))
        found = champion.version.number if champion else None
        if found != over:
            raise ChampionMoved(f"{name}: version {found} became champion meanwhile")
        if champion is None:
            return None
        model, spec = load_model(champion.folder)
    test = open_split(workspace.packed, "test")
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
        costs=_costs(model, test, workspace) if fits and timed else None,
    )


def _costs(champion: "Classifier", test: "Split", workspace: Workspace) -> "Costs":
    """What the new model's answers cost and what the champion's do, both as they would be served."""
    import numpy as np
    import torch

    from ratchet.evaluation.latency import compare
    from ratchet.training import load_model

    model, _ = load_model(workspace.model)
    model.flip_average = bool(files.read_json(workspace.reports / "metrics.json")["flip_average"])
    images, _ = test.batch(np.arange(min(_TIMED_ROWS, len(test))), torch.device("cpu"))
    return compare(model, champion.to("cpu").eval(), images)


def _answers(
    registry: "ModelRegistry", model_uri: str, predictions: "Predictions", workspace: Workspace
) -> "tuple[RuleResult, Parity | NotExported | None]":
    """Load the model as MLflow's users will, compare its answers with the evaluation's, and its program's with its."""
    import numpy as np
    import torch

    from ratchet.evaluation.calibration import log_softmax
    from ratchet.registry.gate import answers_rule
    from ratchet.serving import program
    from ratchet.training import open_split

    rows = np.arange(min(_ANSWERED_ROWS, len(predictions.ids)))
    images, _ = open_split(workspace.packed, "test").batch(rows, torch.device("cpu"))
    pixels = images.permute(0, 2, 3, 1).numpy()
    with registry.opened(model_uri) as (served, folder):
        answered = served.predict(pixels)
        exported = program.compare(folder, pixels, answered)
    measured = np.exp(log_softmax(predictions.logits[rows]))
    difference = float(np.abs(answered - measured).max())
    return answers_rule(rows=len(rows), largest_difference=difference, tolerance=_TOLERANCE), exported
