"""Promotions, rollbacks, broken versions and kills of the model server while clients ask all the time.

The truth of each answer is the version's own: loaded from the registry by the test, and by MLflow's loader.
RATCHET_PROMOTIONS sets another number of promotions than 8.
"""

import json
import os
import random
import re
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
from ports import reserved_port
from waiting import let_run, until

from ratchet import files, settings
from ratchet.checksums import seal
from ratchet.registry.models import CHECKSUMS_TAG
from ratchet.serving.versions.alias_watcher import load
from tests.serving.test_model_server import ANIMALS, HOST, INFER, SPECS, Served

pytestmark = pytest.mark.slow

PROMOTIONS = int(os.environ.get("RATCHET_PROMOTIONS", "8"))
BROKEN, KILLS, GOOD, CLIENTS = max(5, PROMOTIONS // 8), PROMOTIONS // 6, 2, 3  # each damage once at least
PIXELS = np.random.default_rng(0).integers(0, 256, (64, 8, 8, 3), dtype=np.uint8)


def flip_a_bit(folder: Path, _: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")


def cut_program(folder: Path, _: Path) -> None:
    path = folder / "model.onnx"
    path.write_bytes(path.read_bytes()[:1000])


def remove_description(folder: Path, _: Path) -> None:
    (folder / "program.json").unlink()


def forge_unreadable_program(folder: Path, _: Path) -> None:
    (folder / "model.onnx").write_bytes(b"no program")
    seal(folder)


def forge_other_answers(folder: Path, other: Path) -> None:
    for path in other.glob("model.onnx*"):
        shutil.copy(path, folder)
    seal(folder)


DAMAGES: tuple[tuple[Callable[[Path, Path], None], str], ...] = (
    (flip_a_bit, "changed: model.safetensors"),
    (cut_program, "changed: model.onnx"),
    (remove_description, "missing: program.json"),
    (forge_unreadable_program, "does not answer"),
    (forge_other_answers, "differ from those that were stored"),
)


class Clients:
    """Clients of a server that is killed and started again. Each answer is compared with that of its version."""

    def __init__(self, server: Served, expected: dict[str, Any]) -> None:
        self.server, self.expected = server, expected
        self.kills, self.is_disturbed = 0, True  # from a start until a version is served again
        self.stop = threading.Event()
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._process: Any

    def start(self) -> None:
        command = ("ratchet", "serve", "--model", "image@champion", "--port", str(self.server.port))
        log = self.server.workspace.root / "serve.log"
        self._process = self.server.project.start(*command, log=log, TMPDIR=str(self.server.project.home))

    def kill(self, *, after: float) -> None:
        let_run(self._process, after)
        self.is_disturbed = True
        self.kills += 1
        self._process.kill()
        assert self._process.wait() == -signal.SIGKILL
        self.start()

    def end(self) -> None:
        self._process.terminate()
        assert self._process.wait() == -signal.SIGTERM

    def wait_for(self, version: str | None, refused: str = "", reason: str = "") -> None:
        """Wait until this version answers, and the server says why the other one is refused."""

        def is_reached() -> bool:
            try:
                state = self.server.get("/health")[1]
            except (URLError, ConnectionError, HTTPException):
                assert self.is_disturbed
                state = {"ready": False, "version": None}
            problem, served = state.get("problem", ""), f"image version {version}" if version else None
            if refused and re.search(rf"image(/| version ){refused}:", problem):
                assert reason in problem, problem
                assert state["version"] == served, state
                return True
            return not refused and state["version"] == served and not problem

        until(is_reached, process=self._process)

    def ask(self, number: int) -> None:
        """Ask until `stop`; every request has the answer of a version, or an excuse."""
        choose, kills = np.random.default_rng(number), self.kills
        with closing(HTTPConnection(HOST, self.server.port)) as client:
            while not self.stop.is_set():
                if kills != self.kills:
                    client.close()
                kills, was_disturbed = self.kills, self.is_disturbed
                try:
                    outcome = self._outcome(client, choose)
                except (ConnectionError, HTTPException):
                    client.close()
                    outcome = "no answer"
                if outcome in ("no answer", "503"):
                    assert was_disturbed or kills != self.kills, outcome
                    self.stop.wait(0.02)
                with self._lock:
                    self.counts[outcome] += 1

    def _outcome(self, client: HTTPConnection, choose: np.random.Generator) -> str:
        """Ask for random rows in a random format; return the format and the version, or 503."""
        rows = choose.integers(0, len(PIXELS), choose.integers(1, 6))
        pixels, form = PIXELS[rows], ("own", "mlflow", "v2")[choose.integers(3)]
        tensor = {"name": "pixels", "shape": pixels.shape, "datatype": "UINT8", "data": pixels.ravel().tolist()}
        path, content = {
            "own": ("/v1/predict", {"input": pixels.tolist(), "options": {"top_k": 3}}),
            "mlflow": ("/invocations", {"inputs": pixels.tolist()}),
            "v2": (INFER, {"inputs": [tensor]}),
        }[form]
        client.request("POST", path, json.dumps(content), {"Content-Type": "application/json"})
        with client.getresponse() as response:
            answer = json.loads(response.read())
        if response.status != 200:
            assert (response.status, bool(answer["error"])) == (503, True), (response.status, answer)
            return "503"
        version = response.headers["ratchet-version"].partition("/")[2] if form != "own" else answer["version"]
        match form:
            case "own":
                top = [{each["class"]: each["probability"] for each in row["top"]} for row in answer["predictions"]]
                given: Any = [[row[name] for name in ANIMALS.names] for row in top]
            case "mlflow":
                given = answer["predictions"]
            case _:
                assert answer["model_version"] == version
                given = np.reshape(answer["outputs"][0]["data"], answer["outputs"][0]["shape"])
        assert np.array(given, np.float32).tobytes() == self.expected[version][rows].tobytes(), (form, version, rows)
        return f"{form} {version}"


def add_versions(server: Served, tmp_path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Register good and broken versions; return the answers of the good ones, and why the others are refused."""
    folders = {}
    for seed in range(1, GOOD + BROKEN + 1):
        number = server.add("image", SPECS["image"], seed=seed)
        run_id = server.registry.find(f"image/{number}").run_id
        [folders[number]] = [
            path.parent
            for path in server.workspace.mlruns.rglob("model.safetensors")
            if run_id in (path.parents[2] / "MLmodel").read_text()
        ]
    expected, broken = {}, {}
    for place, (number, folder) in enumerate(folders.items()):
        version = server.registry.find(f"image/{number}")
        if place < GOOD:
            loaded = load(server.registry, version, tmp_path / number, threads=1)
            assert loaded.engine == "onnxruntime"
            expected[number] = loaded.predict((PIXELS,))
            with server.registry.opened(version.uri) as (model, _):
                np.testing.assert_allclose(expected[number], model.predict(PIXELS), atol=1e-5)
        else:
            damage, broken[number] = DAMAGES[place % len(DAMAGES)]
            damage(folder, folders["1"])
            if damage.__name__.startswith("forge"):
                checksums = files.read_json(folder / "checksums.json")["sha256"]
                server.registry.client.set_tag(version.run_id, CHECKSUMS_TAG, files.digest_json(checksums))
    return expected, broken


def test_every_answer_is_that_of_its_version(new_project: Callable[[str], Any], tmp_path: Path) -> None:
    project = new_project("promotions")
    settings.override(project.workspace.params, {"registry.export": "onnx", "serving.poll": 0.05})
    server = Served(project, reserved_port(HOST))
    expected, broken = add_versions(server, tmp_path)
    clients, choose, current, undone = Clients(server, expected), random.Random(0), "1", list(broken)
    clients.start()
    clients.wait_for("1")
    clients.is_disturbed = False
    bad_steps = choose.sample(range(PROMOTIONS), BROKEN)
    killed_steps = {bad_steps[0], *choose.sample(range(PROMOTIONS), KILLS)}
    with ThreadPoolExecutor(CLIENTS) as pool:
        jobs = [pool.submit(clients.ask, number) for number in range(CLIENTS)]
        try:
            for step in range(PROMOTIONS):
                is_bad = step in bad_steps
                number = undone.pop() if is_bad else choose.choice([each for each in expected if each != current])
                server.promote("image", number)
                if step in killed_steps:
                    clients.kill(after=choose.uniform(0.0, 0.3))
                if is_bad:
                    clients.wait_for(None if clients.is_disturbed else current, number, broken[number])
                else:
                    clients.wait_for(number)
                    clients.is_disturbed, current = False, number
                for job in jobs:
                    assert not job.done(), job.result()
        finally:
            clients.stop.set()
            wait(jobs)
            clients.end()
        for job in jobs:
            job.result()
    assert {f"{form} {version}" for form in ("own", "mlflow", "v2") for version in expected} <= set(clients.counts)
    assert clients.kills >= KILLS
    assert not list((project.workspace.state / "served").glob("*"))
    assert "Traceback" not in (server.workspace.root / "serve.log").read_text()
    print(dict(sorted(clients.counts.items())))
