"""The bill of materials of a model version: CycloneDX 1.6 (https://cyclonedx.org/specification/overview), as JSON.

The model itself, the data it learned from, Python and every installed distribution, and which of them needs which.
"""

import importlib.metadata
import json
import platform
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet import files

if TYPE_CHECKING:
    from importlib.metadata import PackageMetadata

    from cyclonedx.model import ExternalReference
    from cyclonedx.model.component import Component
    from cyclonedx.model.license import License

__all__ = ["Made", "bill"]

_SPECIES = uuid.UUID("5d2ff3a1-6c0e-4d3b-9a52-3f0f1d2f8c11")  # ours, for serial numbers
_PINNED = re.compile(r"^([A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?==([^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_LONGEST = 100  # letters of a licence's name: some put the whole licence there


@dataclass(frozen=True)
class Made:
    """A version, and what is known of its making."""

    name: str
    number: str
    weights: str | None  # SHA-256 (hex) of model.safetensors; None: stored before there were checksums
    data: str  # the data set's name
    data_version: str | None  # DVC's hash of it
    at: datetime  # when its run began
    record: Mapping[str, Any]  # of provenance


def bill(made: Made, lock: Path) -> str:
    """The document; the same for the same version in the same environment.

    `lock` is the file of pinned requirements with hashes: they stand with each distribution that it pins.
    """
    from cyclonedx.model.bom import Bom
    from cyclonedx.output.json import JsonV1Dot6

    bom = Bom(serial_number=uuid.uuid5(_SPECIES, files.digest_json(made.record)))
    bom.metadata.timestamp = made.at
    bom.metadata.component = model = _model(made)
    python, data = _python(), _data(made)
    found = _installed()
    pinned = _pinned(lock)
    parts = {name: _distribution(one, pinned) for name, one in found.items()}
    for part in (python, data, *parts.values()):
        bom.components.add(part)
    needs = {name: _needs(one, found) for name, one in found.items()}
    for name, part in parts.items():
        bom.register_dependency(part, [python, *(parts[needed] for needed in sorted(needs[name]))])
    # What nothing else needs is what the environment was made for.
    roots = parts.keys() - set().union(*(needed - {name} for name, needed in needs.items()))
    bom.register_dependency(model, [python, data, *(parts[name] for name in sorted(roots))])
    content = json.loads(JsonV1Dot6(bom).output_as_string())
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _model(made: Made) -> "Component":
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.component import Component, ComponentType

    return Component(
        type=ComponentType.MACHINE_LEARNING_MODEL,
        name=made.name,
        version=made.number,
        bom_ref="model",
        description="model.safetensors of this version",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=made.weights)] if made.weights else [],
        properties=_properties(
            {
                "ratchet:provenance": made.record.get("id"),
                "ratchet:git_commit": made.record.get("git_commit"),
                "ratchet:settings": made.record.get("settings"),
                "ratchet:lock": made.record.get("lock"),
                "ratchet:mlflow_run": made.record.get("mlflow_run"),
            }
        ),
    )


def _data(made: Made) -> "Component":
    from cyclonedx.model.component import Component, ComponentType

    return Component(
        type=ComponentType.DATA,
        name=made.data,
        version=made.data_version,
        bom_ref="data",
        properties=_properties({"dvc:md5": made.data_version}),  # of DVC's listing of the folder, not of one file
    )


def _python() -> "Component":
    from cyclonedx.model.component import Component, ComponentType

    return Component(
        type=ComponentType.PLATFORM,
        name=platform.python_implementation(),
        version=platform.python_version(),
        bom_ref="python",
    )


def _properties(values: dict[str, str | None]) -> list[Any]:
    from cyclonedx.model import Property

    return [Property(name=name, value=value) for name, value in values.items() if value]


@dataclass(frozen=True)
class _Package:
    """An installed distribution, read once: importlib parses its metadata, README and all, at each question."""

    name: str  # as it is written
    version: str
    metadata: "PackageMetadata"
    requires: tuple[str, ...]
    is_indexed: bool  # else it was installed from a folder or an address (PEP 610)

    @classmethod
    def of(cls, one: importlib.metadata.Distribution) -> "_Package":
        known = one.metadata
        requires = known.get_all("Requires-Dist") or one.requires or ()
        return cls(known["Name"], known["Version"], known, tuple(requires), not one.read_text("direct_url.json"))


