"""Ingest: list, read, check, split and pack a source. The packed set is replaced as a whole, or not at all."""

from ratchet.data.manifest import Manifest
from ratchet.data.packed_set import IngestTask
from ratchet.kinds.ingest import ingest_function
from ratchet.workspace import disk_errors

__all__ = ["IngestTask", "ingest"]


def ingest(task: IngestTask) -> Manifest:
    """Read the source, quarantine bad samples, split the others, and pack them into the folder `task.packed`.

    Equal input gives equal bytes, for any number of workers, machine, order of files and state of the cache.

    Raises:
        SettingsError: no source has this name, a setting names no column, or settings contradict each other.
        TrainingError: a user's own class cannot be imported, or lacks a method.
        DataError: the source cannot be read, too many samples are bad, or the whole set breaks a rule.
        WorkspaceError: the disk is full or cannot be written.
    """
    with disk_errors(task.packed):
        manifest: Manifest = ingest_function(task.settings.kind)(task)
        return manifest
