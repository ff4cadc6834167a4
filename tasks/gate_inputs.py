"""The model and the champion side by side on the same rows: what the gate's rules are held against."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet import files
from ratchet.data.manifest import Manifest
from ratchet.errors import ChampionMoved
from ratchet.settings.model import Params
from ratchet.workspace import Workspace
from tasks.evaluate import read_figures, slice_columns, split_ids

if TYPE_CHECKING:
    from ratchet.evaluation.latency import Costs
    from ratchet.evaluation.predictions import Predictions
    from ratchet.gate import ChampionRows
    from ratchet.gate.verdict import RuleResult, Verdict
    from ratchet.registry.models import ModelRegistry
    from ratchet.registry.promotion import Promotions
    from ratchet.registry.samples import Samples
    from ratchet.serving.program import NotExported, Parity
    from ratchet.training import Classifier, Split
    from tasks.champion_input import Fitted

__all__ = ["judge_model"]

_ANSWERED_ROWS = 256
_TIMED_ROWS = 64  # of the batch that both models are timed on
_COMPARED_BY = {"champion", "tolerance", "confidence", "classes", "minimum_rows", "reserved_fraction"}  # of the gate
_TOLERANCE = 1e-5  # of probabilities: a batch of another size may round differently


def judge_model(
    succession: "Promotions", run_id: str, model_uri: str, params: Params, workspace: Workspace, *, over: str | None
) -> "Verdict":
    """Hold the gate's rules against the model at `model_uri`, as stored, beside the champion, version `over`.

    The try is entered in the ledger.

    Raises:
        ChampionMoved: another version is champion by now.
        RegistryError: the champion's files, or the model's, cannot be read.
    """
    from hashlib import sha256

    import numpy as np

    from ratchet.evaluation.predictions import read_predictions
    from ratchet.gate import CandidateFigures, Case, judge
    from ratchet.registry.samples import split_samples
    from ratchet.registry.tries import Question

    predictions = read_predictions(workspace.reports / "predictions.parquet")
    manifest = Manifest.read(workspace.packed)
    figures = read_figures(workspace)
    answers, exported = _answers(succession.registry, model_uri, predictions, workspace)
    rows = split_samples(workspace.packed, "test")
    candidate = CandidateFigures(
        accuracy=figures.accuracy,
        ids=predictions.ids,
        labels=predictions.labels,
        correct=predictions.correct,
        classes=predictions.classes,
        input_shape=(manifest.height, manifest.width, manifest.channels),
        calibration_error=figures.ece,
        parts=slice_columns(workspace, params.evaluation),
        exported=exported,
        saw=rows.are_in(split_samples(workspace.packed, "train", "validation")),
        uniform=rows.uniform,
    )
    champion = _champion_rows(succession, predictions, rows, params, workspace, over)
    gate, evaluation = params.gate, params.evaluation
    question = Question(
        run=run_id,
        over=over,
        answers=sha256(predictions.correct.tobytes()).hexdigest(),
        rows=rows,
        settings=gate.model_dump(include=_COMPARED_BY),
    )
    compared = np.zeros(len(rows), np.bool_)
    compared[Case(candidate, champion, gate, evaluation).compared] = True
    return succession.decide(
        question,
        compared,
        lambda tries: judge(candidate, champion, gate, evaluation, answers=answers, tries=tries, seed=params.seed),
        reserved=gate.reserved_fraction,
    )


def _champion_rows(
    succession: "Promotions",
    predictions: "Predictions",
    rows: "Samples",
    params: Params,
    workspace: Workspace,
    over: str | None,
) -> "ChampionRows | None":
    """The champion, loaded and asked the rows that the candidate was asked; where a rule wants it, both are timed."""
    import numpy as np

    from ratchet.gate import ChampionRows
    from ratchet.training import load_model, open_split
    from tasks.champion_input import Fitted, answers_right

    registry, name = succession.registry, succession.name
    with tempfile.TemporaryDirectory() as folder:
        champion = registry.champion(name, Path(folder))
        found = champion.version.number if champion else None
        if found != over:
            raise ChampionMoved(f"{name}: version {found} became champion meanwhile")
        if champion is None:
            return None
        model, spec = load_model(champion.folder)
        seen = succession.training_samples(champion.version, Path(folder))
    test, packed = open_split(workspace.packed, "test"), Manifest.read(workspace.packed)
    fit = Fitted.of(spec, packed)
    classes = predictions.classes
    shared = bool(set(classes) & set(spec.classes))
    timed = bool(params.gate.latency_factor or params.gate.size_factor)
    can_answer = shared and not fit.unable
    return ChampionRows(
        name=f"{name} version {champion.version.number}",
        ids=split_ids(workspace, "test"),
        correct=(
            answers_right(fit.logits(model, test), predictions.labels, classes=classes, known=spec.classes)
            if can_answer
            else np.zeros(len(test), np.bool_)
        ),
        classes=spec.classes,
        input_shape=(spec.height, spec.width, spec.channels),
        costs=_costs(model, test, fit, params, workspace) if can_answer and timed else None,
        saw=None if seen is None else rows.are_in(seen),
        unable=fit.unable,
    )


def _costs(champion: "Classifier", test: "Split", fit: "Fitted", params: Params, workspace: Workspace) -> "Costs":
    """What the new model's answers cost and what the champion's do, both as they would be served."""
    import numpy as np
    import torch

    from ratchet.evaluation.latency import compare
    from ratchet.training import load_model

    model, _ = load_model(workspace.model)
    model.flip_average = bool(files.read_json(workspace.reports / "metrics.json")["flip_average"])
    images, _ = test.batch(np.arange(min(_TIMED_ROWS, len(test))), torch.device("cpu"))
    return compare(
        model,
        champion.to("cpu").eval(),
        images,
        champion_images=fit.images(images),
        limit=params.gate.latency_factor,
    )


def _answers(
    registry: "ModelRegistry", model_uri: str, predictions: "Predictions", workspace: Workspace
) -> "tuple[RuleResult, Parity | NotExported | None]":
    """Load the model as MLflow's users will, compare its answers with the evaluation's, and its program's with its."""
    import numpy as np
    import torch

    from ratchet.data.depth import raw_values
    from ratchet.evaluation.calibration import log_softmax
    from ratchet.gate import answers_rule
    from ratchet.serving import program
    from ratchet.training import open_split

    rows = np.arange(min(_ANSWERED_ROWS, len(predictions.ids)))
    images, _ = open_split(workspace.packed, "test").batch(rows, torch.device("cpu"))
    pixels = images.permute(0, 2, 3, 1).numpy()
    depth = Manifest.read(workspace.packed).depth
    if depth is not None:
        pixels = raw_values(pixels, depth)  # what a client of the served model has
    with registry.opened(model_uri) as (served, folder):
        answered = served.predict(pixels)
        exported = program.compare(folder, pixels, answered)
    measured = np.exp(log_softmax(predictions.logits[rows]))
    difference = float(np.abs(answered - measured).max())
    return answers_rule(rows=len(rows), largest_difference=difference, tolerance=_TOLERANCE), exported
