"""Labels that look like others: spaces around them, other case, letters of another alphabet."""

# ruff: noqa: RUF001 - ambiguous letters are the subject

import unicodedata
from collections import defaultdict
from collections.abc import Mapping

__all__ = ["look_alikes", "skeleton"]

_RARE = 0.05  # of the commonest spelling's count: more often it is a class of its own, as "A" and "a" may be
_DRAWN_AS = {
    # Cyrillic
    "авекмнорстухіѕјԁ": "abekmhopctyxisjd",
    "АВЕКМНОРСТУХІЅЈ": "ABEKMHOPCTYXISJ",
    # Greek
    "αβεικνορτυχ": "abeikvoptyx",
    "ΑΒΕΖΗΙΚΜΝΟΡΤΥΧ": "ABEZHIKMNOPTYX",
    # dashes and quotation marks
    "‐‑‒–—―−’‘": "-------''",
}  # letters -> the ones that most fonts draw the same
_LETTERS = str.maketrans("".join(_DRAWN_AS), "".join(_DRAWN_AS.values()))


def skeleton(label: str) -> str:
    """What a reader sees: no marks that only fonts tell apart, no case, no spaces around."""
    plain = unicodedata.normalize("NFKC", label).translate(_LETTERS)
    shown = "".join(letter for letter in plain if unicodedata.category(letter) not in ("Cc", "Cf"))
    return " ".join(shown.split()).casefold()


def look_alikes(counts: Mapping[str, int]) -> dict[str, str]:
    """Rare label -> the common one it looks like, where it has at most a twentieth of the other's samples."""
    alike: dict[str, list[str]] = defaultdict(list)
    for label in counts:
        alike[skeleton(label)].append(label)
    found: dict[str, str] = {}
    for labels in alike.values():
        usual = max(labels, key=lambda label: (counts[label], label))
        found |= {label: usual for label in labels if label != usual and counts[label] <= _RARE * counts[usual]}
    return found
