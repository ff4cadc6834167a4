"""A hostile web page, in real Chromium, tries to reach the servers that `ratchet up` starts."""

import http.server
import json
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from ports import reserved_port

from ratchet import settings
from ratchet.servers import start
from ratchet.servers.private import TiedServers
from ratchet.settings.model import PlatformSettings
from ratchet.workspace import Workspace

from .browser import Browser, chromium, needs_chromium

pytestmark = pytest.mark.slow

HOST = "127.0.0.1"
NOWHERE: Mapping[str, str] = MappingProxyType({})
# All resolve to this machine. MLflow's own default patterns take 10.rebound.test for a private address.
NAMES = dict.fromkeys(("evil.test", "rebound.test", "10.rebound.test"), HOST)

DEPLOY = """
const [api, name] = args;
const send = (path, body) => fetch(api + path, {
    method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body)});
const answer = await send("/flows/", {name});
if (!answer.ok) return answer.status;
const flow = await answer.json();
const pull_steps = [{"prefect.deployments.steps.run_shell_script": {"script": "touch attacked"}}];
return (await send("/deployments/", {name, flow_id: flow.id, pull_steps})).status;
"""
# Requests that a browser sends to any address without asking it first.
BLIND = """
const [url, body] = args;
const text = JSON.stringify(body);
await fetch(url, {method: "POST", mode: "no-cors", headers: {"Content-Type": "text/plain"}, body: text});
await fetch(url, {method: "POST", mode: "no-cors", body: new Blob([text])});
navigator.sendBeacon(url, new Blob([text]));
const frame = document.createElement("iframe");
frame.name = url;
document.body.append(frame);
const form = document.createElement("form");
Object.assign(form, {method: "post", enctype: "text/plain", action: url, target: url});
const field = document.createElement("input");
Object.assign(field, {name: text.slice(0, -1) + ',"tags": {"x":"', value: '"}}'});
form.append(field);
document.body.append(form);
await new Promise(resolve => { frame.onload = frame.onerror = resolve; form.submit(); setTimeout(resolve, 5000); });
return "sent";
"""
SOCKET = """
const [url] = args;
return await new Promise(resolve => {
    const socket = new WebSocket(url);
    socket.onopen = () => resolve("open");
    socket.onerror = () => resolve("refused");
});
"""
READ = "const [url] = args; const answer = await fetch(url); return answer.status;"
# Waits for an answer that the page's own program got.
CALLED = """
const [start, pattern] = args;
for (;;) {
    const good = one => one.name.startsWith(start) && one.name.match(pattern) && one.responseStatus === 200;
    const found = performance.getEntriesByType("resource").find(good);
    if (found) return found.name;
    await new Promise(resolve => setTimeout(resolve, 100));
}
"""
CREATE = """
const [url, name] = args;
const answer = await fetch(url, {
    method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify({name})});
return answer.status;
"""


@dataclass(frozen=True)
class Running:
    """Both servers, a hostile web server, and a browser."""

    prefect: int
    mlflow: int
    hostile: int
    browser: Browser

    @property
    def api(self) -> str:
        return f"http://{HOST}:{self.prefect}/api"

    @property
    def experiments(self) -> str:
        return f"http://{HOST}:{self.mlflow}/api/2.0/mlflow/experiments"

    def created(self) -> list[str]:
        """Return the names of everything created in either server."""
        flows = [flow["name"] for flow in ask(f"{self.api}/flows/filter", {})]
        deployments = [deployment["name"] for deployment in ask(f"{self.api}/deployments/filter", {})]
        experiments = ask(f"{self.experiments}/search", {"max_results": 100})["experiments"]
        return [*flows, *deployments, *(experiment["name"] for experiment in experiments)]


def ask(url: str, body: object) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>kittens</title><body>")

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serve(folder: Path, host: str, prefect: int, mlflow: int, public: Mapping[str, str] = NOWHERE) -> Iterator[None]:
    """Start both servers; `public` are their addresses for browsers."""
    workspace = Workspace(folder / "project")
    workspace.root.mkdir()
    workspace.params.write_text(settings.template())
    platform = PlatformSettings(
        host=host,
        prefect_port=prefect,
        mlflow_port=mlflow,
        public_url=public.get("prefect", "auto"),
        mlflow_public_url=public.get("mlflow", "auto"),
    )
    tracking, artifacts = f"sqlite:///{workspace.root}/mlflow.db", (workspace.root / "files").as_uri()
    second = start.mlflow_launch(workspace, platform, tracking_uri=tracking, artifacts=artifacts)
    servers = TiedServers(workspace, [start.prefect_launch(workspace, platform), second])
    try:
        servers.wait()
        yield
    finally:
        servers.stop()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("browsers").resolve()
    prefect, mlflow = reserved_port(HOST), reserved_port(HOST)
    hostile = http.server.ThreadingHTTPServer((HOST, 0), _Page)
    threading.Thread(target=hostile.serve_forever, daemon=True).start()
    with serve(folder, HOST, prefect, mlflow), chromium(folder, NAMES) as browser:
        yield Running(prefect, mlflow, hostile.server_address[1], browser)
    hostile.shutdown()
    hostile.server_close()


