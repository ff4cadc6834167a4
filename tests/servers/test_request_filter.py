"""Answers of the servers to forged Host, Origin and Content-Type headers."""

import asyncio
import base64
import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ports import reserved_port

from ratchet.request_filter import BasicAuthentication, RequestFilter
from ratchet.servers import prefect_server, start
from ratchet.servers.addresses import own_origins
from ratchet.servers.private import TiedServers
from ratchet.settings.model import PlatformSettings
from ratchet.workspace import Workspace

HOST = "127.0.0.1"
OWN = ["http://127.0.0.1:4200", "http://localhost:4200", "http://[::1]:4200", "https://ratchet.example"]
JSON = ("content-type", "application/json")
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    text: str


async def app(scope: Any, receive: Any, send: Any) -> None:
    """An application that answers every request."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"passed"})


def send(filtered: Any, method: str, *headers: tuple[str, str], path: str = "/", kind: str = "http") -> Answer:
    """Make one request as a server would pass it on; without a Host header among `headers`, ours is added."""
    sent: list[Any] = []
    given = [] if any(name == "host" for name, _ in headers) else [("host", "127.0.0.1:4200")]
    raw = [(name.encode(), value.encode("latin-1")) for name, value in [*given, *headers]]
    scope = {"type": kind, "method": method, "path": path, "headers": raw}
    scope["extensions"] = {"websocket.http.response": {}}

    async def collect(message: Any) -> None:
        sent.append(message)

    asyncio.run(filtered(scope, None, collect))
    if sent[0]["type"] == "websocket.accept":
        return Answer(101, {}, "")
    received = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], received, sent[1]["body"].decode())


def request(method: str, *headers: tuple[str, str], **more: str) -> Answer:
    filtered = RequestFilter(app, origins=OWN, types=["application/x-protobuf"], uploads=["/files/"])
    return send(filtered, method, *headers, **more)


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:4200", "LocalHost:4200", "[::1]:4200", "[0:0::1]:4200", "ratchet.example", "ratchet.example:443"],
)
def test_request_for_our_own_address_passes(host: str) -> None:
    assert request("GET", ("host", host)).text == "passed"


@pytest.mark.parametrize(
    "host",
    [
        "evil.test", "evil.test:4200", "127.0.0.1", "127.0.0.1:80", "localhost:5000", "10.evil.test:4200",
        "evil@localhost:4200", "localhost:4200.evil.test", "localhost:4200, evil.test", "[::1]", "[::2]:4200",
        "localhost.:4200", "0.0.0.0:4200", "", "ratchet.example:80", "localhost:99999999", "localhost:", "\xe9:4200",
    ],
)  # fmt: skip
def test_foreign_host_is_refused_with_400(host: str) -> None:
    answer = request("GET", ("host", host))
    assert answer.status == 400
    assert "platform.allowed_hosts" in json.loads(answer.text)["detail"]


def test_two_hosts_are_refused() -> None:
    assert request("GET", ("host", "127.0.0.1:4200"), ("host", "evil.test")).status == 400


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.test", "null", "http://localhost:3000", "https://localhost:4200", "http://ratchet.example",
        "http://127.0.0.1:4200.evil.test", "http://evil@127.0.0.1:4200", "file://", "",
    ],
)  # fmt: skip
def test_foreign_origin_is_refused_with_403(method: str, origin: str) -> None:
    answer = request(method, ("origin", origin))
    assert answer.status == 403
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("origin", OWN)
def test_our_own_pages_may_write(origin: str) -> None:
    site = ("sec-fetch-site", "cross-site")  # localhost and 127.0.0.1 are two sites
    assert request("POST", JSON, ("content-length", "2"), ("origin", origin), site).status == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_cross_site_write_without_origin_is_refused(site: str) -> None:
    header = ("sec-fetch-site", site)
    assert [request(method, JSON, header).status for method in ("POST", "DELETE")] == [403, 403]
    assert request("GET", header).status == 200  # a link from a mail to a page
    assert request("POST", JSON, ("sec-fetch-site", "same-origin")).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
@pytest.mark.parametrize(
    "kind",
    [
        "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", None, "",
        "text/plain; x=application/json", "application/jsonp", "text/plain, application/json",
    ],
)  # fmt: skip
def test_body_that_is_not_json_is_refused_with_415(method: str, kind: str | None) -> None:
    headers = [] if kind is None else [("content-type", kind)]
    assert request(method, *headers, ("content-length", "2")).status == 415
    assert request(method, *headers, ("transfer-encoding", "chunked")).status == 415
    assert request(method, *headers, ("content-length", "2"), path="/files/a.txt").status == 200


@pytest.mark.parametrize(
    "kind",
    ["application/json", "Application/JSON; charset=utf-8", "application/cloudevents+json", "application/x-protobuf"],
)
def test_json_and_post_without_body_pass(kind: str) -> None:
    assert request("POST", ("content-type", kind), ("content-length", "2")).status == 200
    assert request("POST", ("content-length", "0")).status == 200


def test_web_socket_is_for_our_own_pages() -> None:
    assert request("GET", ("origin", "http://localhost:4200"), kind="websocket").status == 101
    assert request("GET", kind="websocket").status == 101  # no browser: Prefect's client
    assert request("GET", ("origin", "http://evil.test"), kind="websocket").status == 403
    assert request("GET", ("host", "evil.test:4200"), kind="websocket").status == 400


def test_no_other_page_may_frame_an_answer() -> None:
    headers = request("GET").headers
    assert (headers["x-frame-options"], headers["x-content-type-options"]) == ("SAMEORIGIN", "nosniff")


def basic(credentials: str) -> tuple[str, str]:
    return ("authorization", f"Basic {base64.b64encode(credentials.encode()).decode()}")


def test_basic_authentication_asks_for_name_and_password() -> None:
    asking = BasicAuthentication(app, credentials="ana:s:ö", open_paths=["/health"])
    answer = send(asking, "GET")
    assert (answer.status, answer.headers["www-authenticate"][:6]) == (401, "Basic ")
    assert send(asking, "GET", path="/health").status == 200
    assert send(asking, "GET", basic("ana:s:ö")).status == 200
    bad = [
        basic("ana:s:x"),
        basic(""),
        ("authorization", "Basic !!"),
        ("authorization", ""),
        ("authorization", "Bearer x"),
    ]
    assert [send(asking, "GET", header).status for header in bad] == [401] * len(bad)
    assert send(asking, "GET", basic("ana:s:ö"), basic("ana:s:ö")).status == 401
    assert send(asking, "GET", path="/health/x").status == 401
    assert send(asking, "GET", kind="websocket").status == 401


def test_further_names_are_allowed_with_and_without_a_port() -> None:
    origins = own_origins("10.0.0.7", 4200, public="https://ratchet.example", allowed=["gpu.lan", "other.lan:8080"])
    allowed = RequestFilter(app, origins=origins)
    own = ("10.0.0.7:4200", "gpu.lan:4200", "gpu.lan", "other.lan:8080", "ratchet.example", "localhost:4200")
    assert [send(allowed, "GET", ("host", host)).status for host in own] == [200] * len(own)
    foreign = ("other.lan", "other.lan:4200", "gpu.lan:5000", "ratchet.example:4200", "sub.gpu.lan:4200")
    assert [send(allowed, "GET", ("host", host)).status for host in foreign] == [400] * len(foreign)


def test_server_on_all_interfaces_answers_at_local_addresses() -> None:
    origins = own_origins("0.0.0.0", 4200, public="http://gpu.lan:4200")
    assert {"http://127.0.0.1:4200", "http://localhost:4200", "http://gpu.lan:4200"} <= set(origins)
    assert not [origin for origin in origins if "0.0.0.0" in origin]


def ask(port: int, method: str, path: str, body: str | None = None, **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(HOST, port, timeout=60)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.putrequest(method, path, skip_host="host" in sent)
    content = body.encode() if body is not None else b""
    for name, value in (sent | ({"content-length": str(len(content))} if content else {})).items():
        connection.putheader(name, value)
    connection.endheaders(content or None)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


@pytest.fixture(scope="module")
def prefect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A real Prefect server's port: the one that `ratchet train` starts for itself."""
    with prefect_server(Workspace(tmp_path_factory.mktemp("filter").resolve())) as api:
        yield int(api.rpartition(":")[2].partition("/")[0])


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A real MLflow server's port."""
    workspace, port = Workspace(tmp_path_factory.mktemp("filter-mlflow").resolve()), reserved_port(HOST)
    uri, files = f"sqlite:///{workspace.root}/mlflow.db", (workspace.root / "files").as_uri()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_USERNAME", "ana")
        patch.setenv("MLFLOW_TRACKING_PASSWORD", "secret")
        settings = PlatformSettings(host=HOST, mlflow_port=port)
        servers = TiedServers(workspace, [start.mlflow_launch(workspace, settings, tracking_uri=uri, artifacts=files)])
    try:
        servers.wait()
        yield port
    finally:
        servers.stop()


