"""Shared by all tests: copies of the project to run in, and a guard that no test leaves a trace.

A copy is made of the files that git knows of, those not yet committed included, with the shipped settings shrunk.
"""

import contextlib
import os
import pickle
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType

import hypothesis
import pytest
import rich.style  # noqa: F401  # draws from `random` as it is imported: not in whichever test comes to it first

from ratchet import settings
from ratchet.workspace import Workspace

sys.path.insert(0, str(Path(__file__).parent))
import durations
import fork_server
from ports import reserved_port
from waiting import until

REPOSITORY = Path(__file__).parents[1]
# Others' warnings that we can do nothing about; every other warning is an error.
WARNINGS = (
    "ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning",  # MLflow's tables of SQLAlchemy
    "ignore:.*Any type hint is inferred as AnyType:UserWarning",  # MLflow's types of its own, as it imports them
)
SMALL: Mapping[str, object] = MappingProxyType(
    {
        "training.epochs": 2, "training.checkpoint_steps": 5, "training.log_every": 5, "evaluation.resamples": 100,
        "evaluation.robustness_rows": 20, "evaluation.explained_errors": 2,
        "gate.calibration_error": 1.0,  # so short a training is far less sure than it might be
        "gate.constant": "report",  # nor always shown to be useful, on so few rows
        "registry.export": "none",  # seconds of importing, in each of some hundred processes
    }
)  # fmt: skip


SESSION = "RATCHET_TEST_SESSION"  # by which tests/reaper.py knows what this session started
CACHE = REPOSITORY / ".pytest_cache" / "user"  # the user's cache, shared: it is found by content
# Of the environment, for the commands that are run.
KEPT = ("LANG", "LC_ALL", "OMP_NUM_THREADS", "TMPDIR", "XDG_CACHE_HOME", SESSION)


@dataclass(frozen=True)
class Project:
    """A project folder with a git history of its own, and a shell in it that sees nothing of this one's settings."""

    root: Path
    home: Path

    @property
    def workspace(self) -> Workspace:
        return Workspace(self.root)

    @property
    def environment(self) -> dict[str, str]:
        programs = Path(sys.executable).parent
        kept = {name: value for name, value in os.environ.items() if name in KEPT}
        return kept | {
            "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "PYTHONPATH": f"{self.root / 'src'}:{self.root}",
            "HOME": str(self.home),
            "DVC_SITE_CACHE_DIR": str(self.home / "dvc"),
            "NO_COLOR": "1",
            "PYTHONFAULTHANDLER": "1",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        }

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the folder; stdout holds what it printed to either stream."""
        environment = self.environment | variables
        if fork_server.can_run(command, variables, self.root):
            return fork_server.shared().run(list(command), cwd=self.root, environment=environment)
        if command[0] == "dvc" and fork_server.can_fork(variables, self.root):
            environment["PATH"] = f"{fork_server.shared().programs}:{environment['PATH']}"
        process = subprocess.Popen(
            command, cwd=self.root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            output, _ = process.communicate()
        except BaseException:  # the test's time is over: show where the command hangs
            process.send_signal(signal.SIGABRT)
            print(process.communicate()[0])
            raise
        return subprocess.CompletedProcess(command, process.returncode, output)

    def start(self, *command: str, log: Path, **variables: str) -> "subprocess.Popen[bytes] | fork_server.Fork":
        """Start a command in the folder, which appends to `log` what it prints."""
        environment = self.environment | variables
        with log.open("ab") as output:
            if fork_server.can_run(command, variables, self.root):
                server = fork_server.shared()
                return server.start(list(command), cwd=self.root, environment=environment, output=output)
            return subprocess.Popen(command, cwd=self.root, env=environment, stdout=output, stderr=output)

    def good(self, *command: str, **variables: str) -> str:
        """Run a command that must succeed; what it printed."""
        done = self.run(*command, **variables)
        assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}"
        return done.stdout

    def refused(self, *command: str, **variables: str) -> str:
        """Run a command that must refuse in plain words; what it printed."""
        done = self.run(*command, **variables)
        assert done.returncode != 0, f"{' '.join(command)} did not refuse:\n{done.stdout}"
        assert "Traceback" not in done.stdout, done.stdout
        return done.stdout

    def stage(self, name: str) -> tuple[str, ...]:
        """The command of a stage, as dvc.yaml has it."""
        return (sys.executable, "-m", f"tasks.{name}")

    def digests(self, *folders: str) -> dict[str, str]:
        """SHA-256 of every file below the folders, by path from the root."""
        paths = [path for folder in folders for path in sorted((self.root / folder).rglob("*")) if path.is_file()]
        return {path.relative_to(self.root).as_posix(): sha256(path.read_bytes()).hexdigest() for path in paths}

    def clone(self, root: Path) -> "Project":
        """The committed files of this repository, in another folder."""
        home = root.with_name(f"{root.name}-home")
        home.mkdir()
        self.good("git", "clone", "--quiet", str(self.root), str(root))
        return Project(root, home)


hypothesis.settings.register_profile("patient", deadline=None)  # a busy machine is no fault
hypothesis.settings.load_profile("patient")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-durations", action="store_true", help="write the seconds of each file to durations.json")
    parser.addoption("--record-goldens", action="store_true", help="write the results of the examples to goldens.json")


def pytest_configure(config: pytest.Config) -> None:
    for warning in WARNINGS:
        config.addinivalue_line("filterwarnings", warning)
    if config.getoption("--record-durations") and not hasattr(config, "workerinput"):  # workers report to this process
        config.pluginmanager.register(durations.Recorder())
    os.environ["XDG_CACHE_HOME"] = str(CACHE)
    _begin_reaper()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let SIGTERM and a closed terminal end the session as Ctrl-C does: fixtures are torn down."""
    own = os.getpid()

    def leave(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)  # a second one ends it at once
        if os.getpid() != own:  # a process that a test has forked
            os.kill(os.getpid(), number)
            return
        session.shouldstop = signal.Signals(number).name
        raise KeyboardInterrupt(session.shouldstop)

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # by nohup
                signal.signal(number, leave)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    durations.order(items, durations.read())


