"""DVC's remote on a machine that is reached by SSH: a real sshd on loopback, with keys of the test's own."""

import getpass
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ports import reserved_port
from waiting import until

pytestmark = pytest.mark.slow

HOST = "127.0.0.1"
AWAY = "recorded, but not stored in DVC's remote ("


@dataclass
class Sshd:
    """A server of its own that lets one key in, and can be stopped and started."""

    folder: Path
    program: str
    port: int
    process: "subprocess.Popen[bytes] | None" = field(default=None)

    @property
    def key(self) -> Path:
        """The key that is let in."""
        return self.folder / "key"

    @property
    def store(self) -> Path:
        """Folder for DVC's files."""
        return self.folder / "store"

    @property
    def address(self) -> str:
        return f"ssh://{getpass.getuser()}@{HOST}:{self.port}{self.store}"

    def make_key(self, name: str) -> Path:
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(self.folder / name)]
        subprocess.run(make, check=True)
        return self.folder / name

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            command = [self.program, "-D", "-e", "-f", str(self.folder / "config")]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until(self._greets, process=self.process, log=self.folder / "log")

    def stop(self) -> None:
        if self.process:
            self.process.terminate()
            self.process.wait()
            self.process = None

    def _greets(self) -> bool:
        try:
            with socket.create_connection((HOST, self.port)) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False


@pytest.fixture(scope="module")
def sshd() -> Iterator[Sshd]:
    program = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        pytest.skip("sshd (OpenSSH's server) is not on this machine")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # root's sshd wants it, and the system's start makes it
    with tempfile.TemporaryDirectory() as name:
        server = Sshd(Path(name).resolve(), program, reserved_port(HOST))
        server.make_key("host")
        server.make_key("key")
        server.store.mkdir()
        settings = {
            "ListenAddress": HOST,
            "Port": server.port,
            "HostKey": server.folder / "host",
            "AuthorizedKeysFile": server.folder / "key.pub",
            "PidFile": "none",
            "StrictModes": "no",  # the folder lies below /tmp, where others may write
            "UsePAM": "no",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "Subsystem": "sftp internal-sftp",
        }
        (server.folder / "config").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
        server.start()
        yield server
        server.stop()


def give(project: Any, key: Path) -> None:
    """Put it where SSH looks for a person's key."""
    place = project.home / ".ssh"
    place.mkdir(mode=0o700, exist_ok=True)
    shutil.copyfile(key, place / "id_ed25519")
    (place / "id_ed25519").chmod(0o600)


@pytest.fixture(scope="module")
def project(new_project: Callable[[str], Any], use_small_net: Callable[[Any], None], sshd: Sshd) -> Any:
    project = new_project("ssh")
    use_small_net(project)
    give(project, sshd.key)
    project.good("dvc", "remote", "add", "--default", "team", sshd.address)
    return project


def commit(project: Any) -> None:
    project.good("git", "add", "--all")
    project.good("git", "commit", "--quiet", "--message=trained")


def assert_a_clone_has_all(project: Any, root: Path, sshd: Sshd) -> None:
    """A fresh clone pulls from the server what is committed here, byte for byte."""
    commit(project)
    clone = project.clone(root)
    give(clone, sshd.key)
    clone.good("dvc", "pull")
    outputs = ("data/packed", "data/checkpoints", "data/model")
    assert clone.digests(*outputs) == project.digests(*outputs)
    assert "up to date" in clone.good("dvc", "status")


def test_a_training_stored_by_ssh_is_in_a_clone(project: Any, sshd: Sshd, tmp_path: Path) -> None:
    output = project.good("ratchet", "train")
    assert AWAY not in output
    assert list((sshd.store / "files" / "md5").rglob("*.dir"))
    assert_a_clone_has_all(project, tmp_path / "clone", sshd)


def test_an_unreachable_server_is_named_and_nothing_is_lost(project: Any, sshd: Sshd, tmp_path: Path) -> None:
    sshd.stop()
    output = project.good("ratchet", "train", "--set", "seed=1")
    notes = [line for line in output.splitlines() if AWAY in line]
    assert [line.partition(":")[0].strip() for line in notes] == ["train", "evaluate", "export", "register"]
    assert all("Connect call failed" in line and f"'{HOST}', {sshd.port}" in line for line in notes)
    assert all(line.endswith("`dvc push` stores it later") for line in notes)
    sshd.start()
    project.good("dvc", "push")
    assert_a_clone_has_all(project, tmp_path / "clone", sshd)


def test_a_refused_key_is_named_and_nothing_is_lost(project: Any, sshd: Sshd) -> None:
    give(project, sshd.make_key("other"))
    output = project.good("ratchet", "train", "--set", "seed=2")
    assert f"train: {AWAY}Permission denied" in output
    give(project, sshd.key)
    project.good("dvc", "push")
    assert "remote 'team' are in sync" in project.good("dvc", "status", "--cloud")
