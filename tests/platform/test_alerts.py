"""Alerts, from real trouble of a real Prefect server to a web server and a mail server that keep what they get."""

import json
import re
import time
import uuid
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from ratchet.platform.processes import free_port
from ratchet.platform.record import Record
from ratchet.platform.servers import call

HOST = "127.0.0.1"
HOOK, WORD = f"hooks/{uuid.uuid4().hex}", uuid.uuid4().hex  # drawn: this file itself is copied into the project
KINDS = {
    "Ratchet: a run failed",
    "Ratchet: the data could not be loaded",
    "Ratchet: the data drifted",
    "Ratchet: the machine runs short",
}


@dataclass(frozen=True)
class Alerted:
    """A project whose servers are up, and whose alerts go to these two."""

    project: Any
    secrets: dict[str, str]
    webhook: Any
    post: Any
    api: str

    def run(self, *parameters: str) -> dict[str, Any]:
        """A run of train-flow/local, when it has ended (badly)."""
        given = [word for one in parameters for word in ("--param", one)]
        said = self.project.run("prefect", "deployment", "run", "train-flow/local", *given, "--watch").stdout
        identity = re.search(r"UUID: (\S+)", said)
        assert identity, said
        found: dict[str, Any] = call(self.api, f"/flow_runs/{identity[1]}")
        return found

    def up(self) -> str:
        said: str = self.project.good("ratchet", "up", **self.secrets)
        return said

    def automations(self) -> dict[str, dict[str, Any]]:
        return {one["name"]: one for one in call(self.api, "/automations/filter", {})}

    def emit(self, event: str, resource: str) -> None:
        self.project.good("prefect", "event", "emit", event, "--resource-id", resource)

    def drift(self, model: str) -> None:
        """Another trouble, and wait until it is told: whatever was to be told before has been."""
        self.emit("ratchet.drift.detected", f"ratchet.model.{model}")
        until(lambda: self.told("drift", f"ratchet.model.{model}"))
        until(lambda: self.post.about(f"Drift: ratchet.model.{model}"))

    def told(self, kind: str, words: str) -> list[dict[str, Any]]:
        """What the webhook got of a kind, about a thing."""
        return [content for content in self.webhook.told(kind) if words in content["what"]]


@pytest.fixture(scope="module")
def alerted(new_project: Callable[[str], Any], webhook: Any, post_office: Any) -> Iterator[Alerted]:
    project = new_project("alerted")
    port = free_port(HOST)
    secrets = {
        "RATCHET_ALERTS_WEBHOOK": f"http://{HOST}:{webhook.port}/{HOOK}",
        "RATCHET_ALERTS_SMTP_PASSWORD": WORD,
    }
    project.good(
        "ratchet", "set", f"platform.prefect_port={port}", f"platform.mlflow_port={free_port(HOST)}",
        "alerts.webhook=environment", "alerts.email_to=[ann@example.org, bob@example.org]",
        f"alerts.smtp={HOST}:{post_office.port}", "alerts.smtp_user=ratchet",
        "alerts.free_disk_gib=1.0e9",  # no machine has so much
    )  # fmt: skip
    said = project.good("ratchet", "up", **secrets)
    assert "alerts: to the webhook, ann@example.org, bob@example.org" in said
    try:
        made = Alerted(project, secrets, webhook, post_office, f"http://{HOST}:{port}/api")
        on_drift = made.automations()["on-drift__automation_1"]["id"]  # else an event here would start a training
        call(made.api, f"/automations/{on_drift}", {"enabled": False}, method="PATCH")
        yield made
    finally:
        project.good("ratchet", "down")


def until(true: Callable[[], object]) -> None:
    while not true():
        time.sleep(0.1)


def test_prefect_shows_an_automation_for_each_kind_of_trouble(alerted: Alerted) -> None:
    found = alerted.automations()
    assert found.keys() >= KINDS
    for name in KINDS:
        assert [action["type"] for action in found[name]["actions"]] == ["call-webhook", "send-notification"]
        assert found[name]["enabled"]
        assert "Made by `ratchet up`" in found[name]["description"]


