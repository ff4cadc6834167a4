"""Copies have one vote together, and so have the samples of a group."""

import json
from dataclasses import replace

import numpy as np
import pytest

from ratchet.evaluation.intervals import Interval
from ratchet.evaluation.measure import against_constant, compare_with_baseline
from ratchet.evaluation.metrics import Metrics
from ratchet.evaluation.predictions import Predictions
from ratchet.evaluation.units import Units, unit_means
from ratchet.evaluation.wording import baseline_text, constant_text
from ratchet.gate import Candidate, Case, Champion, judge, reload_rule
from ratchet.gate.rules import ChampionResult
from ratchet.gate.verdict_text import rule_text
from ratchet.problems import Classes, Labels, Numbers, Target
from ratchet.registry.sample_digests import Samples
from ratchet.settings.model import EvaluationSettings, GateSettings
from ratchet.typed_json import parse, to_plain
from tests.gate.test_rules import candidate, champion, right

SETTINGS = EvaluationSettings(resamples=400)
COPIES = Units(np.arange(600) % 60, "different")  # 60 images, each 10 times


def case(new: Candidate, old: Champion, **gate: object) -> Case:
    return Case(new, old, GateSettings(**gate), SETTINGS)


def champion_rule(new: Candidate, old: Champion, **gate: object) -> ChampionResult:
    reloaded = reload_rule(images=1, largest_difference=0.0, tolerance=1e-4)
    verdict = judge(new, old, GateSettings(**gate), SETTINGS, reloaded=reloaded)
    result = next(rule for rule in verdict.rules if isinstance(rule, ChampionResult))
    assert parse(ChampionResult, json.dumps(to_plain(result))) == result
    return result


def repeated(correct: np.ndarray) -> np.ndarray:
    return np.tile(correct, 10)


def test_copies_of_one_fixed_error_prove_nothing() -> None:
    new, old = candidate(repeated(right(60, 60))), champion(repeated(right(59, 60)))
    assert champion_rule(new, old).passed  # each copy for itself: 10 errors fixed
    new = replace(new, units=COPIES)
    result = champion_rule(new, old)
    assert not result.passed
    assert rule_text(result).measured == (
        "not comparable with pets version 3: only 60 different images of 600 test images can be compared, and "
        "gate.minimum_rows asks for 100"
    )
    assert "if equal images are no copies, let data.group_column name" in rule_text(result).fix
    result = champion_rule(new, old, minimum_rows=60)
    assert result.comparison is not None
    assert (result.passed, result.comparison.p, result.comparison.rows) == (False, 0.5, 600)
    assert rule_text(result).details.startswith(
        "On the same 60 different images this model is right on 60 and the champion (pets version 3) on 59: 1 error "
        "fixed, 0 new, "
    )
    assert "Copies have one vote together; 600 images were compared." in rule_text(result).details


