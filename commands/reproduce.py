"""`ratchet reproduce`: rebuild a registered version from its record in a separate folder and compare every bit."""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from commands.app import new_console, print_caption
from commands.rebuild import Rebuild, Recipe
from commands.tensors import compare_tensors, describe_weights
from ratchet import files, settings
from ratchet.errors import RegistryError, WorkspaceError
from ratchet.provenance.archive import Archive
from ratchet.provenance.comparison import Change, changes, environment_changes
from ratchet.provenance.sealed import SealedReader
from ratchet.registry.alias_sync import AliasSync
from ratchet.registry.fingerprints import collect_evidence, unexpected_changes
from ratchet.registry.ledger import Ledger
from ratchet.registry.provenance_record import PACKED, Provenance
from ratchet.registry.versions import Version
from ratchet.workspace import Workspace
from tasks.dvc_store import DvcStore, hash_of

if TYPE_CHECKING:
    import torch
    from rich.console import Console

__all__ = ["reproduce_and_print", "require_evidence"]


@dataclass(frozen=True)
class _Outcome:
    """The rebuilt version compared with the registered one."""

    data: tuple[str, str]  # DVC hash, recorded and rebuilt
    weights: str  # the differences in one line
    identical: bool  # data and weights, bit for bit
    file: tuple[str, str]  # SHA-256 of model.safetensors, registered and rebuilt
    reasons: tuple[Change, ...]


def reproduce_and_print(reference: str, workspace: Workspace, into: Path | None, *, anyway: bool) -> bool:
    """Rebuild a version and print the result. Return whether it is identical.

    Args:
        into: an empty or new folder, which is kept; None: a temporary folder.
    """
    console = new_console()
    with _rebuild_folder(into) as folder:
        outcome = _reproduce(reference, workspace, folder, console, anyway=anyway)
        _print_outcome(outcome, console)
        if into is not None:
            console.print(f"it is in {folder}", markup=False)
    return outcome.identical


@contextlib.contextmanager
def _rebuild_folder(into: Path | None) -> Iterator[Path]:
    if into is None:
        with tempfile.TemporaryDirectory(prefix="ratchet-reproduce-") as name:
            yield Path(name).resolve() / "project"
        return
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise WorkspaceError(f"{into}: is not empty. Allowed for --into: an empty folder, or one that does not exist")
    yield into


def _reproduce(reference: str, workspace: Workspace, folder: Path, console: "Console", *, anyway: bool) -> _Outcome:
    """Rebuild a version in an empty folder. The project, its registry and its data are only read.

    Raises:
        LedgerBroken: the ledger was changed, so nothing can be checked.
        RegistryError: no such version, no record, an unknown commit, a stored file that is not what was registered, or
            other library versions and not `anyway`.
        DataError: its data is lost.
        TrainingError: the rebuild fails.
    """
    params = settings.load(workspace.params)
    archive = Archive(workspace, params)
    with tempfile.TemporaryDirectory(prefix="ratchet-record-") as files_folder, DvcStore.open(workspace.root) as store:
        run, release = archive.version(reference)
        ledger = Ledger.of(workspace, params)
        ledger.require_intact()
        checked = require_evidence(AliasSync(workspace, params, release.name, ledger=ledger), release)
        run = SealedReader(archive, ledger).verify(run)
        recipe = Recipe.of(run, release, archive, store, Path(files_folder))
        _require_versions(recipe, anyway=anyway)
        print_caption(console, "evidence", checked)
        _print_recipe(recipe, release.label, run.run_id, console)
        rebuild = Rebuild.checkout_revision(recipe, workspace, folder, store)
        rebuild.run("tasks.train")
        return _outcome(rebuild)


