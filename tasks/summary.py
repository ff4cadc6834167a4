"""What a run ends by saying: what was made, where it is, what to do next."""

from ratchet.params import Params
from ratchet.registry.journal import Journal
from ratchet.registry.runs import spent
from ratchet.workspace import Workspace
from tasks.evaluate import Evaluation
from tasks.ingest import Dataset
from tasks.register import Registration
from tasks.train import TrainedModel

__all__ = ["summary"]


def summary(params: Params, workspace: Workspace) -> dict[str, str]:
    """The last lines, as captions and texts in the order they are shown."""
    dataset, trained = Dataset.load(workspace), TrainedModel.load(workspace)
    evaluation, registration = Evaluation.load(workspace), Registration.load(workspace)
    if registration.version is None:
        model = f"{registration.model}: not registered, the gate refused it"
    else:
        aliases = ", ".join(registration.aliases) or "no alias"
        version = f"{registration.model}/{registration.version}"
        model = f"{registration.model} version {registration.version} ({aliases})"
        if "challenger" in registration.aliases:
            model += f"; it waits for `ratchet approve {version} --promote --why ...`, or approve-flow/local"
    newest = max(workspace.checkpoints.glob("step-*.safetensors"), default=workspace.checkpoints)
    return {
        "model": model,
        "data": dataset.words,
        "training": trained.words,
        "test": evaluation.words,
        **_cost(workspace, trained),
        "gate": registration.words,
        "report": str(workspace.report),
        **({"card": "card/card.html in the MLflow run's artifacts"} if registration.version else {}),
        "checkpoint": str(newest),
        "MLflow run": f"{registration.run_id} in {params.tracking.uri}",
    }


def _cost(workspace: Workspace, trained: TrainedModel) -> dict[str, str]:
    """What the training cost; nothing where DVC brought it from its cache, as nothing was spent here."""
    folder = workspace.mlruns / "journal" / trained.key
    if not folder.exists():
        return {}
    journal = Journal(folder)
    cost = spent(journal)
    journal.close()
    return {"cost": cost.words} if cost else {}
