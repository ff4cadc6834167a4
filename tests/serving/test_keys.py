"""The file of API keys: what it refuses, that no key is lost, and that a lost file opens nothing."""

import asyncio
import errno
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from ratchet.errors import PlatformError
from ratchet.serving.keys import Key, KeyFilter, KeyStore, require_key

LOOPBACK = "127.0.0.1"


def test_keys_that_are_added_at_once_are_all_stored(tmp_path: Path) -> None:
    path, names = tmp_path / "state" / "keys.json", [f"key-{number}" for number in range(24)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: KeyStore(path).add(name), names))
    assert sorted(key.name for key in KeyStore(path).read()) == sorted(names)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: KeyStore(path).remove(name), names))
    assert KeyStore(path).read() == ()


class Gate:
    """A filter in front of an application that answers 200, and its clock."""

    def __init__(self, store: KeyStore, *, required: bool = False) -> None:
        self.now = 0.0
        self._filter = KeyFilter(PlainTextResponse("ok"), store, required=required, clock=lambda: self.now)

    @property
    def problem(self) -> str:
        return self._filter.problem

    def status(self, key: str = "") -> int:
        """Return the status of a request two seconds later, when changed files are read."""
        self.now += 2.0
        headers = [(b"authorization", f"Bearer {key}".encode())] if key else []
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": "/v1/models", "headers": headers}
        asyncio.run(self._filter(scope, None, send))  # type: ignore[arg-type]  # reads no body
        return int(sent[0]["status"])


@pytest.fixture
def store(tmp_path: Path) -> KeyStore:
    return KeyStore(tmp_path / "state" / "keys.json")


def test_lost_keys_refuse_all_requests(store: KeyStore, caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate(store)
    assert gate.status() == 200
    key = store.add("anna")
    assert (gate.status(), gate.status(key)) == (401, 200)
    store.path.unlink()
    assert (gate.status(), gate.status(key)) == (401, 401)
    assert "keys.json: is missing, so the model server refuses all requests" in caplog.text
    with pytest.raises(PlatformError, match=r"keys\.json: is missing.* `ratchet keys add NAME`.* `ratchet keys off`"):
        require_key(store, LOOPBACK, always=False)
    assert Gate(store).status() == 401  # also of a server that starts without the file
    other = store.add("bob")
    assert (gate.status(), gate.status(other)) == (401, 200)
    require_key(store, LOOPBACK, always=False)


def test_a_lost_folder_opens_no_running_server(store: KeyStore) -> None:
    key = store.add("anna")
    gate = Gate(store)
    for path in store.path.parent.iterdir():
        path.unlink()
    assert (gate.status(), gate.status(key)) == (401, 401)


def test_damaged_keys_stay_valid_while_the_server_runs(store: KeyStore) -> None:
    key = store.add("anna")
    gate, content = Gate(store), store.path.read_text()
    for damage in ("", "[]", "{}", content[:40], '{"keys": [1]}', '{"keys": null}'):
        store.path.write_text(damage)
        assert (gate.status(), gate.status(key)) == (401, 200)
        with pytest.raises(PlatformError, match=r"keys\.json: damaged .* Fix: restore it; or delete it"):
            require_key(store, LOOPBACK, always=False)
    store.path.unlink()  # what the error proposes
    assert gate.status() == 401
    assert gate.status(store.add("anna")) == 200


def test_keys_are_read_again_after_their_rights_were_corrected(
    store: KeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removed key is valid only until then: nothing in the file changes with its rights."""
    key, other = store.add("anna"), store.add("bob")
    gate = Gate(store)
    store.remove("bob")
    store.path.chmod(0o000)

    def unreadable(self: KeyStore) -> list[Any]:
        raise PlatformError("keys.json: cannot be read. Fix: correct its owner")

    with monkeypatch.context() as patched:  # root reads it anyway
        patched.setattr(KeyStore, "content", unreadable)
        assert (gate.status(key), gate.status(other)) == (200, 200)
    store.path.chmod(0o600)
    assert (gate.status(key), gate.status(other)) == (200, 401)


def test_a_removed_key_is_refused_after_a_failed_read(
    store: KeyStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The server is at its limit of open files when it looks, once or for some time."""
    key, other = store.add("anna"), store.add("bob")
    gate = Gate(store)
    store.remove("bob")
    opened = Path.open

    def fails(path: Path, *options: Any, **named: Any) -> Any:
        if path == store.path:
            raise OSError(errno.EMFILE, "Too many open files")
        return opened(path, *options, **named)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", fails)
        assert [gate.status(other) for _ in range(3)] == [200, 200, 200]
    assert caplog.text.count("cannot be read (Too many open files). Fix: too many files are open. End other") == 1
    assert (gate.status(key), gate.status(other)) == (200, 401)


@pytest.mark.parametrize(
    ("number", "fix"), [(errno.ESTALE, "the network's disk does not answer"), (errno.EACCES, "correct its owner")]
)
def test_a_folder_that_cannot_be_read_refuses_no_known_key(
    store: KeyStore, monkeypatch: pytest.MonkeyPatch, number: int, fix: str
) -> None:
    """The network's disk does not answer for some time."""
    key = store.add("anna")
    gate, status = Gate(store), Path.stat

    def fails(path: Path, **options: Any) -> Any:
        if path == store.path:
            raise OSError(number, os.strerror(number))
        return status(path, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "stat", fails)
        assert [gate.status(), gate.status(key)] == [401, 200]
        assert f"cannot be read ({os.strerror(number)}). Fix: {fix}" in gate.problem
    assert (gate.status(key), gate.problem) == (200, "")


def test_a_key_removed_while_the_server_starts_is_refused(store: KeyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.add("anna")
    other = store.add("bob")
    read = KeyStore.read

    def read_and_remove(self: KeyStore) -> tuple[Key, ...]:
        keys = read(self)
        monkeypatch.setattr(KeyStore, "read", read)
        store.remove("bob")
        return keys

    monkeypatch.setattr(KeyStore, "read", read_and_remove)
    assert Gate(store).status(other) == 401


def test_removal_of_the_last_key_opens_nothing(store: KeyStore) -> None:
    key = store.add("anna")
    gate = Gate(store)
    store.remove("anna")
    assert (gate.status(), gate.status(key)) == (401, 401)
    store.off()
    assert gate.status() == 200
    require_key(store, LOOPBACK, always=False)
    store.add("bob")
    assert gate.status() == 401


def test_required_keys_are_asked_for_before_there_is_one(store: KeyStore) -> None:
    assert Gate(store, required=True).status() == 401
    with pytest.raises(PlatformError, match=r"serving\.keys: found required, and there is no API key"):
        require_key(store, LOOPBACK, always=True)
    with pytest.raises(PlatformError, match=r"--host: 0\.0\.0\.0 lets other machines ask the model server"):
        require_key(store, "0.0.0.0", always=False, named="--host")


def test_keys_of_an_earlier_version_are_asked_for(store: KeyStore) -> None:
    key = store.add("anna")
    content = json.loads(store.path.read_text())
    store.path.write_text(json.dumps({"keys": content["keys"]}))
    store.path.with_suffix(".required").unlink()
    gate = Gate(store)
    assert (gate.status(), gate.status(key)) == (401, 200)
    store.path.unlink()
    assert (gate.status(), Gate(store).status()) == (401, 401), "the lost file opens the server after a restart"
