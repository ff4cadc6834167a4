"""`ratchet weights`: pretrained weights for data/pretrained. `ratchet use` looks into the caches as well."""

from ratchet import files, settings, weights
from ratchet.errors import TrainingError
from ratchet.settings.model import Params
from ratchet.terminal_lines import echo
from ratchet.workspace import Workspace

__all__ = ["find_named", "get"]


def get(workspace: Workspace, model: str, *, source: str, sha256: str) -> None:
    """Put the weights of a model into data/pretrained: from a cache, or else fetched; print what the next step is.

    Args:
        workspace: it is held, because a run reads that folder.
        source: address of a file, or of a folder with torchvision's file; "": torchvision's.
    """
    address = weights.published(model) if not source or source.endswith("/") else source
    name = weights.file_name(address)
    address = f"{source}{name}" if source.endswith("/") else address
    with workspace.hold("ratchet weights"):
        placed = [each for each in weights.cached(model, name) if each.name == name and not source]
        if sha256:
            placed = [each for each in placed if files.digest_file(each.path) == sha256.lower()]
        if placed and not (workspace.pretrained / name).exists():
            echo(weights.place_cached(workspace, placed[0]))
        else:
            try:
                name = weights.fetch(workspace, address, sha256=sha256, say=echo)
            except TrainingError as error:
                if source or sha256 or (other := next(weights.cached(model, name), None)) is None:
                    raise
                echo(str(error), err=True)
                echo(weights.place_cached(workspace, other))
                name = other.name
    if settings.load(workspace.params).model.pretrained != name:
        echo(f"next: ratchet set model.name={model} model.pretrained={name}")


def find_named(workspace: Workspace, params: Params) -> None:
    """Copy the weights that the settings name from a cache into data/pretrained, if they are not there.

    If a cache has only other weights of the same network, the settings name these afterwards.
    """
    name = params.model.pretrained
    if name == "none" or (workspace.pretrained / name).exists() or workspace.holder():
        return
    if (other := next(weights.cached(params.model.name, name), None)) is None:
        return
    with workspace.hold("copying weights"):
        echo(weights.place_cached(workspace, other))
        if other.name != name:
            settings.override(workspace.params, {"model.pretrained": other.name})
            echo(f"model.pretrained: {name} -> {other.name}")