def test_a_short_disk_is_told_to_both(alerted: Alerted) -> None:
    until(lambda: alerted.webhook.told("machine-pressure"))
    until(lambda: alerted.post.about("Running short: disk"))
    told = alerted.webhook.told("machine-pressure")[0]
    assert "GiB are free on the disk of " in told["message"]
    assert told["message"].endswith("; the limit is 1e+09 GiB")
    assert told["next"].startswith("free some space: ")
    assert told["message"] in told["text"]
    assert told["message"].split(";")[0] in alerted.post.about("Running short: disk")[0]


def test_a_failed_run_is_told_to_both_with_its_message_its_page_and_what_to_do(alerted: Alerted) -> None:
    run = alerted.run("revision=none-such")
    until(lambda: alerted.told("failed-run", run["name"]))
    until(lambda: alerted.post.about(run["name"]))
    [told], [letter] = alerted.told("failed-run", run["name"]), alerted.post.about(run["name"])
    assert run["state"]["message"].startswith("revision: ")
    assert told["message"] == run["state"]["message"]
    assert told["page"] == f"{alerted.api.removesuffix('/api')}/runs/flow-run/{run['id']}"
    assert told["subject"] == f"Failed: run {run['name']} of train-flow/local"
    assert "`prefect deployment run train-flow/local`" in told["next"]
    for said in (told["text"], letter):
        for words in (told["message"], told["page"], told["next"]):
            assert words in said
    assert alerted.post.letters[-1]["To"] == "ann@example.org, bob@example.org"


def test_a_failed_data_load_is_told_as_that_and_not_as_a_failed_run_too(alerted: Alerted) -> None:
    data = json.dumps({"data": {"source": "image-folder", "path": 'data/"<none> & {{ such }}'}})
    run = alerted.run(f"overrides={data}")
    assert (run["state"]["type"], run["state"]["name"]) == ("FAILED", "DataLoadFailed")
    until(lambda: alerted.told("failed-data-load", run["name"]))
    until(lambda: alerted.post.about(run["name"]))
    alerted.drift("after-the-data-load")
    [told], [letter] = alerted.told("failed-data-load", run["name"]), alerted.post.about(run["name"])
    assert told["message"] == run["state"]["message"]
    assert told["message"] in letter
    assert 'data/"<none> & {{ such }} does not exist' in told["message"]
    assert not alerted.told("failed-run", run["name"])


def test_a_crashed_run_is_told(alerted: Alerted) -> None:
    deployment = call(alerted.api, "/deployments/name/train-flow/local")
    later = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    waiting = {"state": {"type": "SCHEDULED", "state_details": {"scheduled_time": later}}}
    run = call(alerted.api, f"/deployments/{deployment['id']}/create_flow_run", waiting)
    crashed = {"type": "CRASHED", "name": "Crashed", "message": "The machine lost its power."}
    call(alerted.api, f"/flow_runs/{run['id']}/set_state", {"state": crashed, "force": True})
    until(lambda: alerted.told("failed-run", run["name"]))
    until(lambda: alerted.post.about(f"Crashed: run {run['name']}"))
    [told] = alerted.told("failed-run", run["name"])
    assert told["message"] == "The machine lost its power."


def test_a_drift_event_is_told_once_an_hour_of_each_model(alerted: Alerted) -> None:
    for model in ("digits", "digits", "photos"):
        alerted.emit("ratchet.drift.detected", f"ratchet.model.{model}")
    until(lambda: alerted.told("drift", "ratchet.model.photos"))
    until(lambda: alerted.post.about("Drift: ratchet.model.photos"))
    until(lambda: alerted.post.about("Drift: ratchet.model.digits"))
    assert len(alerted.told("drift", "ratchet.model.digits")) == 1


def test_a_webhook_that_is_down_harms_neither_the_run_nor_the_mail_and_is_told(alerted: Alerted) -> None:
    alerted.webhook.end()
    try:
        run = alerted.run("revision=none-such-either")
        until(lambda: alerted.post.about(run["name"]))
        log = Record.read(alerted.project.workspace).parts["prefect"].log
        said = f"an alert was not delivered: the webhook at http://{HOST} cannot be reached ("
        until(lambda: said in log.read_text())
        assert run["state"]["message"].startswith("revision: ")
        wanted = {"filter": {"event": {"name": ["prefect.automation.action.failed"]}}}
        until(lambda: call(alerted.api, "/events/filter", wanted)["events"])
        failed = call(alerted.api, "/events/filter", wanted)["events"]
        assert {event["resource"]["prefect.resource.name"] for event in failed} == {"Ratchet: a run failed"}
        assert "cannot be reached" in failed[0]["payload"]["reason"]
    finally:
        alerted.webhook.begin()
    alerted.drift("after-the-receiver-was-down")


