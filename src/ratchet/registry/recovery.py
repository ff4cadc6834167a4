"""Recovery of a broken ledger: what cannot be trusted is set aside, and a person confirms the champions.

Nothing is removed. The recovery is one entry: it holds the digest of all rows that it sets aside, so that a later
change of that evidence is found, too. Entries before the first fault still count.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratchet.errors import RegistryError
from ratchet.registry.access import require, user
from ratchet.registry.alias_state import standing
from ratchet.registry.alias_sync import AliasSync
from ratchet.registry.chain import digest_rows
from ratchet.registry.fingerprints import difference, evidence
from ratchet.registry.heads import Head, head_faults, lost_heads
from ratchet.registry.ledger import Chain, Entry, Ledger
from ratchet.registry.models import ModelRegistry
from ratchet.settings.model import Params
from ratchet.workspace import Workspace

__all__ = ["Damage", "ModelState", "examine", "recover"]

_LISTED = 20  # faults that the entry names


@dataclass(frozen=True)
class ModelState:
    """One model: its aliases by the entries that can be trusted, and in MLflow."""

    name: str
    by_ledger: Mapping[str, str | None]
    in_mlflow: Mapping[str, str]


@dataclass(frozen=True)
class Damage:
    """What is wrong with a ledger. `intact` is the number of the last entry that can be trusted; 0: none."""

    faults: tuple[str, ...]
    intact: int
    entries: int
    models: tuple[ModelState, ...]


def examine(workspace: Workspace, params: Params) -> Damage:
    """Find what is wrong with the ledger, and what is known of each model; nothing is written.

    Raises:
        TrackingAway: MLflow does not answer.
        RegistryError: the ledger's database does not answer.
    """
    ledger = Ledger.of(workspace, params)
    chain = ledger.read()
    found, intact = _damage(ledger, chain, _known_heads(ledger))
    models = _models(workspace, params, ledger)
    found += [str(kept.fault()) for kept in models if not found and kept.is_another]
    states = []
    for kept in models:
        trusted = standing((entry for entry in chain.of_model(kept.name) if entry.number <= intact), kept.name)
        states.append(ModelState(kept.name, trusted.aliases, kept.registry.aliases(kept.name)))
    return Damage(tuple(found), intact, len(chain.entries), tuple(states))


def recover(
    workspace: Workspace, params: Params, confirmed: Mapping[str, Mapping[str, str | None]], *, why: str
) -> Entry:
    """Set the broken part of the ledger aside and begin again with the aliases that a person confirms.

    `confirmed` is model -> alias -> version, None for no version; it names every model.

    Raises:
        NotAllowed: this user is not in access.admins.
        RegistryError: nothing is wrong; a model or a version is missing; a version's files are not those registered.
    """
    who = user()
    require(params.access, "admins", who, "recover the ledger")
    ledger = Ledger.of(workspace, params)
    with ledger.turn():
        damage, heads = examine(workspace, params), _known_heads(ledger)
        if not damage.faults:
            raise RegistryError("the ledger has no fault: there is nothing to recover")
        models = _models(workspace, params, ledger)
        names = {kept.name for kept in models}
        if confirmed.keys() != names:
            raise RegistryError(
                f"--champion: found {', '.join(sorted(confirmed)) or 'none'}; allowed: one for each of "
                f"{', '.join(sorted(names))}, NAME/VERSION or NAME/none"
            )
        states = {kept.name: _confirmed(kept, confirmed[kept.name], damage.intact) for kept in models}

        def content(chain: Chain) -> dict[str, Any]:
            found, intact = _damage(ledger, chain, heads)
            aside = [row for row, entry in zip(chain.rows, chain.entries, strict=True) if entry.number > intact]
            return {
                "intact": intact,
                "evidence": digest_rows(aside),
                "aside": len(aside),
                "faults": (found or list(damage.faults))[:_LISTED],
                "lost": _lost(chain, heads),
                "models": states,
            }

        entry = ledger.begin_again(who=who, why=why, content=content)
        ledger.publish()
        for kept in models:
            kept.follow()
        return entry


def _known_heads(ledger: Ledger) -> tuple[list[Head], list[Head]]:
    return ledger.heads.logged(), [*ledger.heads.here(), *ledger.heads.committed()[0]]


def _damage(ledger: Ledger, chain: Chain, heads: tuple[list[Head], list[Head]]) -> tuple[list[str], int]:
    """Return the faults, and the number of the last entry before them; if heads disagree, of one that they confirm."""
    by_heads = head_faults(chain.entries, *heads)
    faults = [*chain.faults, *by_heads]
    if not chain.entries:
        lost = ledger.lost()
        return [lost] if lost else [], 0
    intact = min([chain.entries[-1].number, *(fault.number - 1 for fault in chain.faults)])
    if by_heads:
        first, seals = by_heads[0].number, {entry.number: entry.seal for entry in chain.entries}
        agreed = [
            head.number
            for head in (*heads[0], *heads[1])
            if head.ledger == chain.entries[0].seal and head.number < first and seals.get(head.number) == head.seal
        ]
        intact = min(intact, max(agreed, default=0))
    return [fault.text for fault in faults], intact


def _lost(chain: Chain, heads: tuple[list[Head], list[Head]]) -> list[list[Any]]:
    """[number, seal] of each head that the ledger does not contain, now or since an earlier recovery."""
    seals = {entry.number: entry.seal for entry in chain.entries}
    ledger = chain.entries[0].seal if chain.entries else ""
    lost = {
        (head.number, head.seal)
        for head in (*heads[0], *heads[1])
        if head.ledger == ledger and seals.get(head.number) != head.seal
    }
    return [list(one) for one in sorted(lost | lost_heads(chain.entries))]


def _models(workspace: Workspace, params: Params, ledger: Ledger) -> list[AliasSync]:
    """Every model that an entry names, be it set aside or not, or that MLflow knows to be kept in a ledger."""
    registry = ModelRegistry(workspace, params)
    kept = {name for name in registry.names() if registry.anchor(name) is not None}
    named = {entry.model for entry in ledger.read().entries if entry.what != "recover"}
    # An entry may name a model that is nowhere: a forged one, or one that was deleted.
    there = {name for name in named - kept if registry.is_there(name)}
    return [AliasSync(workspace, params, name, ledger=ledger) for name in sorted(kept | there)]


def _confirmed(kept: AliasSync, aliases: Mapping[str, str | None], intact: int) -> dict[str, Any]:
    held = {}
    for number in filter(None, aliases.values()):
        version = kept.registry.find(f"{kept.name}/{number}")
        found, noted = evidence(kept.registry, version), kept.noted(version, up_to=intact)
        if noted is not None and (changed := difference(noted, found)):
            raise RegistryError(
                f"{kept.name} version {number} is not what was registered: {'; '.join(changed)}. Fix: restore its "
                "files, or confirm another version"
            )
        held[number] = {"run": version.run_id, "evidence": found}
    return {
        "champion": aliases.get("champion"),
        "challenger": aliases.get("challenger"),
        "held": held,
        "found": kept.registry.aliases(kept.name),
        "anchor": kept.registry.anchor(kept.name),
    }
