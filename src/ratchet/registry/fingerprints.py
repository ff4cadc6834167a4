"""What a version is judged by, as digests: its files, report, data and verdict, as they lie in the registry."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet import files
from ratchet.registry.mlflow_store import active, files_of
from ratchet.registry.provenance_tags import parse_record

if TYPE_CHECKING:
    from ratchet.registry.models import ModelRegistry
    from ratchet.registry.versions import Version

__all__ = ["difference", "evidence", "unexpected_changes"]

_FOLDERS = ("report", "provenance", "card")  # of the run's artifacts
_REWRITTEN = ("report/", "card/", "verdict")  # by a register stage that runs again
_OWN = "registered_model_meta"  # MLflow's note about a download


def evidence(registry: "ModelRegistry", version: "Version") -> dict[str, str]:
    """SHA-256 (hex) of each file of the version, of its run's report and provenance, and of its verdict.

    Under `data` stands the MD5 by which DVC knows the packed data.

    Raises:
        RegistryError: the version, its run or its files are gone.
        TrackingAway: MLflow does not answer.
    """
    from mlflow.artifacts import download_artifacts

    address = f"models:/{version.name}/{version.number}"
    with (
        tempfile.TemporaryDirectory() as name,
        active(registry.workspace, registry.params.tracking),
        files_of(address, registry.uri),
    ):
        folder = Path(name)
        stored = registry.client.get_model_version(version.name, version.number)
        there = {one.path for one in registry.client.list_artifacts(version.run_id)}
        for one in there.intersection(_FOLDERS):
            download_artifacts(run_id=version.run_id, artifact_path=one, dst_path=str(folder))
        download_artifacts(artifact_uri=address, dst_path=str(folder / "model"))
        found = {
            path.relative_to(folder).as_posix(): files.digest_file(path)
            for path in sorted(folder.rglob("*"))
            if path.is_file() and path.name != _OWN
        }
        record = folder / "provenance" / "provenance.json"
        # A damaged record has another digest: that is what is reported.
        content = parse_record(record.read_bytes()) if record.exists() else None
        data = ((content or {}).get("dvc") or {}).get("data/packed", "")
    return {**found, "data": data, "verdict": files.digest_json(stored.tags.get("ratchet.verdict", ""))}


def difference(noted: dict[str, str], found: dict[str, str]) -> list[str]:
    """What is not as it was noted, in words, one for each file."""
    told = {
        **dict.fromkeys(noted.keys() - found.keys(), "is gone"),
        **dict.fromkeys(found.keys() - noted.keys(), "was added"),
        **{name: "was replaced" for name in noted.keys() & found.keys() if noted[name] != found[name]},
    }
    return [f"{name} {words}" for name, words in sorted(told.items())]


def unexpected_changes(noted: dict[str, str], found: dict[str, str]) -> list[str]:
    """Of `difference`, what no stage of ours ever does to a version that is registered."""
    return [told for told in difference(noted, found) if not told.startswith(_REWRITTEN)]
