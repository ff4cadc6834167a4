"""The own kind of docs/your-own-kind.md that is not packed, from WAV files to answers, without an edit inside.

Worker processes read sounds that are generated here.
"""

import base64
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import psutil
import pytest
from ports import reserved_port
from waiting import until

from ratchet.data.manifest import Manifest
from ratchet.servers.http import answers
from ratchet.training.checkpoint import read_checkpoint

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "your-own-kind.md"
SETTINGS = (
    "data.workers=2", "data.max_bad_fraction=0.1", "training.batch_size=16", "training.epochs=4",
    "training.checkpoint_steps=2",
)  # fmt: skip
HANG = """
        while (file.parents[2] / "hang").exists():  # set by a test
            (file.parents[2] / "hangs").touch()
            __import__("threading").Event().wait(0.1)
"""


def write_clips(folder: Path) -> None:
    """Write two classes of sounds of a second, and one file without a sound."""
    time = np.arange(8000) / 8000
    for label, (name, pitch) in enumerate((("high", 900), ("low", 500))):
        (folder / name).mkdir(parents=True)
        for number in range(60):
            random = np.random.default_rng([label, number])
            sound = np.sin(2 * np.pi * (pitch * random.uniform(0.8, 1.2) * time + random.random()))
            sound = 3000 * (sound + random.normal(0, 0.5, len(time)))
            with wave.open(str(folder / name / f"{number:03d}.wav"), "wb") as clip:
                clip.setparams((1, 2, 8000, 0, "NONE", ""))
                clip.writeframes(sound.astype("<i2").tobytes())
    (folder / "high" / "broken.wav").write_bytes(b"not a sound")


@pytest.fixture(scope="module")
def clips(new_project: Callable[[str], Any]) -> Any:
    """A project with the code of the page, after DVC has run all stages."""
    project, page = new_project("clips"), PAGE.read_text(encoding="utf-8")
    (project.root / "clips").mkdir()
    for name in ("kind", "net"):
        [code] = re.findall(rf"```python\n# clips/{name}\.py\n(.*?)```", page, re.DOTALL)
        code = code.replace("        file = self.files[place]\n", f"        file = self.files[place]{HANG}")
        (project.root / "clips" / f"{name}.py").write_text(code)
    write_clips(project.root / "data" / "raw" / "clips")
    [commands] = re.findall(r"\$ ratchet set (data\.kind=clips.*)\n\$ ratchet set (.*)", page)
    project.good("ratchet", "set", *" ".join(commands).split(), *SETTINGS)
    project.good("dvc", "repro")
    return project


def test_dvc_repro_registers_a_model_then_is_up_to_date(clips: Any) -> None:
    manifest = Manifest.read(clips.workspace.packed)
    assert (manifest.name, manifest.input.layout) == ("clips", (("spectrum", "float32", (32, 126)),))
    assert manifest.quarantined_by_rule == {"raised": 1}
    assert not any(files.arrays for files in manifest.splits.values())
    assert "up to date" in clips.good("dvc", "status")
    registration = json.loads(clips.workspace.registration.read_text())
    assert registration["version"] == "1"
    metrics = json.loads((clips.workspace.reports / "metrics.json").read_text())
    assert metrics["accuracy"] > 0.9, metrics


def test_server_and_mlflow_answer_as_evaluation_predicted(clips: Any, tmp_path: Path) -> None:
    """Each gets the bytes of a file; MLflow runs in a process without the project's code."""
    predictions = pl.read_parquet(clips.workspace.reports / "predictions.parquet")
    predictions = predictions.gather_every(4)
    chosen, expected = predictions["id"].to_list(), [["high", "low"][number] for number in predictions["predicted"]]
    files = [clips.root / "data" / "raw" / "clips" / name for name in chosen]
    script = f"""
import json, mlflow
from pathlib import Path
mlflow.set_tracking_uri("sqlite:///{clips.root}/mlruns/mlflow.db")
model = mlflow.pyfunc.load_model("models:/clips/1")
print(json.dumps(model.predict([Path(name).read_bytes() for name in {[str(file) for file in files]}]).tolist()))
"""
    source = str(Path(__file__).parents[2] / "src")
    rows = json.loads(clips.good(sys.executable, "-c", script, PYTHONPATH=source).splitlines()[-1])
    assert [["high", "low"][int(np.argmax(row))] for row in rows] == expected
    port, log = reserved_port("127.0.0.1"), tmp_path / "server.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            ("ratchet", "serve", "--port", str(port)),
            cwd=clips.root,
            env=clips.environment,
            stdout=output,
            stderr=output,
        ) as server,
    ):
        try:
            until(lambda: answers(f"http://127.0.0.1:{port}/v2/health/ready"), process=server, log=log)
            body = json.dumps({"input": [base64.b64encode(file.read_bytes()).decode() for file in files]}).encode()
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/v1/predict", body, {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request) as answer:
                served = json.load(answer)["predictions"]
        finally:
            server.terminate()
    assert [row["class"] for row in served] == expected
    assert [row["probability"] for row in served] == pytest.approx([max(row) for row in rows], rel=1e-4)


