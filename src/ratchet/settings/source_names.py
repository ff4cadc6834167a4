"""Names that data.source may have. Imports nothing of torch: every command that reads the settings comes by here."""

import ast
import difflib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

__all__ = ["OWN", "refusal", "torchvision_names"]

OWN = ("digits", "image-folder", "image-manifest", "factory")
"""Sources that are not torchvision's."""


@cache
def torchvision_names() -> tuple[str, ...]:
    """Return the classes of torchvision.datasets, by reading its list and not by importing it, which takes seconds."""
    found = find_spec("torchvision")
    if found is None or not found.submodule_search_locations:
        return ()
    path = Path(found.submodule_search_locations[0], "datasets", "__init__.py")
    try:
        content = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return ()
    for node in content.body:
        if isinstance(node, ast.Assign) and any(getattr(name, "id", "") == "__all__" for name in node.targets):
            listed = ast.literal_eval(node.value)
            return tuple(sorted(name for name in listed if name[:1].isupper()))
    return ()


def refusal(name: str) -> str | None:
    """Return why `name` is no source, with the nearest and all that are; None: it is one, or nobody can say."""
    if name in OWN:
        return None
    sets = torchvision_names()
    if not sets or name in sets:
        return None
    folded = {known.casefold(): known for known in (*OWN, *sets)}
    near = [folded[key] for key in difflib.get_close_matches(name.casefold(), list(folded), n=3, cutoff=0.5)]
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    return (
        f"data.source: found {name!r}, which is no source; {meant}allowed: {', '.join(OWN)}, or a set of "
        f"torchvision.datasets: {', '.join(sets)}"
    )
