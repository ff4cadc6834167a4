"""Labels that differ only in spelling: surrounding spaces, upper and lower case, letters of another alphabet."""

# ruff: noqa: RUF001 - ambiguous letters are the subject

import unicodedata
from collections import defaultdict
from collections.abc import Mapping

__all__ = ["look_alikes", "skeleton"]

_RARE = 0.05  # of the commonest spelling's count: a commoner spelling may be a class of its own, such as "A" and "a"
_SAME_GLYPHS = {
    # Cyrillic
    "авекмнорстухіѕјԁ": "abekmhopctyxisjd",
    "АВЕКМНОРСТУХІЅЈ": "ABEKMHOPCTYXISJ",
    # Greek
    "αβεικνορτυχ": "abeikvoptyx",
    "ΑΒΕΖΗΙΚΜΝΟΡΤΥΧ": "ABEZHIKMNOPTYX",
    # dashes and quotation marks
    "‐‑‒–—―−’‘": "-------''",
}  # letters -> letters that most fonts draw the same
_LETTERS = str.maketrans("".join(_SAME_GLYPHS), "".join(_SAME_GLYPHS.values()))


def skeleton(label: str) -> str:
    """Return a label as a reader sees it: without case, surrounding spaces, and letters that only differ in code."""
    plain = unicodedata.normalize("NFKC", label).translate(_LETTERS)
    shown = "".join(letter for letter in plain if unicodedata.category(letter) not in ("Cc", "Cf"))
    return " ".join(shown.split()).casefold()


def look_alikes(counts: Mapping[str, int]) -> dict[str, str]:
    """Map rare labels to the common label that they look like, which has at least twenty times as many samples."""
    spellings: dict[str, list[str]] = defaultdict(list)
    for label in counts:
        spellings[skeleton(label)].append(label)
    rare: dict[str, str] = {}
    for labels in spellings.values():
        usual = max(labels, key=lambda label: (counts[label], label))
        rare |= {label: usual for label in labels if label != usual and counts[label] <= _RARE * counts[usual]}
    return rare
