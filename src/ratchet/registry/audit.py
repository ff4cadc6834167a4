"""Do ledger, aliases and files agree? What does not, in words."""

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.errors import LedgerBroken, RegistryError
from ratchet.registry.fingerprints import difference, evidence
from ratchet.registry.ledger import RECOVER, Ledger
from ratchet.registry.mlflow_store import active, address, all_pages, connect, reachable
from ratchet.registry.models import ModelRegistry
from ratchet.registry.pickles import files_under, find_pickles
from ratchet.registry.promotion import Promotions
from ratchet.registry.statement import SEALED, edits
from ratchet.settings.model import Params
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = ["audit", "notes", "pickles", "repair"]


def audit(workspace: Workspace, params: Params, model: str | None = None) -> Iterator[str]:
    """Verify the ledger, and of each model the aliases, every version's files and what MLflow says of it.

    Yields each thing that is wrong. The ledger is compared with the heads in the project's files and in Git's history.
    `model`: of this one alone.

    Raises:
        TrackingAway: MLflow does not answer.
        RegistryError: the ledger's database does not.
    """
    ledger = Ledger.of(workspace, params)
    broken = [fault.text for fault in ledger.faults()]
    broken += filter(None, [ledger.lost()])
    yield from broken
    if broken:
        yield f"no act is possible while the ledger has a fault. Fix: restore it from a backup; without one, {RECOVER}"
    for succession in _successions(workspace, params, model, ledger):
        fault = succession.fault() if not broken or succession.is_another else None  # a broken ledger says nothing
        if fault:
            yield f"{fault}: {succession.way_out}"
        elif succession.is_unfinished and not broken:
            yield f"{succession.name}: the last act in the ledger was cut off: the aliases do not follow it yet"
        yield from _versions(succession, deleted=not broken)


def notes(workspace: Workspace, params: Params) -> Iterator[str]:
    """Yield what a reader of an audit must know although nothing is wrong: recoveries, and what Git cannot prove."""
    ledger = Ledger.of(workspace, params)
    chain = ledger.read()
    for entry in chain.valid:
        if entry.what == "recover" and {"intact", "aside"} <= entry.content.keys():
            intact, aside = entry.content["intact"], entry.content["aside"]
            rows = f"entries {intact + 1} to {intact + aside} are" if aside > 1 else f"entry {intact + 1} is"
            kept = f"{rows} its evidence" if aside else "no entry was set aside"
            who = f"{entry.who} at {entry.at[:19]}Z (entry {entry.number})"
            yield f"the ledger was recovered by {who}: {entry.why}; {kept}"
    heads, absent = ledger.heads.committed()
    if absent:
        yield (
            f"{absent} contents of data/registration.json that Git's history names are not in DVC's cache, and were "
            "not compared: `dvc fetch --all-commits` brings them"
        )
    if not chain.entries or not (ledger.heads.root / ".git").exists():
        return
    first = chain.entries[0].seal
    others = {head.ledger for head in heads if head.ledger != first}
    if others:
        few = "1 other ledger" if len(others) == 1 else f"{len(others)} other ledgers"
        if any(head.ledger == first for head in heads):
            yield f"Git's history has heads of {few}, of other clones of this project or older ones"
        else:
            found = max((head for head in heads if head.ledger != first), key=lambda head: head.number)
            yield (
                f"Git's history has heads of {few} and none of this one ({found.where} has entry {found.number} of "
                f"ledger {found.ledger[:12]}): this must be a clone with a new ledger of its own, else the ledger was "
                "replaced"
            )
    proven = max((head.number for head in heads if head.ledger == first), default=0)
    if proven < chain.entries[-1].number:
        yield (
            f"Git's history proves the ledger up to entry {proven} of {chain.entries[-1].number}: commit dvc.lock and, "
            "where there is one, data/ledger.heads"
        )


