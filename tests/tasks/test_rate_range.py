"""The range test of the learning rate: its rates, suggestions on known curves, and what it leaves behind."""

import math
from pathlib import Path

import numpy as np
import pytest

from commands.lr_find import curve_lines, sentences
from ratchet import settings
from ratchet.data.manifest import Manifest
from ratchet.errors import TrainingError
from ratchet.settings.model import DataSettings, ModelSettings, Params, TrainingSettings
from ratchet.training import loop
from ratchet.workspace import Workspace
from tasks.ingest import ingest
from tasks.rate_range import RateRange, rate_range
from tests.tasks.test_hooks import Notes

RATES = np.logspace(-6, 1, 200)


def range_of(losses: np.ndarray) -> RateRange:
    """Return the test of these losses, which ends where they diverge."""
    result = RateRange(len(losses))
    for rate, loss in zip(RATES, losses, strict=True):
        if result.add(float(rate), float(loss)):
            result.end = "the loss diverged"
            break
    return result


def curve(falls_at: float, rises_at: float) -> np.ndarray:
    """Losses that fall by 2 around one rate, and explode above another."""
    fall = 2 / (1 + np.exp(-3 * np.log(RATES / falls_at)))
    return 3 - fall + (RATES / rises_at) ** 3


def test_suggestions_of_a_known_curve() -> None:
    result = range_of(curve(1e-3, 1.0))
    assert result.falls
    assert result.end == "the loss diverged"
    assert len(result.rates) < 200
    assert 5e-4 < result.steepest < 8e-3, "a moving average lags"
    assert 0.01 < result.tenth < 0.1
    [command] = [line for line in sentences(result, 10.0) if "ratchet set" in line]
    assignment = command.partition("ratchet set ")[2].rstrip("`")
    ((key, value),) = settings.parse_assignments([assignment]).items()
    assert key == "training.learning_rate"
    assert value == pytest.approx(result.tenth, rel=0.05)


@pytest.mark.parametrize(
    ("losses", "fix"),
    [
        (np.full(200, 2.3), "a larger --to"),
        (np.linspace(2.3, 9.0, 200), "a larger --to"),
        (np.full(200, 0.0), "a larger --to"),
        (np.logspace(0.3, 3, 200), "a smaller --from"),  # the first rate is too large
    ],
)
def test_a_loss_that_does_not_fall_gives_no_suggestion(losses: np.ndarray, fix: str) -> None:
    result = range_of(losses)
    assert not result.falls
    assert any(f"no suggestion: the loss did not fall. Fix: {fix}" in line for line in sentences(result, 10.0))


def test_a_loss_that_still_falls_suggests_the_steepest_rate() -> None:
    result = range_of(3 - np.linspace(0, 1, 200) ** 2)
    text = " ".join(sentences(result, 10.0))
    assert "still fell at the largest rate, 10. Fix: a larger --to" in text
    assert f"learning_rate={result.steepest:.2g}" in text


def test_losses_below_zero_can_diverge() -> None:
    result = range_of(curve(1e-3, 1.0) - 3)
    assert result.end
    assert result.falls


def test_curve_fits_its_width() -> None:
    lines = curve_lines([(-3 + step / 10, math.sin(step / 5)) for step in range(30)], width=40)
    assert max(map(len, lines)) <= 52
    assert "1.0e-03" in lines[-1]
    assert curve_lines([], width=40) == curve_lines([(0.0, 1.0)], width=40) == []


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Two groups of points in a table."""
    root = tmp_path_factory.mktemp("points").resolve()
    generator = np.random.default_rng(0)
    rows = [f"{x + 2 * (x > 0):.3f},{y:.3f},{'ab'[int(x > 0)]}" for x, y in generator.normal(size=(300, 2))]
    (root / "points.csv").write_text("\n".join(["x,y,label", *rows]))
    workspace = Workspace(root)
    ingest(params(), workspace, progress=Notes())
    return workspace


def params(name: str = "mlp", **training: object) -> Params:
    data = DataSettings(kind="table", path="points.csv")
    return Params(data=data, model=ModelSettings(name=name), training=TrainingSettings(device="cpu", **training))


def run(workspace: Workspace, chosen: Params, steps: int = 40) -> RateRange:
    return rate_range(chosen, workspace, steps=steps, lowest=1e-5, highest=1.0, progress=Notes())


def files_of(workspace: Workspace) -> set[Path]:
    return set(workspace.root.rglob("*"))


def test_rates_grow_evenly_and_nothing_is_kept(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """With settings that would keep, profile and stop; twice the same."""
    monkeypatch.chdir(workspace.root)
    chosen = params(checkpoint_steps=1, profile=3, patience=1, doctor="always", pieces=2, processes=2, log_every=10)
    before = files_of(workspace)
    first, second = run(workspace, chosen), run(workspace, chosen)
    assert files_of(workspace) == before
    assert first.losses == second.losses
    assert first.rates == pytest.approx(np.logspace(-5, 0, 40)[: len(first.rates)])
    assert min(first.smoothed) < first.smoothed[4]


def test_an_infinite_loss_ends_the_test(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace.root)
    chosen = params(optimizer="sgd", clip_norm=0.0, precision="fp32")
    result = rate_range(chosen, workspace, steps=60, lowest=1e-3, highest=1e30, progress=Notes())
    assert result.end
    assert len(result.rates) < 60


def test_an_epoch_of_steps_needs_no_validation(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last step ends the test."""
    monkeypatch.chdir(workspace.root)
    monkeypatch.delattr(loop, "validate")
    steps = Manifest.read(workspace.packed).splits["train"].rows // 4
    chosen = params(batch_size=4)
    result = rate_range(chosen, workspace, steps=steps, lowest=1e-9, highest=1e-8, progress=Notes())
    assert len(result.rates) == steps


def test_a_baseline_has_no_learning_rate(workspace: Workspace) -> None:
    with pytest.raises(TrainingError, match=r"model.name: found baseline.*Fix: `ratchet set model.name=auto`"):
        run(workspace, params("baseline"))
