"""What MLflow knows of runs and versions, found by any of their names."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.errors import RegistryError
from ratchet.registry.mlflow_store import GONE, active, all_pages, files_of, or_none, reachable
from ratchet.registry.provenance_tags import parse_object, read_record
from ratchet.registry.versions import Versions

if TYPE_CHECKING:
    from mlflow.entities import Run

__all__ = ["REFERENCE", "Archive", "Made", "Release"]

REFERENCE = re.compile(r"^(?:models:/)?(?P<name>[^/@:]+)(?:/(?P<number>\d+)|@(?P<alias>[^/@:]+))$")
_RUN = re.compile(r"^[0-9a-f]{32}$")


@dataclass(frozen=True)
class Release:
    """One version of a registered model, as it stands now."""

    name: str
    number: str
    aliases: tuple[str, ...]
    tags: Mapping[str, str]

    @property
    def words(self) -> str:
        """Its name, its number and what it is called now."""
        return f"{self.name} version {self.number} ({', '.join(self.aliases) or 'no alias'})"


@dataclass(frozen=True)
class Made:
    """One training run and what was made of it.

    `record` is None where ratchet kept none of it. `doubts` say which of these values nothing vouches for.
    """

    run_id: str
    run_name: str
    status: str
    tags: Mapping[str, str]
    params: Mapping[str, str]  # its settings, by dotted key
    metrics: Mapping[str, float]
    dataset: Mapping[str, Any]  # name, digest and profile (classes, rows, quarantined) of what was trained on
    record: Mapping[str, Any] | None
    releases: tuple[Release, ...]
    doubts: tuple[str, ...] = ()

    def hash_of(self, path: str) -> str | None:
        """The DVC hash of an output of this run."""
        found = ((self.record or {}).get("dvc") or {}).get(path)
        return str(found) if found else None


class Archive(Versions):
    """MLflow's store, asked in whole questions; it is never written to.

    Raises (every method):
        TrackingAway: MLflow does not answer.
    """

    def version(self, reference: str) -> tuple[Made, Release]:
        """The version that `models:/NAME/VERSION`, NAME/VERSION or NAME@ALIAS names, and the run it is of.

        Raises:
            RegistryError: there is none, or its run is gone.
        """
        found = self.find(reference)
        made = self.run(found.run_id)
        if made is None:
            raise RegistryError(
                f"{reference}: has no provenance record, so nothing can be said of how it was made: its MLflow run "
                f"{found.run_id or ''} is not there"
            )
        release = next(one for one in made.releases if (one.name, one.number) == (found.name, found.number))
        with reachable(self.uri):
            record, doubts = self._record(made.run_id, release.tags)
        return replace(made, record=record, doubts=tuple(dict.fromkeys((*made.doubts, *doubts)))), release

    def run(self, run_id: str) -> Made | None:
        """The run of that id, if there is one."""
        if not _RUN.match(run_id):
            return None
        with reachable(self.uri):
            found = or_none(partial(self.client.get_run, run_id))
            if found is None:
                return None
            return self._made(found, self._releases(f"run_id = '{run_id}'"))

    def runs(self, condition: str = "") -> list[Made]:
        """Every run that meets a condition in MLflow's words, the oldest first."""
        with reachable(self.uri):
            experiments = [one.experiment_id for one in all_pages(self.client.search_experiments)]
            order = ["attributes.start_time ASC"]
            runs = all_pages(partial(self.client.search_runs, experiments, condition, order_by=order))
            releases = self._releases()
            return [self._made(run, releases) for run in runs]

    def file(self, run_id: str, path: str, into: Path) -> Path | None:
        """A file of the run's artifacts, copied into a folder; None where it is not among them."""
        from mlflow.exceptions import MlflowException

        folder = into / run_id
        folder.mkdir(exist_ok=True)
        with reachable(self.uri):
            try:
                return Path(self.client.download_artifacts(run_id, path, str(folder)))
            except (MlflowException, FileNotFoundError) as error:
                if getattr(error, "error_code", GONE[0]) not in GONE:
                    raise
                return None

    def model(self, release: Release, into: Path) -> Path:
        """The folder with the version's model.json and weights, copied into a folder.

        Raises:
            RegistryError: they cannot be read, or ratchet did not make them.
        """
        from mlflow.artifacts import download_artifacts

        uri = f"models:/{release.name}/{release.number}"
        with active(self.workspace, self.params.tracking), files_of(uri, self.uri):
            folder = Path(download_artifacts(artifact_uri=uri, dst_path=str(into)))
        described = next(folder.rglob("model.json"), None)
        if described is None or not described.with_name("model.safetensors").exists():
            raise RegistryError(f"{uri}: has no model.json and model.safetensors: it was not made by ratchet")
        return described.parent

    def _made(self, run: "Run", releases: Mapping[str, Sequence[Release]]) -> Made:
        info, data = run.info, run.data
        inputs = run.inputs.dataset_inputs if run.inputs else []
        dataset = _dataset(inputs[-1].dataset) if inputs else {}
        record, doubts = self._record(str(info.run_id), data.tags)
        return Made(
            run_id=str(info.run_id),
            run_name=str(info.run_name or ""),
            status=str(info.status),
            tags=dict(data.tags),
            params=dict(data.params),
            metrics=dict(data.metrics),
            dataset=dataset,
            record=record,
            releases=tuple(releases.get(str(info.run_id), ())),
            doubts=doubts,
        )

    def _record(self, run_id: str, tags: Mapping[str, str]) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
        """The record of a run or version, and a doubt where it is damaged: one bad record hides no other run."""
        try:
            return read_record(self.client, run_id, tags), ()
        except RegistryError as error:
            return None, (str(error),)

    def _releases(self, condition: str = "") -> dict[str, list[Release]]:
        """The versions that meet a condition, by their run, in order."""
        found = all_pages(partial(self.client.search_model_versions, condition or None))
        aliases = {name: self.client.get_registered_model(name).aliases for name in {one.name for one in found}}
        by_run: dict[str, list[Release]] = {}
        for one in sorted(found, key=lambda one: (one.name, int(one.version))):
            number = str(one.version)
            mine = tuple(sorted(alias for alias, at in aliases[one.name].items() if str(at) == number))
            by_run.setdefault(str(one.run_id), []).append(Release(one.name, number, mine, dict(one.tags)))
        return by_run


def _dataset(found: Any) -> dict[str, Any]:
    return {"name": found.name, "digest": found.digest, "profile": parse_object(found.profile or "{}") or {}}
