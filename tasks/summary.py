"""What a run ends by saying: what was made, where it is, what to do next."""

from ratchet.errors import RegistryError
from ratchet.registry.alias_state import replay
from ratchet.registry.journal import Journal
from ratchet.registry.ledger import Ledger
from ratchet.registry.runs import total_cost
from ratchet.settings.model import Params
from ratchet.workspace import Workspace
from tasks.evaluate import Evaluation
from tasks.ingest import Dataset
from tasks.register import Registration
from tasks.train import TrainedModel

__all__ = ["model_line", "newest_checkpoint", "summary"]


def summary(params: Params, workspace: Workspace) -> dict[str, str]:
    """The last lines, as captions and texts in the order they are shown."""
    dataset, trained = Dataset.load(workspace), TrainedModel.load(workspace)
    evaluation, registration = Evaluation.load(workspace), Registration.load(workspace)
    if registration.version is None:
        model = f"{registration.model}: not registered, the gate refused it"
    else:
        model = model_line(params, workspace, registration.model, registration.version)
    return {
        "model": model,
        "data": dataset.words,
        "training": trained.words,
        "test": evaluation.words,
        **_cost(workspace, trained),
        "gate": registration.words,
        "report": str(workspace.report),
        **({"card": "card/card.html in the MLflow run's artifacts"} if registration.version else {}),
        "checkpoint": newest_checkpoint(workspace),
        "MLflow run": f"{registration.run_id} in {params.tracking.uri}",
    }


def model_line(params: Params, workspace: Workspace, name: str, number: str) -> str:
    """The version and its aliases now, by the ledger: after a rollback they are not those of registering."""
    called = f"{name} version {number}"
    ledger = Ledger.of(workspace, params)
    try:
        ledger.require_intact()
        now = replay(ledger.entries(model=name), name)
    except RegistryError as error:
        return f"{called} (its aliases are unknown: {error})"
    aliases = sorted(alias for alias, its in now.aliases.items() if its == number)
    line = f"{called} ({', '.join(aliases) or 'no alias'})"
    if "challenger" in aliases:
        line += f"; it waits for `ratchet approve {name}/{number} --promote --why ...`, or approve-flow/local"
    if now.champion and now.champion != number:
        line += f"; champion is version {now.champion}"
    return line


def newest_checkpoint(workspace: Workspace) -> str:
    """Where the newest checkpoint of the finished training is, or that there is none."""
    newest = max(workspace.checkpoints.glob("step-*.safetensors"), default=None)
    return str(newest) if newest else f"none in {workspace.checkpoints}: none could be written, or `dvc pull` brings it"


def _cost(workspace: Workspace, trained: TrainedModel) -> dict[str, str]:
    """What the training cost; nothing where DVC brought it from its cache, as nothing was spent here."""
    folder = workspace.mlruns / "journal" / trained.key
    if not folder.exists():
        return {}
    journal = Journal(folder)
    cost = total_cost(journal)
    journal.close()
    return {"cost": cost.words} if cost else {}
