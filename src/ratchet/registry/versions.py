"""Versions of registered models in MLflow: numbers, aliases, tags and runs."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.errors import RegistryError
from ratchet.registry.mlflow_store import (
    active,
    address,
    all_pages,
    connect,
    file_errors,
    or_none,
    reachable,
    run_files,
)
from ratchet.registry.provenance_record import Provenance, read_record
from ratchet.registry.relocation import local_path
from ratchet.settings.model import Params
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion, RegisteredModel

__all__ = ["MLFLOW_NOTE", "REFERENCE", "Version", "Versions", "as_version"]

MLFLOW_NOTE = "registered_model_meta"
"""A file that MLflow adds to each download of a version."""
REFERENCE = re.compile(r"^(?:models:/)?(?P<name>[^/@:]+)(?:/(?P<number>\d+)|@(?P<alias>[^/@:]+))$")
"""Forms of a version's name: models:/NAME/VERSION, NAME/VERSION, NAME@ALIAS."""
_ANCHOR = "ratchet.ledger"  # a registered model's tag
_ABOUT = "Every version here passed the gate. The alias champion is the best so far; challenger waits for approval."


@dataclass(frozen=True)
class Version:
    """One version of a registered model with its current aliases and tags."""

    name: str
    number: str
    run_id: str
    aliases: tuple[str, ...]
    tags: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def uri(self) -> str:
        """MLflow's address of the version."""
        return f"models:/{self.name}/{self.number}"

    @property
    def label(self) -> str:
        """Name, number and aliases for people."""
        return f"{self.name} version {self.number} ({', '.join(self.aliases) or 'no alias'})"


