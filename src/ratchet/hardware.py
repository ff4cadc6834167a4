"""Processors of this machine, by the standard library alone."""

import functools
import os
import platform
from pathlib import Path

__all__ = ["cores", "processor"]


def cores() -> list[int]:
    """Return the numbers of the cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


@functools.cache  # each checkpoint names it, and the file is long where there are many cores
def processor() -> str:
    """Return the name of the processor's model."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
