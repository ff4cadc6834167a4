"""Keep a model's aliases in MLflow as the ledger has them.

An act is one entry in the ledger. Then the aliases are moved in MLflow, and last the entry's seal is stored with the
model there: its anchor. If an act is cut off anywhere, the next one finds an older anchor and completes it. The current
anchor together with other aliases means that somebody moved them by hand.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ratchet import files
from ratchet.errors import LedgerBroken, RegistryError, TrackingRefused, TrackingUnavailable, find_cause, first_line
from ratchet.git import GitError
from ratchet.registry import card_note
from ratchet.registry.access import require, user
from ratchet.registry.alias_state import AliasState, replay
from ratchet.registry.fingerprints import collect_evidence
from ratchet.registry.ledger import RECOVER, Ledger, LedgerEntry
from ratchet.registry.models import ModelRegistry
from ratchet.registry.names import registered_name
from ratchet.registry.versions import Version
from ratchet.settings.model import Params
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from ratchet.registry.sample_digests import Samples

__all__ = ["AliasSync", "require_agreement"]

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
_JUDGED = ("register", "renew", "withdraw")


class AliasSync:
    """One registered model: its entries in the ledger, and its aliases in MLflow.

    Raises (every method):
        TrackingUnavailable: MLflow does not answer.
        RegistryError: the ledger does not answer, or the act is not possible.
        NotAllowed: this user may not do that.
    """

    def __init__(self, workspace: Workspace, params: Params, name: str, *, ledger: Ledger | None = None) -> None:
        """Open a model. `ledger` is one that was read before, which need not be verified again."""
        self.name, self.params = name, params
        self.registry = ModelRegistry(workspace, params)
        self.ledger = ledger or Ledger.of(workspace, params)

    @classmethod
    def known(cls, workspace: Workspace, params: Params, ledger: Ledger) -> "list[AliasSync]":
        """Return every model that an entry names, set aside or not, or that has an anchor in MLflow."""
        named = {entry.model for entry in ledger.read().entries if entry.what != "recover"}
        names = named | ModelRegistry(workspace, params).anchored()
        return [cls(workspace, params, name, ledger=ledger) for name in sorted(names)]

    def entries(self) -> list[LedgerEntry]:
        """Return the ledger's entries about this model."""
        return self.ledger.entries(model=self.name)

    def state(self) -> AliasState:
        """Return the state by the ledger, whatever MLflow has."""
        return replay(self.entries(), self.name)

    def synchronize(self) -> AliasState:
        """Complete an act that was cut off, and adopt the aliases of a model that the ledger does not know yet.

        Raises:
            LedgerBroken: the ledger is not what was written.
            RegistryError: somebody moved an alias by hand, or the model belongs to another ledger.
        """
        with self.ledger.exclusive():
            self.ledger.require_intact()
            if problem := self.disagreement():
                raise problem
            if not self.entries() and self._held():
                self._adopt()
            return self._update_mlflow()

    def update_mlflow(self) -> AliasState:
        """Set the aliases in MLflow as the ledger has them, whatever the anchor is."""
        with self.ledger.exclusive():
            self.ledger.require_intact()
            return self._update_mlflow()

    def repair(self, *, why: str) -> AliasState:
        """Restore the aliases as the ledger has them, and record those that MLflow had."""
        who = user()
        require(self.params.access, "admins", who, f"repair {self.name}")
        with self.ledger.exclusive():
            self.ledger.require_intact()
            if self.is_other_ledger:
                raise RegistryError(f"{self.fault()}. Fix: {self.fix}")
            aliases, deleted = self.registry.aliases(self.name), sorted(self.deleted(), key=int)
            self.ledger.append("repair", model=self.name, who=who, why=why, found=aliases, deleted=deleted)
            self.ledger.publish()
            return self._update_mlflow()

    def disagreement(self) -> RegistryError | None:
        """Return the error if ledger and MLflow disagree, and no unfinished act explains it. Changes nothing."""
        return self._at_rest(self._disagreement)

    def fault(self) -> str | None:
        """Describe the first difference between MLflow and the ledger that no unfinished act explains."""
        return self._at_rest(self._fault)

    def _at_rest(self, look: Callable[[], T | None]) -> T | None:
        """Return what `look` finds while no other process acts. It takes no lock: an auditor may only read."""
        while True:
            head, difference = self.ledger.head, look()
            if difference is None or self.ledger.head == head:
                return difference

    def _disagreement(self) -> RegistryError | None:
        if fault := self._fault():
            return RegistryError(f"{fault}. Fix: {self.fix}")
        if not self.entries() and self._held() and (lost := self.ledger.lost()):
            return LedgerBroken(f"{self.name}: {lost}. Nothing was changed. Fix: restore it; or, {RECOVER}")
        return None

    def _fault(self) -> str | None:
        # The anchor first: an act writes its entry before, and its anchor after the aliases.
        anchor, state = self.registry.anchor(self.name), self.state()
        if self.is_other_ledger:
            return f"{self.name}: the ledger lacks the entry {str(anchor)[:12]}, which this model's aliases follow"
        aliases, versions = self.registry.aliases(self.name), self._numbers()
        if state.champion and not self.registry.exists(self.name):
            return f"{self.name}: was deleted in MLflow, and its champion was version {state.champion} by the ledger"
        if anchor is None or anchor != state.seal:
            return None
        for alias, number in state.aliases.items():
            current = aliases.get(alias)
            if current == number or (current is None and alias == "challenger" and number not in versions):
                continue
            is_on, was_on = (f"on version {value}" if value else "on no version" for value in (current, number))
            gone = ", which was deleted there," if number and number not in versions else ""
            return f"{self.name}: the alias {alias} is {is_on} in MLflow, and {was_on}{gone} by the ledger"
        return None

    @property
    def fix(self) -> str:
        """The fix for a fault."""
        if self.is_other_ledger:
            return (
                "set registry.ledger to this model's ledger, or restore that; if it is lost for good, `ratchet "
                "recover` begins again with the champions that you confirm"
            )
        return "`ratchet audit` lists all that is wrong, `ratchet audit --repair` moves the aliases back"

    @property
    def is_other_ledger(self) -> bool:
        """Whether the model's anchor is in no entry: it belongs to another ledger, or entries are missing."""
        anchor, entries = self.registry.anchor(self.name), self.entries()
        recovered = {entry.state_of(self.name).get("anchor") for entry in entries if entry.what == "recover"}
        return anchor is not None and anchor not in {entry.seal for entry in entries} | recovered

    @property
    def is_unfinished(self) -> bool:
        """Whether the aliases do not follow the last entry yet."""
        seal = self.state().seal
        return self.registry.exists(self.name) and self.registry.anchor(self.name) != seal

    @property
    def is_cut_off(self) -> bool:
        """Whether the aliases do not follow the last entry, and no process moves them now."""
        if not self.is_unfinished:
            return False
        with ExitStack() as stack:
            with suppress(OSError):  # an auditor may only read
                stack.enter_context(self.ledger.exclusive())  # an act that is under way ends first
            return self.is_unfinished

    def deleted(self) -> set[str]:
        """Return versions that the ledger knows and MLflow does not have, or has with another run."""
        state = self.state()
        return set(state.registered | state.ever_champion) - self._numbers()

    def recorded_evidence(self, version: Version, *, up_to: int | None = None) -> dict[str, str] | None:
        """Return the evidence of the version's last judgement or adoption; None if the ledger does not know it.

        `up_to` is the number of the last entry to read.
        """
        entry = self._last(version, *_JUDGED, "adopt", "recover", up_to=up_to)
        if entry is None:
            return None
        content = entry.content if entry.what in _JUDGED else entry.held(self.name).get(version.number)
        return dict((content or {}).get("evidence", {}))

    def evidence(self, version: Version) -> dict[str, str]:
        """Return the version's present evidence, as `collect_evidence` does."""
        return collect_evidence(self.registry, version, self.rejections(version))

    def rejections(self, version: Version) -> list[LedgerEntry]:
        """Return every entry that rejected the version, oldest first; also those that a recovery set aside."""
        return [entry for entry in self.decisions(version) if entry.what == "reject"]

    def decisions(self, version: Version) -> list[LedgerEntry]:
        """Return every entry that approved or rejected the version; also those that a recovery set aside."""
        entries = [entry for entry in self.ledger.read().entries if entry.model == self.name]
        return [entry for entry in entries if entry.what in ("approve", "reject") and _is_about(entry, version)]

    def card_fault(self, version: Version) -> str | None:
        """Describe a model card without the note about the version's rejection, or with one that does not count."""
        rejections = self.rejections(version)
        if card_note.is_shown(self.registry, version, rejections, self._current_rejection(version)):
            return None
        return self._card_text(version)

    def _current_rejection(self, version: Version) -> LedgerEntry | None:
        """Return the rejection that counts; None if the version was never rejected, or was approved since."""
        return self.rejections(version)[-1] if version.number in self.state().rejected else None

    def _card_text(self, version: Version, reason: str = "") -> str:
        act, says = ("reject", "does not say") if self._current_rejection(version) else ("approve", "still says")
        return (
            f"{self.name} version {version.number}: its model card {says} that it was rejected{reason}. Fix: restore "
            f"the card of run {version.run_id}, or make it writable; then `ratchet {act} {self.name}/{version.number} "
            "--why ...` again"
        )

    def last_judgement(self, version: Version) -> Mapping[str, Any] | None:
        """Return the content of the version's last judgement, with `over` (the champion then) and `passed`."""
        entry = self._last(version, *_JUDGED)
        return {**entry.content, "passed": entry.what != "withdraw"} if entry else None

    def training_samples(self, version: Version, into: Path) -> "Samples | None":
        """Return the samples that the version was trained and selected on; None if they were not recorded.

        Raises:
            RegistryError: the record is not the one that was registered.
        """
        from ratchet.registry.sample_digests import TRAINING_SAMPLES, read_samples

        path, recorded = f"provenance/{TRAINING_SAMPLES}", self.recorded_evidence(version) or {}
        if path not in recorded:
            return None
        name = f"run {version.run_id}: {path}"
        copy = self.registry.download(name, into, run_id=version.run_id, artifact_path=path)
        if files.digest_file(copy) != recorded[path]:
            raise RegistryError(
                f"{self.name} version {version.number}: {path} is not what was registered: nothing was compared. Fix: "
                f"restore it from a backup, or `ratchet rollback {self.name} --why ...`, if there is an earlier "
                "champion"
            )
        return read_samples(copy)

    def _last(self, version: Version, *what: str, up_to: int | None = None) -> LedgerEntry | None:
        """Return the last entry of these kinds about the version, and not about a deleted one of the same number."""
        entries = [entry for entry in self.entries() if up_to is None or entry.number <= up_to]
        about = [entry for entry in entries if entry.what in what and _is_about(entry, version)]
        return about[-1] if about else None

    def _held(self) -> dict[str, str]:
        """Return ratchet's own aliases as MLflow has them."""
        aliases = self.registry.aliases(self.name)
        return {alias: aliases[alias] for alias in AliasState().aliases if alias in aliases}

    def _adopt(self) -> None:
        aliases, lost = self._held(), self.registry.anchor(self.name)
        versions = [version for version in self.registry.versions(self.name) if version.number in aliases.values()]
        self.ledger.append(
            "adopt",
            model=self.name,
            why="the ledger begins",
            held={version.number: {"run": version.run_id, "evidence": self.evidence(version)} for version in versions},
            lost=lost,
            champion=aliases.get("champion"),
            challenger=aliases.get("challenger"),
        )

    def _update_mlflow(self) -> AliasState:
        """Move the aliases, then the anchor. Caller must hold the ledger lock."""
        state = self.state()
        if state.seal is None or not self.registry.exists(self.name):
            return state
        aliases, versions = self.registry.aliases(self.name), self._numbers()
        wanted = {alias: number if number in versions else None for alias, number in state.aliases.items()}
        moved = {alias: number for alias, number in wanted.items() if aliases.get(alias) != number}
        if moved:
            self.registry.set_aliases(self.name, moved)
        if (anchor := self.registry.anchor(self.name)) != state.seal:
            self._show_rejections(anchor)
            self.registry.set_anchor(self.name, state.seal)
        return state

    def _show_rejections(self, anchor: str | None) -> None:
        """Let the model card of each version that was rejected or approved after the anchor say so.

        A card that cannot be written delays no act: it is named here once, and by each audit.
        """
        entries = self.entries()
        start = next((place for place, entry in enumerate(entries, 1) if entry.seal == anchor), 0)
        decisions = [entry for entry in entries[start:] if entry.what in ("reject", "approve")]
        for version in self.registry.versions(self.name) if decisions else ():
            if any(_is_about(entry, version) for entry in decisions) and (rejections := self.rejections(version)):
                try:
                    card_note.show(self.registry, version, rejections, self._current_rejection(version))
                except (RegistryError, TrackingUnavailable) as error:
                    _LOG.warning("%s", self._card_text(version, f" ({first_line(error.__cause__ or error)})"))

    def _numbers(self) -> set[str]:
        """Return the versions that MLflow has with the same run as the ledger."""
        runs = {}
        for entry in self.entries():
            if entry.version and "run" in entry.content:
                runs[entry.version] = entry.content["run"]
            for number, held in entry.held(self.name).items():
                runs[number] = held.get("run")
        stored = self.registry.versions(self.name)
        return {version.number for version in stored if runs.get(version.number, version.run_id) == version.run_id}


