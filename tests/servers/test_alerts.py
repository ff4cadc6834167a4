"""Alerts, from events of a real Prefect server to a web server and a mail server that keep what they receive."""

import json
import time
import uuid
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from ports import reserved_port
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.events import Event
from prefect.states import Crashed
from waiting import until

from flows.run_records import close_run
from flows.server.alert_rules import ALERT_RULES
from flows.server.client import prefect_client
from ratchet.monitoring.sketch_log import SketchLog
from ratchet.monitoring.watch import read_state
from ratchet.servers.http import answers, read_json
from ratchet.servers.server_record import ServerRecord
from ratchet.traffic.log_reader import log_folder
from ratchet.traffic.request_log import RequestLog
from ratchet.traffic.schema import Logged

pytestmark = pytest.mark.slow

HOST = "127.0.0.1"
HOOK, WORD = (
    f"hooks/{uuid.uuid4().hex}",
    uuid.uuid4().hex,
)  # random: this file itself is copied
KINDS = {rule.name for rule in ALERT_RULES}


def call(api: str, path: str, body: object = None, *, method: str | None = None) -> Any:
    """Send one request to Prefect's API."""
    with prefect_client(api) as client:
        answer = client.request(method or ("GET" if body is None else "POST"), path, json=body)  # type: ignore[arg-type]
        return answer.json() if answer.content else None


@dataclass(frozen=True)
class Alerted:
    """A project whose servers are up, and whose alerts go to these two receivers."""

    project: Any
    secrets: dict[str, str]
    webhook: Any
    post: Any
    api: str
    mlflow: str

    def create_run(self, *, later: timedelta = timedelta(0), **parameters: object) -> dict[str, Any]:
        """Schedule a run of train-flow/local."""
        deployment = call(self.api, "/deployments/name/train-flow/local")["id"]
        time = (datetime.now(UTC) + later).isoformat()
        scheduled = {"type": "SCHEDULED", "state_details": {"scheduled_time": time}}
        body = {"parameters": parameters, "state": scheduled}
        created: dict[str, Any] = call(self.api, f"/deployments/{deployment}/create_flow_run", body)
        return created

    def read_run(self, run: str) -> dict[str, Any]:
        known: dict[str, Any] = call(self.api, f"/flow_runs/{run}")
        return known

    def waiting_run(self, **state: str) -> dict[str, Any]:
        """Create a run for tomorrow, and set its state as the process of a run does."""
        run = self.create_run(later=timedelta(days=1))["id"]
        call(self.api, f"/flow_runs/{run}/set_state", {"state": state, "force": True})
        return self.read_run(run)

    def up(self) -> str:
        """Start the servers, with the automation off by which an event of drift starts a training.

        Each start makes a new one that is on. It fires once in six hours, and a killed server forgets that it fired.
        """
        output: str = self.project.good("ratchet", "up", **self.secrets)
        on_drift = self.automations()["on-drift__automation_1"]
        if on_drift["enabled"]:
            call(self.api, f"/automations/{on_drift['id']}", {"enabled": False}, method="PATCH")
        return output

    def automations(self) -> dict[str, dict[str, Any]]:
        return {automation["name"]: automation for automation in call(self.api, "/automations/filter", {})}

    def emit(self, event: str, resource: str) -> None:
        emitted = Event(event=event, resource={"prefect.resource.id": resource})
        call(self.api, "/events", [emitted.model_dump(mode="json")])

    def drift(self, model: str) -> None:
        """Cause another alert and wait until it arrives: by then all earlier alerts have arrived."""
        self.emit("ratchet.drift.detected", f"ratchet.model.{model}")
        until(lambda: self.alerts("drift", f"ratchet.model.{model}"))
        until(lambda: self.post.about(f"Drift: ratchet.model.{model}"))

    def alerts(self, kind: str, subject: str) -> list[dict[str, Any]]:
        """Return the alerts of a kind that the webhook received about `subject`, such as the id of a run."""
        return [content for content in self.webhook.alerts(kind) if subject in content["what"] + content["page"]]


