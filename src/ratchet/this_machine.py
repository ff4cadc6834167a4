"""Which machine this is: several may share a project folder, and what one of them recorded another may read.

It is named by what stays when its host name changes: its id, and the id of its boot, which its containers have too.
"""

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path

__all__ = ["is_here", "shares_processes", "this_machine"]

NO_RESULT = "it names the machine for records of processes"


def this_machine() -> dict[str, str]:
    """Return the host's name, and the ids of the machine, its boot and its process numbers (a container has its own).

    An id is empty in some containers, and outside Linux.
    """
    machine, numbers = _content(Path("/etc/machine-id")), Path("/proc/self/ns/pid")
    return {
        "machine": socket.gethostname(),
        "machine_id": machine if re.fullmatch("[0-9a-f]{32}", machine) else "",  # an image may have "uninitialized"
        "boot_id": _content(Path("/proc/sys/kernel/random/boot_id")),
        "pid_namespace": os.readlink(numbers) if numbers.is_symlink() else "",
    }


def is_here(record: Mapping[str, object]) -> bool:
    """Return whether this machine wrote the record, perhaps under another host name or before its last boot."""
    own = this_machine()
    if record.get("boot_id") and record["boot_id"] == own["boot_id"]:
        return True
    if record.get("machine_id"):
        return record["machine_id"] == own["machine_id"]
    return record["machine"] == own["machine"]


def shares_processes(record: Mapping[str, object]) -> bool:
    """Return whether a process number in the record means the same process here."""
    return is_here(record) and record.get("pid_namespace", "") in ("", this_machine()["pid_namespace"])


def _content(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip() if path.is_file() else ""
