"""The profiler's files as their readers see them, and that tracing changes no result."""

import gzip
import json
from pathlib import Path

import pytest
import torch

from ratchet.training.profiler import OPERATORS, TRACE, StepProfiler

CPU = torch.device("cpu")


def learn(profiler: StepProfiler, steps: int) -> torch.Tensor:
    """The weights of a small net after `steps` profiled steps."""
    torch.manual_seed(0)
    model = torch.nn.Linear(32, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.autograd.backward(model(torch.randn(16, 32)).square().mean())
        optimizer.step()
        profiler.step()
    profiler.close()
    return model.weight.detach()


def traced_steps(folder: Path) -> int:
    with gzip.open(folder / TRACE, "rt") as file:
        events = json.load(file)["traceEvents"]
    return len({event["name"] for event in events if event["name"].startswith("ProfilerStep#")})


def test_trace_and_table_hold_the_traced_steps(tmp_path) -> None:
    learn(StepProfiler(tmp_path / "profile", 3, CPU), 20)
    assert {path.name for path in (tmp_path / "profile").iterdir()} == {TRACE, OPERATORS}
    assert traced_steps(tmp_path / "profile") == 3
    rows = [line.split() for line in (tmp_path / "profile" / OPERATORS).read_text().splitlines()]
    shares = [float(row[1].rstrip("%")) for row in rows if len(row) > 1 and row[1].endswith("%")]
    assert shares == sorted(shares, reverse=True)
    assert "aten::addmm" in {row[0] for row in rows if row}


def test_tracing_changes_no_result(tmp_path) -> None:
    traced = learn(StepProfiler(tmp_path / "profile", 3, CPU), 10)
    assert torch.equal(traced, learn(StepProfiler(None, 3, CPU), 10))


@pytest.mark.parametrize(("requested", "taken", "traced"), [(0, 20, None), (3, 5, None), (3, 6, 2), (3, 7, 3)])
def test_a_training_that_ends_early_leaves_what_was_traced(
    tmp_path, requested: int, taken: int, traced: int | None
) -> None:
    """Five steps are let go by first; with nothing traced there is no folder. The step just begun is in the trace."""
    folder = tmp_path / "profile"
    learn(StepProfiler(folder, requested, CPU), taken)
    assert (traced_steps(folder) if folder.exists() else None) == traced


def test_a_new_trace_takes_the_old_one_s_place(tmp_path) -> None:
    folder = tmp_path / "profile"
    for steps in (2, 4):
        learn(StepProfiler(folder, steps, CPU), 20)
    assert traced_steps(folder) == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["profile"]
