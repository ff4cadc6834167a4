"""Figures of the machine against what the system says of this process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.machine import MachineUse

MIB = 2**20
ROOT = Path(__file__).parents[2]


GROWING = f"""
import json
from tasks.machine import MachineUse
use = MachineUse()
before = use.figures()
kept = bytearray({64 * MIB})
kept[::1024] = b"x" * len(kept[::1024])  # every page touched, or the kernel lends none
print(json.dumps([before, use.figures()]))
"""


def test_memory_is_this_process_s_own_in_mib() -> None:
    # In a process of its own: here, libraries of earlier tests may hand memory back at any moment.
    said = subprocess.run([sys.executable, "-c", GROWING], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    before, grown = json.loads(said)
    for name in ("system/process_memory_megabytes", "system/process_anonymous_memory_megabytes"):
        assert 60 < grown[name] - before[name] < 80, name


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells anonymous memory apart")
def test_anonymous_memory_is_what_the_kernel_calls_so() -> None:
    figure = MachineUse().figures()["system/process_anonymous_memory_megabytes"]
    lines = Path("/proc/self/status").read_text().splitlines()
    kernel = next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) / 1024
    assert figure == pytest.approx(kernel, rel=0.05)


def test_a_busy_second_is_seen() -> None:
    use = MachineUse()
    sum(range(20_000_000))
    assert 0.0 < use.figures()["system/cpu_utilization_percentage"] <= 100.0


def test_without_a_gpu_no_figure_is_made_up() -> None:
    assert not [name for name in MachineUse("cpu").figures() if "gpu" in name]