@pytest.fixture(scope="module")
def alerted(new_project: Callable[[str], Any], webhook: Any, post_office: Any) -> Iterator[Alerted]:
    project = new_project("alerted")
    port, mlflow_port = reserved_port(HOST), reserved_port(HOST)
    secrets = {
        "RATCHET_ALERTS_WEBHOOK": f"http://{HOST}:{webhook.port}/{HOOK}",
        "RATCHET_ALERTS_SMTP_PASSWORD": WORD,
    }
    project.good(
        "ratchet", "set", f"platform.prefect_port={port}", f"platform.mlflow_port={mlflow_port}",
        f"serving.port={reserved_port(HOST)}", "serving.model=digits@champion", "serving.poll=0.3",
        "alerts.webhook=environment", "alerts.email_to=[ann@example.org, bob@example.org]",
        f"alerts.smtp={HOST}:{post_office.port}", "alerts.smtp_user=ratchet",
        "alerts.free_disk_gib=1.0e9",  # more than any machine has
    )  # fmt: skip
    servers = Alerted(
        project, secrets, webhook, post_office, f"http://{HOST}:{port}/api", f"http://{HOST}:{mlflow_port}"
    )
    try:
        assert "alerts: to the webhook, ann@example.org, bob@example.org" in servers.up()
        yield servers
    finally:
        project.good("ratchet", "down")


def test_prefect_has_an_automation_for_each_alert_rule(alerted: Alerted) -> None:
    automations = alerted.automations()
    assert automations.keys() >= KINDS
    for name in KINDS:
        assert [action["type"] for action in automations[name]["actions"]] == ["call-webhook", "send-notification"]
        assert automations[name]["enabled"]
        assert "Created by `ratchet up`" in automations[name]["description"]


def test_low_disk_space_is_reported_to_both(alerted: Alerted) -> None:
    until(lambda: alerted.webhook.alerts("machine-pressure"))
    until(lambda: alerted.post.about("Running short: disk"))
    alert = alerted.webhook.alerts("machine-pressure")[0]
    assert "GiB are free on the disk of " in alert["message"]
    assert alert["message"].endswith("; the limit is 1e+09 GiB")
    assert alert["next"].startswith("free some space: ")
    assert alert["message"] in alert["text"]
    assert alert["message"].split(";")[0] in alerted.post.about("Running short: disk")[0]


def test_version_that_cannot_be_served_is_reported(alerted: Alerted) -> None:
    def ask(path: str, **body: str) -> Any:
        return read_json(f"{alerted.mlflow}/api/2.0/mlflow/{path}", body, timeout=30.0)

    experiment = ask("experiments/create", name="by hand")["experiment_id"]
    run = ask("runs/create", experiment_id=experiment)["run"]["info"]
    ask("registered-models/create", name="digits")
    ask("model-versions/create", name="digits", source=f"{run['artifact_uri']}/model", run_id=run["run_id"])
    ask("registered-models/alias", name="digits", alias="champion", version="1")
    until(lambda: alerted.webhook.alerts("version-not-served"))
    (alert,) = alerted.webhook.alerts("version-not-served")
    assert alert["subject"] == "Not served: digits version 1"
    assert "models:/digits/1" in alert["message"]
    assert alert["message"].endswith("No version answers")
    assert "`ratchet rollback digits --why ...`" in alert["next"]


