"""Messages for wrong settings: the key, the value found, the allowed values and the fix."""

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel
from pydantic.fields import FieldInfo

from ratchet import urls

__all__ = ["dotted_keys", "explain", "missing", "nearest", "spell", "unknown"]

_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
_REMOVED = [
    "access.four_eyes",
    "alerts.gpu_memory_used",
    "data.shard_mib",
    "evaluation.calibration_bins",
    "evaluation.false_negative_cost",
    "evaluation.false_positive_cost",
    "export.calibration_rows",
    "gate.reserved_fraction",
    "platform.person_gpus",
    "platform.person_runs",
    "registry.ledger_keys",
    "registry.ledger_signed_from",
    "search.folds",
    "search.min_epochs",
    "search.reduction",
    "search.sampler_seed",
    "serving.shadow_share",
    "training.cycle_rise",
    "training.epsilon",
    "training.final_rate",
    "training.min_delta",
    "training.rollback_factor",
    "training.teacher_temperature",
]
_FIXES = {  # of settings of an earlier release
    **dict.fromkeys(_REMOVED, "removed. Fix: delete it"),
    "gate.minimum_accuracy": "renamed. Fix: write it as gate.minimum",
    "data.factory": "removed. Fix: delete the line. A Dataset of your own becomes your own kind, a class with packed = "
    "False named by data.kind; see docs/your-own-kind.md",
}
_LONGEST = 80  # characters of a value that a message shows


def spell(value: object) -> str:
    """Return a value as written in params.yaml."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(spell, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name}: {spell(inner)}' for name, inner in value.items())}}}"
    if isinstance(value, float) and 0.0 < abs(value) < 0.01:
        mantissa, _, exponent = f"{value:e}".partition("e")
        return f"{float(mantissa)!r}e{int(exponent)}"
    return str(value) or '""'


def dotted_keys(model: type[BaseModel], prefix: str = "") -> dict[str, object]:
    """Return the dotted key and default of every setting, in the order of the file."""
    keys: dict[str, object] = {}
    for name, field in model.model_fields.items():
        group = _group(field)
        if group:
            keys |= dotted_keys(group, f"{prefix}{name}.")
        else:
            keys[prefix + name] = field.default
    return keys


def explain(model: type[BaseModel], faults: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return one message per fault of pydantic (`ValidationError.errors()`), and one for all branches of a union."""
    keys = dotted_keys(model)
    messages: dict[str, tuple[int, list[str]]] = {}  # by key: depth of the fault inside the value, messages
    for fault in faults:
        parts = [str(part) for part in fault["loc"]]
        depth = len(parts)
        if fault["type"] == "extra_forbidden":
            messages[".".join(parts)] = depth, [unknown(model, ".".join(parts), fault["input"])]
            continue
        # pydantic's location also holds the branch of a union and the position in a list: remove both.
        while len(parts) > 1 and ".".join(parts) not in keys and not _begins(keys, ".".join(parts)):
            parts.pop()
        key = ".".join(parts)
        deepest, previous = messages.get(key, (depth, []))
        # The branch of a union that gets deepest into the value is the one that was meant.
        if depth >= deepest:
            kept = previous if depth == deepest else []
            messages[key] = depth, [*kept, _refusal(model, key, fault["input"])]
    return [message for _, texts in messages.values() for message in dict.fromkeys(texts)]


def missing(key: str, default: object) -> str:
    """Return the message for a setting that is not in the file."""
    return f"{key}: missing. Fix: add it (default: {spell(default)})"


def unknown(model: type[BaseModel], key: str, value: object = ...) -> str:
    """Return the message for an unknown key, with its value if there is one, and the nearest key or all keys."""
    shown = "" if value is ... else f" (value {_shown(value)})"
    keys = list(dotted_keys(model))
    group, _, last = key.rpartition(".")
    if _begins(keys, key):
        example = next(name for name in keys if name.startswith(f"{key}."))
        return (
            f"{key}: it is a section and has no value (found {_shown(value)}). Fix: name a setting, such as {example}"
        )
    if group in keys:
        return f"{key}: unknown key{shown}. Did you mean {group}?"
    if key in _FIXES:
        return f"{key}: {_FIXES[key]}"
    inside = [name for name in keys if name.rpartition(".")[0] == group] if group else list(model.model_fields)
    elsewhere = None if inside else _nearest_whole(key, keys)
    hint = _nearest(last, inside) or elsewhere or _nearest(last, keys)
    if hint:
        fix = f"Did you mean {hint}?"
    elif inside and group:
        fix = f"Allowed in {group}: {', '.join(name.rpartition('.')[2] for name in inside)}"
    else:
        fix = f"Allowed: {', '.join(model.model_fields)}"
    return f"{key}: unknown key{shown}. {fix}"


