"""reproduce: rebuild a registered version from its record alone, in a folder of its own, and compare every bit."""

import argparse
import contextlib
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from commands.rebuild import Rebuild, Recipe
from commands.weights import Weights, compare
from ratchet import files, settings
from ratchet.errors import RatchetError, RegistryError, WorkspaceError
from ratchet.provenance.archive import Archive, ArchivedVersion
from ratchet.provenance.comparison import Change, changes, environment_changes
from ratchet.provenance.sealed import SealedReader
from ratchet.registry.alias_sync import AliasSync
from ratchet.registry.fingerprints import collect_evidence, unexpected_changes
from ratchet.registry.ledger import Ledger
from ratchet.registry.provenance_record import PACKED, Hardware, Provenance
from ratchet.registry.versions import Version
from ratchet.workspace import Workspace, disk_errors
from tasks.dvc_store import DvcStore, hash_of
from tasks.stage_runner import INTERRUPTED

if TYPE_CHECKING:
    import torch
    from rich.console import Console

__all__ = ["Outcome", "reproduce", "require_evidence"]


@dataclass(frozen=True)
class Outcome:
    """What the rebuilt version is beside the registered one."""

    data: tuple[str, str]  # DVC hash, recorded and rebuilt
    weights: Weights
    file: tuple[str, str]  # SHA-256 of model.safetensors, registered and rebuilt
    reasons: tuple[Change, ...]

    @property
    def identical(self) -> bool:
        """Whether it is the same, bit for bit."""
        return self.data[0] == self.data[1] and self.weights.identical


def reproduce(
    reference: str, workspace: Workspace, folder: Path, console: "Console", *, anyway: bool = False
) -> Outcome:
    """Rebuild a version in an empty folder. The project, its registry and its data are only read.

    Raises:
        LedgerBroken: the ledger is not what was written, so nothing can be checked.
        RegistryError: no such version, no record, an unknown commit, a stored file that is not what was registered, or
            other library versions and not `anyway`.
        DataError: its data is gone.
        TrainingError: the rebuild fails.
    """
    params = settings.load(workspace.params)
    archive = Archive(workspace, params)
    with tempfile.TemporaryDirectory(prefix="ratchet-record-") as kept, DvcStore.open(workspace.root) as stored:
        made, release = archive.version(reference)
        ledger = Ledger.of(workspace, params)
        ledger.require_intact()
        proven = require_evidence(AliasSync(workspace, params, release.name, ledger=ledger), release, made.run_id)
        made = SealedReader(archive, ledger).verify(made)
        recipe = Recipe.of(made, release, archive, stored, Path(kept))
        _require_versions(recipe, anyway=anyway)
        _line(console, "evidence", proven)
        _tell_recipe(recipe, release.label, made.run_id, console)
        rebuild = Rebuild.lay_down(recipe, workspace, folder, stored)
        rebuild.run("tasks.train")
        return _outcome(rebuild)


def require_evidence(kept: AliasSync, release: ArchivedVersion, run_id: str) -> str:
    """Compare every stored file with the ledger's evidence; return a sentence about what was compared.

    Raises:
        RegistryError: names each file that is not what was registered, with both digests.
    """
    called = f"models:/{release.name}/{release.number}"
    version = Version(release.name, release.number, run_id, release.aliases)
    noted = kept.recorded_evidence(version)
    if noted is None:
        return "the ledger does not know this version: its stored files cannot be checked"
    changed = unexpected_changes(noted, found := collect_evidence(kept.registry, version))
    if changed:
        differences = "; ".join(
            f"{name}: expected SHA-256 {noted.get(name, 'none')}, found {found.get(name, 'none')}" for name in changed
        )
        raise RegistryError(
            f"{called} is not what was registered: {differences}. Nothing was rebuilt. Fix: restore the file from a "
            "backup of MLflow's artifacts"
        )
    same = sum(noted[name] == found.get(name) for name in noted)
    return f"{same} of {len(noted)} digests in the ledger fit what is stored"


def _require_versions(recipe: Recipe, *, anyway: bool) -> None:
    other = recipe.other_versions()
    if other and not anyway:
        told = ", ".join(f"{one.name} {one.before} (installed: {one.after})" for one in other)
        raise RegistryError(
            f"{recipe.name}: was made with {told}: install those versions, or go on with --anyway, and the weights may "
            "differ"
        )


