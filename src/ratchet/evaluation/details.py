"""Explanations of a model beyond its metrics: importance of columns, words of texts, generated text."""

from dataclasses import dataclass
from pathlib import Path

from ratchet import files
from ratchet.evaluation.importance import Importance
from ratchet.typed_json import parse, to_plain

__all__ = ["Details", "ExplainedText", "read_details", "write_details"]

_NAME = "details.json"


@dataclass(frozen=True)
class ExplainedText:
    """A wrong answer to a text, with the contribution of each word to it."""

    id: str
    contributions: tuple[tuple[str, float], ...]  # of each word in order; positive: for the answer


@dataclass(frozen=True)
class Details:
    """Explanations of one evaluation; each is empty where it does not apply to the kind of samples."""

    importance: Importance | None = None
    texts: tuple[ExplainedText, ...] = ()
    generated: tuple[tuple[str, str], ...] = ()  # prompts, and the text that the model wrote after each


def write_details(reports: Path, details: Details) -> None:
    """Write details.json into the folder data/reports."""
    files.write_json(reports / _NAME, to_plain(details))


def read_details(reports: Path) -> Details:
    """Read the file that `write_details` wrote."""
    return parse(Details, (reports / _NAME).read_bytes())
