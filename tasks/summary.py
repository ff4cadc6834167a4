"""Summary of a finished run: results, where the files are, and next steps."""

import os
import sys

from ratchet.checkpoint_names import checkpoint_paths
from ratchet.errors import RegistryError
from ratchet.gate.verdict_text import verdict_table
from ratchet.registry.alias_state import replay
from ratchet.registry.journal import Journal
from ratchet.registry.ledger import Ledger
from ratchet.registry.runs import total_cost
from ratchet.settings.model import Params
from ratchet.terminal_lines import WIDEST, columns_of, echo
from ratchet.workspace import Workspace
from tasks.advice import steps_of
from tasks.evaluate import Evaluation
from tasks.ingest import Dataset
from tasks.register import Registration
from tasks.trained_model import TrainedModel

__all__ = ["card_place", "earlier_version", "model_line", "newest_checkpoint", "print_summary", "summary"]


def print_summary(
    params: Params, workspace: Workspace, registration: Registration | None = None, *, title: str | None = None
) -> None:
    """Print the summary of the last run.

    `registration` is that of a run that has just ended. None: nothing was to do.
    """
    lines, registration = summary(params, workspace), registration or Registration.load(workspace)
    width, columns = max(map(len, lines)), min(WIDEST, columns_of(sys.stdout) or WIDEST)
    echo(f"\n{title}" if title else "", style="bold")
    for caption, text in lines.items():
        echo(text, caption=f"  {caption:<{width}}  ")
    note, verdict = earlier_version(params, workspace, registration), registration.verdict
    echo(f"\n{note}" if note else "", style="bold")
    echo(verdict_table(verdict, columns=columns) + "\n")
    steps = steps_of(params, workspace, verdict)
    width = max(len(command) for command, _ in steps)
    for number, (command, purpose) in enumerate(steps):
        lead = "" if number else "Next:"
        if 7 + width + 2 + max(len(text) for _, text in steps) <= columns:
            echo(f"{lead:7}{command:<{width}}  {purpose}")
            continue
        echo(f"{lead:7}{command}", style="bold")
        echo(f"{'':9}{purpose}")


def summary(params: Params, workspace: Workspace) -> dict[str, str]:
    """Return captions and texts in the order in which they are shown. Paths are relative to the project folder."""
    dataset, trained = Dataset.load(workspace), TrainedModel.load(workspace)
    evaluation, registration = Evaluation.load(workspace), Registration.load(workspace)
    if registration.version is None:
        model = f"{registration.model}: not registered, the gate refused it"
    else:
        model = model_line(params, workspace, registration.model, registration.version)
    return {
        "model": model,
        "data": dataset.summary,
        "training": trained.summary,
        "test": evaluation.summary,
        **_records(workspace, trained),
        "report": workspace.report.as_uri(),
        **({"model card": card_place(workspace, registration.run_id)} if registration.version else {}),
        "checkpoint": newest_checkpoint(workspace),
        "MLflow run": f"{registration.run_id} in {params.tracking.uri}",
    }


def model_line(params: Params, workspace: Workspace, name: str, number: str) -> str:
    """Describe a version and its current aliases in the ledger; a rollback may have changed them."""
    version = f"{name} version {number}"
    ledger = Ledger.of(workspace, params)
    try:
        ledger.require_intact()
        state = replay(ledger.entries(model=name), name)
    except RegistryError as error:
        return f"{version} (its aliases are unknown: {error})"
    aliases = sorted(alias for alias, holder in state.aliases.items() if holder == number)
    line = f"{version} ({', '.join(aliases) or 'no alias'})"
    if number in state.rejected:
        about = (name, "reject", number)  # also if a recovery has set it aside
        entry = next(e for e in reversed(ledger.read().entries) if (e.model, e.what, e.version) == about)
        line += f"; rejected by {entry.who} at {entry.at[:16]}Z: {entry.why}"
    if "challenger" in aliases:
        line += f"; to approve: `ratchet approve {name}/{number} --promote --why ...`, or approve-flow/local"
    if state.champion and state.champion != number:
        line += f"; champion is version {state.champion}"
        if number in state.champions and number not in state.rejected:  # else a rollback took it back
            line += f". To go back: `ratchet rollback {name} --to {number} --why ...`"
    return line


def earlier_version(params: Params, workspace: Workspace, registration: Registration) -> str:
    """Return a sentence if the run's version was registered before and is not in use; its verdict is of that time."""
    name, number = registration.model, registration.version
    try:
        state = replay(Ledger.of(workspace, params).entries(model=name), name)
    except RegistryError:
        return ""  # `model_line` says what is wrong with the ledger
    known = state.rejected | state.ever_champion | state.registered
    if registration.is_new or number is None or number not in known - {state.champion, state.challenger}:
        return ""
    earlier = "was champion before" if number in state.ever_champion else "was registered before"
    kind = "was rejected" if number in state.rejected else earlier
    champion = f"version {state.champion}" if state.champion else "none"
    return f"Nothing new: these are the results of {name} version {number}, which {kind}. Champion is {champion}."


def card_place(workspace: Workspace, run_id: str) -> str:
    """Return the model card's URL if MLflow's artifacts are in the project folder, else its place among them."""
    card = workspace.mlruns / "artifacts" / run_id / "artifacts" / "card" / "card.html"
    return card.as_uri() if card.exists() else "card/card.html in the MLflow run's artifacts"


def newest_checkpoint(workspace: Workspace) -> str:
    """Return the path of the finished training's newest checkpoint, or a note that there is none."""
    newest = max(checkpoint_paths(workspace.checkpoints), default=None)
    path = os.path.relpath(newest or workspace.checkpoints, workspace.project.root)
    return path if newest else f"none in {path}: none could be written, or `dvc pull` fetches it"


def _records(workspace: Workspace, trained: TrainedModel) -> dict[str, str]:
    """Return what the training cost, and what its hooks did; nothing if DVC restored it from its cache."""
    folder = workspace.mlruns / "journal" / trained.key
    if not folder.exists():
        return {}
    journal = Journal(folder)
    cost = total_cost(journal)
    tags = [entry.content["values"] for entry in journal.entries(0) if entry.kind == "tags"]
    journal.close()
    hooks = next((values["ratchet.hooks"] for values in reversed(tags) if "ratchet.hooks" in values), "")
    return {**({"cost": cost.summary} if cost else {}), **({"hooks": hooks} if hooks else {})}