class Versions:
    """MLflow's registered models and their versions.

    Raises (every method):
        TrackingUnavailable: MLflow does not answer.
    """

    def __init__(self, workspace: Workspace, params: Params) -> None:
        self.workspace, self.params = workspace, params
        self.uri = address(workspace, params.tracking)
        self.client: MlflowClient = connect(workspace, params.tracking)

    def add_version(self, name: str, run_id: str, model_uri: str, *, tags: dict[str, str]) -> Version:
        """Register the run's model as a version without an alias; return the existing one if it has one."""
        from mlflow.exceptions import MlflowException

        with reachable(self.uri):
            version = self._only_version(name, run_id)
            if version is None:
                try:
                    self.client.create_registered_model(name, description=_ABOUT)
                except MlflowException as error:
                    if error.error_code != "RESOURCE_ALREADY_EXISTS":
                        raise
                source = self.client.get_logged_model(model_uri.rsplit("/", 1)[-1])
                self.client.create_model_version(name, source.artifact_location, run_id, model_id=source.model_id)
                version = self._only_version(name, run_id)
                assert version is not None, "it was created just now"
            for key, value in tags.items():
                self.client.set_model_version_tag(name, version.number, key, value)
            return version

    def _only_version(self, name: str, run_id: str) -> Version | None:
        """Return the run's version. A request that was repeated because the server was slow can have created two."""
        versions = self._versions_of(name, run_id)
        for duplicate in versions[1:]:
            self.client.delete_model_version(name, duplicate.number)
        return versions[0] if versions else None

    def set_aliases(self, name: str, wanted: Mapping[str, str | None]) -> None:
        """Give each alias to a version, or remove it. `AliasSync` decides which."""
        with reachable(self.uri):
            for alias, number in wanted.items():
                if number is None:
                    self.client.delete_registered_model_alias(name, alias)
                else:
                    self.client.set_registered_model_alias(name, alias, number)

    def aliases(self, name: str) -> dict[str, str]:
        """Return alias -> version number; empty if there is no such model."""
        with reachable(self.uri):
            model = self._registered(name)
            return {alias: str(number) for alias, number in model.aliases.items()} if model else {}

    def versions(self, name: str) -> list[Version]:
        """Return all versions of a model, the oldest first."""
        with reachable(self.uri):
            stored = all_pages(partial(self.client.search_model_versions, f"name = '{name}'"))
        aliases = self.aliases(name) if stored else {}
        return [as_version(version, aliases) for version in sorted(stored, key=lambda version: int(version.version))]

    def exists(self, name: str) -> bool:
        """Return whether there is a model of this name, even without versions."""
        with reachable(self.uri):
            return self._registered(name) is not None

    def names(self) -> list[str]:
        """Return the names of all registered models."""
        with reachable(self.uri):
            return sorted(str(model.name) for model in all_pages(self.client.search_registered_models))

    def anchored(self) -> set[str]:
        """Return the names of the models whose aliases follow a ledger."""
        with reachable(self.uri):
            models = all_pages(self.client.search_registered_models)
        return {str(model.name) for model in models if _ANCHOR in model.tags}

    def anchor(self, name: str) -> str | None:
        """Return the seal of the ledger's entry that the aliases follow; None before the first."""
        with reachable(self.uri):
            model = self._registered(name)
            return str(model.tags[_ANCHOR]) if model and _ANCHOR in model.tags else None

    def set_anchor(self, name: str, seal: str) -> None:
        """Store the seal of the ledger's entry that the aliases follow."""
        with reachable(self.uri):
            self.client.set_registered_model_tag(name, _ANCHOR, seal)

    def find(self, reference: str) -> Version:
        """Return the version that NAME/VERSION or NAME@ALIAS names, with or without `models:/` before it.

        Raises:
            RegistryError: it is none of these, or there is no such version; the message lists the existing ones.
        """
        match = REFERENCE.match(reference)
        if match is None:
            raise RegistryError(
                f"{reference}: found no version's name; allowed: NAME/VERSION or NAME@ALIAS, digits/3 or "
                "digits@challenger for example"
            )
        name = match["name"]
        with reachable(self.uri):
            # A server with users refuses any query about an alias, or a version of a model, that does not exist.
            model = self._registered(name)
            aliases = model.aliases if model else {}
            number = match["number"] or aliases.get(match["alias"])
            stored = or_none(partial(self.client.get_model_version, name, str(number))) if model and number else None
        if stored is not None:
            return as_version(stored, aliases)
        listed = [f"{name}/{version.number}" for version in self.versions(name)[-10:]]
        existing = (
            f"there are {', '.join(listed)}" if listed else f"registered are {', '.join(self.names()) or 'no models'}"
        )
        raise RegistryError(f"{reference}: MLflow has no such version; {existing}")

    def describe(self, version: Version, text: str) -> None:
        """Set the description, in Markdown, at the top of MLflow's page of the version."""
        with reachable(self.uri):
            self.client.update_model_version(version.name, version.number, text)

    def provenance_of(self, run_id: str) -> Provenance | None:
        """Return the provenance record of the run's first version, of any model; None if it has no version."""
        with reachable(self.uri):
            versions = self.client.search_model_versions(f"run_id = '{run_id}'")
            first = min(versions, key=lambda version: version.creation_timestamp, default=None)
            return read_record(self.client, run_id, first.tags) if first else None

    def models_of(self, run_id: str) -> set[str]:
        """Return the names of the models that the run's model is a version of."""
        with reachable(self.uri):
            return {str(version.name) for version in self.client.search_model_versions(f"run_id = '{run_id}'")}

    def version_of(self, name: str, run_id: str) -> Version | None:
        """Return the run's version of a model, if it has one."""
        return next(iter(self._versions_of(name, run_id)), None)

    def _versions_of(self, name: str, run_id: str) -> list[Version]:
        stored = self.client.search_model_versions(f"name = '{name}' and run_id = '{run_id}'")
        aliases = self.aliases(name) if stored else {}
        return [as_version(version, aliases) for version in sorted(stored, key=lambda version: int(version.version))]

    def download(self, name: str, into: Path, *, fix: str = "restore them", **source: str) -> Path:
        """Copy files to the folder `into`; `source` is as of MLflow's `download_artifacts`, `name` is for messages.

        With a run's id a path is needed too.

        Raises:
            RegistryError: they cannot be read, or there are none.
        """
        from mlflow.artifacts import download_artifacts

        with active(self.workspace, self.params.tracking), file_errors(name, self.uri, fix):
            if run_id := source.get("run_id"):
                copy = Path(run_files(self.client, run_id).download_artifacts(source["artifact_path"], str(into)))
            else:
                copy = Path(download_artifacts(dst_path=str(into), **source))
            if copy.is_dir() and {path.name for path in copy.iterdir()} <= {MLFLOW_NOTE}:
                raise RegistryError(self._missing(name, source.get("artifact_uri", ""), fix))
        return copy

    def _missing(self, name: str, uri: str, fix: str) -> str:
        """Describe files that MLflow has recorded and that are not there."""
        match = REFERENCE.match(uri)
        place = uri
        if match is not None:
            place = str(self.client.get_model_version_download_uri(match["name"], str(match["number"])))
        path = local_path(place)
        state = "has none" if path is None or path.exists() else "does not exist"
        return (
            f"{name}: its files are recorded at {path or place}, which {state}; this project is at "
            f"{self.workspace.project.root}. Fix: mount that folder, or {fix}; if the project had another folder then, "
            "`ratchet relocate FOLDER`"
        )

    def _registered(self, name: str) -> "RegisteredModel | None":
        return or_none(partial(self.client.get_registered_model, name))


def as_version(stored: "ModelVersion", aliases: Mapping[str, str]) -> Version:
    """Return a version of MLflow; `aliases` are those of its model."""
    number = str(stored.version)
    own = tuple(sorted(alias for alias, holder in aliases.items() if str(holder) == number))
    return Version(str(stored.name), number, str(stored.run_id), own, dict(stored.tags))
