"""Results of the shortened examples: bytes and numbers that no change of structure may move.

Recorded in goldens.json by `pytest tests/system/test_goldens.py --record-goldens`, with the kind of processor: on the
same kind every bit is compared, on another one the names and, roughly, the numbers of evaluation, verdict and answers.
Each example is ingested and trained. One example for each kind of data also goes through the gate, and its model
answers over HTTP.
"""

import functools
import json
import os
import re
import urllib.request
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
import yaml
from ports import reserved_port
from waiting import until

from ratchet import settings
from ratchet.servers.http import answers
from ratchet.settings import example_files

pytestmark = [pytest.mark.system, pytest.mark.slow]

FILE = Path(__file__).with_name("goldens.json")
DATASETS = Path(os.environ.get("RATCHET_DATASETS", "/nowhere"))
PAGE = Path(__file__).parents[2] / "docs" / "your-own-kind.md"
COMMON = (
    "training.precision=fp32", "training.max_steps=4", "training.epochs=1", "training.checkpoint_steps=2",
    "evaluation.robustness_rows=20", "evaluation.explained_errors=0",
    "gate.minimum_metric=none", "gate.constant=report", "gate.calibration_error=1",
    "registry.export=none",
)  # fmt: skip
TRAINED = ("ingest", "train")
EVALUATED = (*TRAINED, "evaluate")
JUDGED = (*EVALUATED, "export", "register")
VOLATILE = {"cost", "id", "answer", "model_id", "run_id", "provenance", "ledger"}  # measured, or drawn
FORMATS = ("/v1/predict", "/invocations", "/v2/models/{name}/infer")


