"""Run `ratchet`, `python -m tasks...` and `python -c` in a fork of a process that has imported their libraries already.

Importing takes seconds, forking takes milliseconds. A command behaves as in a new process: it has its own working
folder, environment, streams and exit code, and imports the project's code afresh. Prefect and DVC are not imported
beforehand, because they read their settings as they are imported; what Prefect imports is. The `python` in
`ForkServer.programs` passes the stages that `dvc repro` runs to the fork server.
"""

import array
import atexit
import faulthandler
import functools
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path
from typing import IO

import psutil

LIBRARIES = (
    "captum.attr", "cyclonedx.model.bom", "filelock", "fsspec", "mlflow", "mlflow.pyfunc", "mlflow.store.db.utils",
    "mlflow.store.tracking.sqlalchemy_store", "numpy", "pandera.polars", "PIL.Image", "polars", "psutil", "pyarrow",
    "pydantic", "rich.progress", "ruamel.yaml", "safetensors.torch", "scipy.stats", "sklearn.datasets",
    "sklearn.metrics", "sqlalchemy", "torch", "typer",
    "hypothesis", "jinja2", "matplotlib.backends.backend_svg", "mlflow.store.model_registry.sqlalchemy_store",
    "prometheus_client", "pyarrow.dataset", "pyarrow.parquet", "pydantic.v1", "starlette.applications",
    "uvicorn.protocols.http.httptools_impl",
    # What DVC imports and that reads no settings.
    "dulwich.repo", "graphviz", "pathspec", "pygtrie", "voluptuous",
    # What Prefect's client imports.
    "anyio.to_thread", "asgi_lifespan", "cachetools", "certifi", "cloudpickle", "coolname", "dateutil.parser",
    "httpcore", "httpx", "humanize", "jsonpatch", "jsonschema", "opentelemetry.trace", "orjson", "pendulum",
    "griffe", "pydantic_extra_types.pendulum_dt", "pydantic_settings", "slugify", "toml", "websockets.asyncio.client",
)  # fmt: skip
READ_AT_IMPORT = ("OMP_", "MKL_", "MLFLOW_", "PREFECT_", "TORCH", "CUDA", "PYTHONHASHSEED")  # by these libraries
READ_AT_USE = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_HTTP_REQUEST_TIMEOUT")
MODULES = ("tasks.", "commands")
PYTHON = """#!{python} -IS
import array, json, os, socket, sys

programs = os.path.dirname(os.path.abspath(__file__))
environment = dict(os.environ)
environment["PATH"] = os.pathsep.join(path for path in environment["PATH"].split(os.pathsep) if path != programs)
command = [{python!r}, *sys.argv[1:]]
if sys.argv[1:2] != ["-m"] or not sys.argv[2].startswith({modules!r}):
    os.execve(command[0], command, environment)
order = json.dumps({{"command": command, "cwd": os.getcwd(), "environment": environment}}).encode()
connection = socket.socket(socket.AF_UNIX)
connection.connect(os.path.join(programs, "socket"))
streams = array.array("i", [1, 2])
connection.sendmsg([len(order).to_bytes(4, "big") + order], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
answer = connection.recv(4)
if not answer:
    sys.exit("the fork server died; it was to run " + " ".join(command))
code = int.from_bytes(answer, "big", signed=True)
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


class Fork:
    """A command that runs in the background: what tests use of `subprocess.Popen`."""

    def __init__(self, server: "ForkServer", pid: int, end: int) -> None:
        self._server, self.pid, self._end = server, pid, end  # a pipe that closes with the process
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        return self._reap(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code when the process has ended."""
        code = self._reap(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask the process to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process at once."""
        self.send_signal(signal.SIGKILL)

    def _reap(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._end], [], [], timeout)[0]:
            self.returncode = self._server.reap(self.pid)
            os.close(self._end)
        return self.returncode


class ForkServer:
    """The process, and the socket at which it takes one command after another."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair()
        self._folder = tempfile.TemporaryDirectory(prefix="fork-")
        self.programs = Path(self._folder.name)
        program = self.programs / "python"
        program.write_text(PYTHON.format(python=sys.executable, modules=MODULES))
        program.chmod(0o755)
        stages = socket.socket(socket.AF_UNIX)
        stages.bind(str(self.programs / "socket"))
        stages.listen()
        environment = os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true"}
        # Its working folder must not hold a package of ours: the libraries alone are imported.
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(theirs.fileno()), str(stages.fileno())],
            pass_fds=[theirs.fileno(), stages.fileno()],
            cwd=tempfile.gettempdir(),
            env=environment,
        )
        theirs.close()
        stages.close()

    def run(self, command: list[str], *, cwd: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; stdout holds what it printed to either stream."""
        order = {"command": command, "cwd": str(cwd), "environment": environment}
        with tempfile.TemporaryFile() as output:
            self._send(order, output.fileno(), output.fileno())
            try:
                answer = self._ours.recv(4)
            except BaseException:  # the test's time is over: show where the command hangs
                for child in psutil.Process(self._process.pid).children():
                    child.send_signal(signal.SIGABRT)
                self._ours.recv(4)
                print(os.pread(output.fileno(), 1 << 20, 0).decode(errors="replace"))
                raise
            if len(answer) < 4:
                raise RuntimeError(f"the fork server died; it was to run {command}")
            output.seek(0)
            text = output.read().decode(errors="replace")
        return subprocess.CompletedProcess(command, int.from_bytes(answer, "big", signed=True), text)

    def start(self, command: list[str], *, cwd: Path, environment: dict[str, str], output: IO[bytes]) -> Fork:
        """Start a command in the background, which prints to `output`."""
        end, held = os.pipe()
        order = {"command": command, "cwd": str(cwd), "environment": environment, "background": True}
        self._send(order, output.fileno(), output.fileno(), held)
        os.close(held)
        return Fork(self, int.from_bytes(self._ours.recv(4), "big"), end)

    def reap(self, pid: int) -> int:
        """Return the exit code of a command that ran in the background and has ended."""
        self._send({"reap": pid})
        return int.from_bytes(self._ours.recv(4), "big", signed=True)

    def _send(self, order: dict, *streams: int) -> None:
        content = json.dumps(order).encode()
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))] if streams else []
        self._ours.sendmsg([len(content).to_bytes(4, "big") + content], rights)

    def close(self) -> None:
        self._ours.close()
        self._process.wait(30)
        self._folder.cleanup()


@functools.cache
def shared() -> ForkServer:
    """The one of this test process; it ends when this process does."""
    server = ForkServer()
    atexit.register(server.close)
    return server


def start_program(program: str, *arguments: str) -> Fork:
    """Start Python code in the background that imports this repository; it prints to this process's streams."""
    source = Path(__file__).parents[1] / "src"
    command = [sys.executable, "-c", program, *arguments]
    environment = os.environ | {"PYTHONPATH": str(source)}
    with os.fdopen(os.dup(2), "wb") as output:
        return shared().start(command, cwd=Path.cwd(), environment=environment, output=output)


def can_run(command: tuple[str, ...], environment: dict[str, str], root: Path) -> bool:
    """Whether a fork runs this command as a new process would."""
    module = command[:2] == (sys.executable, "-m") and command[2].startswith(MODULES)
    program = command[:2] == (sys.executable, "-c")
    return (module or program or command[0] == "ratchet") and can_fork(environment, root)


def can_fork(environment: dict[str, str], root: Path) -> bool:
    """Whether a fork sees these variables and the project as a new interpreter would."""
    read_at_import = any(name.startswith(READ_AT_IMPORT) and name not in READ_AT_USE for name in environment)
    return not read_at_import and not (root / "sitecustomize.py").exists()


def serve(connection: socket.socket, stages: socket.socket) -> None:
    """Run one command after another, until the other end of the connection closes."""
    for name in LIBRARIES:
        __import__(name)
    # MLflow lists the modules of all distributions once in a process, when it stores its first model.
    sys.modules["mlflow.utils.requirements_utils"]._init_modules_to_packages_map()
    gc.collect()
    gc.freeze()  # a collection in a fork would walk through all of the libraries' objects, and copy their pages
    while True:
        for source in select.select([connection, stages], [], [])[0]:
            if source is connection and not _answer(connection):
                return
            if source is stages:
                with stages.accept()[0] as client:
                    _answer(client)


def _answer(connection: socket.socket) -> bool:
    """Carry out the next order of a client and send its exit code, or process id; False if the client has closed."""
    head, ancillary, *_ = connection.recvmsg(4, socket.CMSG_SPACE(12))
    if not head:
        return False
    content = b""
    length = int.from_bytes(head, "big")
    while len(content) < length:
        content += connection.recv(length - len(content))
    order = json.loads(content)
    pid = order.get("reap") or _fork(connection, order, array.array("i", ancillary[0][2]))
    answer = pid if order.get("background") else os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    connection.sendall(answer.to_bytes(4, "big", signed=True))
    return True


def _fork(connection: socket.socket, order: dict, streams: "array.array[int]") -> int:
    """Start a command, and return its process id."""
    process = os.fork()
    if not process:
        connection.close()
        code = 70
        try:
            code = _run(order, streams[:2])  # a third one, the pipe of `Fork`, stays open until the end
        finally:
            os._exit(code)
    for stream in streams:
        os.close(stream)
    return process


def _run(order: dict, streams: "array.array[int]") -> int:
    """Be the command, in this process."""
    for stream, number in zip(streams, (1, 2), strict=True):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    faulthandler.enable()
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["cwd"])
    tempfile.tempdir = None  # that of this environment
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
        elif command[1] == "-c":
            sys.argv = ["-c", *command[3:]]
            sys.path.insert(0, "")
            exec(compile(command[2], "<string>", "exec"), sys.modules["__main__"].__dict__)
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
    serve(*(socket.socket(fileno=int(number)) for number in sys.argv[1:]))
