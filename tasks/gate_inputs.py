"""Inputs of the gate: the model and the champion, measured on the same test images."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

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
    from ratchet.registry.models import ModelRegistry
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
    """Apply the gate's rules to the stored model, and record the try in the ledger.

    Args:
        promotions: of the registered model.
        run_id: MLflow run of the model.
        model_uri: stored model.
        params: settings.
        workspace: project.
        over: version of the champion to compare with; None: there is none.

    Raises:
        ChampionMoved: another version has become champion.
        DataError: the predictions are not of the packed test images.
        RegistryError: the files of the champion or of the model cannot be read.
    """
    from hashlib import sha256

    import numpy as np

    from ratchet.evaluation.predictions import read_predictions
    from ratchet.gate import Case, judge
    from ratchet.registry.samples import split_samples
    from ratchet.registry.tries import Question

    path = workspace.reports / "predictions.parquet"
    predictions = read_predictions(path)
    if predictions.ids != split_ids(workspace.packed, "test"):
        raise DataError(f"{path}: its images are not the test images of data/packed. Fix: `dvc repro evaluate`")
    reloaded, exported = _reload(promotions.registry, model_uri, predictions, workspace)
    rows = split_samples(workspace.packed, "test")
    candidate = _candidate(predictions, rows, exported, params, workspace)
    champion = _measure_champion(promotions, predictions, rows, params, workspace, over)
    gate, evaluation = params.gate, params.evaluation
    question = Question(
        run=run_id,
        over=over,
        answers=sha256(predictions.score.tobytes()).hexdigest(),
        rows=rows,
        settings=gate.model_dump(include=_COMPARISON_SETTINGS),
    )
    compared = np.zeros(len(rows), np.bool_)
    compared[Case(candidate, champion, gate, evaluation).compared] = True
    return promotions.decide(
        question,
        compared,
        lambda tries: judge(candidate, champion, gate, evaluation, reloaded=reloaded, tries=tries, seed=params.seed),
        reserved=gate.reserved_fraction,
    )


def _candidate(
    predictions: "Predictions",
    rows: "Samples",
    exported: "Parity | NotExported | None",
    params: Params,
    workspace: Workspace,
) -> "Candidate":
    """Return the candidate as the stage evaluate measured it."""
    from ratchet.evaluation.metrics import read_metrics
    from ratchet.evaluation.slices import slice_columns
    from ratchet.gate import Candidate
    from ratchet.registry.samples import split_samples

    manifest, metrics = Manifest.read(workspace.packed), read_metrics(workspace.reports)
    return Candidate(
        accuracy=metrics.accuracy,
        score=predictions.score,
        labels=predictions.labels,
        classes=predictions.classes,
        input_shape=(manifest.height, manifest.width, manifest.channels),
        calibration_error=metrics.ece,
        slices=slice_columns(workspace.packed, params.evaluation),
        exported=exported,
        saw=rows.are_in(split_samples(workspace.packed, "train", "validation")),
        uniform=rows.uniform,
    )


def _measure_champion(
    promotions: "Promotions",
    predictions: "Predictions",
    rows: "Samples",
    params: Params,
    workspace: Workspace,
    over: str | None,
) -> "Champion | None":
    """Load the champion and measure it on the candidate's test images; time both models if a rule needs it."""
    import numpy as np

    from ratchet.gate import Champion
    from ratchet.training import load_model, open_split
    from tasks.champion_input import InputAdapter, right_answers

    registry, name = promotions.registry, promotions.name
    with tempfile.TemporaryDirectory() as folder:
        champion = registry.champion(name, Path(folder))
        version = champion.version.number if champion else None
        if version != over:
            raise ChampionMoved(f"{name}: version {version} became champion meanwhile")
        if champion is None:
            return None
        model, spec = load_model(champion.folder)
        seen = promotions.training_samples(champion.version, Path(folder))
    test, packed = open_split(workspace.packed, "test"), Manifest.read(workspace.packed)
    adapter = InputAdapter.of(spec, packed)
    classes = predictions.classes
    can_answer = bool(set(classes) & set(spec.classes)) and not adapter.mismatch
    timed = bool(params.gate.latency_factor or params.gate.size_factor)
    score = np.zeros(len(test))
    if can_answer:
        logits = adapter.logits(model, test)
        score = right_answers(logits, predictions.labels, classes=classes, known=spec.classes)
    return Champion(
        name=f"{name} version {champion.version.number}",
        score=score,
        classes=spec.classes,
        input_shape=(spec.height, spec.width, spec.channels),
        costs=_costs(model, test, adapter, params, workspace) if can_answer and timed else None,
        saw=None if seen is None else rows.are_in(seen),
        mismatch=adapter.mismatch,
    )


def _costs(
    champion: "Classifier", test: "Split", adapter: "InputAdapter", params: Params, workspace: Workspace
) -> "Costs":
    """Measure latency and size of both models, as they would be served."""
    import numpy as np
    import torch

    from ratchet.evaluation.latency import compare
    from ratchet.training import load_model

    model, _ = load_model(workspace.model)
    model.flip_average = bool(files.read_json(workspace.reports / "metrics.json")["flip_average"])
    images, _ = test.batch(np.arange(min(_TIMED_IMAGES, len(test))), torch.device("cpu"))
    return compare(
        model,
        champion.to("cpu").eval(),
        images,
        champion_images=adapter.images(images),
        limit=params.gate.latency_factor,
    )


def _reload(
    registry: "ModelRegistry", model_uri: str, predictions: "Predictions", workspace: Workspace
) -> "tuple[ReloadResult, Parity | NotExported | None]":
    """Load the model as MLflow's users do; compare it with the evaluation, and its ONNX program with it."""
    import numpy as np
    import torch

    from ratchet.data.depth import raw_values
    from ratchet.evaluation.calibration import log_softmax
    from ratchet.gate import reload_rule
    from ratchet.serving import program
    from ratchet.training import open_split

    rows = np.arange(min(_RELOADED_IMAGES, len(predictions.ids)))
    images, _ = open_split(workspace.packed, "test").batch(rows, torch.device("cpu"))
    pixels = images.permute(0, 2, 3, 1).numpy()
    depth = Manifest.read(workspace.packed).depth
    if depth is not None:
        pixels = raw_values(pixels, depth)  # as a client of the served model sends them
    with registry.opened(model_uri) as (served, folder):
        probabilities = served.predict(pixels)
        exported = program.compare(folder, pixels, probabilities)
    evaluated = np.exp(log_softmax(predictions.logits[rows]))
    difference = float(np.abs(probabilities - evaluated).max())
    return reload_rule(images=len(rows), largest_difference=difference, tolerance=_TOLERANCE), exported