def require_evidence(sync: AliasSync, version: Version) -> str:
    """Compare every stored file with the ledger's evidence. Return a sentence about what was compared.

    Raises:
        RegistryError: names each file that is not what was registered, with both digests.
    """
    expected = sync.recorded_evidence(version)
    if expected is None:
        return "the ledger does not know this version: its stored files cannot be checked"
    stored = collect_evidence(sync.registry, version)
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


def _outcome(rebuild: Rebuild) -> _Outcome:
    from safetensors.torch import load_file, save

    recipe = rebuild.recipe
    registered = load_file(recipe.model / "model.safetensors")
    rebuilt = _calibrated(rebuild, load_file(rebuild.workspace.model / "model.safetensors"), registered)
    rebuilt_file = rebuild.workspace.state / "model.safetensors"
    files.write_bytes(rebuilt_file, save(rebuilt))
    data, differences = (recipe.data, hash_of(rebuild.workspace.root / PACKED)), compare_tensors(registered, rebuilt)
    return _Outcome(
        data,
        weights=describe_weights(registered, differences),
        identical=data[0] == data[1] and not differences,
        file=(files.digest_file(recipe.model / "model.safetensors"), files.digest_file(rebuilt_file)),
        reasons=tuple(_reasons(recipe.record, rebuild.record)),
    )


def _calibrated(
    rebuild: Rebuild, weights: "dict[str, torch.Tensor]", registered: "Mapping[str, torch.Tensor]"
) -> "dict[str, torch.Tensor]":
    """Return the weights as register stores them. If a temperature was fitted, run evaluate to fit it again."""
    import torch

    stored = registered.get("temperature")
    if stored is None or "temperature" not in weights or torch.equal(stored, weights["temperature"]):
        return weights
    rebuild.run("tasks.evaluate")
    measured = files.read_json(rebuild.workspace.reports / "metrics.json")["temperature"]
    return {**weights, "temperature": torch.full_like(weights["temperature"], measured)}


def _reasons(recorded: Provenance, rebuilt: Provenance) -> list[Change]:
    """Return the known differences of the inputs, the machine and the libraries."""
    inputs = changes(*({"inputs": record.inputs} for record in (recorded, rebuilt)))
    recorded_in_both = [change for change in inputs if None not in (change.before, change.after)]
    return [*recorded_in_both, *environment_changes(recorded, rebuilt)]


def _print_recipe(recipe: Recipe, version: str, run_id: str, console: "Console") -> None:
    record, hardware = recipe.record, recipe.record.hardware
    threads, gpus = hardware.threads, ", ".join(hardware.gpus) or "no GPU"
    patched = ", with its uncommitted changes" if recipe.patch else ""
    lines = {
        "version": f"{version}, of run {run_id}, provenance {record.id}",
        "code": f"commit {record.git_commit}{patched}",
        "data": f"{recipe.data}, from {recipe.place}",
        "machine": f"{hardware.processor}, {threads} thread{'s' * (threads != 1)}, {gpus}",
    }
    if record.git_left_out:
        lines["left out"] = f"of the uncommitted files: {', '.join(record.git_left_out)}"
    for caption, text in lines.items():
        print_caption(console, caption, text)


def _print_outcome(outcome: _Outcome, console: "Console") -> None:
    recorded, rebuilt = outcome.data
    print_caption(console, "data", f"{rebuilt}, {'the same hash' if recorded == rebuilt else f'recorded: {recorded}'}")
    print_caption(console, "weights", outcome.weights)
    registered, new = outcome.file
    print_caption(console, "file", f"SHA-256 {new}, {'the same' if registered == new else f'registered: {registered}'}")
    console.print()
    if outcome.identical:
        console.print("reproduced, bit for bit", style="bold green")
        return
    console.print(f"not reproduced: {outcome.weights}", style="bold red", markup=False)
    for reason in outcome.reasons:
        console.print(f"  {reason.name} was {reason.before}, is {reason.after}", markup=False)
    if not outcome.reasons:
        console.print("  no reason is known: the recorded machine, libraries and inputs are the same")