def start(project: Any) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        project.stage("train"), cwd=project.root, env=project.environment, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


def newest(project: Any) -> Path | None:
    """Return the newest checkpoint of the unfinished training."""
    return max((project.root / "data" / "running").glob("[!.]*/step-*.safetensors"), default=None)


def command_lines(processes: list[psutil.Process]) -> Iterator[str]:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended since it was listed
            yield " ".join(process.cmdline())


def assert_ended_cleanly(process: "subprocess.Popen[str]", family: list[psutil.Process]) -> None:
    """No traceback is printed, and no process remains."""
    output, _ = process.communicate()
    assert process.returncode == 1, output
    assert "train: stopped at step" in output
    assert "Traceback" not in output
    assert not psutil.wait_procs(family)[1]


def test_stopped_and_killed_trainings_resume_to_the_same_weights(clips: Any) -> None:
    """SIGTERM to the process group, from Prefect's worker or a terminal, ends it cleanly. SIGKILL leaves no worker."""
    expected = clips.digests("data/model", "data/checkpoints")

    def has_workers() -> bool:
        return any("forkserver" in line for line in command_lines(parent.children(recursive=True)))

    def has_more_steps() -> bool:
        return newest(clips) != before

    for reached in (has_workers, has_more_steps):
        before = newest(clips)
        process = start(clips)
        parent = psutil.Process(process.pid)
        until(reached, process=process, pause=0.005)
        family = parent.children(recursive=True)
        os.killpg(process.pid, signal.SIGTERM)
        assert_ended_cleanly(process, family)

    before = newest(clips)
    process = start(clips)
    until(has_more_steps, process=process, pause=0.001)
    process.kill()
    process.communicate()  # until the last worker has ended too
    checkpoint = newest(clips)
    assert checkpoint is not None
    assert read_checkpoint(checkpoint).step > 0
    assert "continues at step" in clips.good(*clips.stage("train"))
    assert clips.digests("data/model", "data/checkpoints") == expected


def test_a_hanging_sample_can_be_stopped_and_times_out(clips: Any) -> None:
    """It hangs in a worker process. One in the training's own: tests/training/test_custom_samples.py."""
    expected, before = clips.digests("data/model"), newest(clips)
    hang = clips.root / "data" / "raw" / "hang"
    process = start(clips)
    parent = psutil.Process(process.pid)
    until(lambda: newest(clips) != before, process=process, pause=0.001)
    hang.touch()
    until(hang.with_name("hangs").exists, process=process)
    family = parent.children(recursive=True)
    process.terminate()
    assert_ended_cleanly(process, family)
    clips.good("ratchet", "set", "training.sample_timeout=2.0")
    refused = clips.refused(*clips.stage("train"))
    assert re.search(r"sample \d+ of clips.kind:Clips was not read within 2 s \(worker process", refused), refused
    hang.unlink()
    hang.with_name("hangs").unlink()
    clips.good("ratchet", "set", "training.sample_timeout=300.0")
    assert "continues at step" in clips.good(*clips.stage("train"))
    assert clips.digests("data/model") == expected


def test_a_change_of_the_users_code_ingests_and_trains_again(clips: Any) -> None:
    code = clips.root / "clips" / "kind.py"
    code.write_text(code.read_text().replace("/ 32768", "/ 16384"))
    refused = clips.refused(*clips.stage("train"))
    assert "data.code: clips changed since the data were ingested" in refused
    before = clips.digests("data/model", "data/packed")
    clips.good("dvc", "repro", "train")
    after = clips.digests("data/model", "data/packed")
    assert after["data/packed/manifest.json"] != before["data/packed/manifest.json"]
    assert after["data/model/model.safetensors"] != before["data/model/model.safetensors"]