@pytest.mark.slow
def test_prefects_server_refuses_forged_requests(prefect: int) -> None:
    """Prefect's server alone would accept each of these. A deployment's pull steps run shell commands."""
    json_type, flow = "application/json", json.dumps({"name": "evil"})
    path = "/api/flows/"
    assert ask(prefect, "POST", path, flow, content_type=json_type, host="evil.test")[0] == 400
    assert ask(prefect, "POST", path, flow, content_type=json_type, origin="http://evil.test")[0] == 403
    assert ask(prefect, "OPTIONS", path, origin="http://evil.test", access_control_request_method="POST")[0] == 403
    assert ask(prefect, "POST", path, flow, content_type="text/plain")[0] == 415
    assert ask(prefect, "POST", path, flow)[0] == 415
    upgrade = {"connection": "upgrade", "upgrade": "websocket", "sec_websocket_version": "13",
               "sec_websocket_key": "AAAAAAAAAAAAAAAAAAAAAA=="}  # fmt: skip
    assert ask(prefect, "GET", "/api/events/in", origin="http://evil.test", **upgrade)[0] == 403
    assert ask(prefect, "GET", "/api/events/in", host=f"evil.test:{prefect}", **upgrade)[0] == 400
    assert json.loads(ask(prefect, "POST", f"{path}filter", "{}", content_type=json_type)[1]) == []


