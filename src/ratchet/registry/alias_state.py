"""Which version is champion and which waits, as a model's entries in the ledger tell it: entries in, numbers out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ratchet.registry.ledger import Entry

__all__ = ["ACTS", "AliasState", "standing"]

ACTS: Mapping[str, str] = {
    "adopt": "the aliases that stood when the ledger began",
    "judge": "a candidate was compared with the champion, whatever the outcome: its try on these test rows",
    "register": "passed the gate: it is challenger",
    "renew": "what it is judged by was written anew",
    "approve": "a person approves it, as it is",
    "promote": "it is champion",
    "rollback": "it is champion again",
    "withdraw": "judged again, it did not pass: it is no challenger",
    "repair": "what was found changed behind the ledger's back was put right",
    "recover": "a broken ledger was set aside: the aliases are those that a person confirmed",
}
"""Every kind of entry, and what it means for the version that it names."""


@dataclass(frozen=True)
class AliasState:
    """What a model's entries come to.

    Attributes:
        champion: the version with that alias; None without one.
        challenger: the version that waits, if any.
        line: the champions, each of which replaced the one before; a rollback takes off the end.
        crowned: every version that ever was champion.
        waiting: versions that are registered and not withdrawn.
        seal: of the last entry.
    """

    champion: str | None = None
    challenger: str | None = None
    line: tuple[str, ...] = ()
    crowned: frozenset[str] = frozenset()
    waiting: frozenset[str] = frozenset()
    seal: str | None = None

    @property
    def aliases(self) -> dict[str, str | None]:
        """Alias -> version, None where there is to be none."""
        return {"champion": self.champion, "challenger": self.challenger}


def standing(entries: Iterable[Entry], model: str = "") -> AliasState:
    """Follow one model's entries, in their order. `model` is its name: a recovery speaks of all models."""
    now = AliasState()
    for entry in entries:
        now = replace(_after(now, entry, model), seal=entry.seal)
    return now


def _after(now: AliasState, entry: Entry, model: str) -> AliasState:
    version = entry.version
    if entry.what in ("adopt", "recover"):
        content = entry.content
        if entry.what == "recover":
            content = entry.content.get("models", {}).get(model, {})
        champion, challenger = content.get("champion"), content.get("challenger")
        line: tuple[str, ...] = (champion,) if champion else ()
        held = frozenset(filter(None, (champion, challenger)))
        return AliasState(champion, challenger, line, now.crowned | frozenset(line), held)
    if entry.what == "repair":
        return _without(now, frozenset(entry.content.get("deleted", ())))
    if version is None or entry.what not in ("register", "promote", "rollback", "withdraw"):
        return now
    if entry.what == "register":
        challenger = now.challenger if version in now.crowned else version
        return replace(now, challenger=challenger, waiting=now.waiting | {version})
    rest = None if now.challenger == version else now.challenger
    if entry.what == "withdraw":
        return replace(now, challenger=rest, waiting=now.waiting - {version})
    if entry.what == "rollback" and version in now.line:
        line = now.line[: now.line.index(version) + 1]
    else:
        line = (*(one for one in now.line if one != version), version)
    return replace(now, champion=version, challenger=rest, line=line, crowned=now.crowned | {version})


def _without(now: AliasState, deleted: frozenset[str]) -> AliasState:
    champion, challenger = (None if one in deleted else one for one in (now.champion, now.challenger))
    line = tuple(one for one in now.line if one not in deleted)
    return AliasState(champion, challenger, line, now.crowned - deleted, now.waiting - deleted)
