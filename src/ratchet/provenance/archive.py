"""Runs and versions in MLflow, found by any of their names. Nothing is written."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.errors import RegistryError, TrackingRefused
from ratchet.registry.mlflow_store import all_pages, or_none, reachable, run_file
from ratchet.registry.provenance_record import Provenance, parse_object, read_record
from ratchet.registry.versions import Version, Versions, as_version

if TYPE_CHECKING:
    from mlflow.entities import Run

__all__ = ["Archive", "ArchivedRun"]

_RUN = re.compile(r"^[0-9a-f]{32}$")


@dataclass(frozen=True)
class ArchivedRun:
    """One training run and its versions.

    `record` is None if there is none or it is damaged. `doubts` name the values that nothing confirms.
    """

    run_id: str
    run_name: str
    status: str
    tags: Mapping[str, str]
    params: Mapping[str, str]  # its settings, by dotted key
    metrics: Mapping[str, float]
    dataset: Mapping[str, Any]  # name, digest and profile (classes, rows, quarantined) of the training data
    record: Provenance | None
    versions: tuple[Version, ...]
    doubts: tuple[str, ...] = ()

    def hash_of(self, path: str) -> str | None:
        """Return the DVC hash of an output of this run; None if it is unknown."""
        return self.record.dvc.get(path) if self.record else None


class Archive(Versions):
    """Read access to MLflow's runs and versions.

    Raises (every method):
        TrackingUnavailable: MLflow does not answer.
    """

    def version(self, reference: str) -> tuple[ArchivedRun, Version]:
        """Find the version that models:/NAME/VERSION, NAME/VERSION or NAME@ALIAS names, and its run.

        Raises:
            RegistryError: there is no such version, or its run is gone.
        """
        stored = self.find(reference)
        run = self.run(stored.run_id)
        if run is None:
            raise RegistryError(
                f"{reference}: has no provenance record, so its origin is unknown: its MLflow run "
                f"{stored.run_id or ''} does not exist"
            )
        record, doubts = self._record(run.run_id, stored.tags)
        return replace(run, record=record, doubts=tuple(dict.fromkeys((*run.doubts, *doubts)))), stored

    def run(self, run_id: str) -> ArchivedRun | None:
        """Return the run with this id; None if there is none."""
        if not _RUN.match(run_id):
            return None
        with reachable(self.uri):
            run = or_none(partial(self.client.get_run, run_id))
            return None if run is None else self._archived(run, self._versions_by_run(f"run_id = '{run_id}'"))

    def runs(self, condition: str = "") -> list[ArchivedRun]:
        """Return all runs that meet a condition of MLflow's search syntax, the oldest first."""
        with reachable(self.uri):
            experiments = [experiment.experiment_id for experiment in all_pages(self.client.search_experiments)]
            order = ["attributes.start_time ASC"]
            runs = all_pages(partial(self.client.search_runs, experiments, condition, order_by=order))
            versions = self._versions_by_run()
            return [self._archived(run, versions) for run in runs]

    def file(self, run_id: str, path: str, into: Path) -> Path | None:
        """Copy a file of the run's artifacts into a folder; return None if it is not among them."""
        folder = into / run_id
        folder.mkdir(exist_ok=True)
        with reachable(self.uri):
            return run_file(self.client, run_id, path, folder)

    def model(self, version: Version, into: Path) -> Path:
        """Copy the version's files into a folder; return the folder that has model.json and the weights.

        Raises:
            RegistryError: they cannot be read, or ratchet did not make them.
        """
        folder = self.download(version.uri, into, artifact_uri=version.uri)
        description = next(folder.rglob("model.json"), None)
        if description is None or not description.with_name("model.safetensors").exists():
            raise RegistryError(f"{version.uri}: has no model.json and model.safetensors: ratchet did not make it")
        return description.parent

    def _archived(self, run: "Run", versions: Mapping[str, Sequence[Version]]) -> ArchivedRun:
        info, data = run.info, run.data
        inputs = run.inputs.dataset_inputs if run.inputs else []
        record, doubts = self._record(str(info.run_id), data.tags)
        return ArchivedRun(
            run_id=str(info.run_id),
            run_name=str(info.run_name or ""),
            status=str(info.status),
            tags=dict(data.tags),
            params=dict(data.params),
            metrics=dict(data.metrics),
            dataset=_dataset(inputs[-1].dataset) if inputs else {},
            record=record,
            versions=tuple(versions.get(str(info.run_id), ())),
            doubts=doubts,
        )

    def _record(self, run_id: str, tags: Mapping[str, str]) -> tuple[Provenance | None, tuple[str, ...]]:
        """Read the record of a run or version. A damaged or refused one is a doubt: it does not hide other runs."""
        try:
            with reachable(self.uri):
                return read_record(self.client, run_id, tags), ()
        except (RegistryError, TrackingRefused) as error:
            return None, (str(error),)

    def _versions_by_run(self, condition: str = "") -> dict[str, list[Version]]:
        """Return run id -> its versions, in the order of their names and numbers."""
        stored = all_pages(partial(self.client.search_model_versions, condition or None))
        aliases = {
            name: self.client.get_registered_model(name).aliases for name in {version.name for version in stored}
        }
        by_run: dict[str, list[Version]] = {}
        for version in sorted(stored, key=lambda version: (version.name, int(version.version))):
            by_run.setdefault(str(version.run_id), []).append(as_version(version, aliases[version.name]))
        return by_run


def _dataset(dataset: Any) -> dict[str, Any]:
    return {"name": dataset.name, "digest": dataset.digest, "profile": parse_object(dataset.profile or "{}") or {}}
