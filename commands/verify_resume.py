"""verify-resume: the proof, on these settings and these data, that a killed training ends as one that never was."""

import argparse
import platform
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from commands.checkpoint_difference import differences
from commands.resume_trial import Trial
from ratchet import files, settings
from ratchet.data.manifest import Manifest
from ratchet.errors import RatchetError, TrackingUnavailable, TrainingError
from ratchet.provenance.record import new_record
from ratchet.settings.model import Params
from ratchet.settings.run_settings import restore_if_idle
from ratchet.typed_json import to_plain
from ratchet.workspace import Workspace, disk_errors
from tasks.progress import Terminal, Watch
from tasks.training_job import TrainingJob

__all__ = ["attach", "verify"]

KILLS = 5
_STEPS = 60
_MOST_STEPS = 300  # that are taken unasked, to cross the end of an epoch
_CHECKPOINTS = 12  # at least, in a proof: so that a kill may lose one step or many
_LONGEST_DELAY = 0.05  # seconds: a kill comes anywhere in a step


def verify(
    params: Params, workspace: Workspace, *, steps: int | None = None, kills: int = KILLS, watch: Watch
) -> dict[str, Any]:
    """Train some steps undisturbed, then the same again killed `kills` times, and compare bit for bit.

    Both run in processes of their own, as the stage train does, on the packed data; what they make is gone afterwards.

    Returns:
        The certificate, as plain data.

    Raises:
        DataError: there are no packed data.
        TrainingError: a training failed, or was over before it could be killed.
    """
    manifest = Manifest.read(workspace.packed)
    begun, clock = datetime.now(UTC), time.monotonic()
    per_epoch = -(-manifest.splits["train"].rows // params.training.batch_size)
    asked = min(steps or _enough(per_epoch), params.training.epochs * per_epoch)
    changes = _changes(params, asked)
    with _scratch(workspace) as folder:
        undisturbed = Trial.make(
            workspace, folder / "undisturbed", changes, lambda done: watch.progress(done, 2 * asked)
        )
        undisturbed.finish()
        steps = undisturbed.steps
        watch.say(f"{steps} steps undisturbed, in {time.monotonic() - clock:.0f} s")
        killed = Trial.make(workspace, folder / "killed", changes, lambda done: watch.progress(asked + done, 2 * asked))
        _harass(killed, steps, kills, watch)
        killed.finish()
        found = differences(undisturbed, killed)
        told = undisturbed.tags
        return {
            "identical": not found,
            "verdict": _verdict(params, steps, killed, found),
            "differences": found,
            "steps": steps,
            "steps_per_epoch": per_epoch,
            "kills": [asdict(kill) for kill in killed.kills],
            "settings": params.digest,
            "changed_for_the_proof": changes,
            "data": manifest.digest,
            "sha256": {"undisturbed": _digests(undisturbed), "killed": _digests(killed)},
            "device": told.get("ratchet.device"),
            "precision": told.get("ratchet.precision"),
            "host": platform.node(),
            "begun": begun.isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - clock, 1),
            "provenance": to_plain(new_record(workspace, params, flow_run=None)),
        }


def _enough(per_epoch: int) -> int:
    """Steps that cross the end of an epoch, where that does not take too many."""
    crossing = per_epoch + _STEPS // 3
    return max(_STEPS, crossing) if crossing <= _MOST_STEPS else _STEPS


