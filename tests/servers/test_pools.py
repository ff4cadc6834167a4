"""Sources of Docker and Kubernetes pools: the Containerfile and the two job templates.

They are compared with Prefect's own templates, a real Prefect server that accepts them, and Kubernetes' schema of a
job. No image is built and no container is started here.
"""

import json
import re
import shlex
from collections.abc import Iterator
from copy import deepcopy
from functools import reduce
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.utilities.templating import apply_values

from flows.server.client import prefect_client
from ratchet.errors import PlatformError
from ratchet.servers import prefect_server
from ratchet.workspace import Workspace

REPOSITORY = Path(__file__).parents[2]
POOLS = ("docker", "kubernetes")
KUBERNETES = "1.30"


def template(kind: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((REPOSITORY / "deploy" / f"{kind}.json").read_text())
    return content


def default(template: dict[str, Any], variable: str) -> Any:
    return template["variables"]["properties"][variable].get("default")


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The API address of a real server."""
    with prefect_server(Workspace(tmp_path_factory.mktemp("pools").resolve())) as api:
        yield api


@pytest.fixture(scope="module")
def shipped(api: str) -> dict[str, dict[str, Any]]:
    """Prefect's own templates."""
    with prefect_client(api) as client:
        known = client.read_worker_metadata()
    return {kind: known[f"prefect-{kind}"][kind]["default_base_job_configuration"] for kind in POOLS}


@pytest.mark.slow
@pytest.mark.parametrize("kind", POOLS)
def test_prefects_server_accepts_the_template(kind: str, api: str) -> None:
    with prefect_client(api) as client:
        pool = client.create_work_pool(WorkPoolCreate(name=kind, type=kind, base_job_template=template(kind)))
    assert pool.base_job_template == template(kind)


@pytest.mark.slow
def test_prefects_server_refuses_a_template_with_an_undeclared_variable(api: str) -> None:
    broken = template("docker")
    broken["job_configuration"]["image"] = "{{ undeclared }}"
    pool = WorkPoolCreate.model_construct(name="broken", type="docker", base_job_template=broken)
    with pytest.raises(PlatformError, match="undeclared"), prefect_client(api) as client:
        client.create_work_pool(pool)


@pytest.mark.slow
def test_docker_template_is_prefects_except_these_defaults(shipped: dict[str, dict[str, Any]]) -> None:
    expected = deepcopy(shipped["docker"])
    for variable, value in {
        "image": "ratchet",
        "image_pull_policy": "IfNotPresent",
        "auto_remove": True,
        "volumes": ["ratchet-cache:/project/.dvc/cache"],
    }.items():
        expected["variables"]["properties"][variable]["default"] = value
    assert without_examples(template("docker")) == without_examples(expected)


def without_examples(content: Any) -> Any:
    """Drop the examples, which Prefect's page shows beside a field; some name other hosts."""
    if isinstance(content, dict):
        return {name: without_examples(value) for name, value in content.items() if name != "example"}
    return content


@pytest.mark.slow
def test_kubernetes_template_has_everything_of_prefects(shipped: dict[str, dict[str, Any]]) -> None:
    own, theirs = template("kubernetes"), shipped["kubernetes"]
    assert set(own["variables"]["properties"]) - set(theirs["variables"]["properties"]) == {"secret"}
    changed = [name for name in theirs["variables"]["properties"] if default(own, name) != default(theirs, name)]
    assert changed == ["image", "finished_job_ttl"]
    without = {name: value for name, value in own["job_configuration"].items() if name != "job_manifest"}
    assert without == {name: value for name, value in theirs["job_configuration"].items() if name != "job_manifest"}


def test_kubernetes_job_is_valid_and_does_not_run_as_root() -> None:
    pool = template("kubernetes")
    variables = pool["variables"]["properties"]
    values = {name: variable["default"] for name, variable in variables.items() if "default" in variable}
    values |= {
        "name": "run",
        "labels": {"app": "ratchet"},
        "env": [{"name": "PREFECT_API_URL", "value": "http://a/api"}],
    }
    values |= {"command": ["prefect", "flow-run", "execute"], "cpu_request": "2", "memory_limit": "8Gi"}
    job = apply_values(pool["job_configuration"]["job_manifest"], values, remove_notset=True)
    assert kubernetes_validate.validate(job, KUBERNETES, strict=True) == KUBERNETES
    pod = job["spec"]["template"]["spec"]
    assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"]) == (True, 1000)
    assert pod["containers"][0]["envFrom"] == [{"secretRef": {"name": "ratchet", "optional": True}}]


def instructions() -> list[tuple[str, str]]:
    """Return the Containerfile's instructions, each on one line."""
    text = (REPOSITORY / "deploy" / "Containerfile").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    joined = reduce(lambda all, line: all[:-1] + line.strip() if all.endswith("\\") else f"{all}\n{line}", lines)
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines())]


def test_image_has_a_supported_python_and_no_root_user() -> None:
    steps = instructions()
    assert {name for name, _ in steps} <= {"FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER"}
    assert steps[0] == ("FROM", "python:3.11-slim")
    assert 'requires-python = ">=3.11"' in (REPOSITORY / "pyproject.toml").read_text()
    assert steps[-1] == ("USER", "1000:1000")
    (variables,) = [rest.split() for name, rest in steps if name == "ENV"]
    assert "USER=ratchet" in variables, "DVC needs a name, and this user has no account"


def test_everything_in_the_image_is_pinned_by_hash() -> None:
    installs = re.findall(r"pip install [^&]*", " && ".join(rest for name, rest in instructions() if name == "RUN"))
    assert len(installs) == 3
    for install in map(shlex.split, installs):
        assert "--require-hashes" in install or ("--no-deps" in install and install[-1] == "."), install
    lock = (REPOSITORY / "requirements.txt").read_text()
    (uv,) = re.findall(r"^uv==.*?# via", lock, re.MULTILINE | re.DOTALL)  # as the recipe's sed cuts it out
    assert "--hash=sha256:" in uv


def test_image_names_the_project_folder_and_copies_existing_files() -> None:
    steps = instructions()
    (variables,) = [dict(pair.split("=") for pair in rest.split()) for name, rest in steps if name == "ENV"]
    (folder,) = [rest for name, rest in steps if name == "WORKDIR"]
    assert variables["RATCHET_ROOT"] == variables["PYTHONPATH"] == folder
    copied = [
        [part for part in rest.split()[:-1] if not part.startswith("--")] for name, rest in steps if name == "COPY"
    ]
    assert all((REPOSITORY / source).exists() for sources in copied for source in sources)
    created = " ".join(rest for name, rest in steps if name == "RUN").split()
    assert all(place.partition(":")[2] in created for place in default(template("docker"), "volumes"))
