"""Provenance records as MLflow keeps them: as tags where they fit, and as a file among the run's artifacts."""

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ratchet import files

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = ["ID", "RECORD", "read_record", "record_tags"]

ID, RECORD = "ratchet.provenance", "ratchet.provenance_record"
_LONGEST = 5000  # characters of a tag that every MLflow takes


def record_tags(record: Mapping[str, Any]) -> dict[str, str]:
    """The record's id and, where it is short enough for a tag, all of it."""
    written = json.dumps(record)
    return {ID: record["id"], **({RECORD: written} if len(written) <= _LONGEST else {})}


def read_record(client: "MlflowClient", run_id: str, tags: Mapping[str, str]) -> dict[str, Any] | None:
    """The record of a run or of a version of it: from its tags, else from the run's file; None where there is none."""
    found: dict[str, Any] | None = json.loads(tags[RECORD]) if RECORD in tags else None
    if found is not None or ID not in tags:
        return found
    from mlflow.exceptions import MlflowException

    with TemporaryDirectory() as folder:
        try:
            path = client.download_artifacts(run_id, "provenance/provenance.json", folder)
        except (MlflowException, OSError):  # never came so far as to be registered or refused, or it was deleted
            return None
        kept: dict[str, Any] = files.read_json(Path(path))
        return kept
