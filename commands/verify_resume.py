"""`ratchet verify-resume`: prove that a killed and resumed training equals an undisturbed one.

Both train in child processes: `python -m commands.verify_resume FOLDER`.
"""

import itertools
import json
import math
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from commands.tensor_difference import tensor_difference
from ratchet import files, settings
from ratchet.checkpoint_names import INDEX, checkpoint_paths, checkpoint_step
from ratchet.data.manifest import Manifest
from ratchet.errors import RatchetError, TrackingUnavailable, TrainingError
from ratchet.provenance.record import new_record, read_record_file
from ratchet.settings.model import Params
from ratchet.typed_json import to_plain
from ratchet.workspace import ROOT_VARIABLE, Workspace
from tasks.progress import Terminal
from tasks.scratch_project import ScratchProject
from tasks.training_job import TrainingJob

__all__ = ["differences", "verify_and_certify"]

_STEPS = 60
_MAX_STEPS = 300  # by default, to cross the end of an epoch
_CHECKPOINTS = 12  # at least, so that a kill loses one step or many
_MAX_DELAY = 0.05  # seconds: a kill comes anywhere in a step
_POLL_SECONDS = 0.005
_LOG_CHARACTERS = 2000  # shown of a failed training's log
# Metrics of the machine, not of the training: speed, time, memory.
_RATES = ("samples_per_second", "data_wait", "memory", "system/", "cost/")


def verify_and_certify(workspace: Workspace, *, steps: int | None, kills: int, processes: str = "") -> bool:
    """Verify with the project's settings and data, and write the certificate. Return whether both were identical.

    `processes` has the numbers of processes of the attempts, such as 1,2,4: the first again after the last.
    """
    workspace.restore_if_idle()
    params = settings.load(workspace.params)
    manifest = Manifest.read(workspace.packed)
    key = TrainingJob.of(params, workspace, manifest).key
    sizes = _sizes(processes, params)
    per_epoch = -(-manifest.splits["train"].rows // params.training.batch_size)
    planned = min(steps or _default_steps(per_epoch), params.training.epochs * per_epoch)
    changes = _changed_settings(params, planned)
    begun, clock = datetime.now(UTC), time.monotonic()
    with workspace.hold("ratchet verify-resume"), Terminal("verify-resume", unit="steps") as terminal:
        with _scratch_folder(workspace) as folder:
            undisturbed, killed = (_prepare(workspace, folder / name, changes) for name in ("undisturbed", "killed"))
            kill_records = _train_both(undisturbed, killed, planned, kills, sizes, terminal)
            different, done = differences(undisturbed, killed), _steps(undisturbed)
            certificate = {
                "training": key,
                "identical": not different,
                "verdict": _verdict(params, done, kill_records, different),
                "differences": different,
                "steps": done,
                "kills": kill_records,
                "sha256": {"undisturbed": _digests(undisturbed), "killed": _digests(killed)},
                "steps_per_epoch": per_epoch,
                "settings": params.digest,
                "changed_for_the_proof": changes,
                "data": manifest.digest,
                "host": platform.node(),
                "begun": begun.isoformat(timespec="seconds"),
                "seconds": round(time.monotonic() - clock, 1),
                "provenance": to_plain(new_record(workspace, params, flow_run=None)),
            }
        path, note = _attach(certificate, params, workspace)
        terminal.say(str(certificate["verdict"]))
        terminal.say(f"certificate: {path}; {note}")
    return not different


def _prepare(workspace: Workspace, folder: Path, changes: Mapping[str, object]) -> ScratchProject:
    """Prepare a training with the workspace's settings and `changes` (by dotted key), without a budget."""
    folder.mkdir()
    scratch = ScratchProject(workspace.root, folder)
    scratch.packed.symlink_to(workspace.packed)
    shutil.copyfile(workspace.params, scratch.params)
    settings.override(scratch.params, {**changes, **scratch.own})
    return scratch


def _sizes(processes: str, params: Params) -> list[int | str]:
    """Return the numbers of processes of the attempts."""
    if params.model.name == "baseline":
        raise TrainingError(
            "model.name: found baseline, which is fitted in one piece. Allowed for this check: a network. Fix: "
            "`ratchet set model.name=auto`"
        )
    if not processes:
        return [params.training.processes]
    from ratchet.training.processes import count_processes

    if not all(part.isdecimal() and int(part) for part in processes.split(",")):
        raise TrainingError(f"--processes: found {processes}. Allowed: numbers, as in 1,2,4")
    training = params.training
    if training.reduction == "fast" and set(processes.split(",")) != {str(training.processes)}:
        raise TrainingError(
            f"--processes: found {processes}, and with training.reduction fast the number decides the weights. "
            f"Allowed: {training.processes}, as training.processes is. Fix: `ratchet set training.reduction=exact`"
        )
    pieces, device = training.pieces, training.device
    return [count_processes(int(part), pieces=pieces, device=device) for part in processes.split(",")]


def _run(
    trial: ScratchProject,
    planned: int,
    terminal: Terminal,
    *,
    processes: int | str,
    until: float = math.inf,
    delay: float = 0.0,
) -> bool:
    """Train, or resume; kill `delay` seconds after step `until` is logged. Return False if it ended before."""
    settings.override(trial.params, {"training.processes": processes})
    log = trial.folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "commands.verify_resume", str(trial.folder)],
            cwd=trial.root,
            env={**os.environ, ROOT_VARIABLE: str(trial.root)},
            stdout=output,
            stderr=output,
        )
    try:
        while process.poll() is None and (done := _steps(trial)) < until:
            terminal.update(done, planned, trial.folder.name)
            time.sleep(_POLL_SECONDS)
        time.sleep(delay)
    finally:
        process.kill()
        process.wait()
    if process.returncode not in (0, -signal.SIGKILL):
        text = log.read_text(errors="replace").strip()[-_LOG_CHARACTERS:]
        raise TrainingError(f"the verified training failed with exit code {process.returncode}. Log: {text}")
    return process.returncode == -signal.SIGKILL


