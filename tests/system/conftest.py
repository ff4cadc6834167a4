"""Shared by tests of whole trainings: a net of 1,386 parameters, and the comparison of two trainings."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ratchet import settings
from ratchet.servers import prefect_server
from ratchet.training.checkpoint import read_checkpoint
from ratchet.workspace import Workspace

OWN = ("samples_per_second", "data_wait", "system/", "cost/")  # the metrics of a machine, which differ from run to run
NET = """
from torch import nn


def net(*, classes, channels, height, width):
    features = nn.Sequential(nn.Conv2d(channels, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(features, nn.Flatten(), nn.Dropout(0.2), nn.Linear(8 * (height // 2) * (width // 2), classes))
"""
Point = tuple[str, int, float]


def points(project: Any) -> list[Point]:
    """Every point of the project's only MLflow run, which must have ended well."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{project.root}/mlruns/mlflow.db")
    runs = [run for experiment in client.search_experiments() for run in client.search_runs([experiment.experiment_id])]
    assert len(runs) == 1
    (run,) = runs
    assert run.info.status == "FINISHED"
    return [
        (name, point.step, point.value)
        for name in run.data.metrics
        for point in client.get_metric_history(run.info.run_id, name)
    ]


def _assert_same_training(project: Any, other: Any, *, steps: int) -> None:
    assert project.digests("data/model") == other.digests("data/model")
    # Only the last checkpoint: a stop before it leaves that of its own step.
    last, theirs = (each.root / f"data/checkpoints/step-{steps:012d}.safetensors" for each in (project, other))
    assert last.read_bytes() == theirs.read_bytes()
    # What equal bytes mean: the whole state is in them.
    state = read_checkpoint(last)
    assert state.step == steps
    assert {name.partition("/")[0] for name in state.tensors} >= {"model", "optimizer", "best", "sums"}

    for each in (project, other):
        each.good("ratchet", "sync")  # on a busy machine the end of the training does not wait for all records
    actual, expected = points(project), points(other)
    assert max(Counter((name, step) for name, step, _ in actual).values()) == 1
    assert Counter((name, step) for name, step, _ in actual) == Counter((name, step) for name, step, _ in expected)
    same = [sorted(point for point in some if not any(own in point[0] for own in OWN)) for some in (actual, expected)]
    assert same[0] == same[1]


@pytest.fixture(scope="session")
def assert_same_training() -> Callable[..., None]:
    """Weights, history and checkpoints byte for byte; in MLflow one run with every point once, and equal."""
    return _assert_same_training


@pytest.fixture(scope="session")
def use_small_net() -> Callable[[Any], None]:
    """Give a project a model of its own whose steps and checkpoints take a millisecond or few."""

    def use(project: Any) -> None:
        folder = project.root / "nets"
        folder.mkdir()
        (folder / "small.py").write_text(NET)
        settings.override(project.workspace.params, {"model.factory": "nets.small:net", "model.code": "nets"})

    return use


@dataclass(frozen=True)
class SharedServer:
    """A Prefect server that many runs use, as those of a team: one for each run takes many seconds."""

    folder: Path
    api: str


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedServer]:
    """The server of all tests of this process."""
    folder = tmp_path_factory.mktemp("prefect").resolve()
    with prefect_server(Workspace(folder)) as api:
        yield SharedServer(folder, api)


@pytest.fixture(scope="session")
def share_server(shared_server: SharedServer) -> Callable[[Any], None]:
    """Let the runs of a project use that server."""
    return lambda project: settings.override(project.workspace.params, {"platform.prefect_api": shared_server.api})
