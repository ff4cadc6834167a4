"""Drive a real Chromium through chromedriver's HTTP interface (W3C WebDriver)."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ports import reserved_port
from waiting import until

from ratchet.servers.http import answers

CHROMIUM, DRIVER = (shutil.which(name) for name in ("chromium", "chromedriver"))
needs_chromium = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="chromium or chromedriver is not installed")


class Browser:
    """One headless browser window."""

    def __init__(self, driver: str, names: dict[str, str]) -> None:
        """Start a window in which each of `names` resolves to an address."""
        rules = ", ".join(f"MAP {name} {address}" for name, address in names.items())
        arguments = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", f"--host-resolver-rules={rules}",
        ]  # fmt: skip
        options = {"binary": CHROMIUM, "args": arguments}
        wanted = {"browserName": "chrome", "timeouts": {"script": None}, "goog:chromeOptions": options}
        session = _post(f"{driver}/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"{driver}/session/{session['sessionId']}"

    def open(self, url: str) -> None:
        _post(f"{self._session}/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """Run the body of an async JavaScript function in the page and return its result."""
        # The last argument is WebDriver's callback.
        body = f"const done = arguments[arguments.length - 1]; const given = [...arguments].slice(0, -1);\
            (async (...args) => {{ {script} }})(...given).then(done, error => done(`error: ${{error}}`));"
        return _post(f"{self._session}/execute/async", {"script": body, "args": list(arguments)})

    def resize(self, width: int, height: int, *, dark: bool = False, scale: float = 1) -> None:
        """Show pages in a window of this size, in light or dark colours, on a screen of `scale` dots a pixel."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
        self._devtools("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._devtools("Emulation.setEmulatedMedia", {"features": [scheme]})

    def screenshot(self, path: Path, width: int) -> int:
        """Write the whole page at this width as PNG; return the width of its content in pixels."""
        self.resize(width, 900)
        path.write_bytes(self.image(captureBeyondViewport=True))
        content: int = self.run("return document.documentElement.scrollWidth")
        return content

    def image(self, **options: Any) -> bytes:
        """Return what the window shows as PNG; options are those of `Page.captureScreenshot`."""
        return base64.b64decode(self._devtools("Page.captureScreenshot", options)["data"])

    def _devtools(self, command: str, parameters: dict[str, Any]) -> Any:
        return _post(f"{self._session}/goog/cdp/execute", {"cmd": command, "params": parameters})

    def close(self) -> None:
        request = urllib.request.Request(self._session, method="DELETE")
        urllib.request.urlopen(request, timeout=120).close()


@contextmanager
def chromium(folder: Path, names: dict[str, str]) -> Iterator[Browser]:
    """Yield a browser that ends on leaving; the driver's log is in `folder`."""
    port = reserved_port("127.0.0.1")
    assert DRIVER
    # A path of its own: Chromium's socket is in the profile, and a socket's path has at most 107 characters.
    profile = Path(tempfile.mkdtemp())
    with (folder / "chromedriver.log").open("wb") as log:
        process = subprocess.Popen([DRIVER, f"--port={port}"], stdout=log, stderr=log, env=_environment(profile))
    try:
        driver = f"http://127.0.0.1:{port}"
        until(lambda: answers(f"{driver}/status"), process=process, log=folder / "chromedriver.log", pause=0.1)
        browser = Browser(driver, names)
        try:
            yield browser
        finally:
            browser.close()
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(profile, ignore_errors=True)  # a process of Chromium may still write into it


def _environment(folder: Path) -> dict[str, str]:
    return os.environ | {"PATH": "/usr/bin:/bin", "HOME": str(folder), "TMPDIR": str(folder)}


def _post(url: str, body: object) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as response:
        return json.load(response)["value"]
