"""Run `ratchet ...` and `python -m tasks...` in a fork of a process that has imported their libraries already.

Importing takes seconds, forking takes milliseconds. A command behaves as in a new process: it has its own working
folder, environment, streams and exit code, and imports the project's code afresh. Prefect and DVC are not imported
beforehand, because they read their settings as they are imported.
"""

import array
import atexit
import functools
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path

LIBRARIES = (
    "captum.attr", "cyclonedx.model.bom", "filelock", "fsspec", "mlflow", "mlflow.pyfunc", "mlflow.store.db.utils",
    "mlflow.store.tracking.sqlalchemy_store", "numpy", "pandera.polars", "PIL.Image", "polars", "psutil", "pyarrow",
    "pydantic", "rich.progress", "ruamel.yaml", "safetensors.torch", "scipy.stats", "sklearn.datasets",
    "sklearn.metrics", "sqlalchemy", "torch", "typer",
)  # fmt: skip
READ_AT_IMPORT = ("OMP_", "MKL_", "MLFLOW_", "PREFECT_", "TORCH", "CUDA", "PYTHONHASHSEED")  # by these libraries
MODULES = ("tasks.", "commands")


class ForkServer:
    """The process, and the socket at which it takes one command after another."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair()
        environment = os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true"}
        # Its working folder must not hold a package of ours: the libraries alone are imported.
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=tempfile.gettempdir(),
            env=environment,
        )
        theirs.close()

    def run(self, command: list[str], *, cwd: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; stdout holds what it printed to either stream."""
        order = json.dumps({"command": command, "cwd": str(cwd), "environment": environment}).encode()
        with tempfile.TemporaryFile() as output:
            stream = array.array("i", [output.fileno()])
            message = [len(order).to_bytes(4, "big") + order]
            self._ours.sendmsg(message, [(socket.SOL_SOCKET, socket.SCM_RIGHTS, stream)])
            answer = self._ours.recv(4)
            if len(answer) < 4:
                raise RuntimeError(f"the fork server died; it was to run {command}")
            output.seek(0)
            text = output.read().decode(errors="replace")
        return subprocess.CompletedProcess(command, int.from_bytes(answer, "big", signed=True), text)

    def close(self) -> None:
        self._ours.close()
        self._process.wait(30)


@functools.cache
def shared() -> ForkServer:
    """The one of this test process; it ends when this process does."""
    server = ForkServer()
    atexit.register(server.close)
    return server


def can_run(command: tuple[str, ...], environment: dict[str, str], root: Path) -> bool:
    """Whether a fork runs this command as a new process would."""
    if (root / "sitecustomize.py").exists():  # only a new interpreter runs it
        return False
    module = command[:2] == (sys.executable, "-m") and command[2].startswith(MODULES)
    return (module or command[0] == "ratchet") and not any(name.startswith(READ_AT_IMPORT) for name in environment)


def serve(connection: socket.socket) -> None:
    """Take commands until the other end closes."""
    for name in LIBRARIES:
        __import__(name)
    while True:
        head, ancillary, *_ = connection.recvmsg(4, socket.CMSG_SPACE(4))
        if not head:
            return
        order = b""
        length = int.from_bytes(head, "big")
        while len(order) < length:
            order += connection.recv(length - len(order))
        output = int.from_bytes(ancillary[0][2], sys.byteorder)
        process = os.fork()
        if not process:
            connection.close()
            code = 70
            try:
                code = _run(json.loads(order), output)
            finally:
                os._exit(code)
        os.close(output)
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        connection.sendall(status.to_bytes(4, "big", signed=True))


def _run(order: dict, output: int) -> int:
    """Be the command, in this process."""
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["cwd"])
    sys.path[:0] = order["environment"].get("PYTHONPATH", "").split(os.pathsep)
    sys.dont_write_bytecode = bool(order["environment"].get("PYTHONDONTWRITEBYTECODE"))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    command = order["command"]
    code = 0
    try:
        if command[0] == "ratchet":
            from commands.cli import main

            sys.argv = ["ratchet", *command[1:]]
            main()
        else:
            sys.argv = ["-m", *command[3:]]
            sys.path.insert(0, os.getcwd())
            runpy.run_module(command[2], run_name="__main__", alter_sys=True)
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        if isinstance(leaving.code, str):
            print(leaving.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    return _leave(code)


def _leave(code: int) -> int:
    """End as the interpreter does: exit functions run, and streams are flushed."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
