"""Do ledger, aliases and files agree? What does not, in words."""

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.errors import RegistryError
from ratchet.params import Params
from ratchet.registry.evidence import difference, evidence
from ratchet.registry.ledger import Ledger, faults
from ratchet.registry.mlflow_store import active, address, all_pages, connect, reachable
from ratchet.registry.models import ModelRegistry
from ratchet.registry.pickles import files_under, find_pickles
from ratchet.registry.succession import Succession
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = ["audit", "pickles", "repair"]


def audit(workspace: Workspace, params: Params, model: str | None = None) -> Iterator[str]:
    """Verify the ledger's chain, and of each model the aliases and every version's files; yields each thing amiss.

    `model`: of this one alone.

    Raises:
        TrackingAway: MLflow does not answer.
        RegistryError: the ledger does not.
    """
    yield from faults(Ledger(workspace, params.registry.ledger).entries())
    for succession in _successions(workspace, params, model):
        fault = succession.fault()
        if fault:
            yield f"{fault}: {succession.way_out}"
        elif succession.is_unfinished:
            yield f"{succession.name}: the last act in the ledger was cut off: the aliases do not follow it yet"
        yield from _versions(succession)


def repair(workspace: Workspace, params: Params, model: str | None = None) -> list[str]:
    """Put every model's aliases where the ledger has them; what was done, in words.

    Raises:
        NotAllowed: this user is none of access.admins.
    """
    done = []
    for succession in _successions(workspace, params, model):
        fault, deleted = succession.fault(), succession.deleted()
        if succession.is_another:
            continue  # nothing that this ledger knows would make it better
        if fault or deleted:
            now = succession.repair(why=fault or f"deleted in MLflow: version {', '.join(sorted(deleted))}")
        elif succession.is_unfinished:
            now = succession.settle()
        else:
            continue
        where = [f"{alias} is version {number}" if number else f"no {alias}" for alias, number in now.aliases.items()]
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


def _successions(workspace: Workspace, params: Params, model: str | None) -> list[Succession]:
    """Every model that the ledger speaks of, or that was kept in one; or the one that is asked for."""
    registry = ModelRegistry(workspace, params)
    kept = {name for name in registry.names() if registry.anchor(name) is not None}
    told = {entry.model for entry in Ledger(workspace, params.registry.ledger).entries()}
    if model is not None and model not in kept | told:
        raise RegistryError(
            f"{model}: the ledger knows no such model; it knows {', '.join(sorted(kept | told)) or 'none'}"
        )
    names = sorted(kept | told) if model is None else [model]
    return [Succession(workspace, params, name) for name in names]


def _versions(succession: Succession) -> Iterator[str]:
    """What is wrong with single versions: deleted, changed, or come in by another door."""
    for number in sorted(succession.deleted(), key=int):
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