def test_drift_of_logged_requests_alerts_and_starts_one_run(alerted: Alerted) -> None:
    """Also if the flow's process is killed after it sent the event, and before it wrote that down."""
    workspace, begin = alerted.project.workspace, time.time() // 3600 * 3600 - 72 * 3600
    folder = log_folder(workspace)
    sketches = SketchLog(folder, window=60)
    log = RequestLog(folder, share=1.0, inputs="none", days=30.0, mib=64.0, sketches=sketches)
    for hour in range(70):
        answers = np.random.default_rng(hour).random((200, 1)).astype(np.float32) ** (3 if hour > 50 else 1)
        request = Logged(f"{hour:032x}", begin + 3600 * hour, 0.01, "own", "watched", "1", "record", "ann", {}, answers)
        log.add(request.answer, lambda request=request: request)
    log.close()
    path = f"/automations/{alerted.automations()['on-drift__automation_1']['id']}"
    runs = {"deployments": {"name": {"any_": ["on-drift"]}}}
    monitor = ("python", "-c", "from flows.monitor import monitor_flow; monitor_flow()")
    call(alerted.api, "/work_pools/local", {"is_paused": True}, method="PATCH")  # so that no worker trains
    call(alerted.api, path, {"enabled": True}, method="PATCH")
    try:
        alerted.project.good(*monitor, PREFECT_API_URL=alerted.api)
        server = Path(ServerRecord.read(workspace).services["prefect"].log)
        [run] = until(lambda: call(alerted.api, "/flow_runs/filter", runs), log=server)
        state = read_state(workspace)
        assert state is not None
        [key] = state.sent
        stored = workspace.state / "monitoring" / "state.json"
        stored.write_text(stored.read_text().replace(f'["{key}"]', "[]"))
        alerted.project.good(*monitor, PREFECT_API_URL=alerted.api)
        until(lambda: alerted.alerts("drift", "watched/1"))
        alerted.drift("after-the-watched-one")
        assert [each["id"] for each in call(alerted.api, "/flow_runs/filter", runs)] == [run["id"]]
    finally:
        call(alerted.api, path, {"enabled": False}, method="PATCH")
        for left in call(alerted.api, "/flow_runs/filter", runs):
            call(alerted.api, f"/flow_runs/{left['id']}", method="DELETE")
        call(alerted.api, "/work_pools/local", {"is_paused": False}, method="PATCH")
    [alert] = alerted.alerts("drift", "watched/1")
    assert alert["message"].startswith("watched/1: drift since ")
    assert str(workspace.state / "monitoring" / "drift.html") in alert["next"]
    sent = call(alerted.api, "/events/filter", {"filter": {"event": {"name": ["ratchet.drift.detected"]}}})["events"]
    assert [event["payload"]["key"] for event in sent if event["payload"]] == [key]


def test_failed_run_is_reported_to_both(alerted: Alerted) -> None:
    run = alerted.waiting_run(type="FAILED", name="Failed", message="revision: none-such is not in this repository")
    until(lambda: alerted.alerts("failed-run", run["id"]))
    until(lambda: alerted.post.about(run["id"]))
    [alert], [message] = alerted.alerts("failed-run", run["id"]), alerted.post.about(run["id"])
    assert alert["message"] == run["state"]["message"]
    assert alert["page"] == f"{alerted.api.removesuffix('/api')}/runs/flow-run/{run['id']}"
    assert alert["subject"] == f"Failed: run {run['name']} of train-flow/local"
    assert f"`prefect flow-run retry {run['id']}`, which runs it with the same parameters" in alert["next"]
    for text in (alert["text"], message):
        for expected in (alert["message"], alert["page"], alert["next"]):
            assert expected in text
    assert alerted.post.messages[-1]["To"] == "ann@example.org, bob@example.org"


def test_failed_data_load_is_reported_only_as_that(alerted: Alerted) -> None:
    """The state is that which a run leaves: tests/system/test_deployment.py."""
    message = 'data.path: data/"<none> & {{ such }} does not exist'
    run = alerted.waiting_run(type="FAILED", name="DataLoadFailed", message=message)
    until(lambda: alerted.alerts("failed-data-load", run["id"]))
    until(lambda: alerted.post.about(run["id"]))
    alerted.drift("after-the-data-load")
    [alert], [message] = alerted.alerts("failed-data-load", run["id"]), alerted.post.about(run["id"])
    assert alert["message"] == run["state"]["message"]
    assert alert["message"] in message
    assert not alerted.alerts("failed-run", run["id"])


