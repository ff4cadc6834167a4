"""Cells with several labels, such as "red;round", and how they are separated."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

__all__ = ["SEPARATORS", "list_separator", "parts_of"]

SEPARATORS = ("|", ";", ",", "/")
_SHARE = 0.05  # of the rows that have several labels
_REUSE = 1.2  # texts in which a label occurs, on average


def list_separator(counts: Mapping[str, int]) -> str | None:
    """Return the separator if texts are lists of labels; None: each is one label.

    Labels of lists occur in several texts, and a list may have any length or order. "Washington, DC" and "animal/cat"
    have one length, and each part its own place.
    """
    for separator in SEPARATORS:
        lists = {text: parts_of(text, separator) for text in counts}
        several = {text: parts for text, parts in lists.items() if len(parts) > 1}
        if sum(counts[text] for text in several) < _SHARE * sum(counts.values()) or not several:
            continue
        places: dict[str, set[int]] = defaultdict(set)
        for parts in lists.values():
            for place, part in enumerate(parts):
                places[part].add(place)
        uses = sum(len(set(parts)) for parts in lists.values())
        lengths = {len(parts) for parts in lists.values()}
        moves = sum(len(seen) > 1 for seen in places.values()) >= 0.3 * len(places)
        is_date = separator == "/" and _are_numbers(places)
        if uses >= _REUSE * len(places) and (len(lengths) > 1 or moves) and not is_date:
            return separator
    return None


def parts_of(text: str, separator: str) -> list[str]:
    """Return the labels of a cell, without the brackets and quotes of a Python list."""
    text = text[1:-1] if text[:1] + text[-1:] in ("[]", "{}", "()") else text
    parts = (part.strip().strip("'\"").strip() for part in text.split(separator))
    return [part for part in parts if part]


def _are_numbers(texts: Iterable[str]) -> bool:
    return all(text.replace(".", "").isdigit() for text in texts)
