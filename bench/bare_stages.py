"""The same work with none of the tools around it: one process that reads, trains, measures and exports.

What the flow is measured against in bench/flow.py: neither Prefect nor DVC nor MLflow is imported. Run in a project
folder; the checkpoints go to the folder that is given.
"""

import sys
from pathlib import Path

from ratchet import settings, training
from ratchet.data.manifest import Manifest
from ratchet.serving.export import export
from ratchet.workspace import Workspace
from tasks.evaluate import evaluate
from tasks.ingest import ingest
from tasks.progress import Terminal
from tasks.training_job import TrainingJob

workspace = Workspace.find()
params = settings.load(workspace.params)
ingest(params, workspace, watch=Terminal("ingest", unit="samples"))
course = TrainingJob.of(params, workspace, Manifest.read(workspace.packed))
store = training.CheckpointStore(Path(sys.argv[1]), keep_last=course.plan.keep_last, keep_best=course.plan.keep_best)
train, validation = (training.open_split(workspace.packed, name) for name in ("train", "validation"))
events = training.fit(train, validation, course.spec, course.plan, store=store, identity=course.identity)
finished = next(event for event in events if isinstance(event, training.Finished))
workspace.model.mkdir(parents=True)
about = {
    "key": course.key, "best_epoch": finished.best_epoch, "best_metric": course.plan.best,
    "best_value": finished.best_value, "steps": finished.step,
}  # fmt: skip
training.save_model(workspace.model, finished.weights, course.spec, about={"training": about})
evaluate(params, workspace, watch=Terminal("evaluate", unit="rows"))
export(*training.load_model(workspace.model), workspace.model)
assert not {"prefect", "dvc", "mlflow"} & sys.modules.keys()