def test_crashed_run_is_reported(alerted: Alerted) -> None:
    run = alerted.waiting_run(type="CRASHED", name="Crashed", message="The machine lost its power.")
    until(lambda: alerted.alerts("failed-run", run["id"]))
    until(lambda: alerted.post.about(f"Crashed: run {run['name']}"))
    [alert] = alerted.alerts("failed-run", run["id"])
    assert alert["message"] == "The machine lost its power."


def test_run_that_ratchet_down_ends_sends_no_alert(alerted: Alerted) -> None:
    """Wherever it is: this one has just begun."""
    run = alerted.create_run()["id"]
    until(lambda: alerted.read_run(run)["state_name"] == "Running")
    alerted.project.good("ratchet", "down")
    alerted.up()
    state = alerted.read_run(run)["state"]
    assert state["name"] == "Stopped", state
    assert f"`prefect flow-run retry {run}`" in state["message"] or "retry it" in state["message"]
    alerted.drift("after-down")
    assert not alerted.alerts("failed-run", run)


def test_dead_run_is_reported_at_once_after_a_restart(alerted: Alerted) -> None:
    """Prefect's new process has not seen the state before, which is younger than five minutes."""
    run = alerted.waiting_run(type="RUNNING", name="Running")
    services = ServerRecord.read(alerted.project.workspace).services
    psutil.Process(services["prefect"].pid).kill()
    until(
        lambda: ServerRecord.read(alerted.project.workspace).services["prefect"].restarts > services["prefect"].restarts
    )
    until(lambda: answers(f"{alerted.api}/health"))
    with prefect_client(alerted.api) as client:
        close_run(client, client.read_flow_run(uuid.UUID(run["id"])), Crashed(message="Its process ended."))
    until(lambda: alerted.alerts("failed-run", run["id"]), seconds=120)
    [alert] = alerted.alerts("failed-run", run["id"])
    assert (alert["subject"].split(":")[0], alert["message"]) == ("Crashed", "Its process ended.")


def test_drift_is_reported_once_an_hour_for_each_model(alerted: Alerted) -> None:
    for model in ("digits", "digits", "photos"):
        alerted.emit("ratchet.drift.detected", f"ratchet.model.{model}")
    until(lambda: alerted.alerts("drift", "ratchet.model.photos"))
    until(lambda: alerted.post.about("Drift: ratchet.model.photos"))
    until(lambda: alerted.post.about("Drift: ratchet.model.digits"))
    assert len(alerted.alerts("drift", "ratchet.model.digits")) == 1


def test_unreachable_webhook_affects_neither_run_nor_mail(alerted: Alerted) -> None:
    alerted.webhook.end()
    try:
        run = alerted.waiting_run(type="FAILED", name="Failed", message="the disk is full")
        until(lambda: alerted.post.about(run["id"]))
        log = Path(ServerRecord.read(alerted.project.workspace).services["prefect"].log)
        line = f"an alert was not delivered: the webhook at http://{HOST} cannot be reached ("
        until(lambda: line in log.read_text())
        assert alerted.read_run(run["id"])["state"] == run["state"]
        wanted = {"filter": {"event": {"name": ["prefect.automation.action.failed"]}}}
        until(lambda: call(alerted.api, "/events/filter", wanted)["events"])
        failed = call(alerted.api, "/events/filter", wanted)["events"]
        assert {event["resource"]["prefect.resource.name"] for event in failed} == {"Ratchet: a run failed"}
        assert "cannot be reached" in failed[0]["payload"]["reason"]
    finally:
        alerted.webhook.begin()
    alerted.drift("after-the-receiver-was-down")


