"""Versions of registered models in MLflow: numbers, aliases, tags and runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ratchet.errors import RegistryError
from ratchet.registry.mlflow_store import address, all_pages, connect, or_none, reachable
from ratchet.registry.provenance_record import Provenance, read_record
from ratchet.settings.model import Params
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import RegisteredModel

__all__ = ["Version", "Versions"]

_ANCHOR = "ratchet.ledger"  # a registered model's tag
_ABOUT = "Every version here passed the gate. The alias champion is the best so far; challenger waits for approval."


@dataclass(frozen=True)
class Version:
    """One version of a registered model."""

    name: str
    number: str
    run_id: str
    aliases: tuple[str, ...]


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
        ordered = sorted(stored, key=lambda version: int(version.version))
        return [_version(name, str(version.version), str(version.run_id), aliases) for version in ordered]

    def exists(self, name: str) -> bool:
        """Return whether there is a model of this name, even without versions."""
        with reachable(self.uri):
            return self._registered(name) is not None

    def names(self) -> list[str]:
        """Return the names of all registered models."""
        with reachable(self.uri):
            return sorted(str(model.name) for model in all_pages(self.client.search_registered_models))

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
        name, separator, selector = reference.removeprefix("models:/").partition("@")
        if not separator:
            name, separator, selector = name.rpartition("/")
        if not name or not selector:
            raise RegistryError(
                f"{reference}: found no version's name; allowed: NAME/VERSION or NAME@ALIAS, digits/3 or "
                "digits@challenger for example"
            )
        by_alias, by_number = self.client.get_model_version_by_alias, self.client.get_model_version
        with reachable(self.uri):
            # A server with users refuses any query about versions of a model that does not exist.
            exists = self._registered(name) is not None
            query = partial(by_alias if separator == "@" else by_number, name, selector)
            stored = or_none(query) if exists else None
        if stored is not None:
            return self._with_aliases(Version(name, str(stored.version), str(stored.run_id), ()))
        listed = [f"{name}/{version.number}" for version in self.versions(name)[-10:]]
        known = (
            f"there are {', '.join(listed)}" if listed else f"registered are {', '.join(self.names()) or 'no models'}"
        )
        raise RegistryError(f"{reference}: MLflow has no such version; {known}")

    def users(self, version: Version) -> set[str]:
        """Return the user of the version's run in MLflow; empty if the run is gone."""
        with reachable(self.uri):
            run = or_none(partial(self.client.get_run, version.run_id))
        user = run.data.tags.get("mlflow.user") if run else None
        return {str(user)} if user else set()

    def describe(self, version: Version, text: str) -> None:
        """Set the description, in Markdown, at the top of MLflow's page of the version."""
        with reachable(self.uri):
            self.client.update_model_version(version.name, version.number, text)

    def verdict_tag(self, version: Version) -> str | None:
        """Return the version's last verdict as JSON."""
        with reachable(self.uri):
            tag: str | None = self.client.get_model_version(version.name, version.number).tags.get("ratchet.verdict")
            return tag

    def provenance_of(self, run_id: str) -> Provenance | None:
        """Return the provenance record of the run's first version, of any model; None if it has no version."""
        with reachable(self.uri):
            versions = self.client.search_model_versions(f"run_id = '{run_id}'")
            first = min(versions, key=lambda version: version.creation_timestamp, default=None)
            return read_record(self.client, run_id, first.tags) if first else None

    def version_of(self, name: str, run_id: str) -> Version | None:
        """Return the run's version of a model, if it has one."""
        return next(iter(self._versions_of(name, run_id)), None)

    def _versions_of(self, name: str, run_id: str) -> list[Version]:
        stored = self.client.search_model_versions(f"name = '{name}' and run_id = '{run_id}'")
        numbers = sorted((str(version.version) for version in stored), key=int)
        return [self._with_aliases(Version(name, number, run_id, ())) for number in numbers]

    def _with_aliases(self, version: Version) -> Version:
        return _version(version.name, version.number, version.run_id, self.aliases(version.name))

    def _registered(self, name: str) -> "RegisteredModel | None":
        return or_none(partial(self.client.get_registered_model, name))

    def _by_alias(self, name: str, alias: str) -> Version | None:
        # get_model_version_by_alias fails on a server with users if the alias does not exist.
        aliases = self.aliases(name)
        stored = or_none(partial(self.client.get_model_version, name, aliases[alias])) if alias in aliases else None
        return _version(name, str(stored.version), str(stored.run_id), aliases) if stored else None


def _version(name: str, number: str, run_id: str, aliases: Mapping[str, str]) -> Version:
    own = tuple(sorted(alias for alias, holder in aliases.items() if holder == number))
    return Version(name, number, run_id, own)
