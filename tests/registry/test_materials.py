"""The bill of materials is CycloneDX by the specification's own schema, complete, and the same twice."""

import importlib.metadata
import json
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.model.bom import Bom
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from ratchet.registry.sbom import Made, bill

LOCK = Path(__file__).parents[2] / "requirements.txt"
MADE = Made(
    name="digits <&> \"quoted\"",
    number="3",
    weights="ab" * 32,
    data="digits",
    data_version="0123456789abcdef0123456789abcdef.dir",
    at=datetime(2026, 3, 1, 12, tzinfo=UTC),
    record={"id": "0011223344556677", "git_commit": "c" * 40, "mlflow_run": "f" * 32, "lock": None},
)  # fmt: skip


@pytest.fixture(scope="module")
def written() -> str:
    return bill(MADE, LOCK)


@pytest.fixture(scope="module")
def content(written: str) -> Any:
    return json.loads(written)


def test_it_is_valid_by_the_schema_and_the_library_reads_it_back(written: str, content: Any) -> None:
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(written) is None
    read: Any = Bom
    assert len(read.from_json(content).components) == len(content["components"])


def test_the_model_and_its_data_stand_in_it_with_their_digests(content: Any) -> None:
    model = content["metadata"]["component"]
    assert (model["type"], model["name"], model["version"]) == ("machine-learning-model", MADE.name, "3")
    assert model["hashes"] == [{"alg": "SHA-256", "content": MADE.weights}]
    told = {one["name"]: one["value"] for one in model["properties"]}
    assert told == {
        "ratchet:provenance": "0011223344556677",
        "ratchet:git_commit": "c" * 40,
        "ratchet:mlflow_run": "f" * 32,
    }
    (data,) = [one for one in content["components"] if one["type"] == "data"]
    assert (data["name"], data["version"]) == ("digits", MADE.data_version)


def test_every_installed_distribution_stands_in_it_once_with_version_and_address(content: Any) -> None:
    listed = [one for one in content["components"] if one["type"] == "library"]
    installed = {one.metadata["Name"] for one in importlib.metadata.distributions()}
    assert sorted(one["name"] for one in listed) == sorted(installed)
    torch = next(one for one in listed if one["name"] == "torch")
    assert torch["version"] == importlib.metadata.version("torch")
    assert torch["purl"].startswith("pkg:pypi/torch@")
    own = next(one for one in listed if one["name"] == "ratchet")  # a folder's, not the index's of that name
    assert own["purl"].startswith("pkg:generic/ratchet@")
    (python,) = [one for one in content["components"] if one["type"] == "platform"]
    assert (python["name"], python["version"]) == (platform.python_implementation(), platform.python_version())


def test_licences_and_the_locks_hashes_stand_where_they_are_stated(content: Any) -> None:
    listed = {one["name"]: one for one in content["components"]}
    assert listed["numpy"]["licenses"][0]["expression"].startswith("BSD-3-Clause")
    with_licence = [one for one in listed.values() if one.get("licenses")]
    assert len(with_licence) > 0.8 * len(listed)
    (place,) = listed["safetensors"]["externalReferences"]
    version = listed["safetensors"]["version"]
    _, _, after = LOCK.read_text().partition(f"\nsafetensors=={version} ")
    assert place["hashes"][0]["content"] in after[: after.index("# via")]


def test_each_distribution_depends_on_what_it_requires_and_the_model_on_all(content: Any) -> None:
    graph = {one["ref"]: set(one.get("dependsOn", ())) for one in content["dependencies"]}
    refs = {one["name"]: one["bom-ref"] for one in content["components"]}
    assert {refs["numpy"], refs["torch"]} <= graph[refs["torchvision"]]
    assert {refs["dvc"], refs["dvc-s3"], refs["torch"]} <= graph[refs["ratchet"]]  # dvc[s3]: an extra's
    reached, waiting = {"model"}, ["model"]
    while waiting:
        new = graph[waiting.pop()] - reached
        reached |= new
        waiting += new
    assert reached == {"model", *refs.values()}


def test_the_same_version_gives_the_same_document_and_another_run_another_serial_number(written: str) -> None:
    assert bill(MADE, LOCK) == written
    other = Made(**{**vars(MADE), "record": {**MADE.record, "mlflow_run": "e" * 32}})
    assert json.loads(bill(other, LOCK))["serialNumber"] != json.loads(written)["serialNumber"]


def test_without_a_lock_there_are_no_hashes_and_all_else_stands(tmp_path: Path, content: Any) -> None:
    bare = json.loads(bill(MADE, tmp_path / "none.txt"))
    assert len(bare["components"]) == len(content["components"])
    assert not any("externalReferences" in one for one in bare["components"])