def test_no_secret_is_in_a_file_or_in_prefects_api(alerted: Alerted) -> None:
    """Checked after everything above was sent with the secrets."""
    assert {path for path, _ in alerted.webhook.got} == {f"/{HOOK}"}
    login = b64encode(f"\0ratchet\0{WORD}".encode()).decode()
    assert set(alerted.post.signed_in) == {f"PLAIN {login}"}
    for path in Path(alerted.project.root).rglob("*"):
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            assert not any(secret.encode() in content for secret in (HOOK, WORD, login)), path
    given = json.dumps(
        [
            call(alerted.api, "/block_documents/filter", {"include_secrets": True}),
            call(alerted.api, "/automations/filter", {}),
            call(alerted.api, "/events/filter", {"limit": 50}),
            call(alerted.api, "/logs/filter", {}),
        ]
    )
    assert "ratchet-e-mail" in given
    assert not any(secret in given for secret in (HOOK, WORD, login))


def test_prefects_api_returns_the_secrets_of_its_own_blocks(alerted: Alerted) -> None:
    """The reason for blocks of our own, which hold no secret: every client of the API could read them."""
    word = uuid.uuid4().hex
    block = CustomWebhookNotificationBlock(name="own", url="http://127.0.0.1:9/{{ word }}", secrets={"word": word})
    with prefect_client(alerted.api):
        block.save("own")
    named = {"include_secrets": True, "block_documents": {"name": {"any_": ["own"]}}}
    [document] = call(alerted.api, "/block_documents/filter", named)
    assert document["data"]["secrets"] == {"word": word}


def test_only_prefects_server_gets_the_secrets(alerted: Alerted) -> None:
    having = set()
    for name, service in ServerRecord.read(alerted.project.workspace).services.items():
        assert service.pid is not None
        if alerted.secrets.keys() & psutil.Process(service.pid).environ().keys():
            having.add(name)
    assert having == {"prefect"}
    supervisor = psutil.Process(ServerRecord.read(alerted.project.workspace).pid)
    assert not alerted.secrets.keys() & supervisor.environ().keys()


def test_up_keeps_unchanged_and_disabled_automations(alerted: Alerted) -> None:
    before = alerted.automations()
    off = before["Ratchet: a run failed"]["id"]
    call(alerted.api, f"/automations/{off}", {"enabled": False}, method="PATCH")
    paused = alerted.automations()
    alerted.project.good("ratchet", "set", "alerts.email_to=[ann@example.org]", "alerts.smtp_user=none")
    alerted.up()
    assert alerted.automations() == paused  # only the block changed
    alerted.project.good("ratchet", "set", "alerts.webhook=none")
    alerted.up()
    after = alerted.automations()
    for name in KINDS:
        assert [action["type"] for action in after[name]["actions"]] == ["send-notification"]
        assert after[name]["id"] == before[name]["id"]
    assert not after["Ratchet: a run failed"]["enabled"]
    [block] = call(alerted.api, "/block_documents/filter", {"block_documents": {"name": {"any_": ["ratchet-alerts"]}}})
    assert block["data"]["recipients"] == ["ann@example.org"]


def test_zz_disabled_alerts_are_removed_and_users_automations_stay(alerted: Alerted) -> None:
    """Last on purpose: it removes the alerts that the tests above share."""
    theirs = {
        "name": "Ratchet: a run failed",  # even one of the same name
        "trigger": {"type": "event", "posture": "Reactive", "expect": ["prefect.flow-run.Failed"]},
        "actions": [{"type": "do-nothing"}],
    }
    own = call(alerted.api, "/automations/", theirs)
    alerted.project.good("ratchet", "set", "alerts.email_to=[]")
    assert "alerts:" not in alerted.up()
    remaining = alerted.automations()
    assert remaining.keys() & KINDS == {own["name"]}
    assert remaining[own["name"]]["id"] == own["id"]
    assert "on-drift__automation_1" in remaining
    assert not call(alerted.api, "/block_documents/filter", {"block_documents": {"name": {"any_": ["ratchet-alerts"]}}})


def test_missing_secret_is_named_before_anything_starts(project: Any) -> None:
    project.good("ratchet", "set", "alerts.webhook=environment")
    output = project.refused("ratchet", "up")
    assert "RATCHET_ALERTS_WEBHOOK: not in the environment" in output
    assert "`ratchet set alerts.webhook=none`" in output
    assert not (project.root / ".ratchet" / "servers.json").exists()
