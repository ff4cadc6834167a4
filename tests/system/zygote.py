"""A process that has imported everything a stage needs, and runs it in forked copies of itself on request.

Importing takes seconds, forking milliseconds, so a stage can be started and killed hundreds of times. A copy
does what `python -m MODULE` or `ratchet COMMAND ...` does. Each line on stdin is one request in JSON,
{"command": [...], "near": text, "after": n}. The copy sends itself SIGKILL right before its n-th change of the file
system, counted from the first change of a path that contains `near`; n = 0 means never. stdout has the process id of
the copy, which stays reserved until the next request, and after its end the exit code, or the negative number of the
signal.
"""

import importlib
import json
import os
import runpy
import signal
import sys
import traceback
from typing import Any

MODULES = (
    "filelock",
    "mlflow.store.db.utils",
    "mlflow.store.tracking.sqlalchemy_store",
    "psutil",
    "rich.progress",
    "ratchet.data.versions",
    "ratchet.provenance",
    "ratchet.registry.runs",
    "ratchet.training",
    "ratchet.registry.promotion",
    "mlflow.pyfunc",
    "polars",
    "tasks.stage_runner",
    "tasks.machine",
    "tasks.register",
)
CHANGES = {"os.chmod", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate"}


def is_change(event: str, arguments: tuple[Any, ...]) -> bool:
    if event == "open":
        return bool((arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
    return event in CHANGES


def die_at(near: str, after: int) -> None:
    """Python calls its audit hooks before every change."""
    seen = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if is_change(event, arguments) and (seen or near in " ".join(map(str, arguments[:2]))):
            seen += 1
            if seen == after:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def act(command: list[str], near: str, after: int) -> int:
    """Do what the command says, in this process; its exit code."""
    if after:
        die_at(near, after)
    try:
        if command[0] == "ratchet":
            from commands.cli import main

            sys.argv = command
            main()
        else:
            sys.modules.pop(command[0], None)
            runpy.run_module(command[0], run_name="__main__")
    except SystemExit as leaving:
        if isinstance(leaving.code, str):
            print(leaving.code, file=sys.stderr)
        return 1 if leaving.code else 0
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main() -> None:
    for module in MODULES:
        importlib.import_module(module)
    copy = 0
    for line in sys.stdin:
        if copy:
            os.waitpid(copy, 0)
        copy = os.fork()
        if copy == 0:
            os.dup2(2, 1)  # what a command prints is no answer
            code = act(**json.loads(line))
            sys.stderr.flush()
            os._exit(code)
        print(copy, flush=True)
        ended = os.waitid(os.P_PID, copy, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        print(ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status, flush=True)


if __name__ == "__main__":
    main()
