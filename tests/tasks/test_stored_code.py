"""The code beside a stored model is the code that trained it."""

from dataclasses import replace
from pathlib import Path

import torch

from ratchet import settings, training
from ratchet.data.ingest import IngestTask, ingest
from ratchet.data.manifest import Manifest
from ratchet.workspace import Workspace
from tasks.baseline import Baseline
from tasks.train import _write_outputs
from tasks.training_job import TrainingJob

LOSS = "def distance(outputs, targets):\n    return (outputs - targets).abs().mean(1)\n"


def test_a_blend_keeps_the_loss_that_trained_its_network(tmp_path: Path) -> None:
    """Though the user edits it during the training, into code that fails."""
    workspace, code = Workspace(tmp_path), tmp_path / "distance.py"
    code.write_text(LOSS)
    rows = [f"{number * 3 % 101},{number * 7 % 40}" for number in range(400)]
    (tmp_path / "rows.csv").write_text("\n".join(["size,price", *rows]) + "\n")
    workspace.params.write_text(settings.template())
    data = {"data.kind": "table", "data.path": "rows.csv", "data.label_column": "price", "data.problem": "regression"}
    own = {"model.name": "blend", "model.code": "distance.py", "training.loss": "distance:distance"}
    params = settings.override(workspace.params, {**data, **own, "training.epochs": 1})
    ingest(IngestTask(params.data, packed=workspace.packed, quarantine=workspace.quarantine, root=workspace.root))
    with torch.random.fork_rng():
        job = TrainingJob.of(params, workspace, Manifest.read(workspace.packed))
        store = training.CheckpointStore(workspace.running / job.key)
        kept, inputs = training.keep_code(job.spec, store.folder), job.inputs(workspace.packed)
        *_, finished = training.fit(replace(inputs, plan=replace(job.plan, device="cpu")), store=store)
        assert isinstance(finished, training.Finished)
        code.write_text("def distance(outputs, targets):\n    raise ValueError\n")
        _write_outputs(workspace, store.folder, finished, job, kept, Baseline.fit(job, inputs.train))
        assert (workspace.model / "code" / "distance.py").read_text() == LOSS
