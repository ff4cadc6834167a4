"""The SBOM of a model version: CycloneDX 1.6 (https://cyclonedx.org/specification/overview) as JSON.

It lists the model, its training data, Python, and every installed distribution with its dependencies.
"""

import importlib.metadata
import json
import platform
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from email import message_from_string
from functools import cached_property
from typing import Any

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.exception.factory import InvalidLicenseExpressionException
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.dependency import Dependency
from cyclonedx.model.license import DisjunctiveLicense, License
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ratchet import files
from ratchet.registry.provenance_record import Provenance
from ratchet.typed_json import to_plain

__all__ = ["SbomSubject", "build_sbom"]

_NAMESPACE = uuid.UUID("5d2ff3a1-6c0e-4d3b-9a52-3f0f1d2f8c11")  # of the serial numbers
_MAX_LICENCE = 100  # characters of a licence's name: some distributions put the whole text there


@dataclass(frozen=True)
class SbomSubject:
    """The version that an SBOM is about."""

    name: str
    number: str
    weights: str | None  # SHA-256 (hex) of model.safetensors
    data: str  # the data set's name
    data_version: str | None  # its DVC hash
    at: datetime  # start of its run
    record: Provenance


def build_sbom(subject: SbomSubject) -> str:
    """Return the SBOM as JSON. The same version in the same environment gives the same bytes."""
    bom = Bom(serial_number=uuid.uuid5(_NAMESPACE, files.digest_json(to_plain(subject.record))))
    bom.metadata.timestamp = subject.at
    bom.metadata.component = model = _model(subject)
    python = Component(
        type=ComponentType.PLATFORM,
        name=platform.python_implementation(),
        version=platform.python_version(),
        bom_ref="python",
    )
    data = Component(
        type=ComponentType.DATA,
        name=subject.data,
        version=subject.data_version,
        bom_ref="data",
        properties=_properties({"dvc:md5": subject.data_version}),  # of DVC's listing of the folder
    )
    distributions = _installed()
    components = {name: distribution.component() for name, distribution in distributions.items()}
    for component in (python, data, *components.values()):
        bom.components.add(component)
    roots = set(components)  # distributions that no other one needs: the model depends on these
    needs: list[tuple[Component, list[Component]]] = [(python, []), (data, [])]
    for name, component in components.items():
        needed = _dependencies(distributions[name], distributions)
        needs.append((component, [python, *(components[other] for other in needed)]))
        roots -= needed - {name}
    needs.append((model, [python, data, *(components[name] for name in roots)]))
    # Not by Bom.register_dependency: it searches all of them at each call.
    bom.dependencies.update(
        Dependency(component.bom_ref, [Dependency(other.bom_ref) for other in others]) for component, others in needs
    )
    content = json.loads(JsonV1Dot6(bom).output_as_string())
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _model(subject: SbomSubject) -> Component:
    record = subject.record
    return Component(
        type=ComponentType.MACHINE_LEARNING_MODEL,
        name=subject.name,
        version=subject.number,
        bom_ref="model",
        description="model.safetensors of this version",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=subject.weights)] if subject.weights else [],
        properties=_properties(
            {
                "ratchet:provenance": record.id,
                "ratchet:git_commit": record.git_commit,
                "ratchet:settings": record.settings,
                "ratchet:lock": record.lock,
                "ratchet:mlflow_run": record.mlflow_run,
            }
        ),
    )


def _properties(values: dict[str, str | None]) -> list[Property]:
    return [Property(name=name, value=value) for name, value in values.items() if value]


class _Distribution:
    """An installed distribution. Its metadata are parsed once, and without the description, which is long."""

    def __init__(self, distribution: importlib.metadata.Distribution) -> None:
        text = next(filter(None, map(distribution.read_text, ("METADATA", "PKG-INFO", ""))), "")
        self.metadata = message_from_string(text.partition("\n\n")[0])
        self.name, self.version = self.metadata["Name"], self.metadata["Version"]
        # One from a folder or another address (PEP 610) is not the index's distribution of the same name.
        self.is_indexed = not distribution.read_text("direct_url.json")
        self._requires = self.metadata.get_all("Requires-Dist") or distribution.requires or ()

    @cached_property
    def requirements(self) -> list[Requirement]:
        return [Requirement(line) for line in self._requires]

    def component(self) -> Component:
        """Return what the SBOM lists."""
        name = canonicalize_name(self.name)
        return Component(
            type=ComponentType.LIBRARY,
            name=self.name,
            version=self.version,
            bom_ref=f"{name}=={self.version}",
            purl=PackageURL("pypi" if self.is_indexed else "generic", name=name, version=self.version),
            licenses=_licences(self.metadata),
        )


def _installed() -> dict[str, _Distribution]:
    """Return canonical name -> distribution. The first one on the path is the one that Python imports."""
    installed: dict[str, _Distribution] = {}
    for distribution in map(_Distribution, importlib.metadata.distributions()):
        if distribution.name:  # an incomplete uninstall leaves one without a name
            installed.setdefault(canonicalize_name(distribution.name), distribution)
    return dict(sorted(installed.items()))


def _dependencies(distribution: _Distribution, installed: Mapping[str, _Distribution]) -> set[str]:
    """Return the installed distributions that one requires."""
    names: set[str] = set()
    for requirement in distribution.requirements:
        name = canonicalize_name(requirement.name)
        if name in installed and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            names.add(name)
    return names


def _licences(metadata: Any) -> list[License]:
    """Return the stated licences: the SPDX expression, else the classifiers, else the name."""
    expression = metadata.get("License-Expression")
    if expression:
        try:
            return [LicenseFactory().make_with_expression(expression)]
        except InvalidLicenseExpressionException:
            return [DisjunctiveLicense(name=expression)]
    classifiers = [line for line in metadata.get_all("Classifier") or () if line.startswith("License :: ")]
    names = [name for line in classifiers if (name := line.rpartition(" :: ")[2]) != "OSI Approved"]
    field = (metadata.get("License") or "").strip()
    if field and len(field) <= _MAX_LICENCE and "\n" not in field and not names:
        names = [field]
    return [DisjunctiveLicense(name=name) for name in names]
