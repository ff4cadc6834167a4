"""Models are stored once, loaded by MLflow's own loader, and verified by checksums."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ratchet import files
from ratchet.checksums import seal, verify
from ratchet.errors import RatchetError, RegistryError, TrackingUnavailable
from ratchet.exports.program import Program
from ratchet.kinds import ModelSpec, image_spec
from ratchet.monitoring.specs import StoredSpecs
from ratchet.registry.models import CHECKSUMS_TAG, ModelRegistry
from ratchet.registry.parents import parent_of, provide_parent
from ratchet.registry.runs import Run
from ratchet.settings.model import ModelSettings, Params, RegistrySettings, TrackingSettings
from ratchet.training import load_model
from ratchet.workspace import Workspace

pytestmark = pytest.mark.usefixtures("mlflows_own")

SPEC = image_spec("convnet", ("ant", "bee", "cat"), 1, 8, 8, (0.5,), (0.25,))


@pytest.fixture
def run_id(place: Any, key: str) -> Iterator[str]:
    run = Run(place.workspace, place.params, key)
    run.settings({"seed": 0})
    yield run.send()
    run.journal.close()


@pytest.fixture
def registry(place: Any) -> ModelRegistry:
    return ModelRegistry(place.workspace, place.params)


def add_version(registry: ModelRegistry, name: str, run_id: str, untrained: Path, *, verdict: str = "{}") -> Any:
    model_uri = registry.log_model(run_id, untrained, SPEC)
    return registry.add_version(name, run_id, model_uri, tags={"ratchet.verdict": verdict})


def open_and_close(registry: ModelRegistry, model_uri: str) -> None:
    with registry.opened(model_uri):
        pass


def test_mlflow_loads_a_model_with_the_same_answers(registry: ModelRegistry, run_id: str, untrained: Path) -> None:
    import mlflow

    before = mlflow.get_tracking_uri(), mlflow.get_registry_uri()
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 1), dtype=np.uint8)
    with registry.opened(registry.log_model(run_id, untrained, SPEC)) as (served, folder):
        assert (mlflow.get_tracking_uri(), mlflow.get_registry_uri()) == before
        answered = served.predict(images)
        assert (folder / "model.safetensors").read_bytes() == (untrained / "model.safetensors").read_bytes()
    model, spec = load_model(untrained)
    with torch.inference_mode():
        expected = torch.softmax(model(torch.from_numpy(images).permute(0, 3, 1, 2)), 1).numpy()
    assert spec == SPEC
    assert answered.dtype == np.float32
    np.testing.assert_array_equal(answered, expected)


def test_a_stored_model_contains_no_pickle(
    registry: ModelRegistry, run_id: str, untrained: Path, tmp_path: Path
) -> None:
    add_version(registry, "no-pickle", run_id, untrained)
    registry.set_aliases("no-pickle", {"champion": "1"})
    champion = registry.champion("no-pickle", tmp_path / "champion")
    assert champion
    suffixes = {path.suffix for path in (tmp_path / "champion").rglob("*") if path.is_file()}
    assert suffixes <= {".safetensors", ".npz", ".json", ".yaml", ".txt", ""}
    assert (champion.folder / "model.safetensors").read_bytes() == (untrained / "model.safetensors").read_bytes()


def test_logging_a_model_twice_stores_it_once(
    registry: ModelRegistry, place: Any, run_id: str, untrained: Path
) -> None:
    first = registry.log_model(run_id, untrained, SPEC)
    assert registry.log_model(run_id, untrained, SPEC) == first
    assert len(place.client.get_run(run_id).outputs.model_outputs) == 1


def test_a_model_is_replaced_only_before_it_is_a_version(
    registry: ModelRegistry, place: Any, run_id: str, untrained: Path
) -> None:
    asking = ModelRegistry(
        place.workspace, place.params.model_copy(update={"registry": RegistrySettings(export="onnx")})
    )
    first = registry.log_model(run_id, untrained, SPEC)
    second = asking.log_model(run_id, untrained, SPEC)
    assert second != first
    assert asking.log_model(run_id, untrained, SPEC) == second
    for address, has_program in ((first, False), (second, True)):
        with asking.opened(address) as (_, folder):
            assert isinstance(Program.of(folder), Program) is has_program
            assert set(verify(folder) or ()) >= ({"model.onnx", "program.json"} if has_program else set())
    asking.add_version("with-a-program", run_id, second, tags={})
    assert registry.log_model(run_id, untrained, SPEC) == second


def test_aliases_of_a_version_can_be_set(
    registry: ModelRegistry, place: Any, run_id: str, untrained: Path, tmp_path: Path
) -> None:
    name = f"steps-{place.params.tracking.experiment}"
    assert registry.aliases(name) == {}
    version = add_version(registry, name, run_id, untrained, verdict=json.dumps({"passed": True}))
    assert (version.number, version.aliases) == ("1", ())
    assert registry.find(f"{name}/1").tags["ratchet.verdict"] == '{"passed": true}'
    registry.describe(version, "good")
    registry.set_aliases(name, {"champion": "1", "challenger": "1"})
    assert registry.version_of(name, run_id).aliases == ("challenger", "champion")  # type: ignore[union-attr]
    registry.set_aliases(name, {"champion": "1", "challenger": None})
    assert registry.aliases(name) == {"champion": "1"}
    champion = registry.champion(name, tmp_path)
    assert champion
    assert (champion.version.number, champion.version.run_id) == ("1", run_id)
    stored = place.client.get_model_version(name, "1")
    assert (stored.run_id, stored.description, stored.tags["ratchet.verdict"]) == (run_id, "good", '{"passed": true}')


def test_a_run_of_a_revision_gets_the_version_it_continues(
    registry: ModelRegistry, place: Any, run_id: str, untrained: Path, tmp_path: Path
) -> None:
    """git has only its name, and no command of the user works in that folder."""
    name = f"parent-{place.params.tracking.experiment}"
    version = add_version(registry, name, run_id, untrained)
    params = registry.params.model_copy(update={"model": ModelSettings(pretrained=f"{name}/{version.number}")})
    provide_parent(registry.workspace, params)
    assert not (registry.workspace.pretrained / name).exists()
    checkout = Workspace(tmp_path / "production")
    files.write_text(checkout.state / "project", str(registry.workspace.root))
    provide_parent(checkout, params)
    assert parent_of(checkout, params) == version.uri
    provide_parent(checkout, registry.params)  # which continue none


def test_adding_a_version_twice_changes_nothing(
    registry: ModelRegistry, run_id: str, untrained: Path, place: Any
) -> None:
    name = f"twice-{place.params.tracking.experiment}"
    first = add_version(registry, name, run_id, untrained)
    assert add_version(registry, name, run_id, untrained) == first
    assert registry.versions(name) == [first]


def test_a_duplicate_version_of_a_slow_server_is_deleted(
    registry: ModelRegistry, run_id: str, untrained: Path, place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"slow-{place.params.tracking.experiment}"
    make = registry.client.create_model_version

    def twice(*arguments: Any, **more: Any) -> Any:
        make(*arguments, **more)  # the answer came too late
        return make(*arguments, **more)

    monkeypatch.setattr(registry.client, "create_model_version", twice)
    assert add_version(registry, name, run_id, untrained).number == "1"
    assert [version.number for version in registry.versions(name)] == ["1"]


def test_a_version_is_found_by_number_or_alias(
    registry: ModelRegistry, run_id: str, untrained: Path, place: Any
) -> None:
    name = f"found-{place.params.tracking.experiment}"
    version = add_version(registry, name, run_id, untrained)
    registry.set_aliases(name, {"champion": "1"})
    for reference in (f"{name}/1", f"models:/{name}/1", f"{name}@champion", f"models:/{name}@champion"):
        assert registry.find(reference).number == version.number
    with pytest.raises(RegistryError, match=rf"{name}/7: MLflow has no such version; there are {name}/1"):
        registry.find(f"{name}/7")
    with pytest.raises(RegistryError, match=rf"{name}@blue: MLflow has no such version"):
        registry.find(f"{name}@blue")
    with pytest.raises(RegistryError, match=r"nowhere/1: MLflow has no such version; registered are .*found-"):
        registry.find("nowhere/1")
    with pytest.raises(RegistryError, match="allowed: NAME/VERSION or NAME@ALIAS"):
        registry.find("pets")


@pytest.mark.parametrize(
    "damage", [bytes(300), b"{}", b'{"input": null}', b"[1]"], ids=["zeros", "empty", "null", "list"]
)
def test_a_damaged_copy_of_a_spec_is_fetched_again(
    place: Any, registry: ModelRegistry, key: str, run_id: str, untrained: Path, damage: bytes
) -> None:
    """The copies are those that `ratchet monitor` and `ratchet data from-requests` read."""
    version = add_version(registry, key, run_id, untrained)
    path = place.workspace.state / "monitoring" / "specs" / f"{key}-{version.number}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(damage)
    for _ in range(2):
        assert StoredSpecs(place.workspace, place.params)(f"{key}/{version.number}") == SPEC
    assert ModelSpec.from_json(json.loads(path.read_text())) == SPEC


def test_without_a_champion_there_is_none(registry: ModelRegistry, run_id: str, tmp_path: Path) -> None:
    assert registry.champion("never-registered", tmp_path) is None
    assert registry.version_of("never-registered", run_id) is None


def test_a_missing_model_is_named(registry: ModelRegistry) -> None:
    with pytest.raises(RegistryError, match="models:/never-registered/1"):
        open_and_close(registry, "models:/never-registered/1")


def test_an_unavailable_server_is_named_with_a_fix(tmp_path: Path) -> None:
    dead = Params(tracking=TrackingSettings(uri="http://127.0.0.1:9"))
    with pytest.raises(TrackingUnavailable, match=r"http://127\.0\.0\.1:9 .*`ratchet sync`"):
        ModelRegistry(Workspace(tmp_path), dead).champion("digits", tmp_path)


def stored_folder(place: Any, run_id: str) -> Path:
    """Return the folder of the run's model in MLflow's store."""
    (logged,) = place.client.get_run(run_id).outputs.model_outputs
    location = place.client.get_logged_model(logged.model_id).artifact_location
    return Path(location.removeprefix("file://")) / "data" / "model"


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)  # a server keeps the files elsewhere
def test_every_loader_refuses_a_changed_model(
    registry: ModelRegistry, place: Any, run_id: str, untrained: Path, tmp_path: Path
) -> None:
    name = "changed-in-the-store"
    model_uri = registry.log_model(run_id, untrained, SPEC)
    add_version(registry, name, run_id, untrained)
    registry.set_aliases(name, {"champion": "1"})
    folder = stored_folder(place, run_id)
    assert sorted(verify(folder) or ()) == ["examples.npz", "model.json", "model.safetensors"]
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "model.safetensors").write_bytes(content)
    for way_in in (
        lambda: open_and_close(registry, model_uri),
        lambda: registry.champion(name, tmp_path / "champion"),
        lambda: load_model(folder),
    ):
        with pytest.raises(
            RatchetError, match=r"changed: model\.safetensors\); nothing was loaded\. Fix: restore"
        ) as raised:
            way_in()
        assert f"{folder}: differs from the stored model" in str(raised.value)  # not a temporary copy
    seal(folder)  # an attacker can change checksums, too, but the run has their digest
    with pytest.raises(
        RegistryError, match=r"not the one that was stored, by the run's tag ratchet\.model_checksums"
    ) as raised:
        registry.champion(name, tmp_path / "again")
    assert f"restore the files in {folder} from a backup" in str(raised.value)
    (folder / "checksums.json").unlink()
    with pytest.raises(RegistryError, match=r"its checksums\.json is missing, by the run's tag"):
        registry.champion(name, tmp_path / "once more")
    (folder / "model.json").unlink()  # only a part of the folder was restored
    with pytest.raises(
        RegistryError, match=rf"its files are incomplete: {folder} has no checksums\.json\. Fix: restore"
    ):
        registry.champion(name, tmp_path / "partly")


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)  # a server keeps the files elsewhere
def test_a_model_without_checksums_is_refused(
    registry: ModelRegistry, place: Any, run_id: str, untrained: Path, tmp_path: Path
) -> None:
    """An attacker can delete the checksums together with the run's tag."""
    name = "without-checksums"
    model_uri = registry.log_model(run_id, untrained, SPEC)
    add_version(registry, name, run_id, untrained)
    registry.set_aliases(name, {"champion": "1"})
    (stored_folder(place, run_id) / "checksums.json").unlink()
    place.client.delete_tag(run_id, CHECKSUMS_TAG)
    with pytest.raises(RegistryError, match=r"its run has no tag ratchet\.model_checksums: nothing was loaded"):
        registry.champion(name, tmp_path / "champion")
    with pytest.raises(RegistryError, match=r"has no checksums\.json: nothing was loaded\. Fix: restore"):
        open_and_close(registry, model_uri)
