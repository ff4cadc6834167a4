"""A watcher keeps its version while MLflow is away, and says when the reference names another one."""

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ratchet.errors import RatchetError, RegistryError, TrackingUnavailable
from ratchet.kinds import ImageInput, ModelSpec
from ratchet.problems import Classes
from ratchet.registry.versions import Version
from ratchet.serving.canary import Canary
from ratchet.serving.versions.alias_watcher import AliasWatcher
from ratchet.settings.model import ServingSettings
from tests.serving.test_loaded import store

SPEC = ModelSpec("convnet", ImageInput(8, 8, 3, (120.0,) * 3, (60.0,) * 3), Classes(("a", "b", "c")))


class Registry:
    """Stored versions of one model. `named` is what its alias names, or the error of a look at it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        store(folder, SPEC)
        self.named: Version | RatchetError = version("1")
        self.copies: Callable[[], object] = lambda: None

    def find(self, reference: str) -> Version:
        if isinstance(self.named, RatchetError):
            raise self.named
        return self.named

    def copy_files(self, version: Version, into: Path) -> Path:
        self.copies()
        if version.number == "damaged":
            raise RegistryError("its files are damaged")
        return Path(shutil.copytree(self.folder, into, dirs_exist_ok=True))


def version(number: str) -> Version:
    return Version("model", number, f"run-{number}", ("challenger",))


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "stored")


@pytest.fixture
def watcher(registry: Any, tmp_path: Path) -> Iterator[AliasWatcher]:
    watcher = AliasWatcher(registry, lambda: "model@challenger", folder=tmp_path / "served", threads=1)
    watcher.check()
    yield watcher
    watcher.close()


def test_a_version_stays_named_while_mlflow_is_away(registry: Registry, watcher: AliasWatcher) -> None:
    first = watcher.current
    assert first
    assert (watcher.is_named, watcher.problem) == (True, "")
    registry.named = TrackingUnavailable("MLflow does not answer")
    watcher.check()
    assert (watcher.current, watcher.is_named, watcher.problem) == (first, True, "MLflow does not answer")
    registry.named = RegistryError("there is no alias challenger")
    watcher.check()
    assert (watcher.current, watcher.is_named) == (first, False)
    registry.named = TrackingUnavailable("MLflow does not answer")
    watcher.check()
    assert not watcher.is_named  # it was not when MLflow last answered
    registry.named = version("damaged")
    watcher.check()
    assert (watcher.current, watcher.is_named, watcher.refused) == (first, False, "model version damaged")
    registry.named = version("2")
    watcher.check()
    assert watcher.current
    assert (watcher.current.identity.version, watcher.is_named) == ("2", True)


def test_a_version_copied_at_the_end_leaves_no_file(registry: Registry, watcher: AliasWatcher, tmp_path: Path) -> None:
    """The folder is deleted after the copy, and a look that comes later does not create it again."""
    closing, written = threading.Thread(target=watcher.close), tmp_path / "written"

    def copy_slowly() -> None:
        closing.start()
        for _ in range(5_000):  # while the other thread closes, or waits
            if closing.is_alive():
                written.write_bytes(b"")

    registry.named, registry.copies = version("2"), copy_slowly
    watcher.check()
    closing.join()
    assert not list((tmp_path / "served").iterdir())
    registry.named, registry.copies = version("3"), lambda: None
    watcher.check()
    assert not list((tmp_path / "served").iterdir())
    assert watcher.problem == "the server ends, so no further version is loaded"


def test_a_canary_answers_while_mlflow_is_away(registry: Registry, watcher: AliasWatcher, tmp_path: Path) -> None:
    canary = Canary(watcher, ServingSettings(), tmp_path / "canary.json")
    registry.named = TrackingUnavailable("MLflow does not answer")
    watcher.check()
    assert not canary.problem(None)
    registry.named = RegistryError("there is no alias challenger")
    watcher.check()
    assert canary.problem(None) == "serving.canary: there is no alias challenger"
    canary.batcher.close()