def repair(workspace: Workspace, params: Params, model: str | None = None) -> list[str]:
    """Put every model's aliases where the ledger has them; return one sentence for each model that was changed.

    Raises:
        LedgerBroken: the ledger is not what was written; no alias was moved.
        NotAllowed: this user is none of access.admins.
    """
    done = []
    ledger = Ledger.of(workspace, params)
    with ledger.turn():
        ledger.require_whole()
        if lost := ledger.lost():
            raise LedgerBroken(f"{lost}. No alias was moved. Fix: restore it; or, {RECOVER}")
        for succession in _successions(workspace, params, model, ledger):
            fault, deleted = succession.fault(), succession.deleted()
            if succession.is_another:
                continue  # nothing that this ledger knows would make it better
            if fault or deleted:
                now = succession.repair(why=fault or f"deleted in MLflow: version {', '.join(sorted(deleted))}")
            elif succession.is_unfinished:
                now = succession.settle()
            else:
                continue
            where = [
                f"{alias} is version {number}" if number else f"no {alias}" for alias, number in now.aliases.items()
            ]
            done.append(f"{succession.name}: {', '.join(where)}")
    return done


def pickles(workspace: Workspace, params: Params) -> Iterator[str]:
    """Each pickle among all that MLflow keeps of any run and any model, of whoever put it there.

    Raises:
        TrackingAway: MLflow does not answer.
    """
    from mlflow.artifacts import download_artifacts

    uri = address(workspace, params.tracking)
    client = connect(workspace, params.tracking)
    with reachable(uri), active(workspace, params.tracking):
        for name, place in _stored(client):
            with tempfile.TemporaryDirectory() as folder:
                # What lies on this machine is looked at where it is.
                there = Path(download_artifacts(artifact_uri=place, dst_path=None if _is_here(place) else folder))
                for finding in find_pickles(files_under(there)):
                    yield f"{name}: {finding.words}"


def _stored(client: "MlflowClient") -> Iterator[tuple[str, str]]:
    """What to call each run and each model that MLflow knows, and where its artifacts are, if it has any."""
    for experiment in all_pages(client.search_experiments):
        chosen = [experiment.experiment_id]
        for run in all_pages(partial(client.search_runs, chosen)):
            if client.list_artifacts(run.info.run_id):
                yield f"run {run.info.run_id}", run.info.artifact_uri
        for model in all_pages(partial(client.search_logged_models, chosen)):
            yield f"model {model.model_id}", model.artifact_location


def _is_here(place: str) -> bool:
    return place.startswith("file:") or place.startswith("/")


def _successions(workspace: Workspace, params: Params, model: str | None, ledger: Ledger) -> list[Promotions]:
    """Every model that the ledger speaks of, or that was kept in one; or the one that is asked for."""
    registry = ModelRegistry(workspace, params)
    kept = {name for name in registry.names() if registry.anchor(name) is not None}
    told = {entry.model for entry in ledger.entries() if entry.what != "recover"}
    if model is not None and model not in kept | told:
        raise RegistryError(
            f"{model}: the ledger knows no such model; it knows {', '.join(sorted(kept | told)) or 'none'}"
        )
    names = sorted(kept | told) if model is None else [model]
    return [Promotions(workspace, params, name, ledger=ledger) for name in names]


def _versions(succession: Promotions, *, deleted: bool) -> Iterator[str]:
    """What is wrong with single versions: deleted, changed, or come in by another door."""
    for number in sorted(succession.deleted() if deleted else (), key=int):
        yield f"{succession.name} version {number} was deleted in MLflow; the ledger knows it"
    for version in succession.registry.versions(succession.name):
        noted = succession.noted(version)
        if noted is None:
            if version.aliases:
                yield f"{succession.name} version {version.number} has an alias, and the ledger does not know it"
            continue
        try:
            found = evidence(succession.registry, version)
        except RegistryError as error:
            yield str(error)
            continue
        for changed in difference(noted, found):
            yield f"{succession.name} version {version.number}: {changed}"
        if found.get(SEALED) == noted.get(SEALED, ""):
            for edited in edits(succession.registry, version):
                yield f"{succession.name} version {version.number}: {edited}"
