"""One registered model as the ledger keeps it: what it says, what MLflow has, and how MLflow is made to follow.

An act is one entry in the ledger, and what it says is then done in MLflow: the aliases are moved, and last of all the
entry's seal is noted with the model. Cut off anywhere, the next act finds another seal there than the ledger's last
and finishes what was begun. The same seal and other aliases mean that somebody moved them by hand.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet import files
from ratchet.errors import ChampionMoved, LedgerBroken, RegistryError
from ratchet.registry.access import require, user
from ratchet.registry.alias_state import AliasState, standing
from ratchet.registry.fingerprints import evidence
from ratchet.registry.ledger import RECOVER, Entry, Ledger
from ratchet.registry.models import ModelRegistry
from ratchet.registry.versions import Version
from ratchet.settings.model import Params
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from ratchet.registry.samples import Samples

__all__ = ["AliasSync", "recovered_state"]

_JUDGED = ("register", "renew", "withdraw")


class AliasSync:
    """The entries of `name`, and MLflow beside them.

    Raises (every method):
        TrackingAway: MLflow does not answer.
        RegistryError: the ledger does not; or what is asked cannot be, in words.
        NotAllowed: this user may not.
    """

    def __init__(self, workspace: Workspace, params: Params, name: str, *, ledger: Ledger | None = None) -> None:
        """`ledger` is one that was read before, which need not be verified again."""
        self.name, self.params = name, params
        self.registry = ModelRegistry(workspace, params)
        self.ledger = ledger or Ledger.of(workspace, params)

    def entries(self) -> list[Entry]:
        """What the ledger holds about this model."""
        return self.ledger.entries(model=self.name)

    def standing(self) -> AliasState:
        """What the ledger says, whatever MLflow does."""
        return standing(self.entries(), self.name)

    def settle(self) -> AliasState:
        """Finish what a killed act began, and take over the aliases of a model that the ledger does not know yet.

        Raises:
            LedgerBroken: the ledger is not what was written.
            RegistryError: somebody moved an alias by hand, or the ledger is not the one that the model was kept in.
        """
        with self.ledger.turn():
            self.ledger.require_whole()
            fault = self.fault()
            if fault:
                raise RegistryError(f"{fault}: {self.way_out}")
            if not self.entries() and self._held():
                if lost := self.ledger.lost():
                    raise LedgerBroken(f"{self.name}: {lost}. Nothing was changed. Fix: restore it; or, {RECOVER}")
                self._adopt("the ledger begins", only_if=_first)
            return self._follow()

    def adopt(self, *, why: str) -> AliasState:
        """Take the aliases over as they stand in MLflow: for a model whose ledger is lost for good."""
        require(self.params.access, "admins", user(), f"take over {self.name}")
        with self.ledger.turn():
            self._adopt(why)
            self.ledger.publish()
            return self._follow()

    def follow(self) -> AliasState:
        """Do in MLflow what the ledger says, whatever MLflow's note of the last act is."""
        with self.ledger.turn():
            self.ledger.require_whole()
            return self._follow()

    def repair(self, *, why: str) -> AliasState:
        """Put the aliases where the ledger has them, and note what was found."""
        who = user()
        require(self.params.access, "admins", who, f"repair {self.name}")
        with self.ledger.turn():
            self.ledger.require_whole()
            if self.is_another:
                raise RegistryError(f"{self.fault()}: {self.way_out}")
            found, deleted = self.registry.aliases(self.name), sorted(self.deleted(), key=int)
            self.ledger.append("repair", model=self.name, version=None, who=who, why=why, found=found, deleted=deleted)
            self.ledger.publish()
            return self._follow()

    def fault(self) -> str | None:
        """In what MLflow differs from the ledger, but for an act that was cut off; None where they agree."""
        with self.ledger.turn():
            anchor, now = self.registry.anchor(self.name), self.standing()
            if self.is_another:
                return f"{self.name}: the ledger lacks the entry {str(anchor)[:12]}, which this model's aliases follow"
            there, versions = self.registry.aliases(self.name), self._numbers()
            if now.champion and not self.registry.is_there(self.name):
                return f"{self.name}: was deleted in MLflow, and its champion was version {now.champion} by the ledger"
            if anchor is None or anchor != now.seal:
                return None
            for alias, number in now.aliases.items():
                found = there.get(alias)
                if found == number or (found is None and alias == "challenger" and number not in versions):
                    continue
                is_on, was_on = (f"on version {one}" if one else "on no version" for one in (found, number))
                gone = ", which was deleted there," if number and number not in versions else ""
                return f"{self.name}: the alias {alias} is {is_on} in MLflow, and {was_on}{gone} by the ledger"
            return None

    @property
    def way_out(self) -> str:
        """What to do about a fault."""
        if self.is_another:
            return (
                "set registry.ledger to the one it was kept in, or restore that; if it is lost for good, `ratchet "
                "recover` begins again with the champions that you confirm"
            )
        return "`ratchet audit` says all that is wrong, `ratchet audit --repair` moves the aliases back"

    @property
    def is_another(self) -> bool:
        """Is this not the ledger that the model was kept in, or not all of it?"""
        anchor, entries = self.registry.anchor(self.name), self.entries()
        recovered = {recovered_state(entry, self.name).get("anchor") for entry in entries if entry.what == "recover"}
        return anchor is not None and anchor not in {entry.seal for entry in entries} | recovered

    @property
    def is_unfinished(self) -> bool:
        """Do the aliases not follow the last entry yet?"""
        seal = self.standing().seal
        return self.registry.is_there(self.name) and self.registry.anchor(self.name) != seal

    def deleted(self) -> set[str]:
        """Versions that the ledger knows and MLflow has no more, or has anew, of another run."""
        now = self.standing()
        return set(now.waiting | now.crowned) - self._numbers()

    def noted(self, version: Version, *, up_to: int | None = None) -> dict[str, str] | None:
        """The evidence by which the version was judged last, or adopted; None for one that the ledger does not know.

        `up_to` is the number of the last entry that is asked.
        """
        entry = self._last(version, *_JUDGED, "adopt", "recover", up_to=up_to)
        if entry is None:
            return None
        held = entry.content if entry.what in _JUDGED else _held_by(entry, self.name).get(version.number)
        return dict((held or {}).get("evidence", {}))

    def judged(self, version: Version) -> Mapping[str, Any] | None:
        """The last judgement of the version: `over`, the champion it was compared with, and `passed`; None: never."""
        entry = self._last(version, *_JUDGED)
        return {**entry.content, "passed": entry.what != "withdraw"} if entry else None

    def samples_of(self, version: Version, into: Path) -> "Samples | None":
        """The samples that the version was trained and selected on; None where that was not recorded.

        Raises:
            RegistryError: the record is not the one that was registered.
        """
        from ratchet.registry.samples import SEEN, read_samples

        path, noted = f"provenance/{SEEN}", self.noted(version) or {}
        if path not in noted:
            return None
        found = self.registry.artifact(version.run_id, path, into)
        if files.digest_file(found) != noted[path]:
            raise RegistryError(
                f"{self.name} version {version.number}: {path} is not what was registered: nothing was compared. Fix: "
                f"restore it from a backup, or `ratchet rollback {self.name}` to another version"
            )
        return read_samples(found)

    def _last(self, version: Version, *what: str, up_to: int | None = None) -> Entry | None:
        """The newest of these entries about the version, and not about one of its number that was deleted before it."""
        entries = [entry for entry in self.entries() if up_to is None or entry.number <= up_to]
        found = [entry for entry in entries if entry.what in what and _is_about(entry, version)]
        return found[-1] if found else None

    def _held(self) -> dict[str, str]:
        """Those of our aliases that versions have in MLflow."""
        there = self.registry.aliases(self.name)
        return {alias: there[alias] for alias in standing([]).aliases if alias in there}

    def _adopt(self, why: str, *, only_if: Callable[[list[Entry]], None] = lambda entries: None) -> None:
        there, lost = self._held(), self.registry.anchor(self.name)
        versions = [one for one in self.registry.versions(self.name) if one.number in there.values()]
        self.ledger.append(
            "adopt",
            model=self.name,
            version=None,
            why=why,
            only_if=only_if,
            held={one.number: {"run": one.run_id, "evidence": evidence(self.registry, one)} for one in versions},
            lost=lost,
            champion=there.get("champion"),
            challenger=there.get("challenger"),
        )

    def _follow(self) -> AliasState:
        """Do in MLflow what the ledger says; in a turn, so that nobody follows an older entry meanwhile."""
        now = self.standing()
        if now.seal is None or not self.registry.is_there(self.name):
            return now
        there, versions = self.registry.aliases(self.name), self._numbers()
        wanted = {alias: number if number in versions else None for alias, number in now.aliases.items()}
        moved = {alias: number for alias, number in wanted.items() if there.get(alias) != number}
        if moved:
            self.registry.set_aliases(self.name, moved)
        if self.registry.anchor(self.name) != now.seal:
            self.registry.set_anchor(self.name, now.seal)
        return now

    def _numbers(self) -> set[str]:
        """Versions that MLflow has and that are those that the ledger means: of the same run."""
        runs = {}
        for entry in self.entries():
            if entry.version and "run" in entry.content:
                runs[entry.version] = entry.content["run"]
            for number, held in _held_by(entry, self.name).items():
                runs[number] = held.get("run")
        there = self.registry.versions(self.name)
        return {one.number for one in there if runs.get(one.number, one.run_id) == one.run_id}


def _is_about(entry: Entry, version: Version) -> bool:
    """Whether the entry holds evidence of this very version: by its number and its run."""
    if entry.what in ("adopt", "recover"):
        return bool(_held_by(entry, version.name).get(version.number, {}).get("run") == version.run_id)
    return entry.version == version.number and entry.content.get("run") == version.run_id


def recovered_state(recovery: Entry, model: str) -> Mapping[str, Any]:
    """Return what a recovery says of one model: its aliases, and the evidence of the versions that have them."""
    found: Mapping[str, Any] = recovery.content.get("models", {}).get(model, {})
    return found


def _held_by(entry: Entry, model: str) -> Mapping[str, Any]:
    content = recovered_state(entry, model) if entry.what == "recover" else entry.content
    found: Mapping[str, Any] = content.get("held", {})
    return found


def _first(entries: list[Entry]) -> None:
    if entries:
        raise ChampionMoved("the ledger began meanwhile: run the same again")
