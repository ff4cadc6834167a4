"""Use of the machine: memory and threads."""

import ctypes
import subprocess
import sys

import pytest

_FAULTS = """
import resource
import torch
from ratchet.training.device import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

if {kept}:
    keep_freed_memory(torch.device("cpu"))
for _ in range(3):
    torch.zeros(16 << 20)  # 64 MiB, 16,384 pages of 4 KiB
before = faults()
for _ in range(10):
    torch.zeros(16 << 20)
print(faults() - before)
"""


@pytest.mark.system
@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not glibc"
)
def test_freed_memory_is_not_cleared_by_the_kernel() -> None:
    reported = {}
    for kept in (False, True):
        command = [sys.executable, "-c", _FAULTS.format(kept=kept)]
        reported[kept] = int(subprocess.run(command, capture_output=True, check=True).stdout)
    assert reported[True] < 100
    assert reported[False] > 100 * max(reported[True], 1)  # else there was nothing to gain


_HOLES = """
import torch
from ratchet.training.device import keep_freed_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4 // 1024

keep_freed_memory(torch.device("cpu"))
keep_freed_memory(torch.device("cpu"), keep={kept})
before = resident()
blocks, shares = zip(*((torch.zeros(1 << 20), torch.zeros(1 << 18)) for _ in range(32)))  # 128 and 32 MiB
del blocks
print(resident() - before)
"""


@pytest.mark.system
@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not glibc"
)
@pytest.mark.parametrize(("kept", "mebibytes"), [(True, 160), (False, 32)])
def test_blocks_between_shares_go_back_to_the_kernel(kept: bool, mebibytes: int) -> None:
    command = [sys.executable, "-c", _HOLES.format(kept=kept)]
    assert abs(int(subprocess.run(command, capture_output=True, check=True).stdout) - mebibytes) < 16


_TEAMS = """
import os, tempfile
from pathlib import Path
import torch
from torch import nn
from ratchet.training.checkpoint import CheckpointStore, Snapshot
from ratchet.training.state import _copied

def compute():
    torch.randn(1 << 22).exp_()

def threads():
    return len(os.listdir("/proc/self/task"))

torch.set_num_threads(2)
weights = nn.Conv2d(256, 256, 3).to(memory_format=torch.channels_last).state_dict()
compute()
alone = threads()
with tempfile.TemporaryDirectory() as folder, CheckpointStore(Path(folder)) as store:
    store.put(Snapshot(1, _copied(weights), {}))
    store.wait()
    print(threads() - alone)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts the threads in /proc")
def test_checkpoints_add_only_one_thread() -> None:
    """A team of OpenMP threads of its own would make the training thread's sleep where it spins."""
    done = subprocess.run([sys.executable, "-c", _TEAMS], capture_output=True, check=True, text=True)
    assert int(done.stdout) == 1
