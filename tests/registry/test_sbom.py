"""The SBOM is valid by CycloneDX's own schema, complete and deterministic."""

import importlib.metadata
import json
import platform
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from cyclonedx.model.bom import Bom
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from ratchet.registry.provenance_record import Provenance
from ratchet.registry.sbom import SbomSubject, build_sbom


@pytest.fixture(scope="module")
def subject(record: Provenance) -> SbomSubject:
    return SbomSubject(
        name='digits <&> "quoted"',
        number="3",
        weights="ab" * 32,
        data="digits",
        data_version="0123456789abcdef0123456789abcdef.dir",
        at=datetime(2026, 3, 1, 12, tzinfo=UTC),
        record=replace(record, mlflow_run="f" * 32, lock=None),
    )


@pytest.fixture(scope="module")
def text(subject: SbomSubject) -> str:
    return build_sbom(subject)


@pytest.fixture(scope="module")
def content(text: str) -> Any:
    return json.loads(text)


def test_it_is_valid_and_the_library_can_read_it(text: str, content: Any) -> None:
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    read: Any = Bom
    assert len(read.from_json(content).components) == len(content["components"])


def test_model_and_data_are_listed_with_digests(subject: SbomSubject, content: Any) -> None:
    model = content["metadata"]["component"]
    assert (model["type"], model["name"], model["version"]) == ("machine-learning-model", subject.name, "3")
    assert model["hashes"] == [{"alg": "SHA-256", "content": subject.weights}]
    assert {item["name"]: item["value"] for item in model["properties"]} == {
        "ratchet:provenance": subject.record.id,
        "ratchet:git_commit": subject.record.git_commit,
        "ratchet:settings": subject.record.settings,
        "ratchet:mlflow_run": "f" * 32,
    }
    (data,) = [item for item in content["components"] if item["type"] == "data"]
    assert (data["name"], data["version"]) == ("digits", subject.data_version)


def test_every_distribution_is_listed_with_version_and_address(content: Any) -> None:
    listed = [item for item in content["components"] if item["type"] == "library"]
    installed = {item.metadata["Name"] for item in importlib.metadata.distributions()}
    assert sorted(item["name"] for item in listed) == sorted(installed)
    torch = next(item for item in listed if item["name"] == "torch")
    assert torch["version"] == importlib.metadata.version("torch")
    assert torch["purl"].startswith("pkg:pypi/torch@")
    own = next(
        item for item in listed if item["name"] == "ratchet"
    )  # from a folder, so not the index's distribution of this name
    assert own["purl"].startswith("pkg:generic/ratchet@")
    (python,) = [item for item in content["components"] if item["type"] == "platform"]
    assert (python["name"], python["version"]) == (platform.python_implementation(), platform.python_version())


def test_licences_are_listed(content: Any) -> None:
    listed = {item["name"]: item for item in content["components"]}
    assert listed["numpy"]["licenses"][0]["expression"].startswith("BSD-3-Clause")
    with_licence = [item for item in listed.values() if item.get("licenses")]
    assert len(with_licence) > 0.95 * len(listed)


def test_a_licence_that_only_a_classifier_names_is_listed(content: Any) -> None:
    listed = {item["name"]: item.get("licenses") for item in content["components"]}
    named = []
    for distribution in importlib.metadata.distributions():
        metadata = distribution.metadata
        classifiers = [
            line for line in metadata.get_all("Classifier") or () if line.startswith("License :: OSI Approved :: ")
        ]
        if len(classifiers) == 1 and not metadata.get("License-Expression") and not metadata.get("License"):
            named.append((listed[metadata["Name"]], [{"license": {"name": classifiers[0].rpartition(" :: ")[2]}}]))
    assert named
    assert all(licences == expected for licences, expected in named)


def test_dependencies_are_those_that_distributions_require(content: Any) -> None:
    """The model depends on all of them, directly or not."""
    graph = {item["ref"]: set(item.get("dependsOn", ())) for item in content["dependencies"]}
    refs = {item["name"]: item["bom-ref"] for item in content["components"]}
    assert {refs["numpy"], refs["torch"]} <= graph[refs["torchvision"]]
    assert {refs["dvc"], refs["torch"]} <= graph[refs["ratchet"]]
    reached, waiting = {"model"}, ["model"]
    while waiting:
        new = graph[waiting.pop()] - reached
        reached |= new
        waiting += new
    assert reached == {"model", *refs.values()}


def test_it_is_deterministic_and_serial_numbers_differ_by_run(subject: SbomSubject, text: str) -> None:
    assert build_sbom(subject) == text
    other = replace(subject, record=replace(subject.record, mlflow_run="e" * 32))
    assert json.loads(build_sbom(other))["serialNumber"] != json.loads(text)["serialNumber"]
