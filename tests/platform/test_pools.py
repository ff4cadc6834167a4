"""What Docker and Kubernetes pools are made from: the image's recipe and the two job templates.

The truths are Prefect's own templates, a real Prefect server that takes them, and Kubernetes' schema of a job. No image
is built and no container started here.
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
from prefect.utilities.templating import apply_values

from ratchet.errors import PlatformError
from ratchet.platform import prefect_server
from ratchet.platform.servers import call
from ratchet.workspace import Workspace

REPOSITORY = Path(__file__).parents[2]
POOLS = ("docker", "kubernetes")
KUBERNETES = "1.30"


def template(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((REPOSITORY / "deploy" / f"{kind}.json").read_text())
    return found


def default(template: dict[str, Any], variable: str) -> Any:
    return template["variables"]["properties"][variable].get("default")


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real server's."""
    with prefect_server(Workspace(tmp_path_factory.mktemp("pools").resolve())) as api:
        yield api


@pytest.fixture(scope="module")
def shipped(api: str) -> dict[str, dict[str, Any]]:
    """Prefect's own templates."""
    known = call(api, "/collections/views/aggregate-worker-metadata")
    return {kind: known[f"prefect-{kind}"][kind]["default_base_job_configuration"] for kind in POOLS}


@pytest.mark.parametrize("kind", POOLS)
def test_prefects_server_takes_the_template(kind: str, api: str) -> None:
    made = call(api, "/work_pools/", {"name": kind, "type": kind, "base_job_template": template(kind)})
    assert made["base_job_template"] == template(kind)


def test_prefects_server_refuses_a_template_that_asks_for_what_it_does_not_declare(api: str) -> None:
    broken = template("docker")
    broken["job_configuration"]["image"] = "{{ picture }}"
    with pytest.raises(PlatformError, match="picture"):
        call(api, "/work_pools/", {"name": "broken", "type": "docker", "base_job_template": broken})


def test_the_docker_template_is_prefects_but_for_these_defaults(shipped: dict[str, dict[str, Any]]) -> None:
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
    """They stand beside a field on Prefect's page, and some name places that are not for a project to name."""
    if isinstance(content, dict):
        return {name: without_examples(value) for name, value in content.items() if name != "example"}
    return content


def test_the_kubernetes_template_has_all_that_prefects_has(shipped: dict[str, dict[str, Any]]) -> None:
    own, theirs = template("kubernetes"), shipped["kubernetes"]
    assert set(own["variables"]["properties"]) - set(theirs["variables"]["properties"]) == {"secret"}
    changed = [name for name in theirs["variables"]["properties"] if default(own, name) != default(theirs, name)]
    assert changed == ["image", "finished_job_ttl"]
    without = {name: value for name, value in own["job_configuration"].items() if name != "job_manifest"}
    assert without == {name: value for name, value in theirs["job_configuration"].items() if name != "job_manifest"}


def test_a_kubernetes_job_is_one_that_kubernetes_takes_and_is_not_roots() -> None:
    found = template("kubernetes")
    variables = found["variables"]["properties"]
    values = {name: one["default"] for name, one in variables.items() if "default" in one}
    values |= {
        "name": "run",
        "labels": {"app": "ratchet"},
        "env": [{"name": "PREFECT_API_URL", "value": "http://a/api"}],
    }
    values |= {"command": ["prefect", "flow-run", "execute"], "cpu_request": "2", "memory_limit": "8Gi"}
    job = apply_values(found["job_configuration"]["job_manifest"], values, remove_notset=True)
    assert kubernetes_validate.validate(job, KUBERNETES, strict=True) == KUBERNETES
    pod = job["spec"]["template"]["spec"]
    assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"]) == (True, 1000)
    assert pod["containers"][0]["envFrom"] == [{"secretRef": {"name": "ratchet", "optional": True}}]


def instructions() -> list[tuple[str, str]]:
    """The Containerfile's, each on one line."""
    text = (REPOSITORY / "deploy" / "Containerfile").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    joined = reduce(lambda all, line: all[:-1] + line.strip() if all.endswith("\\") else f"{all}\n{line}", lines)
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines())]


def test_the_image_is_of_a_python_that_the_project_takes_and_ends_as_no_root() -> None:
    found = instructions()
    assert {name for name, _ in found} <= {"FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER"}
    assert found[0] == ("FROM", "python:3.11-slim")
    assert 'requires-python = ">=3.11"' in (REPOSITORY / "pyproject.toml").read_text()
    assert found[-1] == ("USER", "1000:1000")


def test_everything_the_image_installs_is_pinned_by_hash_or_is_the_project_itself() -> None:
    installs = re.findall(r"pip install [^&]*", " && ".join(rest for name, rest in instructions() if name == "RUN"))
    assert len(installs) == 3
    for install in map(shlex.split, installs):
        assert "--require-hashes" in install or ("--no-deps" in install and install[-1] == "."), install
    lock = (REPOSITORY / "requirements.txt").read_text()
    (uv,) = re.findall(r"^uv==.*?# via", lock, re.MULTILINE | re.DOTALL)  # as the recipe's sed cuts it out
    assert "--hash=sha256:" in uv


def test_the_image_says_where_the_project_is_and_what_is_copied_exists() -> None:
    found = instructions()
    (variables,) = [dict(one.split("=") for one in rest.split()) for name, rest in found if name == "ENV"]
    (folder,) = [rest for name, rest in found if name == "WORKDIR"]
    assert variables["RATCHET_ROOT"] == variables["PYTHONPATH"] == folder
    copied = [
        [part for part in rest.split()[:-1] if not part.startswith("--")] for name, rest in found if name == "COPY"
    ]
    assert all((REPOSITORY / source).exists() for sources in copied for source in sources)
    made = " ".join(rest for name, rest in found if name == "RUN").split()
    assert all(place.partition(":")[2] in made for place in default(template("docker"), "volumes"))