def test_three_groups_are_too_few() -> None:
    units = Units(np.arange(300) // 100, "groups")
    new, old = candidate(right(300, 300), units=units), champion(right(200, 300))
    assert "only 3 groups of 300 test images" in rule_text(champion_rule(new, old)).measured
    result = champion_rule(new, old, minimum_rows=2)
    assert result.comparison is not None
    assert (result.passed, result.comparison.votes) == (False, 3)
    assert "The images of a group have one vote together" in rule_text(result).details


def test_copies_change_nothing_that_is_compared() -> None:
    """Slices too, and those of fewer different images than evaluation.slice_rows are left out."""
    draw = np.random.default_rng(0)
    ours, theirs = draw.random(60) < 0.9, draw.random(60) < 0.7
    side, rare = (["left", "right"] * 30, ["rare"] * 10 + ["often"] * 50)
    once = candidate(ours, slices={"side": side, "rare": rare})
    often = candidate(repeated(ours), units=COPIES, slices={"side": side * 10, "rare": rare * 10})
    results = [
        judge(
            new,
            old,
            GateSettings(minimum_rows=50),
            SETTINGS,
            reloaded=reload_rule(images=1, largest_difference=0.0, tolerance=1e-4),
        )
        for new, old in ((once, champion(theirs)), (often, champion(repeated(theirs))))
    ]
    first, second = ({rule.name: rule for rule in verdict.rules} for verdict in results)
    assert first["slices"] == second["slices"]
    assert first["champion"].scores == second["champion"].scores
    assert first["champion"].comparison.p == second["champion"].comparison.p


def test_equal_models_with_clusters_win_at_the_level() -> None:
    """100 rows of a group err together. The error is at most the level; before, each row had a vote."""
    draw, wins, groups, histories = np.random.default_rng(1), np.zeros(2), 40, 600
    units = Units(np.repeat(np.arange(groups), 100), "groups")
    level = 0.0
    for _ in range(histories):
        gain = np.repeat(draw.normal(0.0, 0.1, groups), 100)  # of the candidate, in this group
        ours, theirs = draw.random((2, groups * 100)) < 0.7 + np.stack([gain, -gain])
        for at, used in enumerate((units, None)):
            test = case(candidate(ours, units=used), champion(theirs), minimum_rows=40, confidence=0.6).comparison
            assert test is not None
            wins[at] += test.won
            level = test.level
    by_unit, by_row = wins / histories
    assert level / 3 < by_unit <= level + 3 * (level / histories) ** 0.5
    assert by_row > 3 * level


@pytest.mark.parametrize("target", [Classes(("a", "b", "c")), Labels(("a", "b")), Numbers(("a",), (0.0,), (1.0,))])
def test_oversampled_rows_prove_no_more_than_once(target: Target) -> None:
    """Constant answer, baseline and calibration are those of the different rows, for every problem."""
    draw, rows, width = np.random.default_rng(2), 120, target.outputs
    truth = draw.random((rows, width)) < 0.4
    targets = draw.integers(0, width, rows) if target.classes else truth.astype(np.float32)
    signal = np.eye(width)[targets] if target.classes else truth
    good, bad = ((signal + draw.normal(0, noise, (rows, width))).astype(np.float32) for noise in (0.3, 0.9))

    def measured(times: int, *, with_units: bool = True) -> Metrics:
        numbers = np.arange(rows * times) % rows
        units = Units(numbers, "different") if times > 1 and with_units else None
        ids = tuple(map(str, range(rows * times)))
        model, other = (
            Predictions(outputs[numbers], targets[numbers], ids, target, units=units) for outputs in (good, bad)
        )
        metrics = model.checked().measure(SETTINGS)
        metrics = against_constant(metrics, model, settings=SETTINGS)
        return compare_with_baseline(metrics, model, other, name="majority", settings=SETTINGS)

    def deciding(metrics: Metrics) -> list[Interval]:
        assert metrics.constant is not None
        assert metrics.baseline is not None
        ece = metrics.named().get("ece")
        return [metrics.constant.difference, metrics.baseline.difference, *([ece.interval] if ece else [])]

    once, often, before = measured(1), measured(10), measured(10, with_units=False)
    for expected, interval, narrow in zip(deciding(once), deciding(often), deciding(before), strict=True):
        assert (interval.low, interval.value) == pytest.approx((expected.low, expected.value), abs=1e-6)
        assert narrow.low > expected.low + 1e-3
    assert often.constant is not None
    assert often.baseline is not None
    assert (often.constant.units, often.baseline.rows) == (rows, rows)
    few = replace(often.constant, difference=Interval(-0.1, 0.1, 0.2))
    assert "with 120 different images that can be chance" in constant_text(few, 0.95, often.rows, "image")
    unproven = replace(often.baseline, difference=Interval(-0.1, 0.1, 0.2), network_is_better=False)
    assert "with 120 different images" in baseline_text(unproven, 0.95, "image")


def test_units_are_groups_or_different_contents() -> None:
    content, none = np.arange(1, 5, dtype=np.uint64), np.zeros(4, np.uint64)
    copied = np.array([7, 7, 8, 9], np.uint64)
    assert Samples(content, content, none, are_copies=True).units is None
    assert Samples(content, copied, none).units is None  # rows of a table with equal values
    copies = Samples(content, copied, none, are_copies=True).units
    assert copies is not None
    assert (copies.numbers.tolist(), copies.by) == ([0, 0, 1, 2], "different")
    groups = Samples(content, copied, np.array([0, 0, 5, 5], np.uint64)).units
    assert groups is not None
    assert (groups.numbers.tolist(), groups.by) == ([0, 1, 2, 2], "groups")
    assert Samples(content, copied, content).units is None  # a column that identifies rows: equal ones are no copies
    assert unit_means(np.array([1.0, 0.0, 1.0, 0.5]), copies).tolist() == [0.5, 1.0, 0.5]
