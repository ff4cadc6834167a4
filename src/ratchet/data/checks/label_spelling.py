"""Labels that differ only in spelling: surrounding spaces, upper and lower case, letters of another alphabet."""

# ruff: noqa: RUF001 - ambiguous letters are the subject

import re
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from ratchet.errors import SettingsError

__all__ = ["check_known", "in_order", "look_alikes", "skeleton"]

_SHOWN = 10  # labels
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


def in_order(label: str) -> tuple[int, float, str]:
    """Return the key that sorts classes: numbers by size, before texts. So 2 is before 10 in every source."""
    if re.fullmatch(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", label.strip()):
        return 0, float(label), label
    return 1, 0.0, label


def check_known(labels: Collection[str], classes: Sequence[str] | Literal["auto"], where: str) -> None:
    """Check that data.classes, if it is set, has at least one label of the source.

    Raises:
        SettingsError: it has none, as after a change of data.path.
    """
    if classes == "auto" or not labels or set(labels) & set(classes):
        return
    shown = ", ".join(sorted(labels, key=in_order)[:_SHOWN]) + (", ..." if len(labels) > _SHOWN else "")
    raise SettingsError(
        f"params.yaml: data.classes: found [{', '.join(classes)}], and {where} has none of these labels, but {shown}. "
        "It may belong to other data. Fix: run `ratchet set data.classes=auto`, or list the labels"
    )


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
