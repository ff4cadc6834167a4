"""The gate with real scores: the test against the champion, the minimum of any metric, the baseline, and the texts."""

import itertools
import json

import numpy as np
import pytest
from scipy import stats

from ratchet.errors import SettingsError
from ratchet.evaluation.answers import ScoreUnit
from ratchet.evaluation.intervals import Interval, paired_difference
from ratchet.evaluation.metrics import BaselineResult, NamedMetric
from ratchet.gate import Candidate, Case, Champion, judge, reload_rule
from ratchet.gate.rules import ChampionResult
from ratchet.gate.significance import Tries, p_better, p_larger_mean, p_sign_flip
from ratchet.gate.verdict import Verdict
from ratchet.gate.verdict_text import message, rule_text
from ratchet.problems import Classes, Labels, NextToken, Numbers, Target
from ratchet.settings.model import EvaluationSettings, GateSettings
from ratchet.typed_json import parse, to_plain
from tests.simulations.gate import share_won_by_a_rarely_failing_model
from tests.simulations.real_scores import DIFFERENCES, share_won

FIRST_LEVEL = 0.05 * (0.3 / 2 + 0.7 / 31)
RELOADED = reload_rule(images=64, largest_difference=0.0, tolerance=1e-4)
TARGET = Numbers(("cnt",), (100.0,), (40.0,))
UNIT = ScoreUnit("MAE", -40.0)
MEASURED = {
    "mae": NamedMetric("mae", "MAE", Interval(36.0, 38.2, 40.5), larger_is_better=False),
    "r2": NamedMetric("r2", "R2", Interval(0.6, 0.7, 0.78)),
}


def candidate(score: np.ndarray, **changes: object) -> Candidate:
    nothing = np.zeros(len(score), np.bool_)
    defaults = {
        "unit": UNIT,
        "metrics": MEASURED,
        "default_metric": "r2",
        "target": TARGET,
        "kind": "table",
        "saw": nothing,
    }
    return Candidate(score=score, **(defaults | changes))


def champion(score: np.ndarray, target: Target = TARGET) -> Champion:
    return Champion(name="bikes version 2", score=score, target=target, saw=np.zeros(len(score), np.bool_))


def decide(new: Candidate, old: Champion | None, **settings: object) -> Verdict:
    return judge(new, old, GateSettings(**settings), EvaluationSettings(), reloaded=RELOADED)


def compared(verdict: Verdict) -> ChampionResult:
    return next(rule for rule in verdict.rules if isinstance(rule, ChampionResult))


def errors(rows: int = 500, *, seed: int = 0) -> np.ndarray:
    return -np.abs(np.random.default_rng(seed).normal(size=rows))


@pytest.mark.parametrize("count", [6, 12])
def test_few_differences_are_enumerated(count: int) -> None:
    differences = np.random.default_rng(count).normal(0.4, 1, count)
    sums = [np.dot(signs, np.abs(differences)) for signs in itertools.product((-1, 1), repeat=count)]
    assert p_sign_flip(differences) == np.mean(np.array(sums) >= differences.sum() - 1e-9)


@pytest.mark.parametrize("shift", [0.0, 0.1, 0.2, 0.4])
def test_saddlepoint_agrees_with_a_million_flips(shift: float) -> None:
    differences = np.random.default_rng(1).standard_t(3, 100) + shift
    drawn = np.random.default_rng(2)
    total, larger = differences.sum(), 0
    for _ in range(10):
        larger += int(np.count_nonzero(drawn.choice((-1.0, 1.0), (100_000, 100)) @ np.abs(differences) >= total))
    share = larger / 1_000_000
    assert p_sign_flip(differences) == pytest.approx(share, rel=0.03, abs=4 * (share / 1_000_000) ** 0.5)


@pytest.mark.parametrize(("wins", "losses"), [(20, 10), (60, 30), (300, 240), (90, 20), (10, 30), (25, 0)])
def test_sign_flip_of_equal_differences_is_near_the_exact_test(wins: int, losses: int) -> None:
    differences = np.repeat([0.2, -0.2, 0.0], [wins, losses, 50])
    ratio = p_sign_flip(differences) / p_better(wins, losses)
    assert 0.99 <= ratio <= (1.03 if p_better(wins, losses) > 1e-5 else 1.8)  # never too small, even far in the tail


