"""The pages of the servers that `ratchet up` starts work in real Chromium; test_request_filter.py has the refusals."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

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
DEPLOY = """
const [api, name] = args;
const send = async (path, body) => {
    const all = {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body)};
    let answer;
    do answer = await fetch(api + path, all); while (answer.status == 503);  // its SQLite is busy
    return answer;
};
const answer = await send("/flows/", {name});
if (!answer.ok) return answer.status;
const flow = await answer.json();
const pull_steps = [{"prefect.deployments.steps.run_shell_script": {"script": "touch attacked"}}];
return (await send("/deployments/", {name, flow_id: flow.id, pull_steps})).status;
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
    """Both servers, and a browser."""

    prefect: int
    mlflow: int
    browser: Browser

    @property
    def api(self) -> str:
        return f"http://{HOST}:{self.prefect}/api"


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
    with serve(folder, HOST, prefect, mlflow), chromium(folder, {}) as browser:
        yield Running(prefect, mlflow, browser)


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
