"""Servers beyond loopback: only with a password, and under the name that other machines use."""

from pathlib import Path
from typing import Any

import pytest
from ports import reserved_port

from flows.server.lifecycle import up
from ratchet import settings
from ratchet.errors import PlatformError, SettingsError
from ratchet.servers import start
from ratchet.servers.addresses import (
    address,
    is_loopback,
    public_mlflow,
    public_prefect,
    require_authentication,
)
from ratchet.servers.environment import service_environment
from ratchet.settings import override
from ratchet.settings.model import Params, PlatformSettings, ServingSettings
from ratchet.workspace import Workspace

PASSWORDS = {
    "PREFECT_API_AUTH_STRING": "team:secret",
    "MLFLOW_TRACKING_USERNAME": "team",
    "MLFLOW_TRACKING_PASSWORD": "secret",
}


@pytest.fixture
def no_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PASSWORDS:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1", "[::1]", "0:0:0:0:0:0:0:1"])
def test_loopback_needs_no_password(host: str, no_passwords: None) -> None:
    assert is_loopback(host)
    require_authentication(PlatformSettings(host=host), prefect=host, mlflow=host)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "192.168.1.7", "10.0.0.1", "fe80::1", "2001:db8::1", "unknown.invalid"]
)
def test_beyond_loopback_needs_passwords(host: str, no_passwords: None, monkeypatch: pytest.MonkeyPatch) -> None:
    given = PlatformSettings(host=host, public_url="http://gpu.lan:4200")
    with pytest.raises(PlatformError, match=r"platform\.host: .* Fix: `export PREFECT_API_AUTH_STRING=USER:PASSWORD`"):
        require_authentication(given, prefect=host, mlflow=host)
    with pytest.raises(PlatformError, match=r"platform\.host: .* Fix: `export MLFLOW_TRACKING_USERNAME=USER MLFLOW_TR"):
        require_authentication(given, prefect=None, mlflow=host)
    require_authentication(given, prefect=None, mlflow=None)
    for name, value in PASSWORDS.items():
        monkeypatch.setenv(name, value)
    require_authentication(given, prefect=host, mlflow=host)


