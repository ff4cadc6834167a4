"""The lock files: what production runs with, what tests and checks add, and the extras ray and docs."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parents[1]
OURS = {"ratchet", "tasks", "flows"}


def pins(name: str) -> dict[str, str]:
    """Version by canonical name."""
    text = (REPOSITORY / name).read_text()
    return {
        canonicalize_name(distribution): version
        for distribution, version in re.findall(r"^(\S+?)==(\S+)", text, re.MULTILINE)
    }


@pytest.fixture(scope="module")
def production() -> dict[str, str]:
    return pins("requirements.txt")


@pytest.fixture(scope="module")
def tools() -> dict[str, str]:
    return pins("requirements-dev.txt")


@pytest.fixture(scope="module")
def ray() -> dict[str, str]:
    return pins("requirements-ray.txt")


@pytest.fixture(scope="module")
def docs() -> dict[str, str]:
    return pins("requirements-docs.txt")


@pytest.fixture(scope="module")
def requirements() -> dict[str, Any]:
    content: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    return content


def test_production_has_no_test_tools(production: dict[str, str]) -> None:
    tools = {"pytest", "pytest-xdist", "hypothesis", "moto", "mypy", "ruff", "import-linter", "kubernetes-validate"}
    assert not tools & production.keys()
    assert {"uv", "hatchling", "editables"} <= production.keys()  # by which it is installed
    assert "boto3" in production  # MLflow reads and writes s3:// by it, and does not ask for it


def test_the_locks_agree(
    production: dict[str, str], tools: dict[str, str], ray: dict[str, str], docs: dict[str, str]
) -> None:
    for other in (tools, ray, docs):
        both = production.keys() & other.keys()
        assert {name: production[name] for name in both} == {name: other[name] for name in both}


def test_ray_adds_two_packages_that_the_default_has_not(production: dict[str, str], ray: dict[str, str]) -> None:
    assert ray.keys() - production.keys() == {"ray", "msgpack"}


def test_every_pin_has_a_hash() -> None:
    names = {"requirements.txt": 50, "requirements-dev.txt": 50, "requirements-ray.txt": 10, "requirements-docs.txt": 5}
    for name, least in names.items():
        blocks = re.split(r"^(?=\S+==)", (REPOSITORY / name).read_text(), flags=re.MULTILINE)
        assert len(blocks) > least
        assert not [block[:40] for block in blocks[1:] if "--hash=sha256:" not in block]


def test_the_locks_hold_what_the_project_asks_for(
    requirements: dict[str, Any],
    production: dict[str, str],
    tools: dict[str, str],
    ray: dict[str, str],
    docs: dict[str, str],
) -> None:
    groups, extras = requirements["dependency-groups"], requirements["project"]["optional-dependencies"]
    for wanted, lock in (
        (requirements["project"]["dependencies"] + groups["setup"], production),
        (groups["dev"], tools),
        (extras["ray"], ray),
        (extras["docs"], docs),
    ):
        for requirement in map(Requirement, wanted):
            pinned = lock[canonicalize_name(requirement.name)]
            assert pinned in requirement.specifier, f"{requirement}: pinned to {pinned}: run `make lock`"


def test_what_the_product_imports_is_in_the_production_lock(
    requirements: dict[str, Any], production: dict[str, str]
) -> None:
    """Except extras, which the product asks for by name when it needs one."""
    extras = requirements["project"]["optional-dependencies"]
    known = production.keys() | {
        canonicalize_name(Requirement(distribution).name) for extra in extras.values() for distribution in extra
    }
    providers = packages_distributions()
    imported: dict[str, Path] = {}
    for top in ("src", "tasks", "flows"):
        for path in (REPOSITORY / top).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    imported |= {alias.name.partition(".")[0]: path for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    imported[node.module.partition(".")[0]] = path
    others = imported.keys() - sys.stdlib_module_names - OURS
    assert len(others) > 30
    missing = {
        name: str(imported[name])
        for name in others
        if not {canonicalize_name(distribution) for distribution in providers.get(name, [name])} & known
    }
    assert missing == {}
