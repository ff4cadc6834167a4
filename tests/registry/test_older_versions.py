"""A version that was registered before there were kinds of data loads, is judged as champion and serves.

version_of_format_1 holds the files of a real version of digits: a linear network of a user's own, its ONNX program and
checksums, the samples that it was trained on, and its predictions of the test images, as they were stored.
"""

import json
import shutil
from pathlib import Path

import mlflow
import numpy as np
import polars
import pytest
import torch

from ratchet import files
from ratchet.data.ingest import IngestTask, ingest
from ratchet.data.manifest import Manifest
from ratchet.evaluation.predictions import Predictions, read_predictions
from ratchet.exports.program import Program
from ratchet.gate.rules import ChampionResult
from ratchet.kinds import ModelSpec
from ratchet.registry.models import ModelRegistry
from ratchet.registry.promotion import Promotions
from ratchet.registry.runs import Run
from ratchet.registry.sample_digests import TRAINING_SAMPLES
from ratchet.settings.model import DataSettings, EvaluationSettings, GateSettings, Params, RegistrySettings
from ratchet.training import build, load_model, open_split, predict_outputs, save_model
from ratchet.workspace import Workspace
from tasks.baseline import Baseline
from tasks.evaluate import evaluate
from tasks.gate_inputs import judge_model
from tasks.progress import Terminal
from tasks.training_job import TrainingJob

pytestmark = [pytest.mark.usefixtures("mlflows_own"), pytest.mark.system]

STORED = Path(__file__).with_name("version_of_format_1")
BEFORE: Predictions = read_predictions(STORED / "predictions.parquet")


@pytest.fixture
def project(tmp_path: Path) -> Workspace:
    """A project with the packed digits."""
    workspace = Workspace(tmp_path.resolve())
    ingest(IngestTask(DataSettings(), packed=workspace.packed, quarantine=workspace.quarantine, root=workspace.root))
    return workspace


def promotions_of(workspace: Workspace) -> Promotions:
    ledger = f"sqlite:///{workspace.root}/ledger.db"
    evaluation = EvaluationSettings(slices=[], robustness_rows=0, explained_errors=0)
    params = Params(
        registry=RegistrySettings(export="none", ledger=ledger),
        gate=GateSettings(minimum_metric="none", latency_factor=0.0, calibration_error=1.0),
        evaluation=evaluation,
    )
    return Promotions(workspace, params, "digits")


def champion_of_format_1(promotions: Promotions, monkeypatch: pytest.MonkeyPatch) -> str:
    """Store the files as they are, and make them champion. Return the address of the stored model."""

    def as_stored(_: ModelRegistry, folder: Path, place: Path, *_more: object) -> dict[str, str]:
        shutil.copytree(folder, place, ignore=shutil.ignore_patterns("__pycache__"))
        digests: dict[str, str] = files.read_json(folder / "checksums.json")["sha256"]
        return digests

    registry = promotions.registry
    run = Run(registry.workspace, registry.params, "older")
    run.settings({"seed": 0})
    run_id = run.send()
    run.journal.close()
    with monkeypatch.context() as patched:
        patched.setattr(ModelRegistry, "_seal", as_stored)
        address = registry.log_model(run_id, STORED / "model", load_model(copy_of(STORED, registry.workspace))[1])
    record = registry.workspace.root / "provenance.json"
    record.write_text(json.dumps({"dvc": {}}))
    registry.log_files(run_id, {record: "provenance", STORED / TRAINING_SAMPLES: "provenance"})
    version = registry.add_version("digits", run_id, address, tags={"ratchet.verdict": "{}"})
    promotions.register(version, why="good", over=None)
    promotions.promote_automatically(version, over=None)
    return address


def shared_rows(project: Workspace) -> tuple[list[int], list[int]]:
    """Return the test images that the stored predictions have too: their rows now, and their rows there.

    The splits of digits were others when the version was registered.
    """
    index = polars.read_parquet(project.packed / "index.parquet").filter(polars.col("split") == "test")
    stored = {id: row for row, id in enumerate(BEFORE.ids)}
    rows = [row for row, id in zip(index["row"], index["id"], strict=True) if id in stored]
    assert len(rows) > 200
    return rows, [stored[id] for id in index.filter(polars.col("row").is_in(rows))["id"]]


def copy_of(stored: Path, workspace: Workspace) -> Path:
    """Return a copy of the model's files: to load them writes compiled code of the user's network beside it."""
    place = workspace.root / "copy"
    return Path(shutil.copytree(stored / "model", place, ignore=shutil.ignore_patterns("__pycache__")))


def test_it_loads_and_predicts_as_before(project: Workspace) -> None:
    """The stored outputs are of an AMD processor; on another kind the last bits of a convolution differ."""
    model, spec = load_model(copy_of(STORED, project))
    packed = Manifest.read(project.packed)
    assert (spec.input.shape, spec.target) == (packed.input.shape, packed.target)
    rows, stored = shared_rows(project)
    outputs = predict_outputs(model, open_split(project.packed, "test"))[rows]
    np.testing.assert_allclose(outputs, BEFORE.outputs[stored], rtol=0, atol=1e-5)


def test_it_serves_with_mlflow_and_onnxruntime(project: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    promotions = promotions_of(project)
    address = champion_of_format_1(promotions, monkeypatch)
    rows, stored = shared_rows(project)
    images = open_split(project.packed, "test").gather(np.array(rows[:20]))[0]
    with promotions.registry.opened(address) as (served, folder):
        assert isinstance(served, mlflow.pyfunc.PyFuncModel)
        answers = served.predict(images)
        program = Program.of(folder)
        assert isinstance(program, Program)
        computed = program.predict((images,))
    expected = BEFORE.target.predictions(BEFORE.outputs[stored[:20]])
    np.testing.assert_allclose(answers, expected, atol=1e-6)
    np.testing.assert_allclose(computed, expected, atol=1e-5)


def test_it_is_judged_as_champion(project: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    promotions = promotions_of(project)
    champion_of_format_1(promotions, monkeypatch)
    params = promotions.registry.params
    job = TrainingJob.of(params, project, Manifest.read(project.packed))
    packed = Manifest.read(project.packed)
    spec = ModelSpec("convnet", packed.input, packed.target)
    with torch.random.fork_rng():
        save_model(project.model, build(spec).state_dict(), spec, about={"training": TRAINING})
        Baseline.fit(job, open_split(project.packed, "train")).write(project)
    evaluate(params, project, progress=Terminal("evaluate", unit="rows"))
    run = Run(project, params, "newer")
    run_id = run.send()
    run.journal.close()
    address = promotions.registry.log_model(run_id, project.model, spec)
    over = promotions.synchronize().champion
    verdict = judge_model(promotions, run_id, address, params, project, over=over)
    result = next(rule for rule in verdict.rules if isinstance(rule, ChampionResult))
    assert result.champion == "digits version 1"
    assert result.scores is not None
    assert result.scores.champion.interval.value == BEFORE.score[shared_rows(project)[1]].mean()


TRAINING = {"key": "new", "best_epoch": 1, "best_metric": "validation/accuracy", "best_value": 0.1, "steps": 0}