def test_no_secret_is_in_a_file_or_in_what_prefects_api_gives(alerted: Alerted) -> None:
    """After everything above was sent with them."""
    assert {path for path, _ in alerted.webhook.got} == {f"/{HOOK}"}
    said = b64encode(f"\0ratchet\0{WORD}".encode()).decode()
    assert set(alerted.post.signed_in) == {f"PLAIN {said}"}
    for path in Path(alerted.project.root).rglob("*"):
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            assert not any(secret.encode() in content for secret in (HOOK, WORD, said)), path
    given = json.dumps(
        [
            call(alerted.api, "/block_documents/filter", {"include_secrets": True}),
            call(alerted.api, "/automations/filter", {}),
            call(alerted.api, "/events/filter", {"limit": 50}),
            call(alerted.api, "/logs/filter", {}),
        ]
    )
    assert "ratchet-e-mail" in given
    assert not any(secret in given for secret in (HOOK, WORD, said))


def test_only_prefects_server_has_the_secrets(alerted: Alerted) -> None:
    having = set()
    for name, part in Record.read(alerted.project.workspace).parts.items():
        command = part.command()
        assert command is not None
        if alerted.secrets.keys() & psutil.Process(command.pid).environ().keys():
            having.add(name)
    assert having == {"prefect"}


def test_up_again_leaves_what_holds_and_what_a_person_switched_off(alerted: Alerted) -> None:
    before = alerted.automations()
    off = before["Ratchet: a run failed"]["id"]
    call(alerted.api, f"/automations/{off}", {"enabled": False}, method="PATCH")
    paused = alerted.automations()
    alerted.up()
    assert alerted.automations() == paused
    alerted.project.good("ratchet", "set", "alerts.email_to=[ann@example.org]", "alerts.smtp_user=none")
    alerted.up()
    assert alerted.automations() == paused  # it is the block that changed
    alerted.project.good("ratchet", "set", "alerts.webhook=none")
    alerted.up()
    after = alerted.automations()
    for name in KINDS:
        assert [action["type"] for action in after[name]["actions"]] == ["send-notification"]
        assert after[name]["id"] == before[name]["id"]
    assert not after["Ratchet: a run failed"]["enabled"]
    [block] = call(alerted.api, "/block_documents/filter", {"block_documents": {"name": {"any_": ["ratchet-alerts"]}}})
    assert block["data"]["recipients"] == ["ann@example.org"]


def test_zz_alerts_nobody_asks_for_are_removed_and_a_persons_own_automations_stay(alerted: Alerted) -> None:
    """Last on purpose: it ends what the tests above share."""
    theirs = {
        "name": "Ratchet: a run failed",  # even one of the same name
        "trigger": {"type": "event", "posture": "Reactive", "expect": ["prefect.flow-run.Failed"]},
        "actions": [{"type": "do-nothing"}],
    }
    made = call(alerted.api, "/automations/", theirs)
    alerted.project.good("ratchet", "set", "alerts.email_to=[]")
    assert "alerts:" not in alerted.up()
    left = alerted.automations()
    assert left.keys() & KINDS == {made["name"]}
    assert left[made["name"]]["id"] == made["id"]
    assert "on-drift__automation_1" in left
    assert not call(alerted.api, "/block_documents/filter", {"block_documents": {"name": {"any_": ["ratchet-alerts"]}}})


def test_a_secret_that_is_missing_is_named_before_anything_is_started(project: Any) -> None:
    project.good("ratchet", "set", "alerts.webhook=environment")
    said = project.refused("ratchet", "up")
    assert "RATCHET_ALERTS_WEBHOOK: not in the environment" in said
    assert "`ratchet set alerts.webhook=none`" in said
    assert not (project.root / ".ratchet" / "servers.json").exists()
