"""A process that ends with the one that started it, however that ends. It imports little, because it runs first."""

import ctypes
import os
import signal
import sys

__all__ = ["end_with_parent"]

NO_RESULT = "it ends processes"


def end_with_parent(parent: int, by: int = signal.SIGKILL) -> None:
    """Let the kernel send a signal to this process when its parent, a process id, ends (Linux).

    It may have ended before.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, int(by))  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)