def test_p_value_of_normal_differences_is_student_s() -> None:
    differences = np.random.default_rng(3).normal(0.05, 1, 4000)
    theirs = stats.ttest_1samp(differences, 0, alternative="greater").pvalue
    assert p_larger_mean(differences) == pytest.approx(theirs, rel=0.1)


@pytest.mark.parametrize("differences", [np.zeros(40), np.full(40, 0.5), -np.full(40, 0.5), np.array([1.0])])
def test_degenerate_differences_have_a_p_value(differences: np.ndarray) -> None:
    p = p_larger_mean(differences)
    assert p == 1.0 if differences.sum() <= 0 or len(differences) == 1 else 0 < p <= 0.5


@pytest.mark.parametrize("name", ["two seeds", "lattice", "heavy tails", "often worse"])
def test_equal_models_win_no_more_often_than_the_level(name: str) -> None:
    """At the level of the first try, plus three standard errors of 4,000 test sets."""
    share = share_won(DIFFERENCES[name], rows=300, sets=4000, level=FIRST_LEVEL)
    assert share <= FIRST_LEVEL + 3 * (FIRST_LEVEL / 4000) ** 0.5


def test_model_that_is_often_better_seldom_wins_by_chance() -> None:
    """Skewness -2 on 300 rows, where no test of a mean is exact: at most twice the level."""
    share = share_won(DIFFERENCES["often better"], rows=300, sets=4000, level=FIRST_LEVEL)
    assert share <= 2 * FIRST_LEVEL


def test_better_model_wins_four_times_in_five() -> None:
    """The improvement is (z of the level + z of 0.8) standard errors."""
    spread = DIFFERENCES["two seeds"](np.random.default_rng(9), 200_000).std()
    better = spread / 1000**0.5 * (stats.norm.isf(FIRST_LEVEL) + stats.norm.ppf(0.8))
    share = share_won(DIFFERENCES["two seeds"], rows=1000, sets=500, level=FIRST_LEVEL, better=better)
    assert 0.72 <= share <= 0.9


def test_difference_of_real_scores_is_that_of_their_means() -> None:
    ours, theirs = errors(seed=1), errors(seed=2)
    interval = paired_difference(ours, theirs, resamples=100, confidence=0.95, seed=0)
    assert interval.value == pytest.approx(ours.mean() - theirs.mean())
    low, high = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=0.01)


def test_smaller_errors_replace_the_champion() -> None:
    old = errors()
    verdict = decide(candidate(0.8 * old), champion(old))
    result = compared(verdict)
    assert verdict.passed
    assert result.scores is not None
    assert not result.scores.exact
    assert (result.scores.better, result.scores.worse) == (500, 0)
    assert result.scores.candidate.interval.value == pytest.approx(-0.8 * old.mean() * 40)
    assert parse(Verdict, json.dumps(to_plain(verdict), allow_nan=False)) == verdict
    assert not decide(candidate(old), champion(0.8 * old)).passed


def test_slightly_worse_model_passes_within_the_tolerance_only() -> None:
    old = errors()
    worse = old - 0.01
    assert not decide(candidate(worse), champion(old), champion="not-worse").passed
    assert decide(candidate(worse), champion(old), champion="not-worse", tolerance=0.1).passed


def test_slice_with_larger_errors_is_refused() -> None:
    old = errors()
    half = np.arange(500) < 250
    slices = {"ward": np.where(half, "north", "south").tolist()}
    new = np.where(half, 0.3 * old, 1.5 * old)
    verdict = decide(candidate(new, slices=slices), champion(old))
    assert [rule.name for rule in verdict.failed] == ["slices"]
    assert "1 of 2 significantly worse: ward: south MAE worse by " in message(verdict)


