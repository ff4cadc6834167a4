"""`ratchet reproduce`: rebuild a registered version from its record in a separate folder and compare every bit."""

import contextlib
import hashlib
import math
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from commands.rebuild import Rebuild, Recipe
from commands.tensor_difference import tensor_difference
from ratchet import files, settings
from ratchet.counts import count_of
from ratchet.errors import RegistryError, WorkspaceError
from ratchet.provenance.archive import Archive
from ratchet.provenance.comparison import changes, environment_changes
from ratchet.provenance.sealed import SealedReader
from ratchet.registry.alias_sync import AliasSync
from ratchet.registry.fingerprints import unexpected_changes
from ratchet.registry.ledger import Ledger
from ratchet.registry.provenance_record import PACKED, Provenance
from ratchet.registry.versions import Version
from ratchet.terminal_lines import echo
from ratchet.workspace import Workspace
from tasks.code import other_ratchet
from tasks.dvc_store import DvcStore, hash_of

if TYPE_CHECKING:
    import torch
__all__ = ["reproduce_and_print", "require_evidence"]


def reproduce_and_print(reference: str, workspace: Workspace, into: Path | None, *, anyway: bool) -> bool:
    """Rebuild a version and print the result. Return whether data and weights are identical, bit for bit.

    The project, its registry and its data are only read.

    Args:
        into: an empty or new folder, which is kept; None: a temporary folder.
    """
    params = settings.load(workspace.params)
    archive, ledger = Archive(workspace, params), Ledger.of(workspace, params)
    with (
        _rebuild_folder(into) as folder,
        tempfile.TemporaryDirectory(prefix="ratchet-record-") as files_folder,
        DvcStore.open(workspace.root) as store,
    ):
        run, release = archive.version(reference)
        ledger.require_intact()
        checked = require_evidence(AliasSync(workspace, params, release.name, ledger=ledger), release)
        run = SealedReader(archive, ledger).verify(run)
        recipe = Recipe.of(run, release, archive, store, Path(files_folder))
        _require_versions(recipe, anyway=anyway)
        _echo("evidence", checked)
        _print_recipe(recipe, release.label, run.run_id)
        rebuild = Rebuild.checkout_revision(recipe, workspace, folder, store, anyway=anyway)
        rebuild.run("tasks.train")
        identical = _print_outcome(rebuild)
        if into is not None:
            echo(f"it is in {folder}")
    return identical


@contextlib.contextmanager
def _rebuild_folder(into: Path | None) -> Iterator[Path]:
    if into is None:
        with tempfile.TemporaryDirectory(prefix="ratchet-reproduce-") as name:
            yield Path(name).resolve() / "project"
        return
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise WorkspaceError(f"{into}: is not empty. Allowed for --into: an empty folder, or one that does not exist")
    yield into


def require_evidence(sync: AliasSync, version: Version) -> str:
    """Compare every stored file with the ledger's evidence. Return a sentence about what was compared."""
    expected = sync.recorded_evidence(version)
    if expected is None:
        return "the ledger does not know this version: its stored files cannot be checked"
    stored = sync.evidence(version)
    if changed := unexpected_changes(expected, stored):
        differences = "; ".join(
            f"{name}: expected SHA-256 {expected.get(name, 'none')}, found {stored.get(name, 'none')}"
            for name in changed
        )
        raise RegistryError(
            f"{version.uri} is not what was registered: {differences}. Nothing was rebuilt. "
            "Fix: restore the file from a backup of MLflow's artifacts"
        )
    same = sum(digest == stored.get(name) for name, digest in expected.items())
    return f"{same} of {len(expected)} digests in the ledger match the stored files"


def _require_versions(recipe: Recipe, *, anyway: bool) -> None:
    other = recipe.other_versions()
    if other and not anyway:
        versions = ", ".join(f"{change.name} {change.before} (installed: {change.after})" for change in other)
        raise RegistryError(
            f"{recipe.name}: was made with {versions}. Fix: install those versions, or use --anyway; the weights may "
            "then differ"
        )


