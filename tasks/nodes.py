"""Compare the machines of a training, and let a machine join the training of another one."""

import json
import platform
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet import __version__, settings
from ratchet.data.manifest import Manifest
from ratchet.errors import TrainingError
from ratchet.settings.messages import spell
from ratchet.workspace import Workspace
from tasks.training_job import TrainingJob

if TYPE_CHECKING:
    from ratchet import training

__all__ = ["facts", "join"]

NO_RESULT = "it compares machines; each of them computes the same bits"

_OWN = ("nodes", "rendezvous", "workers", "own_code")  # settings that may differ
_ROUNDING = ("device", "instructions", "processor")  # may differ where training.deterministic is false


def facts(job: TrainingJob) -> dict[str, Any]:
    """Return what decides the training, and what the machine computes it with, as JSON's plain data."""
    from ratchet.training.device import arithmetic, choose_device

    machine = {
        **arithmetic(choose_device(job.plan.device)),
        "system": f"{platform.system()} {platform.machine()}",
        "Python": platform.python_version(),
        "Ratchet": __version__,
    }
    del machine["threads"]  # all have as many as the first
    if not job.plan.deterministic:
        machine = {name: value for name, value in machine.items() if name not in _ROUNDING}
    plan = {f"training.{name}": value for name, value in asdict(job.plan).items() if name not in _OWN}
    return dict(
        json.loads(json.dumps({"key": job.key, "identity": job.identity, "plan": plan, "machine": machine} | job.parts))
    )


def join(workspace: Workspace, address: str, *, say: Callable[[str], None]) -> None:
    """Take part in the training of another machine, until it ends. `address`: "" is `training.rendezvous`.

    Raises:
        TrainingError: this machine cannot take part, or the other one is lost.
        DataError: a packed file is damaged.
    """
    from ratchet.training.nodes import join_training

    address = address or settings.load(workspace.params).training.rendezvous

    def prepare(first: dict[str, Any]) -> "tuple[training.TrainingInputs, Path, Path]":
        return _prepare(workspace, first)

    join_training(address, prepare=prepare, say=say)


def _prepare(workspace: Workspace, first: dict[str, Any]) -> "tuple[training.TrainingInputs, Path, Path]":
    """Return inputs, packed set and checkpoints as on the first machine.

    Raises:
        TrainingError: data, settings, code or machine differ, or the checkpoints are in another folder.
    """
    from ratchet.training.nodes import rendezvous_mark

    manifest = Manifest.read(workspace.packed)
    job = TrainingJob.of(settings.load(workspace.params), workspace, manifest)
    if differences := list(_differences(facts(job), first["facts"])):
        raise TrainingError(
            f"this machine differs from the first one: {'; '.join(differences)}. Fix: make them equal, then "
            "`ratchet join` again"
        )
    manifest.check_files(workspace.packed, "train", "validation")
    key = str(first["facts"]["key"])
    if not re.fullmatch(r"[0-9a-f]+", key):
        raise TrainingError(f"the first machine sent {key!r}, which is no key of a training")
    checkpoints = workspace.running / key
    mark = rendezvous_mark(checkpoints)
    if not mark.is_file() or mark.read_text() != first["token"]:
        raise TrainingError(
            f"{workspace.running} is not that of the first machine. Allowed: the same folder on all machines. Fix: put "
            "it on a shared file system, or make it a link to one"
        )
    job = replace(job, identity=first["facts"]["identity"])  # another one if it goes on with changed code
    return job.inputs(workspace.packed), workspace.packed, checkpoints


def _differences(own: dict[str, Any], first: dict[str, Any]) -> Iterator[str]:
    """Yield each fact that differs, with its name."""
    for kind in ("machine", "plan", "settings", "pretrained", "teacher", "code", "data"):
        if kind == "data" and own[kind]["data/packed"] == first[kind]["data/packed"]:
            continue  # other settings that give the same data
        names = {name for name in {**own[kind], **first[kind]} if own[kind].get(name) != first[kind].get(name)}
        for name in sorted(names):
            is_value = kind in ("machine", "plan", "settings") or name.startswith("data.")
            values = f" (here {spell(own[kind].get(name))}, there {spell(first[kind].get(name))})" if is_value else ""
            if kind != "settings" or name not in first["plan"]:  # named before
                yield f"{name}{values}"
