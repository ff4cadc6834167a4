"""The list `training.augment`: its entries, what each allows, and the list that the older settings mean.

Standard library only: training imports it, and `ratchet set` waits for no library. `training` is the section of
params.yaml, or a plan, whose fields have the same names.
"""

import difflib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["MIXING", "TRANSFORMS", "class_faults", "entries", "list_faults", "own_classes", "without_mixing"]

NO_RESULT = {
    "ingest": "it checks the settings of training",
    "export": "it checks the settings of training",
    "register": "it checks the settings of training",
}

Entry = tuple[str, Any]
"""Name and value of an entry. A user's own class has the name "own", and its path as the value."""

_OWN = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_OLDER = {"crop_padding": 1, "flip": "none", "crop_fill": "zeros", "cutout": 0}  # settings and defaults


@dataclass(frozen=True)
class ListEntry:
    """An entry of the list."""

    example: Any
    meaning: str  # of the value
    is_allowed: Callable[[Any], bool]


def _is_number(value: Any, low: float, high: float) -> bool:
    """Return whether a value is a number above `low` and at most `high`."""
    return isinstance(value, int | float) and not isinstance(value, bool) and low < value <= high


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 4096


def _is_shift(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return len(value) == 2 and _is_count(value[0]) and value[1] in ("zeros", "reflect")
    return _is_count(value)


def _is_area(value: Any) -> bool:
    is_pair = isinstance(value, list | tuple) and len(value) == 2 and all(_is_number(each, 0, 1) for each in value)
    return is_pair and value[0] <= value[1]


_SHARE, _LEAST = "a number above 0 and at most 1", 0.049
_FROM = "a number from 0.05 to 1"
TRANSFORMS = {
    "flip": ListEntry(
        0.5,
        f"the share of images that is mirrored left to right, {_SHARE}, or alternating (every other epoch)",
        lambda value: value == "alternating" or _is_number(value, 0, 1),
    ),
    "shift": ListEntry(
        4, "the most pixels, a whole number from 1 to 4096, or [PIXELS, reflect] or [PIXELS, zeros]", _is_shift
    ),
    "random-resized-crop": ListEntry(
        [0.35, 1], "[SMALLEST, LARGEST] share of the area, two numbers above 0 and at most 1, in order", _is_area
    ),
    "rotate": ListEntry(
        15, "the largest angle in degrees, above 0 and at most 180", lambda value: _is_number(value, 0, 180)
    ),
    "color-jitter": ListEntry(
        0.2,
        f"the largest change of brightness, contrast and saturation, {_SHARE}",
        lambda value: _is_number(value, 0, 1),
    ),
    "cutout": ListEntry(8, "the side of a black square in pixels, a whole number from 1 to 4096", _is_count),
    "erase": ListEntry(
        0.25,
        f"the share of images of which a rectangle is made black, {_SHARE}",
        lambda value: _is_number(value, 0, 1),
    ),
    "rand-augment": ListEntry(
        9, "the strength of two random changes, above 0 and at most 30", lambda value: _is_number(value, 0, 30)
    ),
    "mixup": ListEntry(
        0.2, f"the parameter of a beta distribution, {_FROM}", lambda value: _is_number(value, _LEAST, 1)
    ),
    "cutmix": ListEntry(
        1.0, f"the parameter of a beta distribution, {_FROM}", lambda value: _is_number(value, _LEAST, 1)
    ),
}
MIXING = ("mixup", "cutmix")
"""Entries that mix each image with another one; they are the last of the list."""


def entries(training: Any) -> tuple[Entry, ...]:
    """Return the augmentations in their order. `auto`: as crop_padding, crop_fill, flip and cutout say."""
    if training.augment != "auto":
        return tuple(
            ("own", entry) if isinstance(entry, str) else next(iter(entry.items())) for entry in training.augment
        )
    shift = training.crop_padding if training.crop_fill == "zeros" else (training.crop_padding, training.crop_fill)
    flip = 0.5 if training.flip == "random" else training.flip
    older = ("shift", shift, training.crop_padding), ("flip", flip, flip != "none"), ("cutout", training.cutout, True)
    return tuple((name, value) for name, value, is_used in older if value and is_used)


def own_classes(training: Any) -> tuple[str, ...]:
    """Return the user's own classes in the list, as package.module:Class."""
    return tuple(value for name, value in entries(training) if name == "own")


def list_faults(training: Any, kind: str) -> Iterator[str]:
    """Yield a message for each wrong entry of the list, or else for each setting that excludes the list.

    `kind` is that of the samples, as data.kind names it.
    """
    if training.augment == "auto":
        return
    from ratchet.kinds.registry import kind_chosen  # NumPy, which most commands do not need

    if not kind_chosen(kind).has_pixels:
        yield (
            f"training.augment: found {_spelled(training.augment)}. Allowed: a list only with data.kind image, and it "
            f"is {kind}. Fix: `ratchet set training.augment=auto`"
        )
    faults = [
        f"training.augment: entry {number} is {_spelled(entry)}{fault}"
        for number, entry in enumerate(training.augment, 1)
        if (fault := _entry_fault(entry))
    ]
    yield from faults
    if not faults:
        yield from _order_faults(training)
        yield from _older_faults(training)


def class_faults(training: Any, target: Any) -> Iterator[str]:
    """Yield a message if the list mixes samples of a problem whose targets cannot be mixed."""
    names = [name for name, _ in entries(training) if name in MIXING]
    if names and not target.mixes:
        yield (
            f"training.augment: found {names[0]}, and the problem of the data is {target.problem}. Allowed: "
            f"{' and '.join(MIXING)} with classification and multi-label. Fix: {without_mixing(training)}"
        )


def without_mixing(training: Any) -> str:
    """Return the command that takes the entries that mix samples from a list."""
    return _set([entry for entry in training.augment if not _mixes(entry)])


def _mixes(entry: Any) -> bool:
    return isinstance(entry, Mapping) and next(iter(entry)) in MIXING


def _entry_fault(entry: Any) -> str:
    """Return the rest of the message for a wrong entry; empty: it is right."""
    if isinstance(entry, str):
        if _OWN.fullmatch(entry):
            return ""
        if entry in TRANSFORMS:
            return f", which has no value. Fix: write {_example(entry)}"
        return f". Allowed: {{NAME: VALUE}} or package.module:Class{_near(entry)}"
    if not isinstance(entry, Mapping) or len(entry) != 1:
        return ". Allowed: one {NAME: VALUE} for each entry, such as {flip: 0.5}, or package.module:Class"
    ((name, value),) = entry.items()
    if name not in TRANSFORMS:
        return f", and there is no {name}. Allowed: {', '.join(TRANSFORMS)}, or package.module:Class{_near(str(name))}"
    transform = TRANSFORMS[name]
    is_finite = not isinstance(value, float) or math.isfinite(value)
    if is_finite and transform.is_allowed(value):
        return ""
    return f". Allowed: {transform.meaning}, such as {_example(name)}"


def _order_faults(training: Any) -> Iterator[str]:
    """Yield a message for entries in a wrong order, and for class weights with mixed samples."""
    mixing = [name for name, _ in entries(training) if name in MIXING]
    ordered = sorted(training.augment, key=_mixes)
    if twice := [name for name in mixing if mixing.count(name) > 1]:
        yield f"training.augment: {twice[0]} is in the list twice. Allowed: once. Fix: delete one of the two"
    elif ordered != list(training.augment):
        yield f"training.augment: {mixing[0]} is before others. Allowed: at the end of the list. Fix: {_set(ordered)}"
    if mixing and training.class_weights != "none":
        yield (
            f"training.class_weights: found {_spelled(training.class_weights)}, and training.augment has {mixing[0]}, "
            "whose samples have two classes. Allowed: none. Fix: `ratchet set training.class_weights=none`, or "
            f"{without_mixing(training)}"
        )


def _older_faults(training: Any) -> Iterator[str]:
    """Yield a message for the older settings that the list replaces, with the line that has both."""
    used = {name: getattr(training, name) for name in _OLDER}
    used = {name: value for name, value in used.items() if value not in (_OLDER[name], 0)}
    if not used:
        return
    names = {name for name, _ in entries(training)}
    older = [(name, list(value) if isinstance(value, tuple) else value) for name, value in entries(_Older(training))]
    listed = [{name: value} for name, value in older if name not in names]
    keys = [f"training.{name}" for name in used]
    defaults = " ".join(f"{key}={_OLDER[name]}" for key, name in zip(keys, used, strict=True))
    yield (
        f"{', '.join(keys)}: found {', '.join(map(str, used.values()))}, and training.augment is a list, which "
        f"replaces them. Allowed with a list: {defaults}. Fix: `ratchet set {defaults}`, or with them in the list "
        f"`ratchet set {defaults} 'training.augment={_spelled([*listed, *training.augment])}'`"
    )


class _Older:
    """The settings without the list; those with their default are off."""

    augment = "auto"

    def __init__(self, training: Any) -> None:
        self.crop_fill, self.flip, self.cutout = training.crop_fill, training.flip, training.cutout
        is_default = (training.crop_padding, training.crop_fill) == (_OLDER["crop_padding"], _OLDER["crop_fill"])
        self.crop_padding = 0 if is_default else training.crop_padding


def _example(name: str) -> str:
    return _spelled({name: TRANSFORMS[name].example})


def _near(name: str) -> str:
    near = difflib.get_close_matches(name.lower().replace("_", "-"), TRANSFORMS, n=1, cutoff=0.6)
    return f". Did you mean {_example(near[0])}?" if near else ""


def _set(listed: list[Any]) -> str:
    """Return the command that sets the list."""
    return f"`ratchet set 'training.augment={_spelled(listed)}'`"


def _spelled(value: Any) -> str:
    """Return a value as it is written in params.yaml."""
    return json.dumps(value, ensure_ascii=False, default=str).replace('"', "")