@pytest.mark.slow
def test_prefects_server_answers_its_own_pages_alone(prefect: int) -> None:
    connection = http.client.HTTPConnection(HOST, prefect, timeout=60)
    connection.request("GET", "/api/version", headers={"origin": f"http://localhost:{prefect}"})
    answer = connection.getresponse()
    assert answer.headers["access-control-allow-origin"] == f"http://localhost:{prefect}"
    connection.close()


@pytest.mark.slow
def test_mlflows_server_refuses_forged_requests_and_unknown_users(mlflow: int) -> None:
    """MLflow's own check accepts every port of localhost, and every host that begins with 10."""
    login = {"authorization": "Basic YW5hOnNlY3JldA=="}
    path, experiment = "/api/2.0/mlflow/experiments/create", json.dumps({"name": "evil"})
    as_json = {"content_type": "application/json", **login}
    assert ask(mlflow, "POST", path, experiment, **as_json, host=f"10.evil.test:{mlflow}")[0] == 400
    assert ask(mlflow, "POST", path, experiment, **as_json, origin="http://localhost:3000")[0] == 403
    assert ask(mlflow, "POST", path, experiment, content_type="text/plain", **login)[0] == 415
    assert ask(mlflow, "POST", path, experiment, **login)[0] == 415
    assert ask(mlflow, "POST", path, experiment, content_type="application/json")[0] == 401
    assert ask(mlflow, "POST", path, json.dumps({"name": "own"}), **as_json)[0] == 200
    assert ask(mlflow, "GET", "/health")[0] == 200


@pytest.mark.slow
def test_files_of_any_type_are_stored_by_mlflows_server(
    mlflow: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By MLflow's own client, which sends each file under its own type."""
    from mlflow.artifacts import download_artifacts
    from mlflow.store.artifact.mlflow_artifacts_repo import MlflowArtifactsRepository

    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ana")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "secret")
    uri = f"http://{HOST}:{mlflow}"
    store = MlflowArtifactsRepository("mlflow-artifacts:/notes", tracking_uri=uri)
    for name in ("note.txt", "note.html", "note.bin", "note"):
        (tmp_path / name).write_text("text")
        store.log_artifact(str(tmp_path / name))
    assert sorted(file.path for file in store.list_artifacts()) == ["note", "note.bin", "note.html", "note.txt"]
    assert (
        Path(
            download_artifacts("mlflow-artifacts:/notes/note.txt", tracking_uri=uri, dst_path=str(tmp_path / "back"))
        ).read_text()
        == "text"
    )
