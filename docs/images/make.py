"""Make the images of the documentation from a real run: `make images`. It needs Chromium and some minutes.

A temporary project trains the built-in digits in a pseudo-terminal, starts the servers, and trains twice more, once by
Prefect's worker. Then a headless browser visits the pages.
"""

import base64
import contextlib
import fcntl
import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

IMAGES = Path(__file__).resolve().parent
TESTS = IMAGES.parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "servers")]

from browser import Browser, chromium  # noqa: E402
from ports import reserved_port  # noqa: E402
from waiting import until  # noqa: E402

from ratchet.data.sources.digits import Digits  # noqa: E402

COLUMNS = 100
SHOWN_FOLDER = "/home/you/models/digits"  # as long as /tmp/tmpXXXXXXXX/digits, so that lines break as they do there
# Lines with what differs from machine to machine and from run to run; they are left out, with their continuations.
OF_THIS_MACHINE = re.compile(r"train: (precision|CPU|CUDA)|export: |  (cost|model card|checkpoint|MLflow run)\b")
RATES_AND_TIMES = re.compile(r"\s+([\d,.]+/s\b|\d+:\d\d:\d\d).*")  # at the end of a bar
SEQUENCES = re.compile(r"\x1b\[\?\d+[hl]")  # hide and show the cursor
FONTS = re.compile(r"@font-face \{\{.*?\}\}\s*", re.DOTALL)  # of another host
READY = "while (!(() => {%s})()) await new Promise(done => setTimeout(done, 100));"

UPLOAD = """
const bytes = Uint8Array.from(atob("%s"), letter => letter.charCodeAt(0));
const list = new DataTransfer();
list.items.add(new File([bytes], "four.png", { type: "image/png" }));
const chooser = document.getElementById("file");
chooser.files = list.files;
chooser.dispatchEvent(new Event("change"));
document.getElementById("predict").click();
"""


# --- The terminal -----------------------------------------------------------------------------------------------------