@pytest.mark.parametrize(
    ("settings", "passes", "text"),
    [
        ({}, True, "R2 0.700 (95 % CI 0.600-0.780), minimum 0.5"),
        ({"minimum": 0.8}, False, "R2 0.700 (95 % CI 0.600-0.780), minimum 0.8"),
        ({"minimum_metric": "mae", "minimum": 40.0}, True, "MAE 38.2 (95 % CI 36.0-40.5), maximum 40"),
        ({"minimum_metric": "mae", "minimum": 38.0}, False, "MAE 38.2 (95 % CI 36.0-40.5), maximum 38"),
    ],
)
def test_minimum_is_of_the_named_metric(settings: dict[str, object], passes: bool, text: str) -> None:
    verdict = decide(candidate(errors()), None, **settings)
    assert verdict.passed is passes
    rule = verdict.rules[0]
    assert (rule.name, rule_text(rule, verdict.kind).short) == ("minimum", text)
    assert ("gate.minimum" in message(verdict)) is not passes


def test_minimum_is_switched_off_and_unknown_metrics_are_refused() -> None:
    assert [rule.name for rule in decide(candidate(errors()), None, minimum_metric="none").rules] == [
        "champion",
        "reload",
    ]
    with pytest.raises(SettingsError, match=r"gate\.minimum_metric: found accuracy, .* Allowed: .* mae, "):
        decide(candidate(errors()), None, minimum_metric="accuracy")


def test_metric_that_is_not_defined_is_refused() -> None:
    verdict = decide(candidate(errors(), metrics={"mae": MEASURED["mae"]}), None)
    assert "r2 not defined" in message(verdict)
    verdict = decide(candidate(errors(), metrics={"r2": MEASURED["r2"]}), None, minimum_metric="mae")
    assert "mae not defined" in message(verdict)


@pytest.mark.parametrize(
    ("target", "ours", "kind"),
    [
        (Numbers(("casual",), (0.0,), (1.0,)), TARGET, "targets"),
        (Classes(("a", "b")), TARGET, "problem"),
        (Labels(("a",)), NextToken(9), "problem"),
    ],
)
def test_champion_of_another_task_is_not_compared(target: Target, ours: Target, kind: str) -> None:
    verdict = decide(candidate(errors(), target=ours), champion(errors(), target))
    obstacle = compared(verdict).obstacle
    assert obstacle is not None
    assert obstacle.kind == kind
    assert "set registry.model to another name" in message(verdict)


@pytest.mark.parametrize(("tries", "minimum"), [(0, 473), (29, 803)])
def test_rows_that_could_hide_rare_failures_are_not_compared(tries: int, minimum: int) -> None:
    """So many rows that a failure on 1 % of all rows is absent with a chance below the level of the try."""
    before, settings = Tries(count=tries, spent=tries), GateSettings()
    cases = [
        Case(candidate(errors(rows)), champion(errors(rows)), settings, EvaluationSettings(), tries=before)
        for rows in (minimum - 1, minimum)
    ]
    assert [case.comparison is not None for case in cases] == [False, True]
    assert cases[0].obstacle is not None
    assert cases[0].obstacle.minimum == minimum


def test_model_with_rare_failures_wins_within_the_level() -> None:
    share = share_won_by_a_rarely_failing_model(473, sets=1000)
    assert share <= FIRST_LEVEL + 3 * (FIRST_LEVEL / 1000) ** 0.5


def beside(low: float, high: float) -> BaselineResult:
    baseline = NamedMetric("baseline", "MAE", Interval(38.8, 41.0, 43.2), larger_is_better=False)
    return BaselineResult("gradient boosting", baseline, MEASURED["mae"], Interval(low, 2.8, high), low > 0)


@pytest.mark.parametrize(
    ("low", "setting", "passes"), [(-0.4, "report", True), (-0.4, "required", False), (1.2, "required", True)]
)
def test_baseline_refuses_only_where_it_is_required(low: float, setting: str, passes: bool) -> None:
    verdict = decide(candidate(errors(), baseline=beside(low, 4.4)), None, baseline=setting)
    assert verdict.passed is passes
    rule = next(rule for rule in verdict.rules if rule.name == "baseline")
    measured = rule_text(rule, verdict.kind).measured
    assert "2.8" in measured
    assert ("that can be chance" in measured) is (low <= 0)
    assert ("gate.baseline" in message(verdict)) is not passes
