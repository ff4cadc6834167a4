"""The own kind of docs/your-own-kind.md that is not packed, from WAV files to answers, without an edit inside.

Worker processes read sounds that are generated here.
"""

import base64
import json
import re
import sys
import urllib.request
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from ports import reserved_port
from waiting import until

from ratchet.data.manifest import Manifest
from ratchet.servers.http import answers

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "your-own-kind.md"
SETTINGS = (
    "data.workers=2", "data.max_bad_fraction=0.1", "training.batch_size=16", "training.epochs=4",
    "training.checkpoint_steps=2",
)  # fmt: skip


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
    server = clips.start("ratchet", "serve", "--port", str(port), log=log)
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
        server.wait()
    assert [row["class"] for row in served] == expected
    assert [row["probability"] for row in served] == pytest.approx([max(row) for row in rows], rel=1e-4)


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
