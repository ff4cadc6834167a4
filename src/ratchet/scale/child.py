"""A worker process: `python -m ratchet.scale.child ANSWER PIPE`, with one call in each line of standard input.

It writes each answer to the file ANSWER, and then a byte to the pipe.
"""

import json
import os
import queue
import signal
import sys
import threading
from pathlib import Path

from ratchet import files
from ratchet.scale.calls import answer
from ratchet.workspace import Workspace


def main() -> None:
    """Answer calls until a line says null, or standard input ends, which the parent closes by its own end."""
    path, pipe = Path(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(pipe, False)
    signal.signal(signal.SIGTERM, _leave)
    Workspace(Path.cwd()).make_importable()
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_lines, args=(lines,), name="calls", daemon=True).start()
    cores = json.loads(lines.get())
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(cores))
    while (call := json.loads(lines.get())) is not None:
        files.write_json(path, answer(call))
        os.write(pipe, b"\n")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _leave(number: int, _frame: object) -> None:
    """Exit in order, so that temporary files are removed. A second signal would only leave a traceback in the log."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def _read_lines(lines: "queue.SimpleQueue[bytes]") -> None:
    """Read standard input, without Python's reader: its lock does not let a process end that reads.

    At its end stop this process in order.
    """
    parts = list[bytes]()
    while part := os.read(0, 1 << 20):
        *whole, rest = part.split(b"\n")
        for line in whole:
            lines.put(b"".join([*parts, line]))
            parts.clear()
        parts.append(rest)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
