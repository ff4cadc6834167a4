"""What is wrong with settings, in words: the key, the value found, what is allowed and the way out."""

import difflib
import math
from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ratchet import urls

__all__ = ["dotted_keys", "explain", "missing", "spell", "unknown"]

_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
_LONGEST = 80  # characters of a value that a message shows


def spell(value: object) -> str:
    """A value as params.yaml spells it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(spell, value))}]"
    if isinstance(value, float) and 0.0 < abs(value) < 0.01:
        mantissa, _, exponent = f"{value:e}".partition("e")
        return f"{float(mantissa)!r}e{int(exponent)}"
    return str(value) or '""'


def dotted_keys(model: type[BaseModel], prefix: str = "") -> dict[str, object]:
    """Every setting's dotted key and default, in the order of the file."""
    keys: dict[str, object] = {}
    for name, field in model.model_fields.items():
        group = _group(field)
        if group:
            keys |= dotted_keys(group, f"{prefix}{name}.")
        else:
            keys[prefix + name] = field.default
    return keys


def explain(model: type[BaseModel], faults: Iterable[Mapping[str, Any]]) -> list[str]:
    """One sentence for each fault that pydantic found (`ValidationError.errors()`); a union's branches make one."""
    known = dotted_keys(model)
    sentences: dict[str, tuple[int, list[str]]] = {}  # by key: how deep inside the value the fault lies, what is said
    for fault in faults:
        parts = [str(part) for part in fault["loc"]]
        depth = len(parts)
        if fault["type"] == "extra_forbidden":
            sentences[".".join(parts)] = depth, [unknown(model, ".".join(parts), fault["input"])]
            continue
        # A union's branch and a list's position are part of pydantic's place; the key ends where the settings end.
        while len(parts) > 1 and ".".join(parts) not in known and not _begins(known, ".".join(parts)):
            parts.pop()
        key = ".".join(parts)
        deepest, told = sentences.get(key, (depth, []))
        # The branch of a union that gets furthest into the value is the one that was meant.
        if depth >= deepest:
            kept = told if depth == deepest else []
            sentences[key] = depth, [*kept, _refusal(model, key, fault["input"])]
    return [sentence for _, told in sentences.values() for sentence in dict.fromkeys(told)]


def missing(key: str, default: object) -> str:
    """The sentence for a setting that is not in the file."""
    return f"{key}: missing; add it (default: {spell(default)})"


def unknown(model: type[BaseModel], key: str, value: object) -> str:
    """The sentence for a key that no setting has: the nearest that one has, or those there are."""
    known = list(dotted_keys(model))
    group, _, last = key.rpartition(".")
    if _begins(known, key):
        way_out = (
            f"it is a group: name one of its settings, such as {next(k for k in known if k.startswith(key + '.'))}"
        )
        return f"{key}: takes no value of its own (found {_shown(value)}); {way_out}"
    if group in known:
        return f"{key}: unknown key (value {_shown(value)}); did you mean {group}?"
    inside = [name for name in known if name.rpartition(".")[0] == group] if group else list(model.model_fields)
    elsewhere = None if inside else _nearest_whole(key, known)
    hint = _nearest(last, inside) or elsewhere or _nearest(last, known)
    if hint:
        way_out = f"did you mean {hint}?"
    elif inside and group:
        way_out = f"{group} has {', '.join(name.rpartition('.')[2] for name in inside)}"
    else:
        way_out = f"the file has {', '.join(model.model_fields)}"
    return f"{key}: unknown key (value {_shown(value)}); {way_out}"


def _refusal(model: type[BaseModel], key: str, value: object) -> str:
    field = _field(model, key)
    group = _group(field)
    if group:
        names = ", ".join(group.model_fields)
        return f"{key}: found {_shown(value)}; allowed: a group of settings, one to a line: {names}"
    has_pattern = any(getattr(mark, "pattern", None) for mark in field.metadata)
    allowed = f"{_allowed(field.annotation, field.metadata)} ({field.description})"
    if has_pattern:  # which its description says in words
        allowed = f"{field.description}"
    kinds = _kinds(field.annotation)
    number = _number(value) if kinds & {int, float} and bool not in kinds else None
    if isinstance(value, str) and number is not None:
        whole = int(number) if int in kinds and math.isfinite(number) and number == int(number) else number
        way_out = f"write it without quotes: {spell(whole)}"
        return f"{key}: found the text {value!r}, not a number; {way_out}; allowed: {allowed}"
    if isinstance(value, float) and int in kinds and value.is_integer():
        return f"{key}: found {spell(value)}; write it as {int(value)}; allowed: {allowed}"
    return f"{key}: found {_shown(value)}; allowed: {allowed}"


def _allowed(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """What a type lets in: "a whole number, at least 1"."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner, *marks = arguments
        return _allowed(inner, [more for mark in marks for more in getattr(mark, "metadata", [mark])])
    if origin is Literal:
        return _either([spell(choice) for choice in arguments])
    if origin in (Union, UnionType):
        return _either([_allowed(argument) for argument in arguments])
    limits = [
        f"{words} {spell(getattr(mark, name))}"
        for mark in metadata
        for name, words in _BOUNDS.items()
        if hasattr(mark, name)
    ]
    bounds = f", {' and '.join(limits)}" if limits else ""
    if origin is tuple:
        if Ellipsis not in arguments:
            return f"a list, {len(arguments)} long, of {_allowed(arguments[0])}"
        filled = any(getattr(mark, "min_length", 0) for mark in metadata)
        return f"a list{', not empty,' if filled else ''} of {_allowed(arguments[0])}"
    text = "text" if any(getattr(mark, "pattern", None) for mark in metadata) else "text, not empty"
    names = {bool: "true or false", int: "a whole number", float: "a finite number", str: text}
    return names[annotation] + bounds


def _kinds(annotation: Any) -> set[Any]:
    """The plain types that an annotation is made of."""
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
        assert inner is not None, "only groups have settings below them"
        model = inner
    return model.model_fields[last]


def _group(field: FieldInfo) -> type[BaseModel] | None:
    """The group that the field holds; None for a setting."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _begins(known: Iterable[str], key: str) -> bool:
    return any(name.startswith(f"{key}.") for name in known)


def _nearest(last: str, among: list[str]) -> str | None:
    """The key whose last part is most like `last`."""
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


def _either(choices: list[str]) -> str:
    return choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"
