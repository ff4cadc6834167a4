"""Report and card of numbers, labels and text: drawn, escaped, with the baseline and the features of a table."""

import re
from dataclasses import replace

import numpy as np
import pytest
from measured import measure

from ratchet.evaluation.answers import ScoreUnit
from ratchet.evaluation.importance import measure_importance
from ratchet.evaluation.measure import compare_with_baseline
from ratchet.evaluation.predictions import Predictions
from ratchet.gate.verdict import Verdict
from ratchet.kinds import Column, TableInput
from ratchet.problems import Labels, NextToken, Numbers
from ratchet.reports.model_card import CardContent, render_html, render_markdown
from ratchet.reports.run_report import ReportContent, render
from ratchet.settings.model import EvaluationSettings

NASTY = "<script>alert('x')</script>\"&|`{{ 1 }}"
ROWS = 120
FEW = EvaluationSettings(resamples=100)


def predictions(problem: str, *, noise: float = 0.3) -> Predictions:
    drawn = np.random.default_rng(0)
    ids = tuple(f"{NASTY} {at}" for at in range(ROWS))
    targets = drawn.normal(size=(ROWS, 2)).astype(np.float32)
    outputs = (targets + drawn.normal(0, noise, targets.shape)).astype(np.float32)
    if problem == "regression":
        return Predictions(outputs, targets, ids, Numbers((NASTY, "b"), (0.0, 0.0), (1.0, 1.0)))
    if problem == "multi-label":
        return Predictions(outputs, (targets > 0).astype(np.float32), ids, Labels((NASTY, "b")))
    sizes = np.full((ROWS, 3), 64)
    return Predictions((64 * np.exp(outputs[:, :1])).astype(np.float32), sizes, ids, NextToken(9))


def content(problem: str) -> ReportContent:
    ours, columns = predictions(problem), {NASTY: [str(at % 2) for at in range(ROWS)]}
    metrics = measure(ours, settings=FEW, columns=columns)
    metrics = compare_with_baseline(metrics, ours, predictions(problem, noise=0.9), name=NASTY, settings=FEW)
    numbers, codes = np.arange(ROWS * 1.0)[:, None].astype(np.float32), np.arange(ROWS)[:, None] % 3
    importance = measure_importance(
        lambda arrays: -np.abs(arrays[0][:, 0] - np.arange(ROWS)), (numbers, codes), [(NASTY, 0, 0)],
        unit=ScoreUnit("MAE", -1.0), confidence=0.95,
    )  # fmt: skip
    history = [{"epoch": 1, "train/loss": 2.0, "validation/mae": 3.0}, {"epoch": 2, "train/loss": 1.0}]
    return ReportContent(NASTY, None, metrics, history=history, kind="table", predictions=ours, importance=importance)


@pytest.mark.parametrize("problem", ["regression", "multi-label", "next-token"])
def test_page_and_card_are_complete_and_escaped(problem: str) -> None:
    page = render(content(problem))
    sections = ["Metrics", "Baseline", "Slices", "Feature importance"]
    sections += {
        "regression": ["Predicted and true values", "Largest errors"],
        "multi-label": ["Metrics by label"],
    }.get(problem, ["Text"])
    for section in sections:
        assert f"<h2>{section}</h2>" in page
    assert "<script" not in page
    assert not re.search(r"https?://|url\(|nan|\binf\b", re.sub(r"<style>.*</style>", "", page, flags=re.DOTALL))
    assert render(content(problem)) == page
    card = CardContent(
        name="a", number="1", purpose="", verdict=Verdict(True, (), kind="table"), metrics=content(problem).metrics,
        input=TableInput((Column("x", "numeric"),)), data={"name": NASTY}, rows={"test": ROWS}, quarantined={},
        model={}, settings={}, cost=None, checksums={"model.onnx": "ab"}, address="sqlite:///a",
    )  # fmt: skip
    assert "<script" not in render_html(card)
    text = render_markdown(card)
    assert "The model beats " in text
    assert "on 120 test samples" in text
    assert "Small test set (120 samples)" in text
    assert "images" not in text


def test_baseline_that_is_not_beaten_is_a_limit() -> None:
    metrics = content("regression").metrics
    assert metrics.baseline is not None
    assert metrics.baseline.network_is_better
    lost = compare_with_baseline(
        metrics, predictions("regression", noise=0.9), predictions("regression"), name="mean", settings=FEW
    )
    assert "does not beat mean" in render(replace(content("regression"), metrics=lost))


def test_scatter_of_many_rows_stays_small() -> None:
    whole = predictions("regression")
    targets, outputs = (np.repeat(each, 500, axis=0) for each in (whole.targets, whole.outputs))
    many = Predictions(outputs, targets, tuple(map(str, range(len(targets)))), whole.target)
    assert len(render(ReportContent("many", None, measure(many, settings=FEW), predictions=many))) < 500_000
