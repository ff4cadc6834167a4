"""Faults of the section `search` of params.yaml: the messages for a user."""

import json
import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from ratchet.augmentations import list_faults
from ratchet.settings import messages as settings_errors
from ratchet.settings.model import NEUTRAL, Params
from ratchet.settings.search_space import KINDS, Dimension, apply, dimension_of, listed, setting_of

__all__ = ["faults"]

_OPTIONS = ("step", "log", "when")
_EXAMPLES = (
    "{choice: [adamw, sgd]}, {float: [1.0e-4, 1.0e-1], log: true}, {int: [1, 8], step: 1} or "
    "{float: [0.8, 0.99], when: {training.optimizer: sgd}}"
)
_HALVING = ("auto", "successive-halving", "hyperband")
_MOST_CHOICES = 1000
_MOST_POINTS = 100_000  # of a grid
_LARGEST_INT = 2**53  # Optuna calculates with floats


def faults(params: Params) -> Iterator[str]:
    """Yield a message for each fault of the section `search`: key, value, what is allowed and the fix."""
    search, clean = params.search, True
    for key, content in search.space.items():
        for fault in _dimension_faults(params, key, content):
            clean = False
            yield f"search.space: {key}: {fault}"
    if not clean:
        return
    dimensions = [dimension_of(key, content) for key, content in search.space.items()]
    yield from _circles(dimensions)
    endless = [dimension.key for dimension in dimensions if dimension.size is None]
    if search.sampler == "grid" and endless:
        yield (
            f"search.sampler: found grid, and {', '.join(endless)} has no end of values. Allowed with grid: choice, "
            "int, or float with step. Fix: give it a step, or `ratchet set search.sampler=tpe`"
        )
    points = math.prod(dimension.size or 1 for dimension in dimensions)
    if search.sampler == "grid" and points > _MOST_POINTS:
        yield (
            f"search.sampler: found grid, and the space has {points:,} points. Allowed with grid: at most "
            f"{_MOST_POINTS:,}. Fix: larger steps, or `ratchet set search.sampler=random`"
        )
    yield from _method_faults(params)


def _method_faults(params: Params) -> Iterator[str]:
    search = params.search
    several = isinstance(search.objective, tuple) and len(search.objective) > 1
    if several and search.pruner not in ("auto", "none"):
        yield (
            f"search.pruner: found {search.pruner}, and search.objective has {len(search.objective)} entries. Allowed "
            "with several objectives: none. Fix: `ratchet set search.pruner=none`"
        )
    if search.storage == "sqlite://":
        yield (
            "search.storage: found sqlite://, which is in the memory of one process. Allowed: "
            "sqlite:///mlruns/search.db or postgresql://HOST/DATABASE"
        )
    lengths = {"training.epochs", "training.max_steps"} & {*search.space}
    if lengths and not several and search.pruner in _HALVING:
        yield (
            f"search.space: {', '.join(sorted(lengths))}: differs between trials, and search.pruner "
            f"{search.pruner} compares them after equal epochs. Allowed: with search.pruner none or median. Fix: "
            "`ratchet set search.pruner=median`, or remove it from the space"
        )


def _dimension_faults(params: Params, key: str, content: object) -> Iterator[str]:
    if refusal := _key_refusal(key, content):
        yield refusal
        return
    if not isinstance(content, Mapping):
        yield f"found {settings_errors.spell(content)}. Allowed: for example {_EXAMPLES}"
        return
    kinds = [kind for kind in KINDS if kind in content]
    unknown = [name for name in content if name not in (*KINDS, *_OPTIONS)]
    if len(kinds) != 1 or unknown:
        problem = (
            f"{', '.join(map(str, unknown))} is unknown" if unknown else f"found {', '.join(kinds) or 'none of them'}"
        )
        allowed = f"one of choice, float and int, and beside it step, log and when; for example {_EXAMPLES}"
        yield f"{problem}. Allowed: {allowed}"
        return
    shape = _choice_fault(content) if kinds[0] == "choice" else _range_fault(kinds[0], content)
    shape = shape or _when_fault(params, content.get("when", {}))
    if shape:
        yield shape
        return
    dimension = dimension_of(key, content)
    without = apply(params, {name: values[0] for name, values in dimension.when.items()})
    for value in dimension.ends:
        try:
            trial = apply(without, {key: value})
        except ValidationError as error:
            texts = [text.removeprefix(f"{key}: ") for text in settings_errors.explain(Params, error.errors())]
            if dimension.kind == "float" and "whole number" in texts[0]:
                low, high = (math.floor(bound) for bound in content["float"])
                yield f"found a range of float, and it is a whole number. Fix: write it as {{int: [{low}, {high}]}}"
                return
            yield from texts
        else:
            yield from _augmentation_faults(without, trial, key)


def _augmentation_faults(without: Params, trial: Params, key: str) -> Iterator[str]:
    """Yield a message for each fault of the list of augmentations that the settings lack without the value of `key`."""
    before = {*list_faults(without.training, without.data.kind)}
    faults = [fault for fault in list_faults(trial.training, trial.data.kind) if fault not in before]
    if key == "training.augment":
        yield from (fault.removeprefix(f"{key}: ") for fault in faults)
    elif faults:
        yield (
            f"found {settings_errors.spell(setting_of(trial, key))}, and training.augment is a list, which excludes "
            "it. Fix: remove it from the space, or add `when: {training.augment: auto}`"
        )


