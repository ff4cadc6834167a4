"""The line of champions of one registered model. Every alias moves here and nowhere else, and the ledger is told first.

An act is one entry in the ledger, and what it says is then done in MLflow: the aliases are moved, and last of all the
entry's seal is noted with the model. Cut off anywhere, the next act finds another seal there than the ledger's last
and finishes what was begun. The same seal and other aliases mean that somebody moved them by hand.
"""

from collections.abc import Callable
from datetime import UTC, datetime

from ratchet.errors import ChampionMoved, NotAllowed, RegistryError
from ratchet.params import Params
from ratchet.registry.access import require, user
from ratchet.registry.evidence import difference, evidence
from ratchet.registry.ledger import Entry, Ledger
from ratchet.registry.models import ModelRegistry
from ratchet.registry.standing import Standing, standing
from ratchet.registry.versions import Version
from ratchet.workspace import Workspace

__all__ = ["Succession"]


class Succession:
    """Who is champion of `name`, who was, and how that changes.

    Raises (every method):
        TrackingAway: MLflow does not answer.
        RegistryError: the ledger does not; or what is asked cannot be, in words.
        NotAllowed: this user may not.
    """

    def __init__(self, workspace: Workspace, params: Params, name: str) -> None:
        self.name, self.params = name, params
        self.registry = ModelRegistry(workspace, params)
        self.ledger = Ledger(workspace, params.registry.ledger)

    def entries(self) -> list[Entry]:
        """What the ledger holds about this model."""
        return self.ledger.entries(model=self.name)

    def standing(self) -> Standing:
        """What the ledger says, whatever MLflow does."""
        return standing(self.entries())

    def settle(self) -> Standing:
        """Finish what a killed act began, and take over the aliases of a model that the ledger does not know yet.

        Raises:
            RegistryError: somebody moved an alias by hand, or the ledger is not the one that the model was kept in.
        """
        fault = self.fault()
        if fault:
            raise RegistryError(f"{fault}: {self.way_out}")
        if not self.entries() and self._held():
            self._adopt("the ledger begins", only_if=_first)
        return self._follow()

    def adopt(self, *, why: str) -> Standing:
        """Take the aliases over as they stand in MLflow: for a model whose ledger is lost for good."""
        require(self.params.access, "admins", user(), f"take over {self.name}")
        self._adopt(why)
        return self._follow()

    def fault(self) -> str | None:
        """In what MLflow differs from the ledger, but for an act that was cut off; None where they agree."""
        anchor, now = self.registry.anchor(self.name), self.standing()
        if self.is_another:
            return f"{self.name}: the ledger lacks the entry {str(anchor)[:12]}, which this model's aliases follow"
        if anchor is None or anchor != now.seal:
            return None
        there, versions = self.registry.aliases(self.name), self._numbers()
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
                f"adopt {self.name}` begins a new one with the aliases as they stand"
            )
        return "`ratchet audit` says all that is wrong, `ratchet audit --repair` moves the aliases back"

    def register(self, version: Version, *, why: str, over: str | None) -> Standing:
        """Make a version that passed the gate challenger; `over` is the champion that it was compared with."""
        who = user()
        require(self.params.access, "runners", who, f"register {self.name}")
        found, compared = evidence(self.registry, version), self.compared_with(version)
        if version.number == over and compared:  # it is champion since, and not compared with itself
            (over,) = compared
        waits = version.number in self.standing().waiting
        if not waits or (self.noted(version), compared) != (found, (over,)):
            self.ledger.append(
                "renew" if waits else "register",
                model=self.name,
                version=version.number,
                who=who,
                why=why,
                over=over,
                run=version.run_id,
                evidence=found,
            )
        return self._follow()

    def crown(self, version: Version, *, over: str | None) -> Standing:
        """Promote a version that the gate let in, unless it already was champion once.

        Raises:
            ChampionMoved: it was compared with `over`, which is champion no longer.
        """
        who = user()
        require(self.params.access, "runners", who, f"register {self.name}")
        if version.number in self.standing().crowned:
            return self._follow()  # it is champion; or a rollback took it off, and only a person may bring it back

        def still(entries: list[Entry]) -> None:
            champion = standing(entries).champion
            if champion != over:
                raise ChampionMoved(f"{self.name}: version {champion} became champion meanwhile")

        self.ledger.append(
            "promote", model=self.name, version=version.number, who=who, why="passed the gate", only_if=still, over=over
        )
        return self._follow()

    def withdraw(self, version: Version, *, why: str) -> Standing:
        """Take a version that was judged again and refused out of the challenger's place."""
        if version.number in self.standing().waiting:
            self.ledger.append("withdraw", model=self.name, version=version.number, why=why)
        return self._follow()

    def approve(self, version: Version, *, why: str, who: str = "", via: str = "command line") -> Entry:
        """Note that a person approves the version as it is; void as soon as anything that it is judged by changes."""
        who = who or user()
        require(self.params.access, "approvers", who, f"approve {self.name}")
        found = self._intact(version)
        ran = {entry.who for entry in self.entries() if entry.what == "register" and entry.version == version.number}
        if self.params.access.four_eyes and who in ran:
            raise NotAllowed(
                f"{self.name} version {version.number}: {who} ran it and cannot approve it while access.four_eyes is "
                "true: another of access.approvers must"
            )
        entry = self.ledger.append(
            "approve", model=self.name, version=version.number, who=who, why=why, via=via, evidence=found
        )
        self._follow()
        return entry

    def promote(self, version: Version, *, why: str, who: str = "", via: str = "command line") -> Standing:
        """Make a version champion by hand; where promotion is manual it must be approved as it is now."""
        who = who or user()
        approved = self._last(version, "approve")
        if approved is None or who != approved.who:  # whoever approves may promote what they approved
            require(self.params.access, "admins", who, f"promote {self.name}")
        found = self._intact(version)
        if self.params.registry.promotion == "manual" and (approved is None or approved.content["evidence"] != found):
            void = " any more: it changed since it was approved" if approved else ""
            raise RegistryError(
                f"{self.name} version {version.number} is not approved{void}: registry.promotion is manual, so first "
                f"`ratchet approve {self.name}/{version.number} --why ...`"
            )
        if self.standing().champion != version.number:
            over = self.standing().champion
            self.ledger.append("promote", model=self.name, version=version.number, who=who, why=why, via=via, over=over)
        return self._follow()

    def rollback(self, to: str | None, *, why: str, who: str = "", via: str = "command line") -> Standing:
        """Give the alias champion back: to a version, to whatever it was at a time (ISO 8601), or to the last good one.

        The last good one is the champion before this one that no rollback took off.
        """
        who = who or user()
        require(self.params.access, "admins", who, f"roll back {self.name}")
        now = self.standing()
        if now.seal is None:
            raise RegistryError(
                f"{self.name}: the ledger knows no such model; it knows "
                f"{', '.join(sorted({entry.model for entry in self.ledger.entries()})) or 'none'}"
            )
        number = self._target(to, now)
        version = self.registry.find(f"{self.name}/{number}")
        if number != now.champion:
            self._intact(version)
            self.ledger.append(
                "rollback", model=self.name, version=number, who=who, why=why, via=via, over=now.champion
            )
        return self._follow()

    def repair(self, *, why: str) -> Standing:
        """Put the aliases where the ledger has them, and note what was found."""
        who = user()
        if self.is_another:
            raise RegistryError(f"{self.fault()}: {self.way_out}")
        require(self.params.access, "admins", who, f"repair {self.name}")
        known = self.standing().waiting | self.standing().crowned
        deleted = sorted(known - self._numbers(), key=int)
        found = self.registry.aliases(self.name)
        self.ledger.append("repair", model=self.name, version=None, who=who, why=why, found=found, deleted=deleted)
        return self._follow()

    def noted(self, version: Version) -> dict[str, str] | None:
        """The evidence that the version came in with, as last renewed; None for one that the ledger does not know."""
        entry = self._last(version, "register", "renew")
        if entry:
            return dict(entry.content["evidence"])
        adopted = [one.content["held"] for one in self.entries() if one.what == "adopt"]
        return next((dict(held[version.number]) for held in adopted[::-1] if version.number in held), None)

    def compared_with(self, version: Version) -> tuple[str | None] | None:
        """The champion that the version was last judged against, which may have been none; None: it never was."""
        entry = self._last(version, "register", "renew")
        return (entry.content["over"],) if entry else None

    @property
    def is_another(self) -> bool:
        """Is this not the ledger that the model was kept in, or not all of it?"""
        anchor = self.registry.anchor(self.name)
        return anchor is not None and anchor not in {entry.seal for entry in self.entries()}

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
            held={one.number: evidence(self.registry, one) for one in versions},
            lost=lost,
            champion=there.get("champion"),
            challenger=there.get("challenger"),
        )

    def _follow(self) -> Standing:
        """Do in MLflow what the ledger says, until it has nothing newer to say."""
        now = self.standing()
        while now.seal is not None:
            there, versions = self.registry.aliases(self.name), self._numbers()
            wanted = {alias: number if number in versions else None for alias, number in now.aliases.items()}
            self.registry.set_aliases(self.name, {one: to for one, to in wanted.items() if there.get(one) != to})
            if self.registry.anchor(self.name) != now.seal:
                self.registry.set_anchor(self.name, now.seal)
            then, now = now, self.standing()
            if then.seal == now.seal:
                break
        return now

    def _target(self, to: str | None, now: Standing) -> str:
        if to is None:
            good = [number for number in now.line if number != now.champion and number in self._numbers()]
            if not good:
                raise RegistryError(f"{self.name}: no champion before version {now.champion}: nothing to go back to")
            return good[-1]
        if to.isdecimal() and len(to) < 5:
            return to
        at = _moment(to)
        champion = standing(entry for entry in self.entries() if datetime.fromisoformat(entry.at) <= at).champion
        if champion is None:
            raise RegistryError(f"{self.name}: had no champion at {at.isoformat()}: name a version or a later time")
        return champion

    def _intact(self, version: Version) -> dict[str, str]:
        """The version's evidence, which is what it came in with."""
        noted = self.noted(version)
        if noted is None:
            raise RegistryError(
                f"{self.name} version {version.number}: the ledger does not know it: the gate did not let it in, or it "
                "was registered by other means; `ratchet train` registers what may become champion"
            )
        found = evidence(self.registry, version)
        changed = difference(noted, found)
        if changed:
            raise RegistryError(
                f"{self.name} version {version.number} is not what was registered: {'; '.join(changed)}: restore "
                "it, or train again"
            )
        return found

    def _last(self, version: Version, *what: str) -> Entry | None:
        found = [entry for entry in self.entries() if entry.what in what and entry.version == version.number]
        return found[-1] if found else None

    def _numbers(self) -> set[str]:
        """Versions that MLflow has."""
        return {version.number for version in self.registry.versions(self.name)}


def _first(entries: list[Entry]) -> None:
    if entries:
        raise ChampionMoved("the ledger began meanwhile: run the same again")


def _moment(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise RegistryError(
            f"{text}: neither a version nor a time: write 3, 2026-11-20 or 2026-11-20T14:30 for example"
        ) from None
    return at.astimezone(UTC) if at.tzinfo else at.astimezone().astimezone(UTC)
