"""Kubernetes' manifests in deploy/kubernetes: its schema, and the model server's command and probes on this machine."""

import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import kubernetes_validate
import psutil
import pytest
import yaml
from ports import reserved_port
from scored import TITANIC, Place
from waiting import until

from ratchet import settings
from ratchet.serving.keys import KeyStore
from ratchet.settings.model import Params

REPOSITORY = Path(__file__).parents[2]
VERSIONS = ("1.30", "1.37")
NAMES = ("project", "train", "server")
POD = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def manifests(name: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file, those of a list one by one."""
    for document in yaml.safe_load_all((REPOSITORY / "deploy" / "kubernetes" / f"{name}.yaml").read_text()):
        yield from document["items"] if document["kind"] == "List" else [document]


def pods() -> dict[str, dict[str, Any]]:
    """Return the pod of each stage, and of the server."""
    stages = {each["metadata"]["name"]: each["spec"]["jobTemplate"]["spec"] for each in manifests("train")}
    specs = {**stages, "server": next(manifests("server"))["spec"]}
    return {name: spec["template"]["spec"] for name, spec in specs.items()}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", NAMES)
def test_every_manifest_is_valid(name: str, version: str) -> None:
    for each in manifests(name):
        assert kubernetes_validate.validate(each, version, strict=True) == version


def test_a_misspelt_field_is_refused() -> None:
    deployment = next(manifests("server"))
    deployment["spec"]["template"]["spec"]["terminationGracePeriod"] = 30
    with pytest.raises(kubernetes_validate.ValidationError, match="terminationGracePeriod"):
        kubernetes_validate.validate(deployment, VERSIONS[0], strict=True)


def test_a_killed_pod_is_repeated_and_an_error_is_not() -> None:
    """The exit codes are those of the test below; 137 is a kill for memory."""
    assert all(each["spec"]["suspend"] for each in manifests("train"))
    for each in manifests("train"):
        rules = each["spec"]["jobTemplate"]["spec"]["podFailurePolicy"]["rules"]
        assert [rule["action"] for rule in rules] == ["Ignore", "FailJob"]
        assert rules[1]["onExitCodes"] == {"operator": "In", "values": [1, 2]}


@pytest.mark.parametrize("name", pods())
def test_pods_have_limits_and_no_root_user(name: str) -> None:
    (container,) = pods()[name]["containers"]
    assert container["resources"]["requests"].keys() == {"cpu", "memory"}
    assert "memory" in container["resources"]["limits"]
    assert pods()[name]["securityContext"]["runAsUser"] == 1000
    claims = [each["persistentVolumeClaim"]["claimName"] for each in pods()[name]["volumes"][:1]]
    assert claims == [each["metadata"]["name"] for each in manifests("project")]


def test_the_servers_objects_name_each_other() -> None:
    deployment, service, scaler = manifests("server")
    labels, (container,) = deployment["spec"]["template"]["metadata"]["labels"], pods()["server"]["containers"]
    assert deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"] == labels
    assert service["spec"]["ports"][0]["targetPort"] == container["ports"][0]["name"]
    assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert "replicas" not in deployment["spec"]  # which each `kubectl apply` would set again


def test_the_grace_is_longer_than_the_deadline() -> None:
    pod = pods()["server"]
    pause = int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > pause + Params().serving.deadline + 1


@pytest.mark.system
def test_the_servers_command_answers_its_probes(new_project: Callable[[str], Any], tmp_path: Path) -> None:
    place, port, (container,) = Place(new_project("pod")), reserved_port("0.0.0.0"), pods()["server"]["containers"]
    settings.override(place.workspace.params, {"registry.export": "onnx", "registry.model": "titanic"})
    python, *command = [word if word != "8000" else str(port) for word in container["command"]]
    assert python == "python"
    refused = place.project.refused(sys.executable, *command)
    assert "Allowed beyond loopback: only with an API key" in refused
    KeyStore.of(place.workspace).add("clients")
    log = tmp_path / "server.log"
    process = place.project.start(sys.executable, *command, log=log)

    def probe(name: str) -> int:
        """Ask as kubelet does, by the pod's address."""
        try:
            with urlopen(f"http://{own_address()}:{port}{container[name]['httpGet']['path']}") as answer:
                return int(answer.status)
        except HTTPError as error:
            return error.code

    try:
        until(lambda: probe("startupProbe") == 200, process=process, log=log)
        assert (probe("readinessProbe"), probe("livenessProbe")) == (503, 200)
        place.add("titanic", TITANIC)
        until(lambda: probe("readinessProbe") == 200, process=process, log=log)
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait()
    assert code in (0, -signal.SIGTERM)


@pytest.mark.system
@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts a process as the first of its own namespace")
def test_a_stopped_pod_saves_a_checkpoint_and_continues(new_project: Callable[[str], Any], tmp_path: Path) -> None:
    """The command runs as process 1, as in a pod: without a handler SIGTERM would not end it."""
    project, log = new_project("pod-of-training"), tmp_path / "log"
    settings.override(project.workspace.params, {"training.epochs": 2, "training.checkpoint_steps": 2})
    command = (*POD, *pods()["ratchet-train"]["containers"][0]["command"])
    process = project.start(*command, log=log)
    until(lambda: newest_step(project) > 2, process=process, log=log)
    (first,) = psutil.Process(process.pid).children()
    first.send_signal(signal.SIGTERM)
    assert process.wait() == 1, log.read_text()
    stopped_at = newest_step(project)
    assert f"stopped at step {stopped_at} of " in log.read_text()
    assert f"continues at step {stopped_at} of " in project.good(*command)


def newest_step(project: Any) -> int:
    """Return the step of the newest checkpoint, 0 before the first."""
    names = [path.stem for path in project.workspace.running.glob("*/step-*.safetensors")]
    return max((int(name.removeprefix("step-")) for name in names), default=0)


def own_address() -> str:
    """Return an address of this machine; one beyond loopback, if it has any."""
    entries = [entry.address for each in psutil.net_if_addrs().values() for entry in each]
    addresses = [each for each in entries if each.count(".") == 3]
    return next((each for each in addresses if not each.startswith("127.")), socket.gethostbyname("localhost"))
