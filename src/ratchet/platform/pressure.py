"""Machine pressure: little free disk, memory or GPU memory, looked at all the time and told to Prefect as an event.

Told once when a limit is passed, and again only after it was well clear of it. How seldom at most somebody is told of
the same thing is the automation's to say.
"""

import contextlib
import os
import shutil
import socket
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import psutil

from ratchet import settings
from ratchet.errors import PlatformError
from ratchet.platform.record import Record
from ratchet.platform.servers import call
from ratchet.settings.model import AlertSettings
from ratchet.workspace import Workspace

__all__ = ["EVENT", "Reading", "Watch", "readings"]

EVENT = "ratchet.machine.pressure"
_CLEAR = 0.05  # by which a share must have fallen below its limit, and free disk, relatively, risen above it
_GROUP = Path("/sys/fs/cgroup")
_GIB = 2**30


@dataclass(frozen=True)
class Reading:
    """One thing that can run short, as it is now.

    Attributes:
        kind, place: what it is, and which one.
        value, limit: GiB free for a disk, else the share in use.
        words: what there is, for a person.
        remedy: what a person can do about it.
    """

    kind: str
    place: str
    value: float
    limit: float
    words: str
    remedy: str

    @property
    def is_short(self) -> bool:
        """Is the limit passed? At 0 for a disk, at 1 for a share it never is."""
        return self.value < self.limit if self.kind == "disk" else self.value > self.limit

    @property
    def is_clear(self) -> bool:
        """Is it far enough on the good side of the limit for the next passing to be news?"""
        if self.kind == "disk":
            return self.value >= self.limit * (1.0 + _CLEAR)
        return self.value <= self.limit - _CLEAR or self.limit >= 1.0


def readings(workspace: Workspace, limits: AlertSettings, *, group: Path = _GROUP) -> Iterator[Reading]:
    """Everything as it is now: each file system that is written to, the memory, each GPU's memory."""
    yield from _disks((workspace.root, workspace.data, workspace.mlruns), limits.free_disk_gib)
    used, total = _memory(group)
    yield Reading(
        "memory",
        "memory",
        used,
        limits.memory_used,
        f"{used:.1%} of {total / _GIB:,.1f} GiB of memory are in use",
        "end what is not needed (`ps aux --sort=-rss | head` shows the largest), or run one thing at a time",
    )
    yield from _gpus(limits.gpu_memory_used)


def _disks(folders: tuple[Path, ...], limit: float) -> Iterator[Reading]:
    seen = set[int]()
    for folder in folders:
        with contextlib.suppress(OSError):  # not made yet, or its disk is gone for a moment
            device = folder.stat().st_dev
            if device in seen:
                continue
            seen.add(device)
            free = shutil.disk_usage(folder).free / _GIB
            yield Reading(
                "disk",
                str(folder),
                free,
                limit,
                f"{free:,.2f} GiB are free on the disk of {folder}",
                f"free some space: `du -xh --max-depth=2 {folder} | sort -h | tail` shows what is large there",
            )


def _memory(group: Path) -> tuple[float, int]:
    """The share in use and the bytes there are: the machine's, or a container's where it is allowed less.

    Pages of files that the kernel gives back when it needs them do not count as in use.
    """
    machine = psutil.virtual_memory()
    found = [(1.0 - machine.available / machine.total, machine.total)]
    with contextlib.suppress(OSError, ValueError, KeyError):  # no cgroups of the second kind, or no limit ("max")
        total = int((group / "memory.max").read_text())
        cached = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        used = int((group / "memory.current").read_text()) - int(cached["inactive_file"])
        found.append((used / total, total))
    return max(found)


def _gpus(limit: float) -> Iterator[Reading]:
    """NVIDIA's, by NVML, which takes none of that memory itself."""
    import pynvml

    for index in range(_gpu_count()):
        with contextlib.suppress(pynvml.NVMLError):  # not to be asked, or lost
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory, name = pynvml.nvmlDeviceGetMemoryInfo(handle), pynvml.nvmlDeviceGetName(handle)
            used = memory.used / memory.total
            yield Reading(
                "gpu-memory",
                f"gpu-{index}",
                used,
                limit,
                f"{used:.1%} of {memory.total / _GIB:,.1f} GiB of GPU {index} ({name}) are in use",
                "`nvidia-smi` shows by whom; training.batch_size, training.accumulation and "
                "training.gradient_checkpointing say how much a training takes",
            )


@cache
def _gpu_count() -> int:
    """How many there are. Asked once: where no process uses a GPU, the asking may wake its driver for seconds."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:  # no driver
        return 0


@dataclass
class Watch:
    """Looks at the machine, and tells Prefect's server at `api`.

    What `up` does, it does anew: read the limits, and tell what is short. So who is told of it from now on hears of it.

    Attributes:
        told: what is short and was told.
    """

    workspace: Workspace
    api: str
    limits: AlertSettings = field(default_factory=AlertSettings)
    told: set[tuple[str, str]] = field(default_factory=set)
    _seen: int = 0  # when `up` last wrote down what it did, in nanoseconds

    def look(self) -> None:
        """Look once; what cannot be told now is told the next time."""
        written = Record.place(self.workspace).stat().st_mtime_ns
        if written != self._seen:
            self.limits = settings.load(self.workspace.params).alerts
            self.told, self._seen = set(), written
        for reading in readings(self.workspace, self.limits):
            key = (reading.kind, reading.place)
            if reading.is_clear:
                self.told.discard(key)
            elif reading.is_short and key not in self.told:
                with contextlib.suppress(PlatformError):  # it is still starting, or has too much to do
                    call(self.api, "/events", [event(reading)])
                    self.told.add(key)


def event(reading: Reading) -> dict[str, object]:
    """The event, as Prefect's API takes it."""
    machine = socket.gethostname()
    limit = f"{reading.limit:g} GiB" if reading.kind == "disk" else f"{reading.limit:.0%}"
    return {
        "id": str(uuid.uuid4()),
        "occurred": datetime.now(UTC).isoformat(),
        "event": EVENT,
        "resource": {
            "prefect.resource.id": f"ratchet.machine.{machine}.{reading.kind}.{reading.place.strip(os.sep)}",
            "prefect.resource.name": f"{reading.kind} of {machine}",
        },
        "payload": {
            "message": f"{reading.words}; the limit is {limit}",
            "next": reading.remedy,
            "machine": machine,
            "kind": reading.kind,
            "place": reading.place,
            "value": round(reading.value, 4),
            "limit": reading.limit,
        },
    }
