"""A training small enough to run a hundred times: generated images, the real models, the real loop."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ratchet.kinds import ModelSpec, image_spec
from ratchet.problems import Classes, Target
from ratchet.settings.model import TrainingSettings
from ratchet.training import (
    CheckpointStore,
    Event,
    Finished,
    ImageSplit,
    Plan,
    Split,
    Stopped,
    TrainingInputs,
    fit,
    models,
)
from tasks import training_job

Kind = TypeVar("Kind")
CLASSES = ("circle", "cross", "square")
TARGET = Classes(CLASSES)
IDENTITY = {"data": "d", "settings": "s", "code": "c"}


def make_plan(*, seed: int = 0, target: Target = TARGET, **changes: Any) -> Plan:
    """Return a plan with the default settings for the target and these changes."""
    return replace(training_job.make_plan(TrainingSettings(), target, seed=seed), **changes)


class Tiny(nn.Module):
    """A net of 200 parameters with everything that makes resuming hard: convolution, batch norm, dropout."""

    def __init__(self, *, classes: int, channels: int, height: int, width: int) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(channels, 4, 3, padding=1), nn.BatchNorm2d(4), nn.MaxPool2d(4))
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(4 * (height // 4) * (width // 4), classes))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(images))


class Linear64(nn.Module):
    """A net in double precision whose loss of a sample does not depend on its batch: no batch norm, no dropout."""

    def __init__(self, *, classes: int, channels: int, height: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(channels * height * width, 16), nn.Tanh(), nn.Linear(16, classes)
        ).double()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images.double())


class Operations(TorchDispatchMode):
    """Records the operations inside, each with its arguments. On a GPU each but a view is at least one kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append((func.overloadpacket.__name__, args))
        return func(*args, **(kwargs or {}))

    def count(self, *names: str) -> int:
        """Return how many operations have one of these names."""
        return sum(name in names for name, _ in self.calls)

    def types_copied(self) -> list[set[torch.dtype]]:
        """Return the types of the tensors that each `_foreach_copy_` copies."""
        return [{each.dtype for each in args[0]} for name, args in self.calls if name == "_foreach_copy_"]


@dataclass
class Lab:
    """Runs trainings, each in its own folder unless they have the same name."""

    root: Path
    train: Split
    validation: Split
    spec: ModelSpec
    teacher: Path | None = None
    pretrained: Path | None = None

    @staticmethod
    def split(name: str, rows: int, *, first: int = 0, shards: int = 1, size: int = 8, channels: int = 1) -> ImageSplit:
        """Make `rows` noisy images whose brightness shows the class. The rows do not depend on `shards`."""
        generator = np.random.default_rng([rows, first])
        labels = generator.integers(0, len(CLASSES), rows)
        noise = generator.integers(0, 120, (rows, size, size, channels))
        images = (noise + 60 * labels[:, None, None, None]).astype(np.uint8)
        bounds = np.linspace(0, rows, shards + 1).astype(int)
        return ImageSplit.of(
            name,
            [images[start:stop] for start, stop in pairwise(bounds)],
            labels.astype(np.int64),
            np.arange(first, first + rows, dtype=np.uint64),
        )

    @staticmethod
    def make_spec(name: str = "tiny", *, size: int = 8, channels: int = 1, classes: int = 3) -> ModelSpec:
        """Return a spec for images of `size` x `size` pixels."""
        names = tuple(f"class {number}" for number in range(classes))
        return image_spec(name, names, channels, size, size, (120.0,) * channels, (60.0,) * channels)

    @staticmethod
    def plan(**changes: Any) -> Plan:
        """Return a plan of three epochs of four steps on 30 rows, with random augmentation, every step logged."""
        settings: dict[str, Any] = {
            "epochs": 3,
            "batch_size": 8,
            "flip": "random",
            "precision": "fp32",
            "channels_last": True,
            "checkpoint_steps": 3,
            "log_every": 1,
            "warmup_epochs": 0.5,
            "device": "cpu",
            "overfit_gap": 1.0,
        }
        return make_plan(**{**settings, **changes})

    def store(self, plan: Plan, name: str = "run") -> CheckpointStore:
        """Return the checkpoints of the training called `name`."""
        return CheckpointStore(self.root / name, keep_last=plan.keep_last, keep_best=plan.keep_best)

    def events(
        self,
        plan: Plan,
        *,
        name: str = "run",
        stop: Callable[[], bool] = lambda: False,
        identity: dict[str, str] = IDENTITY,
        store: CheckpointStore | None = None,
    ) -> Iterator[Event]:
        """Train, or continue; `store` may be another than the one called `name`."""
        inputs = TrainingInputs(
            self.train,
            self.validation,
            self.spec,
            plan,
            pretrained=self.pretrained,
            teacher=self.teacher,
            identity=identity,
        )
        return fit(inputs, store=store or self.store(plan, name), stop=stop)

    def run(self, plan: Plan, *, name: str = "run") -> Finished:
        """Train to the end."""
        return self.every(self.events(plan, name=name), Finished)[0]

    def stop_at(self, step: int, plan: Plan, *, name: str = "run") -> list[Event]:
        """Return the events of a training that is asked to stop after `step` steps."""
        steps = iter(range(1_000_000))
        events = list(self.events(plan, name=name, stop=lambda: next(steps) == step))
        assert self.every(events, Stopped) == [Stopped(step)]
        return events

    @staticmethod
    def every(events: Any, kind: type[Kind]) -> list[Kind]:
        """Return the events of this kind, in order."""
        return [event for event in events if isinstance(event, kind)]

    @staticmethod
    def assert_same(first: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
        """Assert equal names, types and bits."""
        assert first.keys() == other.keys()
        for name, tensor in first.items():
            assert tensor.dtype == other[name].dtype, name
            assert torch.equal(tensor, other[name]), name


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Use one thread: for nets this small, more threads are slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _random_state_of_its_own() -> Iterator[None]:
    """Restore the random state, from which tests here draw weights and images."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(before[0])
    np.random.set_state(before[1])
    torch.set_rng_state(before[2])


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """Return a lab for the net `tiny`. `linear64` is available too."""
    monkeypatch.setitem(models._networks("image"), "tiny", Tiny)
    monkeypatch.setitem(models._networks("image"), "linear64", Linear64)
    return Lab(
        tmp_path, Lab.split("train", 30), Lab.split("validation", 12, first=1000), Lab.make_spec(classes=len(CLASSES))
    )
