"""Runs as the ledger's evidence has them: MLflow's metrics, tags and aliases can be edited, sealed files cannot."""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ratchet import files
from ratchet.provenance.archive import Archive, Made
from ratchet.registry.alias_state import standing
from ratchet.registry.ledger import Entry, Ledger
from ratchet.registry.provenance_tags import parse_object, parse_record
from ratchet.registry.statement import SEALED, parse_statement

__all__ = ["Sealed"]

_RECORD = "provenance/provenance.json"


class Sealed:
    """Reads what the ledger vouches for.

    Attributes:
        warning: what is wrong with the ledger, if it is broken: then nothing can be vouched for.
    """

    def __init__(self, archive: Archive, ledger: Ledger) -> None:
        self._archive = archive
        broken = ledger.faults()
        self.chain = ledger.read()
        self.warning = (
            f"the ledger is broken: {broken[0].text}; nothing here is sealed. `ratchet audit`" if broken else None
        )

    def of(self, made: Made) -> Made:
        """Return the run with sealed values in place of MLflow's, and with each disagreement as a doubt."""
        made = replace(made, releases=tuple(replace(one, aliases=self._aliases(one)) for one in made.releases))
        if self.warning:
            return replace(made, doubts=(*made.doubts, self.warning))
        evidence, entry = self.evidence(made)
        if evidence is None:
            if not made.releases and "ratchet.gate" not in made.tags:
                return made
            return replace(made, doubts=(*made.doubts, "the ledger seals nothing of this run: the values are MLflow's"))
        doubts = list(made.doubts)
        statement = self._file(made, SEALED, evidence, doubts, parse_statement)
        record = self._file(made, _RECORD, evidence, doubts, parse_record)
        if record is not None and record != made.record:
            if made.record is not None:
                doubts.append("MLflow has another provenance record than the sealed one")
            made = replace(made, record=record)
        if statement is None and SEALED not in evidence:
            doubts.append("registered before values were sealed: metrics, settings and data set are MLflow's")
        elif statement is None:
            made = replace(made, metrics={}, params={}, dataset={}, tags={})
        else:
            made = _replaced(made, statement, doubts)
        if entry is not None and entry.what in ("register", "renew", "withdraw"):
            gate = "refused" if entry.what == "withdraw" else "passed"
            made = replace(made, tags={**made.tags, "ratchet.gate": gate, "mlflow.note.content": entry.why})
        return replace(made, doubts=tuple(doubts))

    def file(self, made: Made, path: str, folder: Path) -> tuple[Path | None, str | None]:
        """Copy a file of the run into a folder; None, and why, where it is not what was sealed."""
        found = self._archive.file(made.run_id, path, folder)
        sealed = None if self.warning else (self.evidence(made)[0] or {}).get(path)
        if sealed is None or (found is not None and files.digest_file(found) == sealed):
            return found, None
        if found is None:
            return None, f"{path} is gone"
        return None, f"{path} was changed since it was registered: it is not read"

    def evidence(self, made: Made) -> tuple[Mapping[str, str] | None, Entry | None]:
        """Return the digests by which a version of the run was judged last, and the entry; None for an unknown run."""
        return self._by_run.get(made.run_id, (None, None))

    @cached_property
    def _by_run(self) -> dict[str, tuple[Mapping[str, str], Entry]]:
        found = {}
        for entry in self.chain.valid:
            content = entry.content
            if entry.what in ("adopt", "recover"):
                states = content.get("models", {}).values() if entry.what == "recover" else [content]
                for held in (held for state in states for held in state.get("held", {}).values()):
                    found[str(held["run"])] = (held["evidence"], entry)
            elif "run" in content and "evidence" in content and entry.what != "approve":
                found[str(content["run"])] = (content["evidence"], entry)
        return found

    def _aliases(self, release: Any) -> tuple[str, ...]:
        entries = self.chain.of_model(release.name)
        if self.warning or not entries:
            return tuple(release.aliases)
        ours = standing(entries, release.name).aliases
        mine = {alias for alias, number in ours.items() if number == release.number}
        return tuple(sorted(mine | {alias for alias in release.aliases if alias not in ours}))

    def _file(
        self,
        made: Made,
        path: str,
        evidence: Mapping[str, str],
        doubts: list[str],
        parse: Callable[[bytes], dict[str, Any] | None],
    ) -> dict[str, Any] | None:
        """Return the content of a sealed file; None, and a doubt, where it is not what was sealed or unreadable."""
        if path not in evidence:
            return None
        with tempfile.TemporaryDirectory() as folder:
            found = self._archive.file(made.run_id, path, Path(folder))
            if found is None:
                doubts.append(f"{path} is gone, so its sealed values are unknown")
                return None
            digest = files.digest_file(found)
            if digest != evidence[path]:
                doubts.append(
                    f"{path} was changed since it was registered: SHA-256 {digest}, sealed {evidence[path]}; its "
                    "values are not shown"
                )
                return None
            content = parse(found.read_bytes())
            if content is None:
                doubts.append(f"{path} is damaged, and was when the ledger took its digest: its values are unknown")
            return content


def _replaced(made: Made, statement: Mapping[str, Any], doubts: list[str]) -> Made:
    metrics: dict[str, float] = statement["metrics"]
    for name, value in metrics.items():
        there = made.metrics.get(name)
        if name.startswith("test") and there != value and not (there != there and value != value):
            doubts.append(f"MLflow has metric {name} = {there}, and the sealed value is {value}")
    dataset = dict(statement["dataset"])
    if dataset:
        dataset["profile"] = parse_object(dataset["profile"] or "{}") or {}
    return replace(
        made,
        run_name=statement["tags"].get("mlflow.runName", made.run_name),
        status=statement["about"]["status"],
        metrics=metrics,
        params=statement["params"],
        tags=statement["tags"],
        dataset=dataset,
    )