def _calibrated(rebuild: Rebuild, registered: "Mapping[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
    """Return the weights as register stores them. If a temperature was fitted, run evaluate to fit it again."""
    import torch
    from safetensors.torch import load_file

    weights = load_file(rebuild.workspace.model / "model.safetensors")
    stored = registered.get("temperature")
    if stored is None or "temperature" not in weights or torch.equal(stored, weights["temperature"]):
        return weights
    rebuild.run("tasks.evaluate")
    measured = files.read_json(rebuild.workspace.reports / "metrics.json")["temperature"]
    return {**weights, "temperature": torch.full_like(weights["temperature"], measured)}


def _reasons(recorded: Provenance, rebuilt: Provenance) -> list[str]:
    """Return the known differences of the code, the inputs, the machine and the libraries."""
    inputs = changes(*({"inputs": record.inputs} for record in (recorded, rebuilt)))
    recorded_in_both = [change for change in inputs if None not in (change.before, change.after)]
    return [
        *(f"it continued with changed code: {change}" for change in recorded.code_changes),
        *(
            f"{change.name} was {change.before}, is {change.after}"
            for change in (*recorded_in_both, *environment_changes(recorded, rebuilt))
        ),
    ]


def _print_recipe(recipe: Recipe, version: str, run_id: str) -> None:
    record, hardware = recipe.record, recipe.record.hardware
    threads, gpus = hardware.threads, ", ".join(hardware.gpus) or "no GPU"
    patched = ", with its uncommitted changes" if recipe.patch else ""
    lines = {
        "version": f"{version}, of run {run_id}, provenance {record.id}",
        "code": f"commit {record.git_commit}{patched}",
        "changed": "; ".join(map(str, record.code_changes)),
        "data": f"{recipe.data}, from {recipe.place}",
        "machine": f"{hardware.processor}, {count_of(threads, 'thread')}, {gpus}",
        "left out": f"of the uncommitted files: {', '.join(record.git_left_out)}" if record.git_left_out else "",
    }
    for caption, text in lines.items():
        if text:
            _echo(caption, text)


def _echo(caption: str, text: str) -> None:
    echo(text, caption=f"  {caption:<9}  ")


def _print_outcome(rebuild: Rebuild) -> bool:
    recipe, name = rebuild.recipe, "model.safetensors"
    digest, expected = (files.digest_file(folder / name) for folder in (rebuild.workspace.model, recipe.model))
    difference = None
    if digest != expected:  # PyTorch takes seconds to import
        difference, digest = _difference(rebuild, recipe.model / name)
    data = hash_of(rebuild.workspace.root / PACKED)
    weights = difference or _equal_tensors(recipe.model / name)
    _echo("data", f"{data}, {'the same hash' if data == recipe.data else f'recorded: {recipe.data}'}")
    _echo("weights", weights)
    _echo("file", f"SHA-256 {digest}, {'the same' if digest == expected else f'registered: {expected}'}")
    echo("")
    if data == recipe.data and difference is None:
        echo("reproduced, bit for bit", style="green")
        return True
    echo(f"not reproduced: {weights}", style="red")
    other = other_ratchet(rebuild.workspace)
    reasons = [*([f"ratchet.lock {other}"] if other else []), *_reasons(recipe.record, rebuild.record)]
    for reason in reasons or ["no reason is known: the recorded machine, libraries and inputs are the same"]:
        echo(f"  {reason}")
    return False


def _difference(rebuild: Rebuild, registered_file: Path) -> tuple[str | None, str]:
    """Return how the rebuilt weights differ from the registered ones, and the SHA-256 of their file."""
    from safetensors.torch import load_file, save

    registered = load_file(registered_file)
    rebuilt = _calibrated(rebuild, registered)
    return tensor_difference(registered, rebuilt), hashlib.sha256(save(rebuilt)).hexdigest()


def _equal_tensors(path: Path) -> str:
    from safetensors import safe_open

    with safe_open(path, "numpy") as file:
        sizes = [math.prod(file.get_slice(name).get_shape()) for name in file.keys()]  # noqa: SIM118  # no mapping
    return f"all {len(sizes):,} tensors, {sum(sizes):,} numbers, are identical"
