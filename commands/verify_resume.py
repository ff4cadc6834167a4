"""`ratchet verify-resume`: prove that a killed and resumed training equals an undisturbed one."""

import platform
import random
import shutil
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
from ratchet.errors import TrackingUnavailable, TrainingError
from ratchet.provenance.record import new_record
from ratchet.settings.model import Params
from ratchet.typed_json import to_plain
from ratchet.workspace import Workspace
from tasks.progress import Terminal, Watch
from tasks.training_job import TrainingJob

__all__ = ["attach", "verify", "verify_and_certify"]

_STEPS = 60
_MAX_STEPS = 300  # by default, to cross the end of an epoch
_CHECKPOINTS = 12  # at least, so that a kill loses one step or many
_MAX_DELAY = 0.05  # seconds: a kill comes anywhere in a step


def verify_and_certify(workspace: Workspace, *, steps: int | None, kills: int) -> bool:
    """Verify with the project's settings and data, and write the certificate. Return whether both were identical.

    Raises:
        DataError: there is no packed data.
        TrainingError: a training failed, or ended before it could be killed.
    """
    workspace.restore_if_idle()
    params = settings.load(workspace.params)
    key = TrainingJob.of(params, workspace, Manifest.read(workspace.packed)).key
    with workspace.hold("ratchet verify-resume"), Terminal("verify-resume", unit="steps") as watch:
        certificate = verify(params, workspace, steps=steps, kills=kills, watch=watch)
        path, note = attach(certificate, params, workspace, key)
        watch.say(certificate["verdict"])
        watch.say(f"certificate: {path}; {note}")
    return bool(certificate["identical"])


def verify(
    params: Params, workspace: Workspace, *, steps: int | None = None, kills: int, watch: Watch
) -> dict[str, Any]:
    """Train some steps undisturbed, then the same steps killed `kills` times, compare, and return the certificate.

    Both run in child processes, as the stage train does, on the packed data. Their outputs are deleted.

    Raises:
        DataError: there is no packed data.
        TrainingError: a training failed, or ended before it could be killed.
    """
    if params.model.name == "baseline":
        raise TrainingError(
            "model.name: found baseline, which is fitted in one piece. Allowed for this check: a network. Fix: "
            "`ratchet set model.name=auto`"
        )
    manifest = Manifest.read(workspace.packed)
    begun, clock = datetime.now(UTC), time.monotonic()
    per_epoch = -(-manifest.splits["train"].rows // params.training.batch_size)
    planned = min(steps or _default_steps(per_epoch), params.training.epochs * per_epoch)
    changes = _changes(params, planned)
    with _scratch_folder(workspace) as folder:
        undisturbed = Trial.make(
            workspace, folder / "undisturbed", changes, lambda done: watch.progress(done, 2 * planned)
        )
        undisturbed.finish()
        watch.say(f"{undisturbed.steps} steps undisturbed, in {time.monotonic() - clock:.0f} s")
        killed = Trial.make(
            workspace, folder / "killed", changes, lambda done: watch.progress(planned + done, 2 * planned)
        )
        _kill_repeatedly(killed, undisturbed.steps, kills, watch)
        killed.finish()
        return {
            **_compare(params, undisturbed, killed),
            "steps_per_epoch": per_epoch,
            "settings": params.digest,
            "changed_for_the_proof": changes,
            "data": manifest.digest,
            "host": platform.node(),
            "begun": begun.isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - clock, 1),
            "provenance": to_plain(new_record(workspace, params, flow_run=None)),
        }


def _compare(params: Params, undisturbed: Trial, killed: Trial) -> dict[str, Any]:
    """Compare two finished trainings; the part of the certificate that says what they were."""
    different, steps = differences(undisturbed, killed), undisturbed.steps
    return {
        "identical": not different,
        "verdict": _verdict(params, steps, killed, different),
        "differences": different,
        "steps": steps,
        "kills": [asdict(kill) for kill in killed.kills],
        "sha256": {"undisturbed": _digests(undisturbed), "killed": _digests(killed)},
        "device": undisturbed.tags.get("ratchet.device"),
        "precision": undisturbed.tags.get("ratchet.precision"),
    }


def _default_steps(per_epoch: int) -> int:
    """Return a number of steps that crosses the end of an epoch, if that does not need too many."""
    crossing = per_epoch + _STEPS // 3
    return max(_STEPS, crossing) if crossing <= _MAX_STEPS else _STEPS


def _changes(params: Params, steps: int) -> dict[str, object]:
    """Return the settings that the proof replaces: an early end, frequent checkpoints, every step logged."""
    interval = max(1, steps // _CHECKPOINTS)
    return {
        "training.max_steps": steps,
        "training.checkpoint_steps": min(params.training.checkpoint_steps or interval, interval),
        "training.log_every": 1,
        "training.doctor": "never",
        "training.profile": 0,
        "tracking.tensorboard": False,
    }


def _kill_repeatedly(trial: Trial, steps: int, kills: int, watch: Watch) -> None:
    """Kill and restart the training at random steps, `kills` times or until it ends."""
    chance = random.SystemRandom()
    for step in sorted(chance.sample(range(1, steps), min(kills, steps - 1))):
        if not trial.kill_at(step, delay=chance.uniform(0.0, _MAX_DELAY)):
            break
        kill = trial.kills[-1]
        watch.say(f"killed after step {kill.step}, continues from the checkpoint of step {kill.checkpoint}")
    if not trial.kills:
        raise TrainingError(f"all {steps} steps ended before the first kill. Fix: more steps, `--steps {10 * steps}`")


def _verdict(params: Params, steps: int, killed: Trial, different: list[str]) -> str:
    times = f"{len(killed.kills)} SIGKILLs" if len(killed.kills) > 1 else "one SIGKILL"
    if not different:
        return (
            f"identical: after {times} in {steps} steps every tensor, the history and every logged point are the same"
        )
    hint = "" if params.training.deterministic else "; training.deterministic is false: set it to true"
    return f"different: after {times} in {steps} steps: {'; '.join(different)}{hint}"


def _digests(trial: Trial) -> dict[str, str]:
    """Return the SHA-256 of each output of the training, by path."""
    folder = trial.workspace.folder
    outputs = (trial.workspace.model, trial.workspace.checkpoints)
    paths = sorted(path for output in outputs for path in output.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): files.digest_file(path) for path in paths}


@contextmanager
def _scratch_folder(workspace: Workspace) -> Iterator[Path]:
    """Make an empty folder that is deleted afterwards; delete first what a killed process left there."""
    workspace.state.mkdir(exist_ok=True)
    folder = workspace.state / "verify-resume"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def attach(certificate: dict[str, Any], params: Params, workspace: Workspace, key: str) -> tuple[Path, str]:
    """Write the certificate to mlruns/certificates and attach it to the training's MLflow run.

    Returns:
        The path, and a note about the MLflow run.
    """
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
