"""Explanations are of the version that answers, which is ready for them before the first request."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import until_in_loop

from ratchet.kinds import ImageInput, ModelSpec
from ratchet.problems import Classes
from ratchet.registry.versions import Version
from ratchet.serving.app import ModelServer
from ratchet.serving.canary import Canary
from ratchet.serving.explaining import _pixels
from ratchet.serving.keys import KeyStore
from ratchet.serving.versions.alias_watcher import AliasWatcher, PinnedVersion
from ratchet.serving.versions.loaded import Identity, LoadedVersion
from ratchet.settings.model import ServingSettings
from tests.serving.test_loaded import store
from tests.serving.test_metrics import Client, serve

SPEC = ModelSpec("convnet", ImageInput(8, 8, 3, (120.0,) * 3, (60.0,) * 3), Classes(("a", "b", "c")))
IMAGE = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
QUESTION = {"input": [IMAGE.tolist()]}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Stored versions with different weights, by number."""
    folders = {number: tmp_path_factory.mktemp(f"version-{number}") for number in ("1", "2")}
    for number, folder in folders.items():
        store(folder, SPEC, scale=float(number))
    return folders


class Registry:
    """Stored versions of one model. `champion` is the number that the alias names."""

    def __init__(self, folders: dict[str, Path]) -> None:
        self.folders, self.champion = folders, "1"

    def find(self, reference: str) -> Version:
        number = self.champion if reference.endswith("@champion") else reference.partition("/")[2]
        return Version("model", number, f"run-{number}", ())

    def copy_files(self, version: Version, into: Path) -> Path:
        return Path(shutil.copytree(self.folders[version.number], into, dirs_exist_ok=True))


@pytest.fixture
def follow(folders: dict[str, Path], tmp_path: Path) -> Callable[..., AliasWatcher]:
    """Return a function that follows a reference, with a registry."""

    def follow(reference: str, registry: Any = None) -> AliasWatcher:
        return AliasWatcher(registry or Registry(folders), lambda: reference, folder=tmp_path / "served", threads=1)

    return follow


async def ask(client: Client, path: str, **headers: str) -> dict[str, Any]:
    status, body = await client.send(client.request(path, QUESTION, **headers))
    assert status == 200, body
    answer: dict[str, Any] = json.loads(body)
    return answer


def overlay(folder: Path) -> str:
    """Return the image that explains the answer of a stored version, base64."""
    loaded = LoadedVersion(Identity("model", "", "", None), folder)
    text: str = _pixels(loaded, IMAGE, loaded.predict((IMAGE[None],))[0])["png"]
    return text


def test_canary_explains_the_answers_that_it_gives(
    follow: Callable[..., AliasWatcher], folders: dict[str, Path], tmp_path: Path
) -> None:
    settings = ServingSettings(canary_share=0.5, canary_latency=1000.0, deadline=600.0)
    canary = Canary(follow("model/2"), settings, tmp_path / "canary.json")
    server = ModelServer(follow("model@champion"), settings, canary=canary)
    expected = {number: overlay(folder) for number, folder in folders.items()}
    assert expected["1"] != expected["2"]

    async def users(client: Client) -> None:
        await until_in_loop(lambda: server.watcher.current and canary.watcher.current)
        versions = []
        for user in range(12):
            answer = await ask(client, "/v1/predict", X_Canary_Key=f"user-{user}")
            explained = await ask(client, "/v1/explain", X_Canary_Key=f"user-{user}")
            assert (explained["model"], explained["version"]) == ("model", answer["version"])
            assert explained["predictions"][0]["class"] == answer["predictions"][0]["class"]
            assert explained["predictions"][0]["probability"] == answer["predictions"][0]["probability"]
            assert explained["explanation"]["png"] == expected[answer["version"]]
            versions.append(answer["version"])
        assert set(versions) == {"1", "2"}
        counted = await client.requests()
        assert {number: counted["explain", "model", "200", number] for number in ("1", "2")} == {
            number: versions.count(number) for number in ("1", "2")
        }

    serve(server, KeyStore(tmp_path / "keys.json"), users)


def test_absent_captum_is_no_fault_of_a_version(
    follow: Callable[..., AliasWatcher],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setitem(sys.modules, "captum.attr", None)  # importing it fails as if it were not installed
    settings = ServingSettings(canary_share=1.0, deadline=600.0, poll=0.1)
    canary = Canary(follow("model/2"), settings, tmp_path / "canary.json")
    server = ModelServer(follow("model@champion"), settings, canary=canary)

    async def explain(client: Client) -> None:
        await until_in_loop(lambda: server.watcher.current and "explained" in vars(canary.watcher.current or object))
        status, body = await client.send(client.request("/v1/explain", QUESTION, X_Canary_Key="user"))
        assert (status, "need PyTorch and Captum" in body) == (501, True)
        assert canary._trial
        assert not any(canary._trial.outcomes.values()), "an explanation judges the canary"

    serve(server, KeyStore(tmp_path / "keys.json"), explain)
    assert "cannot be explained" not in caplog.text


def test_each_version_is_ready_to_explain_without_a_request(
    follow: Callable[..., AliasWatcher], folders: dict[str, Path], tmp_path: Path
) -> None:
    registry = Registry(folders)
    server = ModelServer(follow("model@champion", registry), ServingSettings(poll=0.1))

    async def promote(client: Client) -> None:
        for registry.champion in ("1", "2", "1"):

            def is_ready(number: str = registry.champion) -> bool:
                loaded = server.watcher.current
                return loaded is not None and loaded.identity.version == number and "explained" in vars(loaded)

            await until_in_loop(is_ready)

    serve(server, KeyStore(tmp_path / "keys.json"), promote)


def test_deleted_files_are_no_fault_of_the_client(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "version"
    shutil.copytree(folders["1"], folder)
    loaded = LoadedVersion(Identity("model", "1", "run-1", None), folder)
    shutil.rmtree(folder)

    async def explain(client: Client) -> None:
        answer = await ask(client, "/v1/predict")
        status, body = await client.send(client.request("/v1/explain", QUESTION))
        message = json.loads(body)["error"]
        assert (status, answer["version"]) == (503, "1")
        assert message == "the files of model version 1 cannot be read; the log of the server has the cause"

    serve(
        ModelServer(PinnedVersion(loaded), ServingSettings(deadline=600.0)), KeyStore(tmp_path / "keys.json"), explain
    )


def test_versions_are_loaded_after_their_folder_was_deleted(
    follow: Callable[..., AliasWatcher], folders: dict[str, Path], tmp_path: Path
) -> None:
    registry = Registry(folders)
    watcher = follow("model@champion", registry)
    watcher.check()
    shutil.rmtree(tmp_path / "served")
    registry.champion = "2"
    watcher.check()
    assert (watcher.problem, watcher.current and watcher.current.identity.version) == ("", "2")
    watcher.close()
