"""Ingest: list, read, check, split and pack a source. The packed set is replaced as a whole, or not at all."""

from collections.abc import Callable

from ratchet.data.manifest import Manifest
from ratchet.data.packed_set import IngestTask
from ratchet.settings.model import DataSettings
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
        return _road(task.settings)(task)


def _road(settings: DataSettings) -> Callable[[IngestTask], Manifest]:
    """Return the function that ingests this kind of data. Only that of images needs Pillow, and two import torch."""
    match settings.kind:
        case "table":
            from ratchet.data.tables.ingest import ingest_table

            return ingest_table
        case "text":
            from ratchet.data.texts.ingest import ingest_texts

            return ingest_texts
        case "tokens":
            from ratchet.data.token_streams import ingest_tokens

            return ingest_tokens
        case "image" if settings.source == "factory":
            from ratchet.data.custom_dataset import ingest_custom

            return ingest_custom
        case "image":
            from ratchet.data.image_set import ingest_images

            return ingest_images
        case _:
            from ratchet.data.own_kind import ingest_own_kind

            return ingest_own_kind
