"""The aliases of a model, computed from its entries in the ledger."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ratchet.registry.ledger import LedgerEntry

__all__ = ["AliasState", "replay"]


@dataclass(frozen=True)
class AliasState:
    """The state of a model after some entries.

    Attributes:
        champions: the current champion and those before it, oldest first. A rollback removes entries from the end.
        ever_champion: every version that has been champion.
        registered: versions that passed the gate and were not withdrawn.
        rejected: versions that a user rejected and did not approve since.
    """

    champion: str | None = None
    challenger: str | None = None
    champions: tuple[str, ...] = ()
    ever_champion: frozenset[str] = frozenset()
    registered: frozenset[str] = frozenset()
    rejected: frozenset[str] = frozenset()
    seal: str | None = None

    @property
    def aliases(self) -> dict[str, str | None]:
        """Alias -> version, None for an alias that no version has."""
        return {"champion": self.champion, "challenger": self.challenger}


def replay(entries: Iterable[LedgerEntry], model: str = "") -> AliasState:
    """Apply one model's entries in order. `model` is its name, because a recovery concerns all models."""
    state = AliasState()
    for entry in entries:
        state = replace(_apply(state, entry, model), seal=entry.seal)
    return state


def _apply(state: AliasState, entry: LedgerEntry, model: str) -> AliasState:
    version = entry.version
    if entry.what in ("adopt", "recover"):
        content = entry.state_of(model)
        champion, challenger = content.get("champion"), content.get("challenger")
        champions = _up_to(state.champions, champion) if champion else ()
        held = frozenset(filter(None, (champion, challenger)))
        ever = state.ever_champion | frozenset(champions) | frozenset(content.get("former", ()))
        rejected = frozenset(content.get("rejected", state.rejected))
        return AliasState(champion, challenger, champions, ever, held, rejected)
    if entry.what == "repair":
        return _without(state, frozenset(entry.content.get("deleted", ())))
    if version is None or entry.what not in ("register", "approve", "reject", "promote", "rollback", "withdraw"):
        return state
    if entry.what == "approve":
        return replace(state, rejected=state.rejected - {version})
    if entry.what == "register":
        challenger = state.challenger if version in state.ever_champion | state.rejected else version
        return replace(state, challenger=challenger, registered=state.registered | {version})
    challenger = None if state.challenger == version else state.challenger
    if entry.what == "reject":
        return replace(state, challenger=challenger, rejected=state.rejected | {version})
    if entry.what == "withdraw":
        return replace(state, challenger=challenger, registered=state.registered - {version})
    if entry.what == "rollback":
        champions = _up_to(state.champions, version)
    else:
        champions = (*(champion for champion in state.champions if champion != version), version)
    return replace(
        state,
        champion=version,
        challenger=challenger,
        champions=champions,
        ever_champion=state.ever_champion | {version},
    )


def _up_to(champions: tuple[str, ...], version: str) -> tuple[str, ...]:
    """Return the champions up to this one, which is added if it is none of them."""
    return champions[: champions.index(version) + 1] if version in champions else (*champions, version)


def _without(state: AliasState, deleted: frozenset[str]) -> AliasState:
    champion, challenger = (None if version in deleted else version for version in (state.champion, state.challenger))
    champions = tuple(version for version in state.champions if version not in deleted)
    return AliasState(
        champion,
        challenger,
        champions,
        ever_champion=state.ever_champion - deleted,
        registered=state.registered - deleted,
        rejected=state.rejected - deleted,
    )