def _changes(params: Params, steps: int) -> dict[str, object]:
    """What the proof needs otherwise than it is set: an early end, checkpoints to come back to, every step told."""
    often = max(1, steps // _CHECKPOINTS)
    return {
        "training.max_steps": steps,
        "training.checkpoint_steps": min(params.training.checkpoint_steps or often, often),
        "training.log_every": 1,
        "training.doctor": "never",
        "training.profile": 0,
        "tracking.tensorboard": False,
    }


def _harass(trial: Trial, steps: int, kills: int, watch: Watch) -> None:
    """Start it and kill it at random steps, `kills` times or until it is through."""
    chance = random.SystemRandom()
    for step in sorted(chance.sample(range(1, steps), min(kills, steps - 1))):
        if not trial.kill_at(step, delay=chance.uniform(0.0, _LONGEST_DELAY)):
            break
        kill = trial.kills[-1]
        watch.say(f"killed after step {kill.step}, continues from the checkpoint of step {kill.checkpoint}")
    if not trial.kills:
        raise TrainingError(f"all {steps} steps were over before one kill came: ask for more, `--steps {10 * steps}`")


def _verdict(params: Params, steps: int, killed: Trial, found: list[str]) -> str:
    times = f"{len(killed.kills)} SIGKILLs" if len(killed.kills) > 1 else "one SIGKILL"
    if not found:
        return (
            f"identical: after {times} in {steps} steps every tensor, the history and every logged point are the same"
        )
    hint = "" if params.training.deterministic else "; training.deterministic is false: set it to true"
    return f"different: after {times} in {steps} steps: {'; '.join(found)}{hint}"


def _digests(trial: Trial) -> dict[str, str]:
    """SHA-256 of what the training left, by path."""
    folder = trial.workspace.folder
    kept = [path for made in (trial.workspace.model, trial.workspace.checkpoints) for path in made.rglob("*")]
    return {path.relative_to(folder).as_posix(): files.digest_file(path) for path in sorted(kept) if path.is_file()}


@contextmanager
def _scratch(workspace: Workspace) -> Iterator[Path]:
    """An empty folder that is gone afterwards; one that a killed predecessor left is gone at once."""
    workspace.state.mkdir(exist_ok=True)
    folder = workspace.state / "verify-resume"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def attach(certificate: dict[str, Any], params: Params, workspace: Workspace, key: str) -> tuple[Path, str]:
    """Write the certificate to mlruns/certificates, and give it to the training's MLflow run; where it is, in words."""
    from ratchet.registry.models import ModelRegistry
    from ratchet.registry.runs import Run

    path = workspace.mlruns / "certificates" / key / "resume.json"
    files.write_json(path, {"training": key, **certificate})
    if not (workspace.mlruns / "journal" / key).exists():
        return path, "no training of these settings, data and code has run here yet: attached to no MLflow run"
    run = Run(workspace, params, key)
    run.tags({"ratchet.resume": certificate["verdict"]})
    try:
        run_id = run.send()
        ModelRegistry(workspace, params).log_files(run_id, {path: "certificate"})
    except TrackingUnavailable as error:
        return path, f"not attached: {error}"
    finally:
        run.journal.close()
    return path, f"attached to MLflow run {run_id}, as certificate/{path.name}"


def _prove(steps: int | None, kills: int) -> bool:
    """What the command does; whether the two trainings were the same."""
    workspace = Workspace.find()
    restore_if_idle(workspace)
    params = settings.load(workspace.params)
    key = TrainingJob.of(params, workspace, Manifest.read(workspace.packed)).key
    with (
        disk_errors(workspace.root),
        workspace.hold("ratchet verify-resume"),
        Terminal("verify-resume", unit="steps") as watch,
    ):
        certificate = verify(params, workspace, steps=steps, kills=kills, watch=watch)
        path, words = attach(certificate, params, workspace, key)
        watch.say(certificate["verdict"])
        watch.say(f"certificate: {path}; {words}")
    return bool(certificate["identical"])


def _leave(number: int, _frame: object) -> None:
    """So that what a SIGTERM ends tidies up behind itself, too."""
    sys.exit(128 + number)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="ratchet verify-resume")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--kills", type=int, default=KILLS)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _leave)
    try:
        sys.exit(0 if _prove(arguments.steps, arguments.kills) else 1)
    except RatchetError as error:
        sys.exit(f"verify-resume: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
