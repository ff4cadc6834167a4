"""`ratchet up`, `status` and `down`: one short run from the shell, and refusals that start no server."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from ports import reserved_port
from typer.testing import CliRunner

from commands.cli import app
from flows.server.lifecycle import Addresses, down, up
from flows.server.status import status
from ratchet import files
from ratchet.errors import PlatformError
from ratchet.servers.start import own_host
from ratchet.settings.model import Params, PlatformSettings, ServingSettings
from ratchet.workspace import Workspace

pytestmark = pytest.mark.system

REPOSITORY = Path(__file__).parents[2]
HOST = "127.0.0.1"


@pytest.fixture
def project(tmp_path: Path) -> Workspace:
    shutil.copy(REPOSITORY / "params.yaml", tmp_path / "params.yaml")
    return Workspace(tmp_path.resolve())


def free_settings() -> PlatformSettings:
    return PlatformSettings(host=HOST, prefect_port=reserved_port(HOST), mlflow_port=reserved_port(HOST))


def begin(workspace: Workspace, settings: PlatformSettings) -> Addresses:
    return up(workspace, Params(platform=settings, serving=ServingSettings(enabled=False)), say=print)


def test_run_without_servers_is_refused_in_one_sentence(project: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.root)
    result = CliRunner().invoke(app, ["run", "train-flow/local"])
    assert result.exit_code == 1
    assert "train-flow/local: a run needs Prefect's server and a worker" in " ".join(result.output.split())
    assert "the server is down. Fix: `ratchet up`" in " ".join(result.output.split())


def test_help_and_status_do_not_import_prefect(project: Workspace) -> None:
    """Importing prefect takes seconds."""
    program = """
import sys
from commands.cli import main
for command in ("status", "logs", "down"):
    for arguments in (["--help"], []):
        sys.argv = ["ratchet", command, *arguments]
        try:
            main()
        except SystemExit:
            print(command, *arguments, "prefect" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=project.root, capture_output=True, text=True, check=True)
    checked = [line for line in done.stdout.splitlines() if line.endswith((" True", " False"))]
    assert checked == [
        f"{command} {option}False" for command in ("status", "logs", "down") for option in ("--help ", "")
    ]


def test_taken_port_is_reported_with_its_process(project: Workspace) -> None:
    settings = free_settings()
    with socket.socket() as holder:
        holder.bind((HOST, settings.mlflow_port))
        holder.listen()
        with pytest.raises(PlatformError, match=r"platform\.mlflow_port: \d+ is taken by process") as caught:
            begin(project, settings)
    assert f"process {os.getpid()} (" in str(caught.value)
    assert "`ratchet set platform.mlflow_port=" in str(caught.value)
    assert not (project.state / "servers.json").exists()
    assert not (project.root / "prefect.toml").exists()


@pytest.mark.parametrize(
    ("api", "host"),
    [
        ("auto", "127.0.0.9"),
        ("http://127.0.0.1:4200/api", "127.0.0.1"),
        ("http://127.0.0.1:4201/api", None),  # another server on this machine
        ("https://127.0.0.1:4200/api", None),  # a proxy before it
        ("http://192.0.2.1:4200/api", None),
        ("http://unknown.invalid:4200/api", None),
    ],
)
def test_machine_with_the_named_address_starts_the_server(api: str, host: str | None) -> None:
    assert own_host(PlatformSettings(host="127.0.0.9", prefect_api=api)) == host


def test_silent_server_elsewhere_is_named_and_nothing_starts(project: Workspace) -> None:
    settings = free_settings().model_copy(update={"prefect_api": f"http://{HOST}:{reserved_port(HOST)}/api"})
    with pytest.raises(
        PlatformError, match=r"^platform\.prefect_api: http://127.* does not answer, .* Fix: start it there"
    ):
        begin(project, settings)
    assert not (project.state / "servers.json").exists()
    assert not (project.root / "prefect.toml").exists()


def test_same_port_for_two_servers_is_refused(project: Workspace) -> None:
    port, other = reserved_port(HOST), reserved_port(HOST)
    settings = PlatformSettings(host=HOST, prefect_port=port, mlflow_port=port)
    with pytest.raises(PlatformError, match=rf"platform\.prefect_port and platform\.mlflow_port are both {port}"):
        begin(project, settings)
    settings = PlatformSettings(host=HOST, prefect_port=port, mlflow_port=other)
    with pytest.raises(PlatformError, match=rf"platform\.mlflow_port and serving\.port are both {other}"):
        up(project, Params(platform=settings, serving=ServingSettings(port=other)), say=print)


def test_down_spares_a_process_with_a_reused_pid(project: Workspace) -> None:
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True) as foreign:
        try:
            service = {"name": "prefect", "address": "", "log": "x", "mark": "m", "grace": 5.0, "pid": foreign.pid}
            record = {"pid": foreign.pid, "created": 1.0, "services": [service]}
            files.write_json(project.state / "servers.json", record)
            assert {server.state for server in status(project)} == {"down"}
            output: list[str] = []
            down(project, say=output.append)
            assert output == ["Prefect server: was gone"]
            assert foreign.poll() is None
        finally:
            foreign.kill()
    assert not (project.state / "servers.json").exists()


def test_damaged_record_is_named(project: Workspace) -> None:
    project.state.mkdir()
    (project.state / "servers.json").write_text('{"services": [{"name": "prefect"}]')
    with pytest.raises(PlatformError, match=r"servers\.json: damaged"):
        down(project, say=lambda line: None)


def test_users_own_prefect_toml_stays(project: Workspace) -> None:
    own = project.root / "prefect.toml"
    own.write_text('[api]\nurl = "http://elsewhere/api"\n')
    output: list[str] = []
    down(project, say=output.append)
    assert output == ["nothing is up"]
    assert "elsewhere" in own.read_text()