def _train_both(
    undisturbed: ScratchProject,
    killed: ScratchProject,
    planned: int,
    kills: int,
    sizes: list[int | str],
    terminal: Terminal,
) -> list[Any]:
    """Train one without a kill, the other with kills at random steps. Return step, checkpoint, processes of each."""
    size = itertools.cycle(sizes)
    clock, chance, records = time.monotonic(), random.SystemRandom(), []
    _run(undisturbed, planned, terminal, processes=sizes[0])
    steps = _steps(undisturbed)
    terminal.say(f"{steps} steps undisturbed, in {time.monotonic() - clock:.0f} s")
    for step in sorted(chance.sample(range(1, steps), min(kills, steps - 1))):
        processes, delay = next(size), chance.uniform(0.0, _MAX_DELAY)
        if not _run(killed, planned, terminal, processes=processes, until=step, delay=delay):
            break
        newest = max(
            (checkpoint_step(path) for run in killed.running.glob("[!.]*") for path in checkpoint_paths(run)), default=0
        )
        records.append({"step": _steps(killed), "checkpoint": newest, "processes": processes})
        terminal.say(f"killed after step {records[-1]['step']}, continues from the checkpoint of step {newest}")
    if not records:
        raise TrainingError(f"all {steps} steps ended before the first kill. Fix: more steps, `--steps {10 * steps}`")
    _run(killed, planned, terminal, processes=next(size))
    return records


def _steps(workspace: ScratchProject) -> int:
    """Return the last optimizer step that was logged."""
    last = next((line for line in reversed(_journal(workspace)) if b'"step/loss"' in line), None)
    return int(json.loads(last)["content"]["step"]) if last else 0


def _default_steps(per_epoch: int) -> int:
    """Return a number of steps that crosses the end of an epoch, if that does not need too many."""
    crossing = per_epoch + _STEPS // 3
    return max(_STEPS, crossing) if crossing <= _MAX_STEPS else _STEPS


