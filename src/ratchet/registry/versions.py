"""Versions of registered models in MLflow: their numbers, aliases, tags and where they came from."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ratchet.errors import RegistryError
from ratchet.registry.mlflow_store import address, all_pages, connect, or_none, reachable
from ratchet.registry.provenance_tags import read_record
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
    """MLflow's table of versions, spoken to in whole steps.

    Raises (every method):
        TrackingAway: MLflow does not answer.
    """

    def __init__(self, workspace: Workspace, params: Params) -> None:
        self.workspace, self.params = workspace, params
        self.uri = address(workspace, params.tracking)
        self.client: MlflowClient = connect(workspace, params.tracking)

    def enter(self, name: str, run_id: str, model_uri: str, *, tags: dict[str, str]) -> Version:
        """Make the run's model a version, with no alias yet; the version it already has, when there is one."""
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
                assert version is not None, "it was made just now"
            for key, value in tags.items():
                self.client.set_model_version_tag(name, version.number, key, value)
            return version

    def _only_version(self, name: str, run_id: str) -> Version | None:
        """The first: a server that was slow to answer was asked again, and may have made the version twice."""
        found = self._versions_of(name, run_id)
        for one in found[1:]:
            self.client.delete_model_version(name, one.number)
        return found[0] if found else None

    def set_aliases(self, name: str, wanted: Mapping[str, str | None]) -> None:
        """Give each alias to a version, or to none. Who may do that and why is Succession's to know."""
        with reachable(self.uri):
            for alias, number in wanted.items():
                if number is None:
                    self.client.delete_registered_model_alias(name, alias)
                else:
                    self.client.set_registered_model_alias(name, alias, number)

    def aliases(self, name: str) -> dict[str, str]:
        """Alias -> version number; empty for a name that nothing is registered by."""
        with reachable(self.uri):
            model = self._registered(name)
            return {alias: str(number) for alias, number in model.aliases.items()} if model else {}

    def versions(self, name: str) -> list[Version]:
        """Every version there is, the first first."""
        with reachable(self.uri):
            found = all_pages(partial(self.client.search_model_versions, f"name = '{name}'"))
        aliases = self.aliases(name) if found else {}
        ordered = sorted(found, key=lambda one: int(one.version))
        return [_version(name, str(one.version), str(one.run_id), aliases) for one in ordered]

    def is_there(self, name: str) -> bool:
        """Whether anything is registered by that name, or was and the name is kept."""
        with reachable(self.uri):
            return self._registered(name) is not None

    def names(self) -> list[str]:
        """Every registered model."""
        with reachable(self.uri):
            return sorted(str(model.name) for model in all_pages(self.client.search_registered_models))

    def anchor(self, name: str) -> str | None:
        """The seal of the ledger's entry that the aliases follow; None before the first."""
        with reachable(self.uri):
            model = self._registered(name)
            return str(model.tags[_ANCHOR]) if model and _ANCHOR in model.tags else None

    def set_anchor(self, name: str, seal: str) -> None:
        """Note which of the ledger's entries the aliases follow."""
        with reachable(self.uri):
            self.client.set_registered_model_tag(name, _ANCHOR, seal)

    def find(self, asked: str) -> Version:
        """The version that `NAME/VERSION`, `NAME@ALIAS` or either behind `models:/` means.

        Raises:
            RegistryError: it is none of these, or there is no such version; lists those that there are.
        """
        name, mark, which = asked.removeprefix("models:/").partition("@")
        if not mark:
            name, mark, which = name.rpartition("/")
        if not name or not which:
            raise RegistryError(f"{asked}: write NAME/VERSION or NAME@ALIAS, digits/3 or digits@challenger for example")
        by_alias, by_number = self.client.get_model_version_by_alias, self.client.get_model_version
        with reachable(self.uri):
            # Asked first, for a server with users permits no question about versions of what is not there.
            there = self._registered(name) is not None
            found = or_none(partial(by_alias if mark == "@" else by_number, name, which)) if there else None
        if found is not None:
            return self._with_aliases(Version(name, str(found.version), str(found.run_id), ()))
        listed = [f"{name}/{one.number}" for one in self.versions(name)[-10:]]
        known = (
            f"there are {', '.join(listed)}" if listed else f"registered are {', '.join(self.names()) or 'no models'}"
        )
        raise RegistryError(f"{asked}: MLflow has no such version; {known}")

    def users(self, version: Version) -> set[str]:
        """Whom MLflow has for the run that the version is of; nobody where the run is gone."""
        with reachable(self.uri):
            run = or_none(partial(self.client.get_run, version.run_id))
        user = run.data.tags.get("mlflow.user") if run else None
        return {str(user)} if user else set()

    def describe(self, version: Version, text: str) -> None:
        """Say in Markdown what MLflow's page of the version begins with."""
        with reachable(self.uri):
            self.client.update_model_version(version.name, version.number, text)

    def verdict_tag(self, version: Version) -> str | None:
        """The verdict that the version was judged by last, as JSON."""
        with reachable(self.uri):
            tag: str | None = self.client.get_model_version(version.name, version.number).tags.get("ratchet.verdict")
            return tag

    def record_of(self, run_id: str) -> dict[str, Any] | None:
        """The provenance record with which this run's model first became a version, when it did, by whatever name."""
        with reachable(self.uri):
            found = self.client.search_model_versions(f"run_id = '{run_id}'")
            first = min(found, key=lambda one: one.creation_timestamp, default=None)
            return read_record(self.client, run_id, first.tags) if first else None

    def version_of(self, name: str, run_id: str) -> Version | None:
        """The version made of this run, if any."""
        return next(iter(self._versions_of(name, run_id)), None)

    def _versions_of(self, name: str, run_id: str) -> list[Version]:
        found = self.client.search_model_versions(f"name = '{name}' and run_id = '{run_id}'")
        numbers = sorted((str(one.version) for one in found), key=int)
        return [self._with_aliases(Version(name, number, run_id, ())) for number in numbers]

    def _with_aliases(self, version: Version) -> Version:
        return _version(version.name, version.number, version.run_id, self.aliases(version.name))

    def _registered(self, name: str) -> "RegisteredModel | None":
        return or_none(partial(self.client.get_registered_model, name))

    def _by_alias(self, name: str, alias: str) -> Version | None:
        # Not by MLflow's own question: a server with users permits none about an alias that is not there.
        aliases = self.aliases(name)
        found = or_none(partial(self.client.get_model_version, name, aliases[alias])) if alias in aliases else None
        return _version(name, str(found.version), str(found.run_id), aliases) if found else None


def _version(name: str, number: str, run_id: str, aliases: Mapping[str, str]) -> Version:
    mine = tuple(sorted(alias for alias, its in aliases.items() if its == number))
    return Version(name, number, run_id, mine)
