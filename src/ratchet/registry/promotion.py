"""The line of champions of one registered model. Every alias moves here and nowhere else, and the ledger is told first.

See kept.py for how MLflow follows the ledger. One act at a time: each has its turn, whoever else is at work.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ratchet.errors import ChampionMoved, NotAllowed, RegistryError
from ratchet.registry.access import Role, require, user
from ratchet.registry.alias_state import AliasState, standing
from ratchet.registry.alias_sync import AliasSync
from ratchet.registry.fingerprints import difference, evidence, unexpected_changes
from ratchet.registry.ledger import Entry
from ratchet.registry.versions import Version

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ratchet.gate.level import Tries
    from ratchet.gate.verdict import Verdict
    from ratchet.registry.tries import Question

__all__ = ["Promotions"]


class Promotions(AliasSync):
    """Who is champion of `name`, who was, and how that changes.

    Raises (every method): as those of `Kept` do, and RegistryError where ledger and MLflow do not agree (`settle`).
    """

    def register(self, version: Version, *, why: str, over: str | None, rules: str = "") -> AliasState:
        """Make a version that passed the gate challenger.

        `over` is the champion that it was compared with, `rules` the digest of the gate's settings.
        """
        return self._judge("register", version, why=why, over=over, rules=rules)

    def withdraw(self, version: Version, *, why: str, over: str | None, rules: str = "") -> AliasState:
        """Note that a version was judged again and refused: it is challenger no longer."""
        return self._judge("withdraw", version, why=why, over=over, rules=rules)

    def decide(
        self,
        question: "Question",
        compared: "NDArray[np.bool_]",
        judge: "Callable[[Tries], Verdict]",
        *,
        reserved: float,
    ) -> "Verdict":
        """Judge a candidate at the level that is left, and enter the try in the ledger, passed or not.

        The same question is asked once: again it is the try that it was. `compared` says which test rows count.

        Raises:
            ChampionMoved: it was compared with a champion that is champion no longer.
        """
        from ratchet.gate.text import message
        from ratchet.registry.tries import judgement, known_try, tries_before

        who = user()
        require(self.params.access, "runners", who, f"register {self.name}")
        with self._turn():  # two candidates at once would take the same try
            if self.standing().champion != question.over:
                raise ChampionMoved(f"{self.name}: version {self.standing().champion} became champion meanwhile")
            entries = self.entries()
            known = known_try(entries, question)
            aside = self.ledger.set_aside(model=self.name)
            before = known or tries_before(entries, question.rows, compared, model=self.name, aside=aside)
            verdict = judge(before)
            if known is None:
                content = judgement(entries, question, before, verdict, reserved=reserved)
                self.ledger.append("judge", model=self.name, version=None, who=who, why=message(verdict), **content)
                self._follow()
            return verdict

    def _judge(self, what: str, version: Version, *, why: str, over: str | None, rules: str) -> AliasState:
        who = user()
        require(self.params.access, "runners", who, f"register {self.name}")
        with self._turn():
            found, before, noted = evidence(self.registry, version), self.judged(version), self.noted(version)
            if noted is not None and (changed := unexpected_changes(noted, found)):
                raise RegistryError(
                    f"{self._called(version)} is not what was registered: {'; '.join(changed)}: restore it"
                )
            if before and version.number == self.standing().champion:
                over = before["over"]  # nobody is compared with themselves
            now: dict[str, Any] = {"run": version.run_id, "over": over, "rules": rules, "evidence": found}
            waits = before is not None and before["passed"]
            if before is None or waits != (what == "register") or any(before.get(key) != now[key] for key in now):
                act = "renew" if what == "register" and waits else what
                self.ledger.append(act, model=self.name, version=version.number, who=who, why=why, **now)
            return self._follow()

    def crown(self, version: Version, *, over: str | None) -> AliasState:
        """Promote a version that the gate let in, unless it already was champion once.

        Raises:
            ChampionMoved: it was compared with `over`, which is champion no longer.
        """
        who = user()
        require(self.params.access, "runners", who, f"register {self.name}")
        with self._turn():
            now = self.standing()
            if version.number in now.crowned:
                return self._follow()  # it is champion; or a rollback took it off, and only a person may bring it back
            if now.champion != over:
                raise ChampionMoved(f"{self.name}: version {now.champion} became champion meanwhile")
            self._append("promote", version, who=who, why="passed the gate", over=over)
            return self._follow()

    def approve(self, version: Version, *, why: str, who: str = "", via: str = "command line") -> Entry:
        """Note that a person approves the version as it is; void as soon as anything that it is judged by changes."""
        who = who or user()
        require(self.params.access, "approvers", who, f"approve {self.name}")
        with self._turn():
            found = self._fit(version)
            if self.params.access.four_eyes and who in self._ran(version):
                raise NotAllowed(
                    f"{self._called(version)}: {who} ran it and cannot approve it while access.four_eyes is true: "
                    "another of access.approvers must"
                )
            entry = self._append("approve", version, who=who, why=why, via=via, evidence=found)
            self.ledger.publish()
            self._follow()
            return entry

    def promote(self, version: Version, *, why: str, who: str = "", via: str = "command line") -> AliasState:
        """Make a version champion by hand; where promotion is manual it must be approved as it is now."""
        who = who or user()
        with self._turn():
            given = self._last(version, "approve")
            if given is None:
                require(self.params.access, "admins", who, f"promote {self.name}")
            found = self._fit(version)
            valid = given is not None and given.content["evidence"] == found and not self._is_used(given, version)
            if given is not None:  # whoever approves may promote what they approved
                role: Role = "approvers" if valid and who == given.who else "admins"
                require(self.params.access, role, who, f"promote {self.name}")
            if self.params.registry.promotion == "manual" and not valid:
                void = " any more: it changed, or was promoted, since it was approved" if given else ""
                raise RegistryError(
                    f"{self._called(version)} is not approved{void}: registry.promotion is manual, so first `ratchet "
                    f"approve {self.name}/{version.number} --why ...`"
                )
            over = self.standing().champion
            if over != version.number:
                self._append("promote", version, who=who, why=why, via=via, over=over)
                self.ledger.publish()
            return self._follow()

    def rollback(self, to: str | None, *, why: str, who: str = "", via: str = "command line") -> AliasState:
        """Give the alias champion back: to a version, to whatever it was at a time (ISO 8601), or to the last good one.

        The last good one is the champion before this one that no rollback took off.
        """
        who = who or user()
        require(self.params.access, "admins", who, f"roll back {self.name}")
        with self._turn():
            now = self.standing()
            if now.seal is None:
                known = sorted({entry.model for entry in self.ledger.entries()})
                raise RegistryError(
                    f"{self.name}: the ledger knows no such model; it knows {', '.join(known) or 'none'}"
                )
            number = self._target(to, now)
            version = self.registry.find(f"{self.name}/{number}")
            if number != now.champion:
                self._intact(version)
                self._append("rollback", version, who=who, why=why, via=via, over=now.champion)
                self.ledger.publish()
            return self._follow()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Act while nobody else does, on a ledger and an MLflow that agree."""
        with self.ledger.turn():
            self.settle()
            yield

    def _append(self, what: str, version: Version, *, who: str, why: str, **content: Any) -> Entry:
        run = version.run_id
        return self.ledger.append(what, model=self.name, version=version.number, who=who, why=why, run=run, **content)

    def _called(self, version: Version) -> str:
        return f"{self.name} version {version.number}"

    def _ran(self, version: Version) -> set[str]:
        """Whoever had a hand in making the version: who registered it, and whom MLflow has for its run."""
        acts = (entry for entry in self.entries() if entry.what in ("register", "renew"))
        return {one.who for one in acts if one.content.get("run") == version.run_id} | self.registry.users(version)

    def _is_used(self, given: Entry, version: Version) -> bool:
        """Was the version promoted since this approval? What a rollback took off needs another."""
        promoted = self._last(version, "promote")
        return promoted is not None and promoted.number > given.number and self.standing().champion != version.number

    def _target(self, to: str | None, now: AliasState) -> str:
        if to is None:
            good = [number for number in now.line if number != now.champion and number in self._numbers()]
            if not good and now.champion is None:
                raise RegistryError(f"{self.name}: the ledger names no champion: nothing to go back to")
            if not good:
                raise RegistryError(f"{self.name}: no champion before version {now.champion}: nothing to go back to")
            return good[-1]
        if to.isdecimal() and len(to) < 5:
            if to not in now.crowned:
                allowed = ", ".join(now.line) or "none"
                raise RegistryError(
                    f"{self.name} version {to} never was champion: allowed are {allowed}; `ratchet promote` makes "
                    "another one champion"
                )
            return to
        at = _moment(to)
        before = (entry for entry in self.entries() if datetime.fromisoformat(entry.at) <= at)
        champion = standing(before, self.name).champion
        if champion is None:
            raise RegistryError(f"{self.name}: had no champion at {at.isoformat()}: name a version or a later time")
        return champion

    def _fit(self, version: Version) -> dict[str, str]:
        """The evidence of a version that may become champion: it is what was judged last, and passed."""
        found, judged = self._intact(version), self.judged(version)
        if judged is not None and not judged["passed"] and version.number not in self.standing().crowned:
            raise RegistryError(f"{self._called(version)} was refused when it was judged again: train a better one")
        return found

    def _intact(self, version: Version) -> dict[str, str]:
        """The version's evidence, which is what it was judged by."""
        noted = self.noted(version)
        if noted is None:
            raise RegistryError(
                f"{self._called(version)}: the ledger does not know it: the gate did not let it in, or it was "
                "registered by other means; `ratchet train` registers what may become champion"
            )
        found = evidence(self.registry, version)
        changed = difference(noted, found)
        if changed:
            raise RegistryError(
                f"{self._called(version)} is not what was registered: {'; '.join(changed)}: restore it; or, if its "
                "register stage was cut off, run that again"
            )
        return found


def _moment(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise RegistryError(
            f"{text}: neither a version nor a time: write 3, 2026-11-20 or 2026-11-20T14:30 for example"
        ) from None
    return at.astimezone(UTC) if at.tzinfo else at.astimezone().astimezone(UTC)
