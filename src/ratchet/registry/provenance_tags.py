"""Provenance records as MLflow keeps them: as tags where they fit, and as a file among the run's artifacts."""

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ratchet.errors import RegistryError

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = ["ID", "RECORD", "parse_object", "parse_record", "read_record", "record_tags"]

ID, RECORD = "ratchet.provenance", "ratchet.provenance_record"
_FILE = "provenance/provenance.json"
_GROUPS = ("dvc", "dvc_inputs", "inputs", "packages", "hardware")  # keys of a record whose values are groups
_LONGEST = 5000  # characters of a tag that every MLflow takes


def record_tags(record: Mapping[str, Any]) -> dict[str, str]:
    """The record's id and, where it is short enough for a tag, all of it."""
    written = json.dumps(record)
    return {ID: record["id"], **({RECORD: written} if len(written) <= _LONGEST else {})}


def parse_object(content: str | bytes) -> dict[str, Any] | None:
    """Return a JSON object; None where the content is none: truncated, another type, not text."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def parse_record(content: str | bytes) -> dict[str, Any] | None:
    """Return a provenance record; None where the content is none, or its parts have types that no record has."""
    found = parse_object(content)
    if found is None or not all(isinstance(found.get(key, {}), dict | None) for key in _GROUPS):
        return None
    hashes = [*(found.get("dvc") or {}).values(), *(found.get("dvc_inputs") or {}).values()]
    return found if all(isinstance(value, str) for value in hashes) else None


def read_record(client: "MlflowClient", run_id: str, tags: Mapping[str, str]) -> dict[str, Any] | None:
    """The record of a run or of a version of it: from its tags, else from the run's file; None where there is none.

    Raises:
        RegistryError: the tag or the file is not a provenance record.
    """
    from mlflow.exceptions import MlflowException

    if RECORD in tags:
        place, content = f"the tag {RECORD}", tags[RECORD].encode(errors="surrogatepass")
    elif ID in tags:
        with TemporaryDirectory() as folder:
            try:
                path = client.download_artifacts(run_id, _FILE, folder)
            except (MlflowException, OSError):  # never came so far as to be registered or refused, or it was deleted
                return None
            place, content = _FILE, Path(path).read_bytes()
    else:
        return None
    found = parse_record(content)
    if found is None:
        raise RegistryError(
            f"MLflow run {run_id}: {place} is damaged: it is not a provenance record. Fix: restore it from a backup of "
            "MLflow"
        )
    return found