def require_agreement(workspace: Workspace, params: Params) -> None:
    """Check before a training that its model could be registered after it: ledger and MLflow agree.

    What does not answer now is asked again by the registration.

    Raises:
        LedgerBroken: the ledger is not what was written.
        RegistryError: somebody moved an alias by hand, the model belongs to another ledger, or git fails.
        TrackingRefused: MLflow answers, and refuses.
    """
    ledger = Ledger.of(workspace, params)
    if not ledger.is_begun or (params.registry.model == "auto" and not (workspace.packed / "manifest.json").exists()):
        return  # nothing was registered, or the data that name the model are not there yet
    try:
        ledger.require_intact()
        problem = AliasSync(workspace, params, registered_name(params, workspace), ledger=ledger).disagreement()
    except (LedgerBroken, TrackingRefused):
        raise
    except (RegistryError, TrackingUnavailable) as error:
        if find_cause(error, GitError):
            raise
        return
    if problem:
        raise problem


def _is_about(entry: LedgerEntry, version: Version) -> bool:
    """Return whether the entry holds evidence of this version: its number and its run must match."""
    if entry.what in ("adopt", "recover"):
        return bool(entry.held(version.name).get(version.number, {}).get("run") == version.run_id)
    return entry.version == version.number and entry.content.get("run") == version.run_id
