"""Acts on a registered model: register, approve, promote, roll back. Only these move aliases.

Each act is written to the ledger first, then MLflow follows (`alias_sync`). Acts exclude each other on all machines.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ratchet.errors import ChampionMoved, RegistryError
from ratchet.registry.access import Role, require, user
from ratchet.registry.alias_state import AliasState, replay
from ratchet.registry.alias_sync import AliasSync
from ratchet.registry.fingerprints import evidence_changes, listed, unexpected_changes
from ratchet.registry.ledger import LedgerEntry
from ratchet.registry.shadow_rule import judge_shadow
from ratchet.registry.versions import Version
from ratchet.traffic.log_reader import log_folder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ratchet.gate.significance import Tries
    from ratchet.gate.verdict import Verdict
    from ratchet.registry.tries import TryKey

__all__ = ["Promotions"]


class Promotions(AliasSync):
    """The champions of one model, and the acts that change them.

    Raises (every method): as those of `AliasSync`, and RegistryError if ledger and MLflow disagree (`synchronize`).
    """

    def register(self, version: Version, *, why: str, over: str | None, rules: str = "") -> AliasState:
        """Make a version that passed the gate challenger.

        `over` is the champion that it was compared with, `rules` the digest of the gate's settings.
        """
        return self._judge("register", version, why=why, over=over, rules=rules)

    def withdraw(self, version: Version, *, why: str, over: str | None, rules: str = "") -> AliasState:
        """Record that a version was judged again and refused, so that it is no longer challenger."""
        return self._judge("withdraw", version, why=why, over=over, rules=rules)

    def decide(
        self,
        question: "TryKey",
        compared: "NDArray[np.bool_]",
        judge: "Callable[[Tries], Verdict]",
    ) -> "Verdict":
        """Judge a candidate at the significance level that is left, and record the try, passed or not.

        The same question again is the same try. `compared` says which test samples count.

        Raises:
            ChampionMoved: the candidate was compared with a version that is no longer champion.
        """
        from ratchet.gate.verdict_text import message
        from ratchet.registry.tries import judgement, known_try, tries_before

        who = user()
        require(self.params.access, "runners", who, f"register {self.name}")
        with self._exclusive():  # two candidates at once would use the same try
            if self.state().champion != question.over:
                raise ChampionMoved(f"{self.name}: version {self.state().champion} became champion meanwhile")
            entries = self.entries()
            known = known_try(entries, question)
            aside = self.ledger.set_aside(model=self.name)
            before = known or tries_before(entries, question.rows, compared, model=self.name, aside=aside)
            verdict = judge(before)
            if known is None:
                content = judgement(entries, question, before, verdict)
                self.ledger.append("judge", model=self.name, version=None, who=who, why=message(verdict), **content)
                self._update_mlflow()
            return verdict

    def _judge(self, what: str, version: Version, *, why: str, over: str | None, rules: str) -> AliasState:
        who = user()
        require(self.params.access, "runners", who, f"register {self.name}")
        with self._exclusive():
            evidence = self.evidence(version)
            before, recorded = self.last_judgement(version), self.recorded_evidence(version)
            if recorded is not None and (changed := unexpected_changes(recorded, evidence)):
                raise RegistryError(
                    f"{self._label(version)} is not what was registered: {listed(changed)}. Fix: restore it"
                )
            if before and version.number == self.state().champion:
                over = before["over"]  # a champion is not compared with itself
            content: dict[str, Any] = {"run": version.run_id, "over": over, "rules": rules, "evidence": evidence}
            is_registered = before is not None and before["passed"]
            is_changed = before is None or any(before.get(key) != content[key] for key in content)
            if is_changed or is_registered != (what == "register"):
                act = "renew" if what == "register" and is_registered else what
                self.ledger.append(act, model=self.name, version=version.number, who=who, why=why, **content)
            return self._update_mlflow()

    def promote_automatically(self, version: Version, *, over: str | None) -> AliasState:
        """Make a version that passed the gate champion, unless it has been champion before.

        Raises:
            ChampionMoved: it was compared with `over`, which is no longer champion.
        """
        who = user()
        require(self.params.access, "runners", who, f"register {self.name}")
        with self._exclusive():
            state = self.state()
            if version.number in state.ever_champion | state.rejected:
                return self._update_mlflow()  # after a rollback or a rejection only a user may promote it
            if state.champion != over:
                raise ChampionMoved(f"{self.name}: version {state.champion} became champion meanwhile")
            self._append("promote", version, who=who, why="passed the gate", over=over)
            return self._update_mlflow()

    def approve(self, version: Version, *, why: str, who: str = "", via: str = "command line") -> LedgerEntry:
        """Record that a user approves the version. Any change of its evidence makes the approval void."""
        who = who or user()
        require(self.params.access, "approvers", who, f"approve {self.name}")
        with self._exclusive():
            evidence = self._promotable_evidence(version)
            entry = self._append("approve", version, who=who, why=why, via=via, evidence=evidence)
            self.ledger.publish()
            self._update_mlflow()
            return entry

    def reject(self, version: Version, *, why: str, who: str = "", via: str = "command line") -> LedgerEntry:
        """Record that a user rejects the version, which takes back an approval. It is no longer challenger.

        Raises:
            RegistryError: it is champion.
        """
        who = who or user()
        require(self.params.access, "approvers", who, f"reject {self.name}")
        with self._exclusive():
            state = self.state()
            if version.number == state.champion:
                raise RegistryError(
                    f"{self._label(version)} is champion and cannot be rejected. Fix: {self._replacement(state)}"
                )
            entry = self._append("reject", version, who=who, why=why, via=via)
            self.ledger.publish()
            self._update_mlflow()
            return entry

    def promote(self, version: Version, *, why: str, who: str = "", via: str = "command line") -> AliasState:
        """Make a version champion. With manual promotion it must be approved in its current state."""
        who = who or user()
        with self._exclusive():
            approval = self._last(version, "approve")
            if approval is None:
                require(self.params.access, "admins", who, f"promote {self.name}")
            evidence = self._promotable_evidence(version)
            self._require_not_rejected(version, self.state())
            is_valid = (
                approval is not None
                and approval.content["evidence"] == evidence
                and not self._is_used(approval, version)
            )
            if approval is not None:  # approvers may promote what they approved
                role: Role = "approvers" if is_valid and who == approval.who else "admins"
                require(self.params.access, role, who, f"promote {self.name}")
            if self.params.registry.promotion == "manual" and not is_valid:
                void = " any more: it changed, or was promoted, since it was approved" if approval else ""
                raise RegistryError(
                    f"{self._label(version)} is not approved{void}. registry.promotion is manual. Fix: first "
                    f"{self._approval(version)}"
                )
            state = self.state()
            over, content = state.champion, dict[str, Any]()
            if over is not None and version.number not in state.ever_champion:
                requests = log_folder(self.registry.workspace)
                champion, challenger = (f"{self.name}/{number}" for number in (over, version.number))
                if figures := judge_shadow(self.params.gate, requests, champion=champion, version=challenger):
                    content["shadow"] = figures
            if over != version.number:
                self._append("promote", version, who=who, why=why, via=via, over=over, **content)
                self.ledger.publish()
            return self._update_mlflow()

    def rollback(self, to: str | None, *, why: str, who: str = "", via: str = "command line") -> AliasState:
        """Make an earlier champion champion again.

        `to` is a version, or a time (ISO 8601) whose champion is meant. None means the champion before this one that no
        rollback removed.
        """
        who = who or user()
        require(self.params.access, "admins", who, f"roll back {self.name}")
        with self._exclusive():
            state = self.state()
            if state.seal is None:
                known = sorted({entry.model for entry in self.ledger.entries()})
                raise RegistryError(
                    f"{self.name}: the ledger knows no such model; it knows {', '.join(known) or 'none'}"
                )
            number = self._rollback_target(to, state)
            version = self.registry.find(f"{self.name}/{number}")
            if number != state.champion:
                self._verified_evidence(version)
                self._require_not_rejected(version, state)
                self._append("rollback", version, who=who, why=why, via=via, over=state.champion)
                self.ledger.publish()
            return self._update_mlflow()

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Exclude all other acts, and begin with a ledger and an MLflow that agree."""
        with self.ledger.exclusive():
            self.synchronize()
            yield

    def _append(self, what: str, version: Version, *, who: str, why: str, **content: Any) -> LedgerEntry:
        run = version.run_id
        return self.ledger.append(what, model=self.name, version=version.number, who=who, why=why, run=run, **content)

    def _label(self, version: Version) -> str:
        return f"{self.name} version {version.number}"

    def _approval(self, version: Version) -> str:
        return f"`ratchet approve {self.name}/{version.number} --why ...`"

    def _require_not_rejected(self, version: Version, state: AliasState) -> None:
        if version.number in state.rejected:
            by = "".join(f" by {entry.who} at {entry.at[:19]}Z: {entry.why}" for entry in self.rejections(version)[-1:])
            raise RegistryError(f"{self._label(version)} was rejected{by}. Fix: first {self._approval(version)}")

    def _is_used(self, approval: LedgerEntry, version: Version) -> bool:
        """Return whether the version was promoted since and then rolled back: it needs a new approval."""
        promotion = self._last(version, "promote")
        is_promoted = promotion is not None and promotion.number > approval.number
        return is_promoted and self.state().champion != version.number

    def _rollback_target(self, to: str | None, state: AliasState) -> str:
        if to is None:
            return self._previous_champion(state)
        if to.isdecimal() and len(to) < 5:
            if to not in state.ever_champion:
                usable = state.ever_champion & self._numbers() - state.rejected
                allowed = ", ".join(sorted(usable, key=int)) or "none"
                raise RegistryError(
                    f"{self.name} version {to} never was champion; allowed: {allowed}. `ratchet promote` makes another "
                    "version champion"
                )
            return to
        at = _parse_time(to)
        champion = self._champion_at(at)
        if champion is None:
            raise RegistryError(
                f"{self.name}: had no champion at {at.isoformat()}. Fix: name a version or a later time"
            )
        return champion

    def _champion_at(self, at: datetime) -> str | None:
        """Return the champion at a time. A clock that was set can leave two: before and after entries of a later time.

        Raises:
            RegistryError: there are two.
        """
        entries = self.entries()
        later = [datetime.fromisoformat(entry.at) > at for entry in entries]
        first = later.index(True) if True in later else len(entries)
        last = max(first, len(entries) - later[::-1].index(False) if False in later else 0)
        before, after = (replay(entries[:end], self.name).champion for end in (first, last))
        if before != after:
            ahead, behind = (
                f"entry {each.number} has the time {each.at[:19]}Z" for each in (entries[first], entries[last - 1])
            )
            raise RegistryError(
                f"{self.name}: a clock was changed: {ahead}, and the later {behind}. So at {at.isoformat()} version "
                f"{before or 'none'} or {after or 'none'} was champion. Fix: name one, such as "
                f"`ratchet rollback {self.name} --to {after or before} --why ...`"
            )
        return before

    def _previous_champion(self, state: AliasState) -> str:
        if usable := self._champions_before(state):
            return usable[-1]
        if state.champion is None:
            raise RegistryError(f"{self.name}: the ledger names no champion: nothing to go back to")
        stored = self._numbers()
        if untrusted := sorted(state.ever_champion & stored - state.rejected - {state.champion}, key=int):
            raise RegistryError(
                f"{self.name}: no champion before version {state.champion} by the entries that count. Others that were "
                f"champion: {', '.join(untrusted)}. Fix: name one, `ratchet rollback {self.name} --to {untrusted[-1]} "
                "--why ...`"
            )
        rejected = [number for number in state.champions if number in stored & state.rejected]
        but = (
            f" but rejected ones: {', '.join(rejected)}. Fix: `ratchet approve` one first"
            if rejected
            else f": nothing to go back to. Fix: {self._replacement(state)}"
        )
        raise RegistryError(f"{self.name}: no champion before version {state.champion}{but}")

    def _champions_before(self, state: AliasState) -> list[str]:
        """Return the stored versions to which a rollback can go, oldest first."""
        usable = self._numbers() - state.rejected - {state.champion}
        return [number for number in state.champions if number in usable]

    def _replacement(self, state: AliasState) -> str:
        """Return how another version becomes champion, in this state of the model."""
        if usable := self._champions_before(state):
            return f"`ratchet rollback {self.name} --to {usable[-1]} --why ...`"
        if state.challenger:
            return f"`ratchet approve {self.name}/{state.challenger} --promote --why ...`"
        return "train a better version, which replaces it: no other version can"

    def _promotable_evidence(self, version: Version) -> dict[str, str]:
        """Return the evidence of a version that may become champion: unchanged, and passed when last judged."""
        evidence, judged = self._verified_evidence(version), self.last_judgement(version)
        if judged is not None and not judged["passed"] and version.number not in self.state().ever_champion:
            raise RegistryError(f"{self._label(version)} was refused when it was judged again. Fix: train a better one")
        return evidence

    def _verified_evidence(self, version: Version) -> dict[str, str]:
        """Return the version's evidence after comparing it with the ledger."""
        recorded = self.recorded_evidence(version)
        if recorded is None:
            raise RegistryError(
                f"{self._label(version)}: the ledger does not know it: the gate did not let it in, or it was "
                "registered by other means; `ratchet train` registers what may become champion"
            )
        evidence = self.evidence(version)
        changed = evidence_changes(recorded, evidence)
        if changed:
            raise RegistryError(
                f"{self._label(version)} is not what was registered: {listed(changed)}. Fix: restore it; or, if its "
                "register stage was cut off, run that again"
            )
        return evidence


def _parse_time(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise RegistryError(
            f"{text}: neither a version nor a time; allowed: 3, 2026-11-20 or 2026-11-20T14:30 for example"
        ) from None
    return at.astimezone(UTC) if at.tzinfo else at.astimezone().astimezone(UTC)