def _refusal(model: type[BaseModel], key: str, value: object) -> str:
    field = _field(model, key)
    group = _group(field)
    if group:
        names = ", ".join(group.model_fields)
        return f"{key}: found {_shown(value)}. Allowed: a section with one setting per line: {names}"
    has_pattern = any(getattr(mark, "pattern", None) for mark in field.metadata)
    allowed = f"{_allowed(field.annotation, field.metadata)} ({field.description})"
    if has_pattern:  # the description explains the pattern
        allowed = f"{field.description}"
    kinds = _kinds(field.annotation)
    number = _number(value) if kinds & {int, float} and bool not in kinds else None
    if isinstance(value, str) and number is not None:
        whole = int(number) if int in kinds and math.isfinite(number) and number == int(number) else number
        fix = f"Fix: write it without quotes: {spell(whole)}"
        return f"{key}: found the text {value!r}, not a number. Allowed: {allowed}. {fix}"
    if isinstance(value, float) and int in kinds and value.is_integer():
        return f"{key}: found {spell(value)}. Allowed: {allowed}. Fix: write it as {int(value)}"
    near = nearest(value, _choices(field.annotation, field.metadata)) if isinstance(value, str) else []
    hint = f". Did you mean {_either(near)}?" if near else ""
    return f"{key}: found {_shown(value)}. Allowed: {allowed}{hint}"


def _allowed(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """Return the allowed values of a type, such as "a whole number, at least 1"; a text in Annotated says it itself."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner, *marks = arguments
        return _allowed(inner, [more for mark in marks for more in getattr(mark, "metadata", [mark])])
    if texts := [mark for mark in metadata if isinstance(mark, str)]:
        return texts[0]
    if origin is Literal:
        return _either([spell(choice) for choice in arguments])
    if origin is dict:
        return f"{{NAME: VALUE, ...}} with values: {_allowed(arguments[1])}"
    if origin in (Union, UnionType):
        return _either([_allowed(argument) for argument in arguments])
    limits = [
        f"{phrase} {spell(getattr(mark, name))}"
        for mark in metadata
        for name, phrase in _BOUNDS.items()
        if hasattr(mark, name)
    ]
    bounds = f", {' and '.join(limits)}" if limits else ""
    if origin is tuple:
        if Ellipsis not in arguments:
            return f"a list of {len(arguments)} values, each {_allowed(arguments[0])}"
        filled = any(getattr(mark, "min_length", 0) for mark in metadata)
        different = "different " if any(isinstance(mark, AfterValidator) for mark in metadata) else ""
        return f"a list{', not empty,' if filled else ''} with {different}values: {_allowed(arguments[0])}"
    text = "text" if any(getattr(mark, "pattern", None) for mark in metadata) else "text, not empty"
    names = {Any: "a value", bool: "true or false", int: "a whole number", float: "a finite number", str: text}
    return names[annotation] + bounds


def _kinds(annotation: Any) -> set[Any]:
    """Return the plain types in an annotation."""
    arguments = get_args(annotation)
    if get_origin(annotation) is Literal:
        return {type(choice) for choice in arguments}
    if get_origin(annotation) is Annotated:
        return _kinds(arguments[0])
    return set().union(*map(_kinds, arguments)) if arguments else {annotation}


def _field(model: type[BaseModel], key: str) -> FieldInfo:
    *groups, last = key.split(".")
    for name in groups:
        inner = _group(model.model_fields[name])
        assert inner is not None, "only sections contain settings"
        model = inner
    return model.model_fields[last]


def _group(field: FieldInfo) -> type[BaseModel] | None:
    """Return the section of the field; None for a setting."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _begins(keys: Iterable[str], key: str) -> bool:
    return any(name.startswith(f"{key}.") for name in keys)


def _nearest(last: str, among: list[str]) -> str | None:
    """Return the key whose last part is most similar to `last`."""
    by_last = {name.rpartition(".")[2]: name for name in reversed(among)}
    near = difflib.get_close_matches(last, by_last, n=1, cutoff=0.6)
    return by_last[near[0]] if near else None


def _nearest_whole(key: str, among: list[str]) -> str | None:
    near = difflib.get_close_matches(key, among, n=1, cutoff=0.75)
    return near[0] if near else None


def _shown(value: object) -> str:
    text = urls.redacted(repr(value) if isinstance(value, str | dict) else spell(value))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _number(value: object) -> float | None:
    if not isinstance(value, str):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def nearest(name: str, among: Iterable[str], *, most: int = 1) -> list[str]:
    """Return the names that are most similar to `name`, whatever their case and whether they have - or _."""
    folded = {_folded(candidate): candidate for candidate in among}
    if same := folded.get(_folded(name)):
        return [same]
    return [folded[key] for key in difflib.get_close_matches(_folded(name), folded, n=most, cutoff=0.7)]


def _folded(name: str) -> str:
    return re.sub(r"[-_ ]", "", name.casefold())


def _choices(annotation: Any, metadata: Iterable[Any] = ()) -> list[str]:
    """Return the words that a type allows: of a Literal, of a pattern, or true and false."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is bool:
        return ["true", "false"]
    if origin is Literal:
        return [spell(choice) for choice in arguments]
    patterns = [mark.pattern for mark in metadata if getattr(mark, "pattern", None)]
    literal = [word for pattern in patterns for word in re.findall(r"[a-z]{2,}", pattern) if re.search(pattern, word)]
    return literal + [word for argument in arguments for word in _choices(argument)]


def _either(choices: list[str]) -> str:
    return choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"
