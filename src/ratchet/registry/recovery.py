"""Recovery of a broken ledger: entries that cannot be trusted are set aside, and a user confirms the champions.

Nothing is removed. The recovery is one entry with the digest of all rows that it sets aside, so that a later change of
this evidence is detected. Entries before the first fault stay valid.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ratchet.errors import RegistryError
from ratchet.registry.access import require, user
from ratchet.registry.alias_state import replay
from ratchet.registry.alias_sync import AliasSync
from ratchet.registry.chain import digest_rows
from ratchet.registry.fingerprints import evidence_changes, listed
from ratchet.registry.heads import Head, head_faults, lost_heads
from ratchet.registry.ledger import Chain, Ledger, LedgerEntry
from ratchet.settings.model import Params
from ratchet.workspace import Workspace

__all__ = ["Damage", "ModelState", "examine", "recover"]

_MAX_FAULTS = 20  # that the entry names


@dataclass(frozen=True)
class ModelState:
    """The aliases of one model by the entries that can be trusted, and in MLflow."""

    name: str
    by_ledger: Mapping[str, str | None]
    in_mlflow: Mapping[str, str]


@dataclass(frozen=True)
class Damage:
    """The faults of a ledger. `intact` is the number of the last entry that can be trusted, 0 for none."""

    faults: tuple[str, ...]
    intact: int
    entries: int
    models: tuple[ModelState, ...]


def examine(workspace: Workspace, params: Params) -> Damage:
    """Return the faults of the ledger, and the known state of each model. Nothing is written.

    Raises:
        TrackingUnavailable: MLflow does not answer.
        RegistryError: the ledger's database does not answer.
    """
    ledger = Ledger.of(workspace, params)
    chain = ledger.read()
    faults, intact = _damage(ledger, chain, ledger.heads.known())
    models = _models(workspace, params, ledger)
    if not faults:
        faults = [str(model.fault()) for model in models if model.is_other_ledger]
    states = []
    for model in models:
        trusted = replay((entry for entry in chain.of_model(model.name) if entry.number <= intact), model.name)
        states.append(ModelState(model.name, trusted.aliases, model.registry.aliases(model.name)))
    return Damage(tuple(faults), intact, len(chain.entries), tuple(states))


def recover(
    workspace: Workspace, params: Params, confirmed: Mapping[str, Mapping[str, str | None]], *, why: str
) -> LedgerEntry:
    """Set the broken part of the ledger aside and begin again with the aliases that a user confirms.

    `confirmed` is model -> alias -> version, None for no version. It names every model.

    Raises:
        NotAllowed: this user is not in access.admins.
        RegistryError: nothing is wrong; a model or a version is missing; a version's files are not those registered.
    """
    who = user()
    require(params.access, "admins", who, "recover the ledger")
    ledger = Ledger.of(workspace, params)
    with ledger.exclusive():
        damage, heads = examine(workspace, params), ledger.heads.known()
        if not damage.faults:
            raise RegistryError("the ledger has no fault: there is nothing to recover")
        models = _models(workspace, params, ledger)
        names = {model.name for model in models}
        if confirmed.keys() != names:
            raise RegistryError(
                f"--champion: found {', '.join(sorted(confirmed)) or 'none'}; allowed: one for each of "
                f"{', '.join(sorted(names))}, NAME/VERSION or NAME/none"
            )
        states = {model.name: _confirmed(model, confirmed[model.name], damage.intact) for model in models}

        def content(chain: Chain) -> dict[str, Any]:
            return {**_set_aside(ledger, chain, heads, damage), "models": states}

        ledger.restore_guards()
        entry = ledger.append("recover", model="*", who=who, why=why, derive=content, verify=False)
        ledger.publish()
        for model in models:
            model.update_mlflow()
        return entry


def _set_aside(ledger: Ledger, chain: Chain, heads: tuple[list[Head], list[Head]], damage: Damage) -> dict[str, Any]:
    """Return what the recovery's entry records about the entries that it sets aside."""
    faults, intact = _damage(ledger, chain, heads)
    aside = [row for row, entry in zip(chain.rows, chain.entries, strict=True) if entry.number > intact]
    return {
        "intact": intact,
        "evidence": digest_rows(aside),
        "aside": len(aside),
        "faults": (faults or list(damage.faults))[:_MAX_FAULTS],
        "lost": _lost(chain, heads),
    }


def _damage(ledger: Ledger, chain: Chain, heads: tuple[list[Head], list[Head]]) -> tuple[list[str], int]:
    """Return the faults, and the number of the last entry before them. If heads disagree, they confirm this entry."""
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
    """Return [number, seal] of each head that the ledger does not contain, now or since an earlier recovery."""
    seals = {entry.number: entry.seal for entry in chain.entries}
    ledger = chain.entries[0].seal if chain.entries else ""
    lost = {
        (head.number, head.seal)
        for head in (*heads[0], *heads[1])
        if head.ledger == ledger and seals.get(head.number) != head.seal
    }
    return [list(head) for head in sorted(lost | lost_heads(chain.entries))]


def _models(workspace: Workspace, params: Params, ledger: Ledger) -> list[AliasSync]:
    """Return the models to confirm. A forged entry, or one about a deleted model, names one that does not exist."""
    return [model for model in AliasSync.known(workspace, params, ledger) if model.registry.exists(model.name)]


def _confirmed(model: AliasSync, aliases: Mapping[str, str | None], intact: int) -> dict[str, Any]:
    """Return what the recovery's entry records about one model, after checking the files of its versions."""
    held, versions = {}, model.registry.versions(model.name)
    rejected = {version.number for version in versions if [e.what for e in model.decisions(version)][-1:] == ["reject"]}
    trusted = replay((entry for entry in model.entries() if entry.number <= intact), model.name)
    for number in filter(None, aliases.values()):
        version = model.registry.find(f"{model.name}/{number}")
        if number in rejected:
            raise RegistryError(
                f"{model.name} version {number} was rejected. Fix: confirm another version, or {model.name}/none and "
                f"then `ratchet approve {model.name}/{number} --promote --why ...`"
            )
        evidence = model.evidence(version)
        recorded = model.recorded_evidence(version, up_to=intact)
        if recorded is not None and (changed := evidence_changes(recorded, evidence)):
            raise RegistryError(
                f"{model.name} version {number} is not what was registered: {listed(changed)}. Fix: restore its files, "
                "or confirm another version"
            )
        held[number] = {"run": version.run_id, "evidence": evidence}
    former = dict(_former(model, intact, {*held}))
    return {
        "champion": aliases.get("champion"),
        "challenger": aliases.get("challenger"),
        "held": {**former, **held},
        "former": [*former],
        "rejected": sorted((rejected | trusted.rejected) - held.keys()),
        "found": model.registry.aliases(model.name),
        "anchor": model.registry.anchor(model.name),
    }


def _former(model: AliasSync, intact: int, confirmed: set[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the versions that entries to set aside name as champions, with run and evidence, if their files are intact.

    A user can roll back to them by name. Without a name no rollback chooses them, since an entry may be forged.
    """
    entries = [entry for entry in model.entries() if entry.number > intact and entry.what in ("promote", "rollback")]
    named = {entry.version for entry in entries if entry.version} - confirmed
    for version in model.registry.versions(model.name):
        recorded = model.recorded_evidence(version) if version.number in named else None
        if recorded is not None:
            evidence = model.evidence(version)
            if not evidence_changes(recorded, evidence):
                yield version.number, {"run": version.run_id, "evidence": evidence}
