"""Machine pressure: free disk space, memory and GPU memory of this machine, compared with the limits of the alerts."""

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from ratchet.settings.model import AlertSettings
from ratchet.workspace import Workspace

__all__ = ["Reading", "readings"]

_CLEAR = 0.05  # margin below a share's limit, and relative margin above the limit of free disk space
_CGROUP = Path("/sys/fs/cgroup")
_GIB = 2**30
_GPU_MEMORY_USED = 0.98  # highest share that sends no alert


@dataclass(frozen=True)
class Reading:
    """Current use of one resource.

    Attributes:
        kind: disk, memory or gpu-memory.
        place: folder of the disk, "memory", or the GPU.
        value: GiB free for a disk, else the share in use.
        limit: in the same unit.
        summary: the current use, as a sentence.
        fix: what a user can do about it.
    """

    kind: str
    place: str
    value: float
    limit: float
    summary: str
    fix: str

    @property
    def is_short(self) -> bool:
        """Return whether the limit is passed. A limit of 0 for a disk, or of 1 for a share, never is."""
        return self.value < self.limit if self.kind == "disk" else self.value > self.limit

    @property
    def is_clear(self) -> bool:
        """Return whether it is far enough from the limit for the next passing to be reported again."""
        if self.kind == "disk":
            return self.value >= self.limit * (1.0 + _CLEAR)
        return self.value <= self.limit - _CLEAR or self.limit >= 1.0


def readings(workspace: Workspace, limits: AlertSettings, *, cgroup: Path = _CGROUP) -> Iterator[Reading]:
    """Yield the current use of each file system that is written to, of the memory, and of each GPU's memory."""
    yield from _disks((workspace.root, workspace.data, workspace.mlruns), limits.free_disk_gib)
    used, total = _memory(cgroup)
    yield Reading(
        "memory",
        "memory",
        used,
        limits.memory_used,
        f"{used:.1%} of {total / _GIB:,.1f} GiB of memory are in use",
        "end what is not needed (`ps aux --sort=-rss | head` shows the largest), or run one thing at a time",
    )
    yield from _gpus(_GPU_MEMORY_USED)


def _disks(folders: tuple[Path, ...], limit: float) -> Iterator[Reading]:
    seen = set[int]()
    for folder in folders:
        with contextlib.suppress(OSError):  # it does not exist yet, or its disk is gone for a moment
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


def _memory(cgroup: Path) -> tuple[float, int]:
    """Return the share in use and the total bytes: of the machine, or of a container that is allowed less.

    Cached file pages, which the kernel gives back when it needs them, do not count as in use.
    """
    machine = psutil.virtual_memory()
    limits = [(1.0 - machine.available / machine.total, machine.total)]
    with contextlib.suppress(OSError, ValueError, KeyError):  # no cgroups of version 2, or no limit ("max")
        total = int((cgroup / "memory.max").read_text())
        cached = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        used = int((cgroup / "memory.current").read_text()) - int(cached["inactive_file"])
        limits.append((used / total, total))
    return max(limits)


def _gpus(limit: float) -> Iterator[Reading]:
    """Yield the use of NVIDIA GPUs, by NVML, which takes no GPU memory itself."""
    import pynvml

    for index in range(_gpu_count()):
        with contextlib.suppress(pynvml.NVMLError):  # not permitted, or lost
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
    """Return the number of GPUs. Asked once: where no process uses a GPU, asking may wake its driver for seconds."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:  # no driver
        return 0
