"""The note about a rejection in a version's model card. It is no part of the evidence: the ledger has its content."""

import html
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from ratchet import files
from ratchet.registry.ledger import LedgerEntry
from ratchet.registry.mlflow_store import file_errors
from ratchet.registry.models import ModelRegistry
from ratchet.registry.versions import Version
from ratchet.reports.templating import escaped

__all__ = ["CARDS", "is_shown", "show", "without_notes"]

CARDS = ("card/card.html", "card/card.md")
"""Paths of the card's two forms among the artifacts of a run."""
_ANCHORS = {"card/card.html": b"</h1>\n", "card/card.md": b"\n\n"}  # the note follows the first of these, the title


def show(
    registry: ModelRegistry, version: Version, rejections: Iterable[LedgerEntry], current: LedgerEntry | None
) -> None:
    """Write the current rejection into the cards of a version, in place of the note about an earlier one.

    Args:
        current: the one that counts; None: it was approved since.
    """
    for card in _outdated(registry, version, rejections, current):
        registry.log_files(version.run_id, {card: "card"})


def is_shown(
    registry: ModelRegistry, version: Version, rejections: Iterable[LedgerEntry], current: LedgerEntry | None
) -> bool:
    """Return whether the cards of a version have the note that `show` writes, and no other."""
    return not any(_outdated(registry, version, rejections, current))


def _outdated(
    registry: ModelRegistry, version: Version, rejections: Iterable[LedgerEntry], current: LedgerEntry | None
) -> Iterator[Path]:
    """Yield a correct copy of each card whose note is not that about the current rejection."""
    known = list(rejections)
    with file_errors(version.uri, registry.uri):
        stored = {file.path for file in registry.client.list_artifacts(version.run_id, "card")}
    for path in sorted(stored.intersection(CARDS)):
        with tempfile.TemporaryDirectory() as folder:
            name = f"run {version.run_id}: {path}"
            card = registry.download(name, Path(folder), run_id=version.run_id, artifact_path=path)
            before = card.read_bytes()
            title, anchor, rest = without_notes(path, before, known).partition(_ANCHORS[path])
            after = title + anchor + (_note(path, current) if current else b"") + rest
            if after != before:
                files.write_bytes(card, after)
                yield card


def without_notes(path: str, content: bytes, rejections: Iterable[LedgerEntry]) -> bytes:
    """Return a file of the run without the notes about these rejections. Any other change of it stays."""
    if path in CARDS:
        for entry in rejections:
            content = content.replace(_note(path, entry), b"", 1)
    return content


def _note(path: str, entry: LedgerEntry) -> bytes:
    text = f"by {entry.who} at {entry.at[:19]}Z: {entry.why}"
    if path.endswith(".html"):
        return f'<p class="summary"><strong>Rejected</strong> {html.escape(text)}</p>\n'.encode()
    return f"**Rejected** {escaped(text)}\n\n".encode()
