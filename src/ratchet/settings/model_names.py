"""Allowed names for model.name. It does not import torch, because every command that changes settings uses it."""

import ast
import difflib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from ratchet.kinds.registry import kind_chosen

__all__ = ["VARIANTS", "refusal", "torchvision_classifiers"]

VARIANTS = ("baseline", "blend")
"""What is stored in place of a network: the baseline, or the average of both."""

_NOT_NETWORKS = ("auto", *VARIANTS)


@cache
def torchvision_classifiers() -> tuple[str, ...]:
    """Return the names of torchvision's classifiers. It reads the source files, because the import takes seconds."""
    package = find_spec("torchvision")
    folders = list(package.submodule_search_locations or ()) if package else []
    names: set[str] = set()
    for path in sorted(Path(folders[0], "models").glob("*.py")) if folders else ():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names |= {
            node.name
            for node in tree.body
            if isinstance(node, ast.FunctionDef)
            and any(
                isinstance(mark, ast.Call) and ast.unparse(mark.func) == "register_model"
                for mark in node.decorator_list
            )
        }
    return tuple(sorted(names))


def refusal(name: str, kind: str) -> str | None:
    """Return the message for a model that samples of this kind do not have; None if it exists or cannot be checked."""
    chosen = kind_chosen(kind)
    own, others = chosen.networks, torchvision_classifiers() if chosen.has_torchvision else ()
    if name in (*_NOT_NETWORKS, *own, *others) or (chosen.has_torchvision and not others):
        return None
    near = difflib.get_close_matches(name.lower(), [*own, *others, *_NOT_NETWORKS], n=3, cutoff=0.4)
    more = " and every classifier of torchvision.models" if others else ""
    return (
        f"model.name: no model for the data's kind, {kind}, is called {name!r}. Allowed: "
        f"{', '.join((*_NOT_NETWORKS, *own))}{more}. Nearest: {', '.join(near or own)}"
    )