def _begin_reaper() -> None:
    """Start the process that ends what this session leaves behind, even if the session is killed."""
    token = uuid.uuid4().hex
    outer = os.environ.get(SESSION)  # of a session that runs this one as a test
    os.environ[SESSION] = f"{outer}:{token}" if outer else token
    script = Path(__file__).with_name("reaper.py")
    # Without the token it looks for; in a session of its own, which a closed terminal does not end.
    reaper = subprocess.Popen(
        [sys.executable, "-I", str(script), str(os.getpid()), token],
        env={name: value for name, value in os.environ.items() if name != SESSION},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    reaper.returncode = 0  # it outlives this process: not to be waited for


def make_project(root: Path, home: Path) -> Project:
    """Copy what git knows of the repository to `root`, shrink the settings and commit the lot."""
    listed = ["git", "-C", str(REPOSITORY), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in filter(None, names):
        source, target = REPOSITORY / name, root / name
        if source.is_file():  # deleted, and not yet committed
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    home.mkdir(parents=True, exist_ok=True)
    project = Project(root, home)
    settings.override(project.workspace.params, SMALL)
    project.good("git", "init", "--quiet", "--initial-branch=main")
    project.good("git", "config", "user.name", "tests")
    project.good("git", "config", "user.email", "tests@localhost")
    project.good("git", "add", "--all")
    project.good("git", "commit", "--quiet", "--message=as shipped")
    code = [root / name for name in ("src", "commands", "flows", "tasks")]
    subprocess.run([sys.executable, "-m", "compileall", "-q", *code], check=True)  # once, and not in every copy
    return project


def copy_project(project: Project, root: Path, home: Path) -> Project:
    """Copy a project in which nothing runs."""
    subprocess.run(["cp", "-a", project.root, root], check=True)
    home.mkdir(parents=True)
    return Project(root, home)


@pytest.fixture(scope="session")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The project of which tests get copies: to commit its files takes a second."""
    folder = tmp_path_factory.mktemp("shipped").resolve()
    return make_project(folder / "project", folder / "home")


@pytest.fixture(scope="session")
def new_project(tmp_path_factory: pytest.TempPathFactory, shipped: Project) -> Callable[..., Project]:
    """Make a fresh copy of the project, or of the project `of`, under a name of its own."""

    def make(name: str, *, of: Project = shipped) -> Project:
        folder = tmp_path_factory.mktemp(name).resolve()
        return copy_project(of, folder / name, folder / f"{name}-home")

    return make


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach; pytest's own are private."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name).resolve()


@pytest.fixture
def unprivileged() -> tuple[str, ...]:
    """The start of a command that runs as a user to whom permissions apply."""
    if os.geteuid() != 0:
        return ()
    prefix = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--")
    if not shutil.which("setpriv"):
        pytest.skip("root is bound by no permission, and setpriv, to work as another user, is not there")
    if subprocess.run([*prefix, sys.executable, "-c", "import ratchet"], capture_output=True, check=False).returncode:
        pytest.skip(f"root is bound by no permission, and other users cannot run {sys.executable}")
    return prefix


@pytest.fixture
def project(tmp_path: Path, shipped: Project) -> Project:
    """A fresh copy of the project for one test."""
    return copy_project(shipped, tmp_path.resolve() / "project", tmp_path.resolve() / "home")


@pytest.fixture(scope="session")
def s3_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables by which S3 clients find a server on this machine, and may use it."""
    port = reserved_port("127.0.0.1")
    log = tmp_path_factory.mktemp("s3") / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=out, stderr=out
        )
    try:
        until(lambda: not socket.create_connection(("127.0.0.1", port)).close(), process=process, log=log)
        yield {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": uuid.uuid4().hex,  # a word that nothing else can hold
            "AWS_DEFAULT_REGION": "us-east-1",
        }
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def s3(s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The same variables, which are set in this process, too."""
    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    state = random.getstate()
    yield s3_environment
    random.setstate(state)  # from which S3's client draws how long it waits before it tries again


@dataclass(frozen=True)
class Postgres:
    """A PostgreSQL server of its own that can be stopped and started."""

    folder: Path
    programs: Path
    port: int
    prefix: tuple[str, ...]  # by which its programs are not run as root, which they refuse
    host: str = "127.0.0.1"

    @property
    def uri(self) -> str:
        return f"postgresql://postgres@{self.host}:{self.port}/postgres"

    def control(self, *command: str) -> None:
        options = ["-D", str(self.folder / "data"), "-w", "-l", str(self.folder / "log")]
        done = subprocess.run(
            [*self.prefix, str(self.programs / "pg_ctl"), *options, *command],
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def start(self) -> None:
        self.control("-o", f"-p {self.port} -h {self.host} -k {self.folder} -c fsync=off", "start")

    def stop(self) -> None:
        """At once, as a power cut would."""
        self.control("-m", "immediate", "stop")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A real server on this machine."""
    with new_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_on() -> Callable[..., contextlib.AbstractContextManager[Postgres]]:
    """Make one at another address: `inside` is what to write before a command so that it runs where that is."""
    return new_postgres


@contextlib.contextmanager
def new_postgres(host: str = "127.0.0.1", inside: tuple[str, ...] = ()) -> Iterator[Postgres]:
    places = [*Path("/usr/lib/postgresql").glob("*/bin"), *map(Path, os.environ.get("PATH", "").split(":"))]
    programs = next((place for place in places if (place / "initdb").exists()), None)
    if programs is None:
        pytest.skip("PostgreSQL's programs (initdb, pg_ctl) are not on this machine")
    prefix = () if os.geteuid() else ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--")
    if prefix and not shutil.which("setpriv"):
        pytest.skip("PostgreSQL refuses to run as root, and setpriv, to be another user, is not there")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        if prefix:
            os.chown(folder, 65534, 65534)
        server = Postgres(folder, programs, reserved_port("127.0.0.1"), (*inside, *prefix), host)
        make = [str(programs / "initdb"), "-D", str(folder / "data"), "-U", "postgres", "-A", "trust", "--no-sync"]
        subprocess.run([*prefix, *make], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        server.start()
        yield server
        server.stop()


# Set once in a process, by libraries as they are imported or by us on their behalf, and never set back.
ADOPTED = (
    "_TORCHINDUCTOR_",
    "CUBLAS_",
    "TRITON_",
    "GIT_PYTHON_REFRESH",
    "KINETO_",
    "KMP_",
    "MLFLOW_DISABLE_TELEMETRY",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR",
    "MLFLOW_HTTP_",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT",
    "PREFECT_",
    "PYTEST_",
    "TORCH",
    "_RJEM_MALLOC_CONF",
)
OUTPUTS = ("data", "mlruns", ".ratchet")


@pytest.fixture(autouse=True)
def no_traces(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that changes what the next one starts from: random states, MLflow's address, folder, environment."""
    before = _state()
    if any(request.node.iter_markers("system")) or any(request.node.iter_markers("slow")):
        del before["random state of random"]  # clients of servers draw the pause before another try from it
    yield
    after = _state()
    if after["working folder"] != before["working folder"]:
        os.chdir(str(before["working folder"]))
    # A library that the test was the first to import had no state before: nothing to compare with.
    changed = [name for name, value in before.items() if value is not None and after[name] != value]
    traces = [f"another {name} ({_difference(before[name], after[name])})" for name in changed]
    assert not traces, f"the test left behind {', '.join(traces)}"


def _state() -> dict[str, object]:
    """Everything a test might change for the next one; of a library that is not imported, None."""
    numpy, torch, mlflow = (sys.modules.get(name) for name in ("numpy", "torch", "mlflow.tracking"))
    return {
        "working folder": str(Path.cwd()),
        "environment": frozenset(
            f"{name}={value}" for name, value in os.environ.items() if not name.startswith(ADOPTED)
        ),
        "files in the repository": _files(),
        "random state of random": _digest(random.getstate()),
        "random state of numpy": _digest(numpy.random.get_state()) if numpy else None,
        "random state of torch": _digest(torch.get_rng_state().numpy().tobytes()) if torch else None,
        "tracking address of mlflow": mlflow.get_tracking_uri() if mlflow else None,
    }


def _digest(content: object) -> str:
    return sha256(pickle.dumps(content)).hexdigest()


def _files() -> frozenset[str]:
    """Paths at the top and in the outputs' folders, where a run would leave something."""
    paths = {path.name for path in REPOSITORY.iterdir() if not path.name.endswith("_cache")} - {".hypothesis"}
    for name in OUTPUTS:
        paths.update(path.removeprefix(f"{REPOSITORY}/") for path in _below(str(REPOSITORY / name)))
    return frozenset(paths)


def _below(folder: str) -> Iterator[str]:
    """All paths below a folder, twice for each test: `Path.rglob` takes five times as long."""
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            yield entry.path
            if entry.is_dir(follow_symlinks=False):
                yield from _below(entry.path)


def _difference(before: object, after: object) -> str:
    if isinstance(before, frozenset) and isinstance(after, frozenset):
        return ", ".join(
            [f"+{path}" for path in sorted(after - before)] + [f"-{path}" for path in sorted(before - after)]
        )
    return f"{before} -> {after}"
