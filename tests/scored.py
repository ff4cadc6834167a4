"""A project with registered versions of untrained models, and batch scoring by them. Rows of the Titanic."""

import os
import warnings
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ratchet import settings
from ratchet.kinds import Column, ModelSpec, TableInput, TextInput
from ratchet.problems import Classes
from ratchet.registry.models import ModelRegistry
from ratchet.registry.runs import Run
from ratchet.training import build, save_model
from tasks.score import Request, Scored, score

DATASETS = Path(os.environ.get("RATCHET_DATASETS", "/nowhere"))
COLUMNS = (
    Column("age", "numeric", 30.0, 14.0, tuple(np.linspace(2.0, 70.0, 9).tolist())),
    Column("fare", "numeric", 32.0, 50.0, tuple(np.linspace(0.0, 200.0, 9).tolist())),
    Column("pclass", "numeric", 2.3, 0.8, (1.0, 2.0, 3.0)),
    Column("sex", "categorical", categories=("female", "male")),
    Column("embarked", "categorical", categories=("C", "Q", "S")),
)
TITANIC = ModelSpec("mlp", TableInput(COLUMNS), Classes(("died", "survived")))
TEXTS = ModelSpec("bag", TextInput("hashed", buckets=512, longest=64), Classes(("bad", "good")))


class Silent:
    """StageProgress that remembers messages."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def update(self, done: int, total: int, note: str = "") -> None:
        assert done <= total

    def say(self, text: str) -> None:
        self.messages.append(text)


def add_untrained(place: Any, key: str, name: str, spec: ModelSpec, *, seed: int) -> str:
    """Register a model with random weights in the registry of a place, from a run with this key. Return its number."""
    folder = place.workspace.root / key
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        save_model(folder, build(spec).state_dict(), spec, about={"training": {}})
    run = Run(place.workspace, place.params, key)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"torch|onnxscript|copyreg|mlflow")
        run_id = run.send()
        uri = place.registry.log_model(run_id, folder, spec)
    run.journal.close()
    tags = {"ratchet.provenance": f"record-{seed}"}
    return str(place.registry.add_version(name, run_id, uri, tags=tags).number)


class Place:
    """A project with versions of untrained models, and scoring in this process."""

    def __init__(self, project: Any) -> None:
        self.project, self.workspace = project, project.workspace
        self.params = settings.load(self.workspace.params)
        self.registry = ModelRegistry(self.workspace, self.params)

    def add(self, name: str, spec: ModelSpec, *, seed: int = 1) -> str:
        """Register a version and return its number; the first is champion."""
        number = add_untrained(self, f"{name}-{seed}", name, spec, seed=seed)
        if number == "1":
            self.registry.set_aliases(name, {"champion": number})
        return number

    def score(self, inputs: Path | str, output: Path | str, **more: Any) -> Scored:
        paths = (str(inputs), *map(str, filter(None, [more.pop("other", None)])))
        request = Request(paths, str(output), "titanic@champion", None, 200)
        forgotten, self.progress = more.pop("forgotten", None), Silent()
        request = replace(request, **more)
        return score(self.params, self.workspace, request, progress=self.progress, forgotten=forgotten)

    def command(self, inputs: Path, output: Path, *more: str) -> list[str]:
        return ["ratchet", "predict", str(inputs), "--model", "titanic@champion", "--output", str(output), *more]

    def start(self, inputs: Path, output: Path, *more: str) -> Any:
        return self.project.start(*self.command(inputs, output, *more), log=self.project.home / "predict.log")


def digests(folder: Path) -> dict[str, str]:
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("[!.]*"))}