def record(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    """Run a command in a pseudo-terminal and return its output, escape codes included."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    process = subprocess.Popen(
        command, cwd=folder, env=environment | {"TERM": "xterm-256color"}, stdin=inner, stdout=inner, stderr=inner
    )
    os.close(inner)
    output = b""
    with contextlib.suppress(OSError):  # Linux: the command has closed the terminal
        while piece := os.read(outer, 65536):
            output += piece
    os.close(outer)
    if process.wait():
        sys.exit(f"{' '.join(command)}: exit code {process.returncode}\n{output.decode()}")
    return output.decode()


def lasting_lines(output: str) -> Iterator[Text]:
    """Yield the lines that stay on the terminal: of each bar its last state."""
    for line in SEQUENCES.sub("", output).rstrip().split("\n"):
        yield Text.from_ansi(line.rpartition("\x1b[2K")[2].strip("\r"))


def same_everywhere(lines: Iterator[Text]) -> Iterator[Text]:
    """Yield the lines without what differs from machine to machine and from run to run."""
    left_out, indent = False, 0
    for line in lines:
        depth = len(line.plain) - len(line.plain.lstrip())
        if left_out and (depth > indent or line.plain.startswith("file:")):  # a long address begins its line
            continue
        left_out, indent = bool(OF_THIS_MACHINE.match(line.plain)), depth
        ending = "━" in line.plain and RATES_AND_TIMES.search(line.plain)
        if not left_out:
            yield line[: ending.start()] if ending else line


def drawn(lines: list[Text]) -> str:
    """Return a terminal with these lines as SVG, in the reader's fonts."""
    from rich._export_format import CONSOLE_SVG_FORMAT

    console = Console(width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True, highlight=False)
    for line in lines:
        console.print(line, soft_wrap=True)
    template = FONTS.sub("", CONSOLE_SVG_FORMAT)
    svg = console.export_svg(title="ratchet train", theme=MONOKAI, code_format=template, unique_id="terminal")
    return re.sub("[ \t]+$", "", svg, flags=re.MULTILINE).replace("Fira Code, ", "")


# --- The project ------------------------------------------------------------------------------------------------------


class Project:
    """A temporary project of the built-in digits, with servers at ports of its own."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "digits"
        programs = Path(sys.executable).parent
        self.environment = os.environ | {
            "HOME": str(home),
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "GIT_CONFIG_GLOBAL": str(home / "gitconfig"),
        }
        (home / "gitconfig").write_text("[user]\n\tname = You\n\temail = you@example.org\n")
        self.ports = {name: reserved_port("127.0.0.1") for name in ("prefect", "mlflow", "serving")}
        self.run("ratchet", "new", str(self.folder), at=home)

    def run(self, *command: str, at: Path | None = None) -> None:
        print("$", *command, flush=True)
        subprocess.run(command, cwd=at or self.folder, env=self.environment, check=True)

    @contextlib.contextmanager
    def servers(self) -> Iterator[None]:
        ports = (f"platform.{name}_port={self.ports[name]}" for name in ("prefect", "mlflow"))
        self.run("ratchet", "set", *ports, f"serving.port={self.ports['serving']}")
        try:
            self.run("ratchet", "up")
            yield
        finally:
            self.run("ratchet", "down")

    def address(self, server: str) -> str:
        return f"http://127.0.0.1:{self.ports[server]}"

    def flow_run(self) -> str:
        """Train by Prefect's worker, wait for the end, and return the id of the run."""
        self.run("ratchet", "run", "train-flow/local")
        newest = {"sort": "EXPECTED_START_TIME_DESC", "flow_runs": {"state": {"type": {"not_any_": ["SCHEDULED"]}}}}
        until(lambda: self._flow_runs(newest)[0]["state_type"] == "COMPLETED", seconds=600, pause=1)
        return str(self._flow_runs(newest)[0]["id"])

    def _flow_runs(self, wanted: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            f"{self.address('prefect')}/api/flow_runs/filter",
            json.dumps(wanted).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)


# --- The pages --------------------------------------------------------------------------------------------------------


def shoot(browser: Browser, name: str, url: str, size: tuple[int, int], ready: str, prepare: str = "") -> None:
    """Write a screenshot of a page once the script `ready` returns something true, and after `prepare`."""
    browser.resize(*size, scale=1.5)
    browser.open(url)
    browser.run(READY % ready)
    browser.run(prepare)
    browser.run("await new Promise(done => setTimeout(done, 5000))")  # fonts, and the end of movements
    browser.run("document.documentElement.style.overflow = 'hidden'; scrollTo(0, 0);")
    image = Image.open(io.BytesIO(browser.image())).convert("RGB")
    image.quantize(128, dither=Image.Dither.NONE).save(IMAGES / f"{name}.png", optimize=True)
    print(f"{name}.png: {(IMAGES / f'{name}.png').stat().st_size / 1024:.0f} KiB", flush=True)


def digit() -> str:
    """Return one of the digits as PNG in base 64."""
    content = io.BytesIO()
    Digits().read("00004")[0].save(content, "png")
    return base64.b64encode(content.getvalue()).decode()


def shoot_servers(browser: Browser, project: Project, run: str) -> None:
    """Visit the pages of MLflow, Prefect and the model server."""
    shown = "return document.body.innerText.includes('%s')"
    runs = "#/experiments/1/runs?workflowType=machine_learning&viewStateShareKey=gate"
    close = "for (const each of document.querySelectorAll('[aria-label=\"Close\" i]')) each.click();"
    shoot(browser, "mlflow", f"{project.address('mlflow')}/{runs}", (1800, 560), shown % "matching runs", close)
    shoot(browser, "prefect", f"{project.address('prefect')}/runs/flow-run/{run}", (1200, 570), shown % "Artifacts")
    answered = UPLOAD % digit() + READY % "return document.querySelector('.ids')"
    form = "return document.getElementById('sample')?.offsetParent"
    shoot(browser, "server", project.address("serving"), (1100, 860), form, answered)


def main() -> None:
    """Write all images."""
    with tempfile.TemporaryDirectory() as name:
        home = Path(name).resolve()
        project = Project(home)
        output = record(["ratchet", "train"], project.folder, project.environment)
        command = Text("$ ", style="dim").append("ratchet train", style="bold")
        lines = [command, *same_everywhere(lasting_lines(output.replace(str(project.folder), SHOWN_FOLDER)))]
        (IMAGES / "terminal.svg").write_text(drawn(lines), encoding="utf-8")
        with chromium(home, {}) as browser:
            for page, image in (("report", "report"), ("data", "data-card")):
                url = (project.folder / f"data/reports/{page}.html").as_uri()
                shoot(browser, image, url, (1200, 990), "return document.querySelector('h2')")
            with project.servers():
                project.run("ratchet", "train", "--set", "training.epochs=3")
                project.run("ratchet", "set", "training.epochs=24", "seed=1")
                run = project.flow_run()
                shoot_servers(browser, project, run)


if __name__ == "__main__":
    main()
