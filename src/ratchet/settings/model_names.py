"""Allowed names for model.name. It does not import torch, because every command that changes settings uses it."""

import difflib
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from ratchet.kinds.registry import kind_chosen

__all__ = ["TIMM", "VARIANTS", "refusal", "timm_fault", "timm_models", "torchvision_classifiers"]

VARIANTS = ("baseline", "blend")
"""What is stored in place of a network: the baseline, or the average of both."""

_NOT_NETWORKS = ("auto", *VARIANTS)


TIMM = "timm/"
"""Beginning of the names of timm's models."""
_REGISTERED = re.compile(r"^@register_model\b.*?^def (\w+)\(", re.DOTALL | re.MULTILINE)


@cache
def torchvision_classifiers() -> tuple[str, ...]:
    """Return the names of torchvision's classifiers; none: it is not installed."""
    return _registered("torchvision")


@cache
def timm_models() -> tuple[str, ...]:
    """Return the names of timm's models, as timm/NAME; none: it is not installed."""
    return tuple(f"{TIMM}{name}" for name in _registered("timm"))


def _registered(library: str) -> tuple[str, ...]:
    """Return the models of a library by its source files, because the import takes seconds."""
    package = find_spec(library)
    folders = list(package.submodule_search_locations or ()) if package else []
    paths = sorted(Path(folders[0], "models").glob("*.py")) if folders else []
    return tuple(sorted({name for path in paths for name in _REGISTERED.findall(path.read_text(encoding="utf-8"))}))


def timm_fault(name: str) -> str:
    """Return why a model timm/NAME cannot be built here; empty: it can."""
    names = timm_models()
    if not names:
        return f"model.name: {name} needs timm, which is not installed here. Fix: `pip install ratchet[timm]`"
    if name in names:
        return ""
    near = difflib.get_close_matches(name.partition(".")[0], names, n=3, cutoff=0.4)
    tag = f". Weights are named in model.pretrained: hf://{name}" if "." in name else ""
    return f"model.name: timm has no model {name}. Nearest: {', '.join(near) or 'none'}{tag}"


def refusal(name: str, kind: str) -> str | None:
    """Return the message for a model that samples of this kind do not have; None if it exists or cannot be checked."""
    chosen = kind_chosen(kind)
    if chosen.has_torchvision and name.startswith(TIMM):
        return timm_fault(name) or None
    own, others = chosen.networks, torchvision_classifiers() if chosen.has_torchvision else ()
    if name in (*_NOT_NETWORKS, *own, *others) or (chosen.has_torchvision and not others):
        return None
    near = difflib.get_close_matches(name.lower(), [*own, *others, *_NOT_NETWORKS], n=3, cutoff=0.4)
    more = ", every classifier of torchvision.models, and timm/NAME" if others else ""
    return (
        f"model.name: no model for the data's kind, {kind}, is called {name!r}. Allowed: "
        f"{', '.join((*_NOT_NETWORKS, *own))}{more}. Nearest: {', '.join(near or own)}"
    )
