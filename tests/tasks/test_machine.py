"""Machine metrics compared with the values of the operating system."""

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
before = use.metrics()
kept = bytearray({64 * MIB})
kept[::1024] = b"x" * len(kept[::1024])  # touch every page: else the kernel allocates none
print(json.dumps([before, use.metrics()]))
"""


def test_memory_is_of_this_process_in_mib() -> None:
    # In a new process: here, libraries of earlier tests may free memory at any moment.
    output = subprocess.run([sys.executable, "-c", GROWING], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    before, grown = json.loads(output)
    for name in ("system/process_memory_megabytes", "system/process_anonymous_memory_megabytes"):
        assert 60 < grown[name] - before[name] < 80, name


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux reports anonymous memory")
def test_anonymous_memory_is_the_kernels_value() -> None:
    metric = MachineUse().metrics()["system/process_anonymous_memory_megabytes"]
    lines = Path("/proc/self/status").read_text().splitlines()
    kernel = next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) / 1024
    assert metric == pytest.approx(kernel, rel=0.05)


def test_cpu_load_is_measured() -> None:
    use = MachineUse()
    sum(range(20_000_000))
    assert 0.0 < use.metrics()["system/cpu_utilization_percentage"] <= 100.0


def test_no_gpu_metrics_without_a_gpu() -> None:
    assert not [name for name in MachineUse("cpu").metrics() if "gpu" in name]