def _installed() -> dict[str, _Package]:
    """Every installed distribution, by its normalised name; the first on the path is the one that is imported."""
    found: dict[str, _Package] = {}
    for one in map(_Package.of, importlib.metadata.distributions()):
        if one.name:  # what an uninstall left half behind has none
            found.setdefault(_normalised(one.name), one)
    return dict(sorted(found.items()))


def _distribution(one: _Package, pinned: Mapping[str, list[str]]) -> "Component":
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    name = _normalised(one.name)
    # What did not come from an index is not the index's of that name.
    purl = PackageURL("pypi" if one.is_indexed else "generic", name=name, version=one.version)
    return Component(
        type=ComponentType.LIBRARY,
        name=one.name,
        version=one.version,
        bom_ref=f"{name}=={one.version}",
        purl=purl,
        licenses=_licences(one.metadata),
        external_references=_admitted(purl.to_string(), pinned.get(f"{name}=={one.version}", [])),
    )


def _licences(metadata: Any) -> "list[License]":
    """The licence as the distribution states it: its SPDX expression, else its classifiers, else its name."""
    from cyclonedx.contrib.license.factories import LicenseFactory
    from cyclonedx.exception.factory import InvalidLicenseExpressionException
    from cyclonedx.model.license import DisjunctiveLicense

    factory = LicenseFactory()
    expression = metadata.get("License-Expression")
    if expression:
        try:
            return [factory.make_with_expression(expression)]
        except InvalidLicenseExpressionException:
            return [DisjunctiveLicense(name=expression)]
    classifiers = [one for one in metadata.get_all("Classifier") or () if one.startswith("License :: ")]
    stated = [name for one in classifiers if (name := one.rpartition(" :: ")[2]) != "OSI Approved"]
    said = (metadata.get("License") or "").strip()
    if said and said != "UNKNOWN" and len(said) <= _LONGEST and "\n" not in said and not stated:
        stated = [said]
    return [DisjunctiveLicense(name=name) for name in stated]


def _admitted(place: str, hashes: list[str]) -> "list[ExternalReference]":
    """The files of a distribution that the lock lets in, each by its hash: which of them, the machine decided."""
    from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri

    if not hashes:
        return []
    admitted = [HashType(alg=HashAlgorithm.SHA_256, content=one) for one in hashes]
    return [
        ExternalReference(
            type=ExternalReferenceType.DISTRIBUTION, url=XsUri(place), comment="the files requirements.txt lets in",
            hashes=admitted,
        )
    ]  # fmt: skip


def _needs(one: _Package, found: Mapping[str, _Package]) -> set[str]:
    """The installed distributions that it requires here; those of an extra are required by whoever asks for it."""
    from packaging.requirements import Requirement

    needed = set()
    for line in one.requires:
        requirement = Requirement(line)
        name = _normalised(requirement.name)
        if name in found and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            needed.add(name)
            needed |= _of_extras(found[name], requirement.extras)
    return needed & found.keys()


def _of_extras(one: _Package, extras: set[str]) -> set[str]:
    from packaging.requirements import Requirement

    wanted = map(Requirement, one.requires if extras else ())
    return {
        _normalised(one.name)
        for one in wanted
        if one.marker is not None and any(one.marker.evaluate({"extra": extra}) for extra in extras)
    }


def _pinned(lock: Path) -> dict[str, list[str]]:
    """The hashes that a lock states, by "name==version"; none where there is no lock."""
    hashes: dict[str, list[str]] = {}
    pinned = ""
    for line in lock.read_text(encoding="utf-8").splitlines() if lock.exists() else ():
        if begins := _PINNED.match(line):
            pinned = f"{_normalised(begins[1])}=={begins[2]}"
        if pinned:
            hashes.setdefault(pinned, []).extend(_HASH.findall(line))
    return hashes


def _normalised(name: str) -> str:
    """A distribution's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