def _changed_settings(params: Params, steps: int) -> dict[str, object]:
    """Return the settings that the proof replaces: an early end, frequent checkpoints, every step logged."""
    interval = max(1, steps // _CHECKPOINTS)
    return {
        "training.max_steps": steps,
        "training.checkpoint_steps": min(params.training.checkpoint_steps or interval, interval),
        "training.log_every": 1,
        "training.doctor": "never",
        "training.hooks": [],
        "training.profile": 0,
        "tracking.tensorboard": False,
    }


def _verdict(params: Params, steps: int, kills: list[Any], different: list[str]) -> str:
    times = f"{len(kills)} SIGKILLs" if len(kills) > 1 else "one SIGKILL"
    sizes = dict.fromkeys(str(kill["processes"]) for kill in kills)
    times += f" of {', '.join(sizes)} processes" if list(sizes) != ["1"] else ""
    if not different:
        return (
            f"identical: after {times} in {steps} steps every tensor, the history and every logged point are the same"
        )
    hint = "" if params.training.deterministic else "; training.deterministic is false: set it to true"
    return f"different: after {times} in {steps} steps: {'; '.join(different)}{hint}"


def differences(a: ScratchProject, b: ScratchProject) -> list[str]:
    """Return a sentence for each output whose bytes differ, and one for the first logged point that does."""
    first, second = _digests(a), _digests(b)
    paths = [path for path in sorted(first.keys() | second.keys()) if first.get(path) != second.get(path)]
    points, others = _points(a), _points(b)
    point = min((key for key in points.keys() | others.keys() if points.get(key) != others.get(key)), default=None)
    sentences = [f"{path} {_file_difference(a.folder / path, b.folder / path)}" for path in paths]
    return [*sentences, f"logged points: {point[1]} at step {point[0]}"] if point else sentences


def _file_difference(a: Path, b: Path) -> str:
    from safetensors.torch import load_file

    if not (a.exists() and b.exists()):
        return "exists in one only"
    if a.suffix == ".safetensors" and (difference := tensor_difference(load_file(a), load_file(b))):
        return f"differs: {difference}"
    return "differs"


def _digests(workspace: ScratchProject) -> dict[str, str]:
    """Return the SHA-256 of each output of the training, by path; of sharded checkpoints that of their content."""
    from ratchet.training.checkpoint_shards import digest_content

    paths = sorted(path for folder in (workspace.model, workspace.checkpoints) for path in folder.rglob("*"))
    sharded = {path.parent: digest_content(path.parent) for path in paths if path.name == INDEX}
    whole = {path: files.digest_file(path) for path in paths if path.is_file() and path.parent not in sharded}
    return {path.relative_to(workspace.folder).as_posix(): digest for path, digest in (whole | sharded).items()}


def _journal(workspace: ScratchProject) -> list[bytes]:
    """Return the journal's complete lines; the training may be writing the last one."""
    written = b"".join(path.read_bytes() for path in workspace.mlruns.glob("journal/*/events.jsonl"))
    return [line for line in written.splitlines(keepends=True) if line.endswith(b"\n")]


def _points(workspace: ScratchProject) -> dict[tuple[int, str], Counter[float]]:
    """Return the values logged for each step and metric: one that a resume logs twice counts twice."""
    points: dict[tuple[int, str], Counter[float]] = {}
    entries = [json.loads(line) for line in _journal(workspace)]
    for content in (entry["content"] for entry in entries if entry["kind"] == "metrics"):
        for name, value in content["values"].items():
            if not any(rate in name for rate in _RATES):
                points.setdefault((content["step"], name), Counter())[value] += 1
    return points


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


def _attach(certificate: dict[str, Any], params: Params, workspace: Workspace) -> tuple[Path, str]:
    """Write the certificate to mlruns/certificates, attach it to the training's MLflow run; return path and a note."""
    from ratchet.registry.models import ModelRegistry
    from ratchet.registry.runs import Run

    key = certificate["training"]
    path = workspace.mlruns / "certificates" / key / "resume.json"
    record = workspace.mlruns / "journal" / key / "provenance.json"
    if record.exists():  # the certificate is about one code: it says if the training had several
        certificate["code_changes"] = to_plain(read_record_file(record))["code_changes"]
    files.write_json(path, certificate)
    if not record.parent.exists():
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


def _train(folder: Path) -> None:
    from tasks.train import train

    workspace = ScratchProject(Workspace.find().root, folder)
    with Terminal("train", unit="steps") as terminal:
        train(settings.load(workspace.params), workspace, progress=terminal)


if __name__ == "__main__":
    try:
        _train(Path(sys.argv[1]))
    except RatchetError as error:
        sys.exit(str(error))
