"""What is asked of the machine."""

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
    keep_freed_memory()
for _ in range(3):
    torch.zeros(16 << 20)  # 64 MiB, 16,384 pages of 4 KiB
before = faults()
for _ in range(10):
    torch.zeros(16 << 20)
print(faults() - before)
"""


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not glibc"
)
def test_memory_that_is_freed_is_not_cleared_again_by_the_kernel() -> None:
    told = {}
    for kept in (False, True):
        command = [sys.executable, "-c", _FAULTS.format(kept=kept)]
        told[kept] = int(subprocess.run(command, capture_output=True, check=True).stdout)
    assert told[True] < 100
    assert told[False] > 100 * max(told[True], 1)  # else there was nothing to gain
