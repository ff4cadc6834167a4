"""Runs with the values that the ledger sealed: MLflow's values can be edited, sealed files cannot."""

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from ratchet import files
from ratchet.errors import TrackingRefused
from ratchet.provenance.archive import Archive, ArchivedRun
from ratchet.registry.alias_state import replay
from ratchet.registry.ledger import Ledger, LedgerEntry
from ratchet.registry.provenance_record import PROVENANCE_FILE, Provenance, parse_object
from ratchet.registry.statement import STATEMENT, SealedValues
from ratchet.registry.versions import Version
from ratchet.typed_json import parse

__all__ = ["SealedReader"]

T = TypeVar("T")


class SealedReader:
    """Reads runs as the ledger's evidence has them.

    Attributes:
        chain: the ledger's entries.
        warning: the ledger's first fault, if it is broken. Nothing is confirmed then.
    """

    def __init__(self, archive: Archive, ledger: Ledger) -> None:
        self._archive = archive
        faults = ledger.faults()
        self.chain = ledger.read()
        self.warning = (
            f"the ledger is broken: {faults[0].text}; nothing here is sealed. `ratchet audit`" if faults else None
        )

    def verify(self, run: ArchivedRun) -> ArchivedRun:
        """Return the run with sealed values in place of MLflow's, and with each disagreement as a doubt."""
        run = replace(run, versions=tuple(replace(version, aliases=self._aliases(version)) for version in run.versions))
        if self.warning:
            return _doubted(run, self.warning)
        evidence, entry = self.evidence(run)
        if evidence is None:
            if not run.versions and "ratchet.gate" not in run.tags:
                return run
            return _doubted(run, "the ledger seals nothing of this run: the values are MLflow's")
        doubts: list[str] = []
        statement = self._file(run, STATEMENT, evidence, doubts, SealedValues)
        record = self._file(run, PROVENANCE_FILE, evidence, doubts, Provenance)
        if record is not None and record != run.record:
            if run.record is not None:
                doubts.append("MLflow has another provenance record than the sealed one")
            run = replace(run, record=record)
        if statement is not None:
            run = _with_statement(run, statement, doubts)
        elif STATEMENT not in evidence:
            doubts.append("no statement was sealed: metrics, settings and data set are MLflow's")
        else:
            run = replace(run, metrics={}, params={}, dataset={}, tags={})
        if entry is not None and entry.what in ("register", "renew", "withdraw"):
            gate = "refused" if entry.what == "withdraw" else "passed"
            run = replace(run, tags={**run.tags, "ratchet.gate": gate, "mlflow.note.content": entry.why})
        return _doubted(run, *doubts)

    def file(self, run: ArchivedRun, path: str, folder: Path) -> tuple[Path | None, str | None]:
        """Copy a file of the run into a folder; return None and a message if it is not what was sealed."""
        copy = self._archive.file(run.run_id, path, folder)
        sealed = None if self.warning else (self.evidence(run)[0] or {}).get(path)
        if sealed is None or (copy is not None and files.digest_file(copy) == sealed):
            return copy, None
        state = "is gone" if copy is None else "was changed since it was registered: it is not read"
        return None, f"{path} {state}"

    def evidence(self, run: ArchivedRun) -> tuple[Mapping[str, str] | None, LedgerEntry | None]:
        """Return the digests that the run's version was last judged by, and the entry; None for an unknown run."""
        return self._by_run.get(run.run_id, (None, None))

    @cached_property
    def _by_run(self) -> dict[str, tuple[Mapping[str, str], LedgerEntry]]:
        by_run = {}
        for entry in self.chain.valid:
            content = entry.content
            if entry.what in ("adopt", "recover"):
                states = content.get("models", {}).values() if entry.what == "recover" else [content]
                for held in (held for state in states for held in state.get("held", {}).values()):
                    by_run[str(held["run"])] = (held["evidence"], entry)
            elif "run" in content and "evidence" in content and entry.what != "approve":
                by_run[str(content["run"])] = (content["evidence"], entry)
        return by_run

    def _aliases(self, version: Version) -> tuple[str, ...]:
        """Return the version's aliases: ratchet's own by the ledger, all others by MLflow."""
        entries = self.chain.of_model(version.name)
        if self.warning or not entries:
            return tuple(version.aliases)
        ours = replay(entries, version.name).aliases
        held = {alias for alias, number in ours.items() if number == version.number}
        return tuple(sorted(held | {alias for alias in version.aliases if alias not in ours}))

    def _file(
        self,
        run: ArchivedRun,
        path: str,
        evidence: Mapping[str, str],
        doubts: list[str],
        kind: type[T],
    ) -> T | None:
        """Return the content of a sealed file; None, and a doubt, if it was changed, is damaged or is refused."""
        if path not in evidence:
            return None
        with tempfile.TemporaryDirectory() as folder:
            try:
                copy = self._archive.file(run.run_id, path, Path(folder))
            except TrackingRefused as error:  # of the place of this run's files; others may have another
                doubts.append(f"{path}: {error}")
                return None
            if copy is None:
                doubts.append(f"{path} is gone, so its sealed values are unknown")
                return None
            digest = files.digest_file(copy)
            if digest != evidence[path]:
                doubts.append(
                    f"{path} was changed since it was registered: SHA-256 {digest}, sealed {evidence[path]}; its "
                    "values are not shown"
                )
                return None
            try:
                return parse(kind, copy.read_bytes())
            except ValueError as error:
                doubts.append(
                    f"{path} is damaged ({error}), and was when the ledger took its digest: its values are unknown"
                )
                return None


def _doubted(run: ArchivedRun, *doubts: str) -> ArchivedRun:
    return replace(run, doubts=(*run.doubts, *doubts))


def _with_statement(run: ArchivedRun, statement: SealedValues, doubts: list[str]) -> ArchivedRun:
    for name, value in statement.metrics.items():
        shown = run.metrics.get(name)
        both_nan = shown != shown and value != value
        if name.startswith("test") and shown != value and not both_nan:
            doubts.append(f"MLflow has metric {name} = {shown}, and the sealed value is {value}")
    dataset = dict(vars(statement.dataset)) if statement.dataset else {}
    if dataset:
        dataset["profile"] = parse_object(dataset["profile"] or "{}") or {}
    return replace(
        run,
        run_name=statement.tags.get("mlflow.runName", run.run_name),
        status=statement.status,
        metrics=statement.metrics,
        params=statement.params,
        tags=statement.tags,
        dataset=dataset,
    )