@pytest.mark.parametrize("given", ["", "team", "team:", ":secret"])
def test_password_without_user_or_secret_does_not_count(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", given)
    with pytest.raises(PlatformError, match="only with a password"):
        require_authentication(PlatformSettings(host="10.0.0.1"), prefect="10.0.0.1", mlflow=None)


def test_prefect_api_beyond_loopback_names_its_setting(no_passwords: None) -> None:
    with pytest.raises(PlatformError, match=r"^platform\.prefect_api: 10\.0\.0\.1 lets other machines reach"):
        require_authentication(
            PlatformSettings(prefect_api="http://10.0.0.1:4200/api"), prefect="10.0.0.1", mlflow=None
        )


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]", "0", "0x0", "0.0", "::ffff:0.0.0.0"])
def test_all_interfaces_need_a_public_url(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in PASSWORDS.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(PlatformError, match=r"^platform\.public_url: found auto; .* Fix: .* `ratchet set platform"):
        require_authentication(PlatformSettings(host=host), prefect=host, mlflow=host)


@pytest.mark.parametrize(
    ("given", "prefect", "mlflow"),
    [
        ({}, "http://127.0.0.1:4200", "http://127.0.0.1:5000"),
        ({"host": "::1"}, "http://[::1]:4200", "http://[::1]:5000"),
        ({"host": "10.0.0.7"}, "http://10.0.0.7:4200", "http://10.0.0.7:5000"),
        ({"host": "0.0.0.0", "public_url": "http://gpu.lan:4200"}, "http://gpu.lan:4200", "http://gpu.lan:5000"),
        ({"host": "::", "public_url": "http://[2001:db8::7]:4200"}, "http://[2001:db8::7]:4200",
         "http://[2001:db8::7]:5000"),
        ({"public_url": "https://prefect.example"}, "https://prefect.example", "http://127.0.0.1:5000"),
        ({"public_url": "https://prefect.example", "mlflow_public_url": "https://mlflow.example"},
         "https://prefect.example", "https://mlflow.example"),
    ],
)  # fmt: skip
def test_public_addresses(given: dict[str, Any], prefect: str, mlflow: str) -> None:
    platform = PlatformSettings(**given)
    assert (public_prefect(platform, platform.host), public_mlflow(platform)) == (prefect, mlflow)


def test_address_of_server_on_all_interfaces_is_loopback() -> None:
    assert [address(host, 1) for host in ("0.0.0.0", "::", "[::]")] == ["http://127.0.0.1:1", *["http://[::1]:1"] * 2]


@pytest.mark.parametrize(
    "change",
    [
        {"platform.public_url": "gpu.lan:4200"}, {"platform.public_url": "http://gpu.lan:4200/prefect"},
        {"platform.public_url": "https://a b"}, {"platform.allowed_hosts": ["*"]},
        {"platform.allowed_hosts": ["http://gpu.lan"]}, {"platform.allowed_hosts": ["gpu.lan/x"]},
        {"platform.public_url": "http://gpu.lan:99999"}, {"platform.mlflow_public_url": "http://[:::]:5000"},
        {"platform.prefect_api": "http://gpu.lan:99999/api"}, {"platform.allowed_hosts": ["gpu.lan:99999"]},
        {"alerts.webhook": "https://[gpu/x"},
    ],
)  # fmt: skip
def test_wrong_address_is_refused(change: dict[str, object], tmp_path: Path) -> None:
    file = tmp_path / "params.yaml"
    file.write_text(settings.template())
    with pytest.raises(SettingsError, match=next(iter(change))):
        override(file, change)


def test_up_beyond_loopback_without_password_starts_nothing(project: Any) -> None:
    override(project.workspace.params, {"platform.host": "0.0.0.0"})
    output = project.refused("ratchet", "up")
    assert "ratchet: platform.host: 0.0.0.0 lets other machines reach Prefect's server" in output
    assert not (project.workspace.state / "servers.json").exists()


def test_service_keeps_credentials_and_drops_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {"PREFECT_API_AUTH_STRING": "a:b", "PREFECT_API_SSL_CERT_FILE": "ca.pem", "PREFECT_LOGGING_LEVEL": "DEBUG"}
    dropped = {"PREFECT_API_URL": "http://127.0.0.1:9/api", "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": "*"}
    for name, value in (kept | dropped).items():
        monkeypatch.setenv(name, value)
    environment = service_environment(Workspace(tmp_path))
    assert {name: environment.get(name) for name in kept} == kept
    assert not dropped.keys() & environment.keys()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "127.0.0.1,localhost,::1"),
        ({"no_proxy": "intra.lan, ::1"}, "intra.lan,::1,127.0.0.1,localhost"),
        ({"NO_PROXY": "a.lan", "no_proxy": "b.lan"}, "a.lan,b.lan,127.0.0.1,localhost,::1"),
    ],
)
def test_loopback_uses_no_proxy(
    given: dict[str, str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    environment = service_environment(Workspace(tmp_path))
    assert {environment["NO_PROXY"], environment["no_proxy"]} == {expected}


def test_prefect_password_outside_ascii_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect's server compares passwords by a function for ASCII only, and would answer each request with 500."""
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "team:schlüssel")
    with pytest.raises(PlatformError, match=r"^PREFECT_API_AUTH_STRING: has a character outside ASCII") as caught:
        start.prefect_launch(Workspace(tmp_path), PlatformSettings())
    assert "schl" not in str(caught.value)


@pytest.mark.parametrize("host", ["ä..b", "unknown.invalid", "http://gpu.lan"])
def test_host_that_is_no_local_address_is_refused(host: str, no_passwords: None, tmp_path: Path) -> None:
    """The address is checked before the password, which would not help."""
    given = PlatformSettings(host=host, prefect_port=reserved_port("127.0.0.1"), mlflow_port=reserved_port("127.0.0.1"))
    with pytest.raises(PlatformError, match=r"^platform\.host: cannot listen on .* \(.+\)"):
        up(Workspace(tmp_path), Params(platform=given, serving=ServingSettings(enabled=False)), say=print)
    assert not (tmp_path / ".ratchet" / "servers.json").exists()
