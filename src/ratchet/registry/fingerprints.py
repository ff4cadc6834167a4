"""Digests of everything that a version was judged by: its files, report, data and verdict. They are its evidence."""

import tempfile
from collections.abc import Collection, Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet import files
from ratchet.registry.card_note import CARDS, without_notes
from ratchet.registry.mlflow_store import file_errors
from ratchet.registry.provenance_record import PACKED, PROVENANCE_FILE, Provenance
from ratchet.registry.versions import MLFLOW_NOTE
from ratchet.typed_json import parse

if TYPE_CHECKING:
    from ratchet.registry.ledger import LedgerEntry
    from ratchet.registry.models import ModelRegistry
    from ratchet.registry.versions import Version

__all__ = ["collect_evidence", "evidence_changes", "listed", "unexpected_changes"]

_FOLDERS = ("report", "provenance", "card")  # of the run's artifacts


def collect_evidence(
    registry: "ModelRegistry", version: "Version", rejections: "Collection[LedgerEntry]" = ()
) -> dict[str, str]:
    """Return the SHA-256 (hex) of each file of the version, of its run's report and provenance, and of its verdict.

    `data` has the DVC hash (MD5) of the packed data. Notes about `rejections` in the model card are left out.

    Raises:
        RegistryError: the version, its run or its files are gone.
        TrackingUnavailable: MLflow does not answer.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with file_errors(version.uri, registry.uri):
            stored = registry.client.get_model_version(version.name, version.number)
            artifacts = {file.path for file in registry.client.list_artifacts(version.run_id)}
        for path in artifacts.intersection(_FOLDERS):
            registry.download(version.uri, folder, run_id=version.run_id, artifact_path=path)
        registry.download(version.uri, folder / "model", artifact_uri=version.uri)
        digests = {
            path.relative_to(folder).as_posix(): files.digest_file(path)
            for path in sorted(folder.rglob("*"))
            if path.is_file() and path.name != MLFLOW_NOTE
        }
        for name in set(CARDS).intersection(digests) if rejections else ():
            digests[name] = sha256(without_notes(name, (folder / name).read_bytes(), rejections)).hexdigest()
        data = _data_hash(folder / PROVENANCE_FILE)
    return {**digests, "data": data, "verdict": files.digest_json(stored.tags.get("ratchet.verdict", ""))}


def _data_hash(record: Path) -> str:
    if not record.exists():
        return ""
    try:
        return parse(Provenance, record.read_bytes()).dvc.get(PACKED, "")
    except ValueError:  # the digest of the damaged file differs, which is reported
        return ""


def evidence_changes(recorded: Mapping[str, str], current: Mapping[str, str]) -> dict[str, str]:
    """Return name -> "is gone", "was added" or "was replaced" for each digest that differs, by name."""
    changes = {
        **dict.fromkeys(recorded.keys() - current.keys(), "is gone"),
        **dict.fromkeys(current.keys() - recorded.keys(), "was added"),
        **{name: "was replaced" for name in recorded.keys() & current.keys() if recorded[name] != current[name]},
    }
    return dict(sorted(changes.items()))


def unexpected_changes(recorded: Mapping[str, str], current: Mapping[str, str]) -> dict[str, str]:
    """Return those of `evidence_changes` that no stage makes to a registered version: all but of the last verdict."""
    return {name: change for name, change in evidence_changes(recorded, current).items() if name != "verdict"}


def listed(changes: Mapping[str, str]) -> str:
    """Return changes as part of a message."""
    return "; ".join(f"{name} {change}" for name, change in changes.items())
