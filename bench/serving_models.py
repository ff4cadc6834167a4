"""Models with random weights for the benchmarks of the model server, and rows for them."""

import os
import string
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.project import Project
from ratchet import settings
from ratchet.kinds import Column, ImageInput, Input, ModelSpec, TableInput, TextInput
from ratchet.kinds.protocol import Arrays
from ratchet.kinds.registry import kind_of
from ratchet.problems import Classes
from ratchet.registry.models import ModelRegistry
from ratchet.registry.runs import Run
from ratchet.training import build, save_model
from ratchet.workspace import Workspace

__all__ = ["CORES", "MODELS", "Model"]

CORES = sorted(os.sched_getaffinity(0))
_IMAGES = {"digits": ("convnet", 8, 1), "convnet": ("convnet", 32, 3), "resnet18": ("resnet18", 224, 3)}
MODELS = (*_IMAGES, "table", "text")
_ROWS = 64
_NUMERIC, _CATEGORICAL, _CATEGORIES = 10, 4, 8
_WORDS, _VOCABULARY, _LETTERS = 40, 5000, 8
_BUCKETS = 1 << 18


@dataclass
class Model:
    """A registered model with random weights, and rows for it: images, rows of a table, or texts of one length."""

    name: str
    project: Project
    folder: Path
    count: int = _ROWS

    @cached_property
    def spec(self) -> ModelSpec:
        network = _IMAGES[self.name][0] if self.name in _IMAGES else {"table": "tabm", "text": "bag"}[self.name]
        return ModelSpec(network, self._input(), Classes(tuple(map(str, range(10)))))

    @cached_property
    def rows(self) -> list[Any]:
        """Rows as a client sends them."""
        random = np.random.default_rng(0)
        if self.name in _IMAGES:
            _, side, channels = _IMAGES[self.name]
            return list(random.integers(0, 256, (self.count, side, side, channels), dtype=np.uint8))
        if self.name == "table":
            numbers = random.normal(0, 1, (self.count, _NUMERIC)).round(3).tolist()
            codes = random.integers(0, _CATEGORIES, (self.count, _CATEGORICAL)).tolist()
            return [
                {f"number {place}": value for place, value in enumerate(row)}
                | {f"category {place}": f"value {code}" for place, code in enumerate(other)}
                for row, other in zip(numbers, codes, strict=True)
            ]
        letters = random.choice(list(string.ascii_lowercase), (_VOCABULARY, _LETTERS))
        words = np.array(["".join(word) for word in letters])
        texts = [" ".join(random.choice(words, _WORDS, replace=False)) for _ in range(2 * self.count)]
        (ids,) = kind_of(self.spec.input).decode(texts, self.spec.input)
        full = np.flatnonzero((ids != 0).all(1))  # the others have two words with the same first letters
        return [texts[place] for place in full[: self.count]]

    @cached_property
    def arrays(self) -> Arrays:
        """The rows as the program takes them."""
        return kind_of(self.spec.input).decode(self.rows, self.spec.input)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the arrays."""
        return kind_of(self.spec.input).array_names(self.spec.input)

    def register(self) -> None:
        """Register the model as champion, with its program."""
        workspace = Workspace(self.project.folder)
        params = settings.load(workspace.params)
        torch.manual_seed(0)
        save_model(self.folder, build(self.spec).state_dict(), self.spec, about={"training": {}})
        run, registry = Run(workspace, params, self.name), ModelRegistry(workspace, params)
        run_id = run.send()
        uri = registry.log_model(run_id, self.folder, self.spec)
        run.journal.close()
        number = registry.add_version(self.name, run_id, uri, tags={"ratchet.provenance": "bench"}).number
        registry.set_aliases(self.name, {"champion": number})
        with registry.opened(f"models:/{self.name}/{number}") as (_, opened):
            program = next(Path(opened).rglob("model.onnx"))
            self.program.write_bytes(program.read_bytes())

    @property
    def program(self) -> Path:
        return self.folder.with_suffix(".onnx")

    @cached_property
    def session(self) -> Any:
        import onnxruntime

        chosen = onnxruntime.SessionOptions()
        chosen.intra_op_num_threads = 1
        return onnxruntime.InferenceSession(self.program, chosen, providers=["CPUExecutionProvider"])

    @cached_property
    def expected(self) -> Any:
        """Probabilities of each row by the bare call."""
        starts = range(0, self.count, 64)
        return np.concatenate([self.session.run(None, self._feed(start, 64))[0] for start in starts])

    def bare(self, rows: int, seconds: float) -> list[float]:
        """Return the seconds of calls with so many rows, on the core of the servers."""
        os.sched_setaffinity(0, {CORES[-1]})
        times, feed, ends = [], self._feed(0, rows), time.perf_counter() + seconds
        while time.perf_counter() < ends:
            began = time.perf_counter()
            self.session.run(None, feed)
            times.append(time.perf_counter() - began)
        os.sched_setaffinity(0, {CORES[0]})
        return times

    def _feed(self, start: int, rows: int) -> dict[str, Any]:
        return {name: array[start : start + rows] for name, array in zip(self.names, self.arrays, strict=True)}

    def _input(self) -> Input:
        if self.name in _IMAGES:
            _, side, channels = _IMAGES[self.name]
            return ImageInput(side, side, channels, (120.0,) * channels, (60.0,) * channels)
        if self.name == "text":
            return TextInput("hashed", buckets=_BUCKETS)
        quantiles = tuple(np.linspace(-2, 2, 49).tolist())
        categories = tuple(f"value {code}" for code in range(_CATEGORIES))
        return TableInput((
            *(Column(f"number {place}", "numeric", 0.0, 1.0, quantiles) for place in range(_NUMERIC)),
            *(Column(f"category {place}", "categorical", categories=categories) for place in range(_CATEGORICAL)),
        ))  # fmt: skip
