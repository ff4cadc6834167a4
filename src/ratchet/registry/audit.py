"""Audit: do the ledger, the aliases and the files in MLflow agree?"""

from collections.abc import Iterator
from itertools import pairwise

from ratchet.errors import LedgerBroken, RegistryError
from ratchet.registry.alias_sync import AliasSync
from ratchet.registry.fingerprints import evidence_changes
from ratchet.registry.ledger import RECOVER, Chain, Ledger
from ratchet.registry.statement import STATEMENT, edits
from ratchet.settings.model import Params
from ratchet.workspace import Workspace

__all__ = ["audit", "notes", "repair"]


def audit(workspace: Workspace, params: Params, model: str | None = None) -> Iterator[str]:
    """Yield a message for each fault of the ledger, the aliases, the versions' files and MLflow's values.

    The ledger is also compared with the heads in the project's files and in Git's history. `model` limits the audit of
    aliases and versions to one model.

    Raises:
        TrackingUnavailable: MLflow does not answer.
        RegistryError: the ledger's database does not answer.
    """
    ledger = Ledger.of(workspace, params)
    faults = [fault.text for fault in ledger.faults()]
    faults += filter(None, [ledger.lost()])
    yield from faults
    if faults:
        yield f"no act is possible while the ledger has a fault. Fix: restore it from a backup; without one, {RECOVER}"
    for name in ledger.dropped_guards():
        yield (
            f"the ledger's database lacks the trigger {name}, which refuses changes of entries. Fix: `ratchet audit "
            "--repair` creates it again"
        )
    for sync in _models(workspace, params, model, ledger):
        # The state by a broken ledger means nothing, but another ledger can be recognized.
        fault = sync.fault() if not faults or sync.is_other_ledger else None
        if fault:
            yield f"{fault}. Fix: {sync.fix}"
        elif not faults and sync.is_cut_off:
            yield f"{sync.name}: the last act in the ledger was cut off: the aliases do not follow it yet"
        yield from _version_faults(sync, deleted=not faults)


def notes(workspace: Workspace, params: Params) -> Iterator[str]:
    """Yield facts that a reader of an audit must know although nothing is wrong: recoveries, and limits of the proof.

    Raises:
        RegistryError: the ledger's database does not answer.
    """
    ledger = Ledger.of(workspace, params)
    chain = ledger.read()
    yield from _recoveries(chain)
    yield from _times(chain)
    if chain.entries and (ledger.heads.root / ".git").exists():
        yield from _git_proof(ledger, chain)


def _recoveries(chain: Chain) -> Iterator[str]:
    for entry in chain.valid:
        if entry.what == "recover" and {"intact", "aside"} <= entry.content.keys():
            intact, aside = entry.content["intact"], entry.content["aside"]
            rows = f"entries {intact + 1} to {intact + aside} are" if aside > 1 else f"entry {intact + 1} is"
            evidence = f"{rows} its evidence" if aside else "no entry was set aside"
            who = f"{entry.who} at {entry.at[:19]}Z (entry {entry.number})"
            yield f"the ledger was recovered by {who}: {entry.why}; {evidence}"


def _times(chain: Chain) -> Iterator[str]:
    """Yield each entry with an earlier time than the one before it."""
    for before, entry in pairwise(chain.valid):
        if entry.at < before.at:
            yield (
                f"ledger entry {entry.number} ({entry.what} {entry.model}) has the time {entry.at[:19]}Z, before that "
                f"of entry {before.number}, {before.at[:19]}Z: a clock was changed. Entries count in their order"
            )


def _git_proof(ledger: Ledger, chain: Chain) -> Iterator[str]:
    """Yield how far the heads in Git's history confirm the ledger."""
    heads, first = ledger.heads.committed, chain.entries[0].seal
    others = {head.ledger for head in heads if head.ledger != first}
    if others:
        count = "1 other ledger" if len(others) == 1 else f"{len(others)} other ledgers"
        if any(head.ledger == first for head in heads):
            yield f"Git's history has heads of {count}, of other clones of this project or older ones"
        else:
            last = max((head for head in heads if head.ledger != first), key=lambda head: head.number)
            yield (
                f"Git's history has heads of {count} and none of this one ({last.where} has entry {last.number} of "
                f"ledger {last.ledger[:12]}): this must be a clone with a new ledger of its own, else the ledger was "
                "replaced"
            )
    proven = max((head.number for head in heads if head.ledger == first), default=0)
    if proven < chain.entries[-1].number:
        yield (
            f"Git's history proves the ledger up to entry {proven} of {chain.entries[-1].number}: commit dvc.lock and, "
            "where there is one, data/ledger.heads"
        )


def repair(workspace: Workspace, params: Params, model: str | None = None) -> list[str]:
    """Restore every model's aliases as the ledger has them; return a message for each model that was changed.

    Raises:
        LedgerBroken: the ledger is not what was written; no alias was moved.
        NotAllowed: this user is not in access.admins.
    """
    done = []
    ledger = Ledger.of(workspace, params)
    with ledger.exclusive():
        ledger.require_intact()
        if lost := ledger.lost():
            raise LedgerBroken(f"{lost}. No alias was moved. Fix: restore it; or, {RECOVER}")
        done += [f"the ledger's database: trigger {name} created" for name in ledger.restore_guards()]
        for sync in _models(workspace, params, model, ledger):
            fault, deleted = sync.fault(), sync.deleted()
            if sync.is_other_ledger:
                continue  # nothing in this ledger can repair it
            if fault or deleted:
                why = fault or f"deleted in MLflow: version {', '.join(sorted(deleted))}"
                state = sync.repair(why=why)
            elif sync.is_unfinished:
                state = sync.synchronize()
            else:
                continue
            aliases = [
                f"{alias} is version {number}" if number else f"no {alias}" for alias, number in state.aliases.items()
            ]
            done.append(f"{sync.name}: {', '.join(aliases)}")
    return done


def _models(workspace: Workspace, params: Params, name: str | None, ledger: Ledger) -> list[AliasSync]:
    """Return every model that has an entry, or an anchor in MLflow; or only the one of this name."""
    models = AliasSync.known(workspace, params, ledger)
    chosen = [model for model in models if name in (None, model.name)]
    if name is not None and not chosen:
        names = ", ".join(model.name for model in models)
        raise RegistryError(f"{name}: the ledger knows no such model; it knows {names or 'none'}")
    return chosen


def _version_faults(sync: AliasSync, *, deleted: bool) -> Iterator[str]:
    """Yield versions that were deleted, changed, or registered without the ledger."""
    for number in sorted(sync.deleted() if deleted else (), key=int):
        yield f"{sync.name} version {number} was deleted in MLflow; the ledger knows it"
    for version in sync.registry.versions(sync.name):
        name, recorded = f"{sync.name} version {version.number}", sync.recorded_evidence(version)
        if recorded is None:
            if version.aliases:
                yield f"{name} has an alias, and the ledger does not know it"
            continue
        try:
            evidence = sync.evidence(version)
        except RegistryError as error:
            yield str(error)
            continue
        changes = evidence_changes(recorded, evidence)
        for path, change in changes.items():
            yield f"{name}: {path} {change}"
        if not changes and sync.rejections(version) and not sync.is_unfinished and (fault := sync.card_fault(version)):
            yield fault
        if evidence.get(STATEMENT) == recorded.get(STATEMENT, ""):
            for edit in edits(sync.registry, version):
                yield f"{name}: {edit}"