def head(name: str, target: Path, lines: int) -> None:
    """Copy the first lines of a data set's file."""
    content = (DATASETS / name).read_text(encoding="utf-8").splitlines(keepends=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("".join(content[:lines]), encoding="utf-8")


def digits(raw: Path) -> tuple[str, ...]:
    return ()


def cifar10(raw: Path) -> tuple[str, ...]:
    return (f"data.path={DATASETS}",)


def photos(raw: Path) -> tuple[str, ...]:
    path = f"data.path={DATASETS / 'hymenoptera' / 'train'}"
    return path, "model.pretrained=none", "data.image_size=32", "training.frozen_epochs=0"


def passengers(raw: Path) -> tuple[str, ...]:
    head("tabular/titanic.csv", raw / "titanic.csv", 892)
    return (
        "data.path=data/raw/titanic.csv",
        "data.label_column=survived",
        "data.drop=[alive]",
        "training.epochs=8",
        "training.max_steps=60",
    )


def days(raw: Path) -> tuple[str, ...]:
    head("tabular/bike-sharing/day.csv", raw / "day.csv", 732)
    columns = "data.label_column=cnt", "data.order_by=dteday", "data.drop=[casual,registered,instant]"
    return "data.path=data/raw/day.csv", *columns


def reviews(raw: Path) -> tuple[str, ...]:
    for name in ("rt-polarity.pos", "rt-polarity.neg"):
        head(f"text/rt-polarity/{name}", raw / "reviews" / name, 400)
    return ()


def plays(raw: Path) -> tuple[str, ...]:
    head("tinyshakespeare.txt", raw / "text.txt", 2000)
    return ()


def fruit(raw: Path) -> tuple[str, ...]:
    """Rows with several labels each."""
    random = np.random.default_rng(0)
    size, weight = random.normal(8, 2, 400), random.gamma(2.0, 60.0, 400)
    names = np.array(["red", "round", "sweet"])
    has = np.stack([weight > 100, size > 8, random.random(400) > 0.5], axis=1)
    labels = [";".join(names[row]) for row in has]
    pl.DataFrame({"size": size, "weight": weight, "labels": labels}).write_csv(raw / "fruit.csv")
    label = "data.label_column=labels", "data.problem=multi-label"
    return "data.kind=table", "data.path=data/raw/fruit.csv", *label


def rentals(raw: Path) -> tuple[str, ...]:
    """The first own kind of docs/your-own-kind.md; clips are the other."""
    head("tabular/bike-sharing/hour.csv", raw / "hour.csv", 1501)
    page = PAGE.read_text(encoding="utf-8")
    for name in ("bike_windows", "bike_net"):
        [code] = re.findall(rf"```python\n(# {name}\.py\n.*?)```", page, re.DOTALL)
        (raw.parents[1] / f"{name}.py").write_text(code)
    commands = re.findall(r"^\$ ratchet set (?!.*clips)(.*)$", page, re.MULTILINE)
    steps = "training.epochs=4", "training.max_steps=60", "gate.minimum_metric=none"
    return *(setting for command in commands for setting in command.split()), *steps


CASES: dict[str, tuple[str, Callable[[Path], tuple[str, ...]], tuple[str, ...]]] = {
    "digits": ("digits", digits, JUDGED),
    "digits-search": ("digits-search", digits, EVALUATED),
    "cifar10": ("cifar10", cifar10, TRAINED),
    "cifar10-fast": ("cifar10-fast", cifar10, TRAINED),
    "fashion-mnist": ("fashion-mnist", cifar10, EVALUATED),
    "photos": ("photos", photos, EVALUATED),
    "tabular-classification": ("tabular-classification", passengers, JUDGED),
    "tabular-regression": ("tabular-regression", days, JUDGED),
    "text-sentiment": ("text-sentiment", reviews, JUDGED),
    "language-model": ("language-model", plays, JUDGED),
    "labels": ("digits", fruit, JUDGED),
    "own-kind": ("digits", rentals, JUDGED),
}
SERVED = {"digits", "tabular-classification", "text-sentiment", "language-model", "own-kind"}


@pytest.fixture(scope="module")
def finished(new_project: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return the project of a case after its stages, which run once."""

    @functools.cache
    def run(name: str) -> Any:
        example, source, stages = CASES[name]
        project = new_project(name)
        example_files.use(project.root, example, force=True)
        assignments = {each.partition("=")[0]: each for each in (*COMMON, *source(project.root / "data" / "raw"))}
        settings.override(project.workspace.params, settings.parse_assignments([*assignments.values()]))
        for stage in stages:
            project.good(*project.stage(stage))
        return project

    return run


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_recorded(name: str, finished: Callable[[str], Any], pytestconfig: pytest.Config) -> None:
    if name not in ("digits", "digits-search", "labels") and not DATASETS.is_dir():
        pytest.skip("RATCHET_DATASETS names no folder with the data sets")
    project = finished(name)
    goldens = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {"cases": {}}
    records = pytestconfig.getoption("--record-goldens")
    now = results(project, CASES[name][2])
    if name in SERVED:
        now |= served(project, {} if records else goldens["cases"][name]["requests"])
    if records:
        goldens["processor"], goldens["cases"][name] = processor(), now
        FILE.write_text(json.dumps(goldens, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    recorded = goldens["cases"][name]
    if goldens["processor"] == processor():
        assert now == recorded
    else:
        assert numbers(now) == approximate(numbers(recorded))


def test_dvc_lock_has_the_recorded_keys(finished: Callable[[str], Any], pytestconfig: pytest.Config) -> None:
    """The stages need not run in DVC to be written to its file."""
    project = finished("digits")
    project.good(*project.stage("code"))
    project.good("dvc", "commit", "--force", "--quiet")
    stages = yaml.safe_load((project.root / "dvc.lock").read_text(encoding="utf-8"))["stages"]
    now = {
        name: {
            "deps": [entry["path"] for entry in stage["deps"]],
            "outs": [entry["path"] for entry in stage["outs"]],
            "params": {file: sorted(content) for file, content in stage["params"].items()},
        }
        for name, stage in stages.items()
    }
    goldens = json.loads(FILE.read_text(encoding="utf-8"))
    if pytestconfig.getoption("--record-goldens"):
        FILE.write_text(json.dumps(goldens | {"lock": now}, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    else:
        assert now == goldens["lock"]


def processor() -> str:
    """Describe what decides the last bits of a sum: the instructions in use, and who made the processor."""
    maker = re.search(r"vendor_id\s*: (\w+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    return f"{maker[1] if maker else 'unknown'} {torch.backends.cpu.get_cpu_capability()}"


def results(project: Any, stages: tuple[str, ...]) -> dict[str, Any]:
    """Return digests and numbers of the stages' outputs."""
    data = project.root / "data"
    packed = project.digests("data/packed")
    outputs: dict[str, Any] = {
        "packed": {path.removeprefix("data/packed/"): digest for path, digest in packed.items()},
        "model.safetensors": sha256((data / "model" / "model.safetensors").read_bytes()).hexdigest(),
    }
    if "evaluate" in stages:
        predictions = pl.read_parquet(data / "reports" / "predictions.parquet")
        outputs |= {
            "predictions": sha256(predictions.write_ndjson().encode()).hexdigest(),
            "columns": predictions.columns,
            "evaluation": steady(json.loads((data / "reports" / "evaluation.json").read_text(encoding="utf-8"))),
        }
    if "register" in stages:
        registration = json.loads((data / "registration.json").read_text(encoding="utf-8"))
        outputs["verdict"] = steady(registration["verdict"])
    return outputs


def served(project: Any, requests: dict[str, Any]) -> dict[str, Any]:
    """Return the answers to recorded requests, or to the examples of the server's own OpenAPI page."""
    port = reserved_port("127.0.0.1")
    log = project.root / "server.log"
    server = project.start("ratchet", "serve", "--port", str(port), log=log)
    try:
        url = f"http://127.0.0.1:{port}"
        until(lambda: answers(f"{url}/v2/health/ready"), process=server, log=log)
        requests = requests or page_examples(url)
        given = {path: steady(ask(url + path, request)) for path, request in requests.items()}
        return {"requests": requests, "answers": given}
    finally:
        server.terminate()
        server.wait()


def page_examples(url: str) -> dict[str, Any]:
    paths = ask(f"{url}/openapi.json")["paths"]
    name = ask(f"{url}/v1/models")["models"][0]["model"]
    requests = {}
    for path in FORMATS:
        path = path.format(name=name)
        post = paths[path if path in paths else "/v2/models/{model}/infer"]["post"]
        requests[path] = post["requestBody"]["content"]["application/json"]["example"]
    return requests


def ask(url: str, content: Any = None) -> Any:
    body = None if content is None else json.dumps(content).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"})) as answer:
        return json.load(answer)


def steady(value: Any) -> Any:
    """Leave out what differs from run to run."""
    match value:
        case dict():
            return {key: steady(item) for key, item in value.items() if key not in VOLATILE}
        case list():
            return [steady(item) for item in value]
    return value


def numbers(value: Any, name: str = "") -> dict[str, float]:
    """Return the numbers by their places, without digests and texts."""
    match value:
        case dict():
            items = value.items()
        case list():
            items = enumerate(value)
        case bool() | int() | float():
            return {name: float(value)}
        case _:
            return {}
    return {place: number for key, item in items for place, number in numbers(item, f"{name}/{key}").items()}


def approximate(recorded: dict[str, float]) -> Any:
    """Allow for a few rows whose two best classes are nearly equal: counts may differ by five, shares by a tenth."""
    return {
        name: pytest.approx(value, rel=0.1, abs=5 if value == int(value) and abs(value) > 1 else 0.1)
        for name, value in recorded.items()
    }