def _key_refusal(key: str, content: object) -> str:
    """Return why a key cannot differ between trials; empty: it can."""
    section, _, name = key.partition(".")
    if key not in settings_errors.dotted_keys(Params):
        return settings_errors.unknown(Params, key, content).removeprefix(f"{key}: ")
    if key == "seed":
        return (
            "the best of several seeds is chance. Allowed: keys of model and training. Fix: remove it; search.seeds "
            "trains the best trials with several seeds"
        )
    if section == "data":
        return (
            "would change the data of some trials, and then their metrics are not of the same samples. Allowed: keys "
            "of model and training. Fix: remove it, and compare data with `ratchet compare`"
        )
    if key == "training.best":
        return (
            "decides what counts as good, so trials would not be comparable. Fix: name the metric in search.objective"
        )
    if section not in ("model", "training") or key == "model.code" or (section == "training" and name in NEUTRAL):
        return "changes no weight of the model. Allowed: keys of model and training that do. Fix: remove it"
    return ""


def _choice_fault(content: Mapping[str, Any]) -> str:
    choices = content["choice"]
    extra = [name for name in ("step", "log") if name in content]
    if not isinstance(choices, list | tuple) or not choices:
        return f"choice: found {settings_errors.spell(choices)}. Allowed: a list of values, such as [32, 64]"
    if extra:
        return f"{' and '.join(extra)}: only for float and int, and it is a choice. Fix: remove it"
    if len(choices) > _MOST_CHOICES:
        return f"choice: found {len(choices):,} values. Allowed: at most {_MOST_CHOICES:,}. Fix: give a range"
    texts = [json.dumps(_as_float(choice), default=str) for choice in choices]  # 1 and 1.0 are the same setting
    doubled = sorted({text for text in texts if texts.count(text) > 1})
    return f"choice: {doubled[0]} is in the list more than once. Fix: remove one" if doubled else ""


def _range_fault(kind: str, content: Mapping[str, Any]) -> str:
    bounds, step, log = content[kind], content.get("step"), content.get("log", False)
    types: Any = int if kind == "int" else (int, float)
    numbers = "two whole numbers" if kind == "int" else "two numbers"
    allowed = f"[LOW, HIGH], {numbers}, of which the second is larger"
    if not isinstance(bounds, list | tuple) or len(bounds) != 2 or not all(_is_number(each, types) for each in bounds):
        hint = " Fix: write 1e-4 as 1.0e-4" if any(_reads_as_number(each) for each in listed(bounds)) else ""
        return f"{kind}: found {settings_errors.spell(bounds)}. Allowed: {allowed}.{hint}"
    low, high = bounds
    if low >= high:
        return f"{kind}: found {settings_errors.spell(bounds)}. Allowed: {allowed}"
    if not isinstance(log, bool):
        return f"log: found {settings_errors.spell(log)}. Allowed: true or false"
    if log and low <= 0:
        return f"{kind}: found {settings_errors.spell(bounds)} with log: true. Allowed with log: LOW above 0"
    if step is not None and log:
        return "found step and log: true. Allowed: one of them"
    if step is not None and (not _is_number(step, types) or not 0 < step <= high - low):
        return f"step: found {settings_errors.spell(step)}. Allowed: a number above 0, at most {high - low:g}"
    return ""


def _when_fault(params: Params, when: object) -> str:
    if not isinstance(when, Mapping):
        return (
            f"when: found {settings_errors.spell(when)}. Allowed: {{KEY: VALUE}}, such as {{training.optimizer: sgd}}"
        )
    for key, value in when.items():
        if key not in settings_errors.dotted_keys(Params):
            return f"when: {settings_errors.unknown(Params, key, value)}"
        entry = params.search.space.get(key)
        choices = entry.get("choice") if isinstance(entry, Mapping) else None
        if isinstance(entry, Mapping) and not choices:
            return f"when: {key} is a range in the space. Allowed: a setting with choice, or one outside the space"
        if not listed(value):
            return f"when: {key}: found an empty list, so it never holds. Allowed: at least one value"
        for each in listed(value):
            if choices and each not in choices:
                allowed = settings_errors.spell(list(choices))
                return f"when: {key} is never {settings_errors.spell(each)}. Allowed: {allowed}"
            try:
                apply(params, {key: each})
            except ValidationError as error:
                return f"when: {settings_errors.explain(Params, error.errors())[0]}"
    return ""


def _circles(dimensions: list[Dimension]) -> Iterator[str]:
    left = {dimension.key: {*dimension.when} & {each.key for each in dimensions} for dimension in dimensions}
    while free := [key for key, needs in left.items() if not needs & {*left}]:
        for key in free:
            del left[key]
    if left:
        yield f"search.space: when: {', '.join(sorted(left))} depend on each other in a circle. Fix: remove one `when`"


def _as_float(value: object) -> object:
    return float(value) if _is_number(value, int) and isinstance(value, int) else value


def _is_number(value: object, types: Any) -> bool:
    largest = _LARGEST_INT if types is int else sys.float_info.max
    return isinstance(value, types) and not isinstance(value, bool) and abs(value) <= largest


def _reads_as_number(value: object) -> bool:
    try:
        return isinstance(value, str) and math.isfinite(float(value))
    except ValueError:
        return False
