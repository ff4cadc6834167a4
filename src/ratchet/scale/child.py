"""The process of one shard: `python -m ratchet.scale.child FUNCTION ANSWER`, with the shard on standard input."""

import importlib
import json
import os
import signal
import sys
import threading
from pathlib import Path

from ratchet import files
from ratchet.errors import RatchetError


def main() -> int:
    """Call the function, and write its result to the file ANSWER. Exit code 1 and {"error": ...} for a user error."""
    named, answer = sys.argv[1], Path(sys.argv[2])
    given = json.loads(_first_line())
    if given["cores"] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(given["cores"]))
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    module, _, name = named.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        result = getattr(importlib.import_module(module), name)(given["shard"])
    except RatchetError as error:
        print(error, file=sys.stderr)
        files.write_json(answer, {"error": str(error)})
        return 1
    files.write_json(answer, result)
    return 0


def _first_line() -> bytes:
    """Read one line of standard input, without Python's reader: its lock does not let a process end that reads."""
    line = b""
    while not line.endswith(b"\n") and (part := os.read(0, 65536)):
        line += part
    return line


def _end_with_parent() -> None:
    """Wait for the end of standard input, which the parent closes by its own end, and stop this process in order."""
    while os.read(0, 65536):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