def _outcome(rebuild: Rebuild) -> Outcome:
    from safetensors.torch import load_file, save

    recipe = rebuild.recipe
    registered = load_file(recipe.model / "model.safetensors")
    rebuilt = _calibrated(rebuild, load_file(rebuild.workspace.model / "model.safetensors"), registered)
    again = rebuild.workspace.state / "model.safetensors"
    files.write_bytes(again, save(rebuilt))
    return Outcome(
        data=(recipe.data, hash_of(rebuild.workspace.root / PACKED)),
        weights=compare(registered, rebuilt),
        file=(files.digest_file(recipe.model / "model.safetensors"), files.digest_file(again)),
        reasons=tuple(_reasons(recipe.record, rebuild.record)),
    )


def _calibrated(
    rebuild: Rebuild, weights: "dict[str, torch.Tensor]", registered: "Mapping[str, torch.Tensor]"
) -> "dict[str, torch.Tensor]":
    """The weights as register stores them: where a temperature was fitted, evaluation is run again to fit it."""
    import torch

    stored = registered.get("temperature")
    if stored is None or "temperature" not in weights or torch.equal(stored, weights["temperature"]):
        return weights
    rebuild.run("tasks.evaluate")
    measured = files.read_json(rebuild.workspace.reports / "metrics.json")["temperature"]
    return {**weights, "temperature": torch.full_like(weights["temperature"], measured)}


def _reasons(recorded: Provenance, rebuilt: Provenance) -> list[Change]:
    """What can be known to have been different: the machine, the libraries, what went in."""
    inputs = changes(*({"inputs": record.inputs} for record in (recorded, rebuilt)))
    known = [one for one in inputs if None not in (one.before, one.after)]
    return [*known, *environment_changes(recorded, rebuilt)]


def _tell_recipe(recipe: Recipe, words: str, run_id: str, console: "Console") -> None:
    record = recipe.record
    patched = ", with its uncommitted changes" if recipe.patch else ""
    lines = {
        "version": f"{words}, of run {run_id}, provenance {record.id}",
        "code": f"commit {record.git_commit}{patched}",
        "data": f"{recipe.data}, from {recipe.place}",
        "machine": _machine(record.hardware),
    }
    if record.git_left_out:
        lines["left out"] = f"of the uncommitted files: {', '.join(record.git_left_out)}"
    for caption, text in lines.items():
        _line(console, caption, text)


def _machine(hardware: Hardware) -> str:
    gpus = ", ".join(hardware.gpus) or "no GPU"
    threads = hardware.threads
    return f"{hardware.processor}, {threads} thread{'s' * (threads != 1)}, {gpus}"


def _line(console: "Console", caption: str, text: str) -> None:
    console.print(f"  [bold]{caption:<9}[/]  ", end="")
    console.print(text, markup=False)


def _tell(outcome: Outcome, console: "Console") -> None:
    recorded, rebuilt = outcome.data
    _line(console, "data", f"{rebuilt}, {'the same hash' if recorded == rebuilt else f'recorded: {recorded}'}")
    _line(console, "weights", outcome.weights.words)
    one, other = outcome.file
    _line(console, "file", f"SHA-256 {other}, {'the same' if one == other else f'registered: {one}'}")
    console.print()
    if outcome.identical:
        console.print("reproduced, bit for bit", style="bold green")
        return
    console.print(f"not reproduced: {outcome.weights.words}", style="bold red", markup=False)
    for reason in outcome.reasons:
        console.print(f"  {reason.name} was {reason.before}, is {reason.after}", markup=False)
    if not outcome.reasons:
        console.print("  no reason is known: the machine, the libraries and what went in are recorded as the same")


@contextlib.contextmanager
def _folder(into: str | None) -> Iterator[Path]:
    """An empty folder: a temporary one that is gone afterwards, or the one named, which stays."""
    if into is None:
        with tempfile.TemporaryDirectory(prefix="ratchet-reproduce-") as name:
            yield Path(name).resolve() / "project"
        return
    folder = Path(into).resolve()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise WorkspaceError(f"{folder}: is not empty: --into takes a folder that is empty or not there yet")
    yield folder


def _leave(number: int, _frame: object) -> None:
    """So that what a SIGTERM ends tidies up behind itself, too."""
    sys.exit(128 + number)


def _main() -> int:
    from rich.console import Console

    parser = argparse.ArgumentParser(prog="ratchet reproduce")
    parser.add_argument("version")
    parser.add_argument("--into")
    parser.add_argument("--anyway", action="store_true")
    asked = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True)
    workspace = Workspace.find()
    with disk_errors(workspace.root), _folder(asked.into) as folder:
        outcome = reproduce(asked.version, workspace, folder, console, anyway=asked.anyway)
        _tell(outcome, console)
        if asked.into is not None:
            console.print(f"it is in {folder}", markup=False)
    return 0 if outcome.identical else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _leave)
    try:
        sys.exit(_main())
    except RatchetError as error:
        sys.exit(f"reproduce: {error}")
    except KeyboardInterrupt:
        print("reproduce: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
