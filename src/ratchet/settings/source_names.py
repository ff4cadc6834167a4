"""Allowed names for data.source. It does not import torch, because every command that reads settings uses it."""

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from ratchet.settings import messages as settings_errors

__all__ = ["CLASSIFICATION", "OWN", "refusal", "torchvision_names"]

OWN = ("digits", "image-folder", "image-manifest")
"""Sources that are not from torchvision."""
_NAMES = (
    "CIFAR10 CIFAR100 Caltech256 Country211 DTD EuroSAT FER2013 FGVCAircraft FashionMNIST Flowers102 Food101 "
    "GTSRB ImageNet Imagenette KMNIST MNIST OxfordIIITPet PCAM QMNIST RenderedSST2 SEMEION STL10 SUN397 SVHN "
    "StanfordCars USPS"
)
CLASSIFICATION = tuple(_NAMES.split())
"""Sets of torchvision with one class for each image, whose splits need no more than a name. Messages suggest these."""


@cache
def torchvision_names() -> tuple[str, ...]:
    """Return the classes of torchvision.datasets. It reads the source file, because the import takes seconds."""
    package = find_spec("torchvision")
    if package is None or not package.submodule_search_locations:
        return ()
    path = Path(package.submodule_search_locations[0], "datasets", "__init__.py")
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
    """Return the error message for an unknown source, or None if it is known or cannot be checked."""
    if name in OWN:
        return None
    sets = torchvision_names()
    if not sets or name in sets:
        return None
    near = settings_errors.nearest(name, (*OWN, *CLASSIFICATION), most=3)
    hint = f". Did you mean {' or '.join(near)}?" if near else ""
    return (
        f"data.source: found {name!r}, which is not a source. Allowed: {', '.join(OWN)}, or a classification set of "
        f"torchvision.datasets, such as CIFAR10, FashionMNIST or Flowers102{hint}"
    )