@needs_chromium
def test_foreign_page_cannot_create_a_deployment(running: Running) -> None:
    running.browser.open(f"http://evil.test:{running.hostile}/")
    assert "Failed to fetch" in str(running.browser.run(DEPLOY, running.api, "evil-json"))
    assert "Failed to fetch" in str(running.browser.run(READ, f"{running.api}/version"))
    assert not [name for name in running.created() if "evil" in name]


@needs_chromium
def test_foreign_page_cannot_post_without_preflight(running: Running) -> None:
    """Plain text, no content type, a beacon and a form: a browser sends these without asking the server first."""
    running.browser.open(f"http://evil.test:{running.hostile}/")
    assert running.browser.run(BLIND, f"{running.api}/flows/", {"name": "evil-flow"}) == "sent"
    assert running.browser.run(BLIND, f"{running.experiments}/create", {"name": "evil-experiment"}) == "sent"
    assert not [name for name in running.created() if "evil" in name]


@needs_chromium
def test_rebound_name_reaches_nothing(running: Running) -> None:
    """The page's own name resolves to this machine, so that the browser takes the servers for the page's own."""
    for name in ("rebound.test", "10.rebound.test"):
        running.browser.open(f"http://{name}:{running.prefect}/")
        assert running.browser.run(DEPLOY, "/api", "evil-rebound") == 400
        running.browser.open(f"http://{name}:{running.mlflow}/")
        assert running.browser.run(CREATE, "/api/2.0/mlflow/experiments/create", "evil-rebound") == 400
    assert not [name for name in running.created() if "evil" in name]


@needs_chromium
def test_foreign_page_cannot_open_a_web_socket(running: Running) -> None:
    running.browser.open(f"http://evil.test:{running.hostile}/")
    assert running.browser.run(SOCKET, f"ws://{HOST}:{running.prefect}/api/events/in") == "refused"
    running.browser.open(f"http://rebound.test:{running.prefect}/")
    assert running.browser.run(SOCKET, f"ws://rebound.test:{running.prefect}/api/events/in") == "refused"


@needs_chromium
def test_another_port_of_this_machine_is_foreign(running: Running) -> None:
    running.browser.open(f"http://localhost:{running.hostile}/")
    assert "Failed to fetch" in str(running.browser.run(DEPLOY, running.api, "evil-port"))
    assert "Failed to fetch" in str(running.browser.run(CREATE, f"{running.experiments}/create", "evil-port"))
    assert not [name for name in running.created() if "evil" in name]


@needs_chromium
@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_our_own_pages_work(running: Running, name: str) -> None:
    """Under each of the machine's own names, where the page's own API is at 127.0.0.1."""
    browser = running.browser
    browser.open(f"http://{name}:{running.prefect}/")
    page = browser.run("return await (await fetch('/ui-settings')).json();")
    assert page["api_url"] == running.api
    assert browser.run(DEPLOY, page["api_url"], f"own-{name}") in (200, 201)
    assert browser.run(SOCKET, f"ws://{HOST}:{running.prefect}/api/events/in") == "open"
    assert browser.run(CALLED, f"{running.api}/", "/(filter|count|history|lateness)$")
    browser.open(f"http://{name}:{running.mlflow}/")
    assert browser.run(CALLED, f"http://{name}:{running.mlflow}/", "/ajax-api/")
    assert browser.run(CREATE, "/ajax-api/2.0/mlflow/experiments/create", f"own-{name}") == 200


@needs_chromium
def test_public_url_works_in_a_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On all interfaces, with passwords, under a name of another machine's choice."""
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "team:secret")
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "team")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "secret")
    prefect, mlflow = reserved_port("0.0.0.0"), reserved_port("0.0.0.0")
    public = {"prefect": f"http://gpu.lan:{prefect}", "mlflow": f"http://gpu.lan:{mlflow}"}
    with serve(tmp_path, "0.0.0.0", prefect, mlflow, public), chromium(tmp_path, {"gpu.lan": HOST}) as browser:
        browser.open(public["prefect"])
        page = browser.run("return await (await fetch('/ui-settings')).json();")
        assert (page["api_url"], page["auth"]) == (f"{public['prefect']}/api", "BASIC")
        assert browser.run(READ, f"{page['api_url']}/version") == 401
        # As Prefect's sign-in form stores "team:secret".
        browser.run("localStorage.setItem('prefect-password', btoa(args[0]));", "team:secret")
        browser.open(public["prefect"])
        assert browser.run(CALLED, f"{page['api_url']}/", "/(filter|count|history|lateness)$")
        browser.open(public["mlflow"].replace("://", "://team:secret@"))  # as by the browser's own prompt
        browser.open(public["mlflow"])
        assert browser.run(CALLED, public["mlflow"], "/ajax-api/")
