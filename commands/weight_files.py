"""`ratchet weights`: pretrained weights for data/pretrained. `ratchet use` looks into the caches as well."""

from ratchet import files, settings, weights
from ratchet.errors import TrainingError
from ratchet.settings.model import Params
from ratchet.terminal_lines import echo
from ratchet.weights_sources import WeightsSource, is_address, keep
from ratchet.workspace import Workspace

__all__ = ["find_named", "get"]


def get(workspace: Workspace, model: str, *, source: str, sha256: str) -> None:
    """Put the weights of a model or an address into data/pretrained; print what the next step is.

    Args:
        workspace: it is held, because a run reads that folder.
        source: address of a file, or of a folder with torchvision's file; "": torchvision's.
    """
    if is_address(model):
        if source or sha256:
            raise TrainingError(f"weights: {model} is an address. Allowed with it: neither --from nor --sha256")
        with workspace.hold("ratchet weights"):
            placed = weights.fetch_address(workspace, model, say=echo)
        _print_next(workspace, f"timm/{placed.architecture}" if placed.architecture else "", model)
        return
    address = weights.published(model).address if not source or source.endswith("/") else source
    name = weights.file_name(address)
    address = f"{source}{name}" if source.endswith("/") else address
    with workspace.hold("ratchet weights"):
        copies = [each for each in weights.cached(model, name) if each.name == name and not source]
        if sha256:
            copies = [each for each in copies if files.digest_file(each.path) == sha256.lower()]
        if copies and not (workspace.pretrained / name).exists():
            placed = weights.place_cached(workspace, copies[0], say=echo)
        else:
            try:
                placed = weights.fetch(workspace, address, sha256=sha256, say=echo)
            except TrainingError as error:
                if source or sha256 or (other := next(weights.cached(model, name), None)) is None:
                    raise
                echo(str(error), err=True)
                placed = weights.place_cached(workspace, other, say=echo)
        _record(workspace, placed)
    _print_next(workspace, model, placed.file)


def find_named(workspace: Workspace, params: Params) -> None:
    """Copy the weights that the settings name from a cache into data/pretrained, if they are not there.

    If a cache has only other weights of the same network, the settings name these afterwards.
    """
    name = params.model.pretrained
    if name == "none" or is_address(name) or (workspace.pretrained / name).exists() or workspace.holder():
        return
    if (other := next(weights.cached(params.model.name, name), None)) is None:
        return
    with workspace.hold("copying weights"):
        _record(workspace, weights.place_cached(workspace, other, say=echo))
        if other.name != name:
            settings.override(workspace.params, {"model.pretrained": other.name})
            echo(f"model.pretrained: {name} -> {other.name}")


def _record(workspace: Workspace, source: WeightsSource) -> None:
    """Record the source of a file, if it is known."""
    if is_address(source.source):
        keep(workspace.pretrained, source.address, source)
        echo(f"weights: normalization by {source.normalization}")


def _print_next(workspace: Workspace, model: str, name: str) -> None:
    if settings.load(workspace.params).model.pretrained != name:
        echo(f"next: ratchet set {f'model.name={model} ' if model else ''}model.pretrained={name}")
