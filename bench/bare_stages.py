"""The same work without the tools around it: one process that reads, trains, evaluates and exports.

The baseline of bench/flow.py: it imports neither Prefect nor DVC nor MLflow. Run it in a project
folder. The argument is the folder for checkpoints.
"""

import sys
from pathlib import Path

from ratchet import settings, training
from ratchet.data.manifest import Manifest
from ratchet.exports.onnx_export import export
from ratchet.workspace import Workspace
from tasks.evaluate import evaluate
from tasks.ingest import ingest
from tasks.progress import Terminal
from tasks.training_job import TrainingJob

workspace = Workspace.find()
params = settings.load(workspace.params)
ingest(params, workspace, progress=Terminal("ingest", unit="samples"))
job = TrainingJob.of(params, workspace, Manifest.read(workspace.packed))
store = training.CheckpointStore(Path(sys.argv[1]), keep_last=job.plan.keep_last, keep_best=job.plan.keep_best)
train, validation = (training.open_split(workspace.packed, name) for name in ("train", "validation"))
inputs = training.TrainingInputs(train, validation, job.spec, job.plan, identity=job.identity)
events = training.fit(inputs, store=store)
finished = next(event for event in events if isinstance(event, training.Finished))
workspace.model.mkdir(parents=True)
about = {
    "key": job.key, "best_epoch": finished.best_epoch, "best_metric": job.plan.best,
    "best_value": finished.best_value, "steps": finished.step,
}  # fmt: skip
training.save_model(workspace.model, finished.weights, job.spec, about={"training": about})
evaluate(params, workspace, progress=Terminal("evaluate", unit="rows"))
export(*training.load_model(workspace.model), workspace.model)
assert not {"prefect", "dvc", "mlflow"} & sys.modules.keys()
