"""Each rule of the gate passes and fails where it should, and returns the values that it measured."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ratchet.evaluation.answers import ScoreUnit
from ratchet.evaluation.intervals import Interval
from ratchet.evaluation.latency import Cost, Costs
from ratchet.evaluation.metrics import BaselineResult, ConstantResult, NamedMetric
from ratchet.evaluation.slices import rows_by_slice
from ratchet.exports.program import NotExported, Parity
from ratchet.gate import Candidate, Champion, Tries, judge, reload_rule
from ratchet.gate.case import Case, LeftOut
from ratchet.gate.rules import ChampionResult, RuleResult
from ratchet.gate.rules.no_slice_worse import no_slice_worse
from ratchet.gate.significance import p_larger_mean
from ratchet.gate.verdict import Verdict
from ratchet.gate.verdict_text import message, rule_text, verdict_table
from ratchet.problems import Classes
from ratchet.settings.model import EvaluationSettings, GateSettings
from ratchet.typed_json import parse, to_plain

RELOADED = reload_rule(images=64, largest_difference=0.0, tolerance=1e-4)
MEASURED = EvaluationSettings(resamples=1000)
CLASSES = ("cat", "dog")
LABELS = np.arange(400) % 4 // 3  # a quarter of the images are of the second class


def candidate(correct: np.ndarray, **changes: object) -> Candidate:
    value = float(correct.mean())
    defaults = {
        "labels": np.zeros(len(correct), np.int64),
        "target": Classes(CLASSES),
        "input_shape": (32, 32, 3),
        "calibration_error": Interval(0.0, 0.02, 0.06),
        "saw": np.zeros(len(correct), np.bool_),
    }
    score = correct.astype(np.float64)
    metrics = {"accuracy": NamedMetric("accuracy", "accuracy", Interval(value, value, value), share=True)}
    unit = ScoreUnit("accuracy", share=True)
    return Candidate(metrics=metrics, default_metric="accuracy", unit=unit, score=score, **(defaults | changes))


def champion(correct: np.ndarray, **changes: object) -> Champion:
    saw = np.zeros(len(correct), np.bool_)
    defaults = {"target": Classes(CLASSES), "input_shape": (32, 32, 3), "saw": saw}
    return Champion(name="pets version 3", score=correct.astype(np.float64), **(defaults | changes))


def right(count: int, total: int = 400) -> np.ndarray:
    """The first `count` of the images are answered correctly."""
    return np.arange(total) < count


def decide(new: Candidate, old: Champion | None, tries: Tries | None = None, **settings: object) -> Verdict:
    extra = {} if tries is None else {"tries": tries}
    return judge(new, old, GateSettings(**settings), MEASURED, reloaded=RELOADED, **extra)


def rule(verdict: Verdict, name: str) -> RuleResult:
    return next(result for result in verdict.rules if result.name == name)


def compared(verdict: Verdict) -> ChampionResult:
    result = rule(verdict, "champion")
    assert isinstance(result, ChampionResult)
    return result


def failed(verdict: Verdict) -> list[str]:
    return [result.name for result in verdict.failed]


def test_higher_confidence_needs_more_proof() -> None:
    """Eight errors fixed and none new: p = 1/256."""
    for confidence, passes in ((0.95, True), (0.9999, False)):
        verdict = decide(candidate(right(400)), champion(right(392)), confidence=confidence)
        result = compared(verdict)
        assert result.passed is passes
        assert result.confidence == confidence
        assert verdict.comparison is not None
        assert verdict.comparison.p == 1 / 256
        assert result.scores is not None
        assert [model.interval.value for model in (result.scores.candidate, result.scores.champion)] == [1.0, 0.98]


def test_first_model_passes_without_a_champion() -> None:
    verdict = decide(candidate(right(300)), None)
    assert verdict.passed
    assert compared(verdict).champion is None
    assert verdict.comparison is None
    assert rule(verdict, "accuracy").metric.interval.value == 0.75


def test_accuracy_below_the_minimum_is_refused() -> None:
    verdict = decide(candidate(right(100)), None, minimum=0.5)
    result = rule(verdict, "accuracy")
    assert failed(verdict) == ["accuracy"]
    assert (result.metric.interval.value, result.minimum, result.rows) == (0.25, 0.5, 400)


def test_accuracy_at_the_minimum_passes() -> None:
    assert decide(candidate(right(200)), None, minimum=0.5).passed


def test_same_answers_are_not_better_but_not_worse() -> None:
    correct = right(390)
    better = decide(candidate(correct), champion(correct))
    assert failed(better) == ["champion"]
    scores = compared(better).scores
    assert scores is not None
    assert (scores.better, scores.worse) == (0, 0)
    assert decide(candidate(correct), champion(correct), champion="not-worse").passed


@pytest.mark.parametrize(("tolerance", "passes"), [(0.0, False), (0.005, False), (0.1, True)])
def test_slightly_worse_model_passes_within_the_tolerance_only(tolerance: float, passes: bool) -> None:
    verdict = decide(candidate(right(380)), champion(right(388)), champion="not-worse", tolerance=tolerance)
    assert verdict.passed is passes
    scores = compared(verdict).scores
    assert scores is not None
    assert (scores.better, scores.worse) == (0, 8)


@pytest.mark.parametrize(
    ("changes", "kind", "values"),
    [
        ({"target": Classes(("frog", "bird"))}, "no shared class", {"lost_classes": ("frog", "bird")}),
        ({"mismatch": "it takes float32 pixels"}, "input", {"mismatch": "it takes float32 pixels"}),
        ({"target": Classes(("cat", "bird"))}, "classes", {"new_classes": ("dog",), "lost_classes": ("bird",)}),
        ({"target": Classes(("cat",))}, "classes", {"new_classes": ("dog",), "lost_classes": (), "allowed": "same"}),
    ],
)
def test_champion_of_another_task_is_not_compared(changes: dict, kind: str, values: dict) -> None:
    verdict = decide(candidate(right(400)), champion(right(0), **changes))
    assert failed(verdict) == ["champion"]
    obstacle = compared(verdict).obstacle
    assert obstacle is not None
    assert obstacle.kind == kind
    assert {name: getattr(obstacle, name) for name in values} == values
    assert "set registry.model to another name" in rule_text(compared(verdict)).fix


@pytest.mark.parametrize("changes", [{"target": Classes(("dog", "cat"))}, {"input_shape": (16, 16, 3)}])
def test_other_class_order_or_image_size_is_compared(changes: dict) -> None:
    verdict = decide(candidate(right(400)), champion(right(300), **changes))
    assert verdict.passed
    shapes = ((32, 32, 3), (16, 16, 3)) if "input_shape" in changes else None
    assert compared(verdict).input_shapes == shapes


@pytest.mark.parametrize(("allowed", "passes"), [("same", False), ("may-grow", True), ("may-change", True)])
def test_new_class_is_accepted_where_allowed(allowed: str, passes: bool) -> None:
    """The models are compared on the 300 images of the class that both know."""
    challenger = candidate(right(400), labels=LABELS)
    verdict = decide(challenger, champion(right(200), target=Classes(("cat",))), classes=allowed)
    assert verdict.passed is passes
    if passes:
        assert compared(verdict).left_out == LeftOut(unknown=100)
        assert verdict.comparison is not None
        assert verdict.comparison.rows == 300


def test_lost_class_needs_may_change() -> None:
    holder = champion(right(300), target=Classes(("cat", "dog", "owl")))
    for allowed, passes in (("same", False), ("may-grow", False), ("may-change", True)):
        verdict = decide(candidate(right(400)), holder, classes=allowed)
        assert verdict.passed is passes
        assert ("gate.classes=may-change" in message(verdict)) is not passes


def test_images_of_a_new_class_count_for_minimum_accuracy() -> None:
    """All right on the old class and never on the new one, which has a quarter of the images."""
    challenger = candidate(LABELS == 0, labels=LABELS)
    verdict = decide(challenger, champion(right(100), target=Classes(("cat",))), classes="may-grow", minimum=0.8)
    assert failed(verdict) == ["accuracy"]


def test_images_that_the_champion_saw_are_not_compared() -> None:
    """The champion is right on all of its 280 training images; on the others the candidate is clearly better."""
    saw = np.arange(400) < 280
    new, old = np.arange(400) % 5 > 0, np.where(saw, True, np.arange(400) % 2 > 0)
    assert not decide(candidate(new), champion(old)).passed
    verdict = decide(candidate(new), champion(old, saw=saw))
    assert verdict.passed
    assert compared(verdict).left_out == LeftOut(seen=280)
    assert verdict.comparison is not None
    assert (verdict.comparison.rows, compared(verdict).test_images) == (120, 400)


def test_too_few_images_to_compare_are_refused() -> None:
    saw = np.arange(400) < 350
    verdict = decide(candidate(right(400)), champion(right(360), saw=saw))
    obstacle = compared(verdict).obstacle
    assert obstacle is not None
    assert (obstacle.kind, obstacle.compared, obstacle.minimum) == ("too few images", 50, 100)
    assert compared(verdict).left_out == LeftOut(seen=350)
    assert decide(candidate(right(400)), champion(right(360), saw=saw), minimum_rows=50).passed


@pytest.mark.parametrize("rows", [20, 99])
def test_small_test_set_judges_nothing(rows: int) -> None:
    verdict = decide(candidate(right(rows, rows)), champion(right(0, rows)))
    assert failed(verdict) == ["champion"]
    assert verdict.comparison is None


def test_champion_without_a_record_of_samples_is_refused() -> None:
    verdict = decide(candidate(right(400)), champion(right(0), saw=None))
    obstacle = compared(verdict).obstacle
    assert obstacle is not None
    assert obstacle.kind == "no record"
    assert failed(verdict) == ["champion"]


@pytest.mark.parametrize(("count", "passes"), [(0, True), (3, False)])
def test_later_tries_on_the_same_images_need_more(count: int, passes: bool) -> None:
    tries = Tries(count=count, spent=float(count), new_rows=0.0)
    verdict = decide(candidate(right(400)), champion(right(392)), tries)
    assert verdict.passed is passes
    assert verdict.comparison is not None
    assert verdict.comparison.number == count + 1
    assert compared(verdict).new_share == 0.0


@pytest.mark.parametrize(
    ("images", "difference", "passes"),
    [(64, 0.0, True), (64, 1e-5, True), (64, 1e-2, False), (64, float("nan"), False), (0, 0.0, False)],
)
def test_stored_model_must_agree_with_the_evaluation(images: int, difference: float, passes: bool) -> None:
    reloaded = reload_rule(images=images, largest_difference=difference, tolerance=1e-4)
    assert reloaded.passed is passes
    verdict = judge(candidate(right(400)), None, GateSettings(), MEASURED, reloaded=reloaded)
    assert verdict.passed is passes


@pytest.mark.parametrize("exported", [None, Parity(256, 3e-8, 1), Parity(256, float("nan"), 0), NotExported("none")])
def test_verdict_survives_json(exported: Parity | NotExported | None) -> None:
    """JSON has no NaN, which a wrong ONNX program may return."""
    broken = replace(champion(right(0)), score=np.full(400, np.nan))
    for old in (None, costly(single=9.0), champion(right(0), target=Classes(("frog",))), broken):
        verdict = decide(candidate(right(390), exported=exported, slices=halves()), old)
        assert parse(Verdict, json.dumps(to_plain(verdict), allow_nan=False)) == verdict


def halves(total: int = 400) -> dict[str, list[str | None]]:
    """Return two columns, each of which divides the images into halves."""
    return {
        "light": ["dark" if number % 2 else "bright" for number in range(total)],
        "ward": ["north" if number < total // 2 else "south" for number in range(total)],
    }


def test_better_model_that_fails_on_a_slice_is_refused() -> None:
    old = np.arange(400) % 5 > 0  # right on four of five images, everywhere
    new = np.where(np.arange(400) < 200, True, np.arange(400) % 5 > 1)
    verdict = decide(candidate(new, slices=halves()), champion(old))
    result = rule(verdict, "slices")
    assert not result.passed
    assert (result.count, result.worse, result.worst) == (4, ("ward: south",), "ward: south")
    assert result.difference.high < 0.0
    allowed = decide(candidate(new, slices=halves()), champion(old), slice_tolerance=0.3)
    assert rule(allowed, "slices").passed


def test_hundreds_of_slices_draw_for_few_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The draws of all would take a time that grows by the square of their number; the result is that of all draws."""
    draws, draw = [], Case.difference

    def counted(case: Case, *rows: Any, **looks: Any) -> Interval:
        draws.append(rows)
        return draw(case, *rows, **looks)

    monkeypatch.setattr(Case, "difference", counted)
    generator = np.random.default_rng(3)
    names = {"site": [f"{number // 100}" for number in range(4000)], "ward": [f"{n % 40}" for n in range(4000)]}
    slices = rows_by_slice(names, least=20)
    old = generator.random(4000) < 0.8
    for lost, tolerance in ((0, 0.0), (3, 0.0), (3, 0.3), (30, 0.1)):
        new = np.where(generator.random(4000) < 0.1, ~old, old)
        new[: 100 * lost] = False
        judged = candidate(new, slices=names)
        case = Case(judged, champion(old), GateSettings(slice_tolerance=tolerance), MEASURED)
        draws.clear()
        result = no_slice_worse(case)
        assert result is not None
        assert len(draws) <= 20
        all_of_them = {f"{column}: {value}": draw(case, rows, looks=80) for column, value, rows in slices}
        assert result.worse == tuple(name for name, each in all_of_them.items() if each.high < -tolerance)
        worst = min(all_of_them, key=lambda name: (all_of_them[name].high, all_of_them[name].value))
        assert (result.count, result.worst, result.difference) == (80, worst, all_of_them[worst])


def test_slices_need_columns_and_a_champion() -> None:
    for new, old in ((candidate(right(390)), champion(right(380))), (candidate(right(390), slices=halves()), None)):
        names = [result.name for result in decide(new, old).rules]
        assert names == ["accuracy", "champion", "calibration", "reload"]


@pytest.mark.system
def test_slices_hardly_ever_refuse_an_equal_model() -> None:
    generator = np.random.default_rng(5)
    names = {"part": [f"part {number % 10}" for number in range(400)]}
    refused = 0
    for number in range(200):
        chance = generator.random(400)
        new, old = chance < 0.85, np.roll(chance, 1) < 0.85
        verdict = judge(
            candidate(new, slices=names), champion(old), GateSettings(), MEASURED, reloaded=RELOADED, seed=number
        )
        refused += not rule(verdict, "slices").passed
    assert refused / 200 <= 0.025 + 3 * (0.025 * 0.975 / 200) ** 0.5


@pytest.mark.parametrize(
    ("error", "passes"),
    [(Interval(0.0, 0.1, 0.2), True), (Interval(0.2, 0.35, 0.5), True), (Interval(0.26, 0.35, 0.44), False)],
)
def test_significant_calibration_error_is_refused(error: Interval, passes: bool) -> None:
    verdict = decide(candidate(right(390), calibration_error=error), None)
    result = rule(verdict, "calibration")
    assert (result.passed, verdict.passed) == (passes, passes)
    assert (result.ece, result.limit) == (error, 0.25)


def costly(*, weights: float = 1.0, single: float = 1.0, batch: float = 1.0) -> Champion:
    """Return a champion beside a candidate that costs so many times as much."""
    theirs = Cost(weights=4096, single=0.001, batch=0.02)
    ours = Cost(weights=int(4096 * weights), single=0.001 * single, batch=0.02 * batch)
    return champion(right(350), costs=Costs(ours, theirs, rows=64))


@pytest.mark.parametrize(
    ("times", "name", "factor"),
    [({"single": 5.0}, "latency", 5.0), ({"batch": 4.5}, "latency", 4.5), ({"weights": 11.0}, "size", 11.0)],
)
def test_model_that_costs_too_much_is_refused(times: dict[str, float], name: str, factor: float) -> None:
    verdict = decide(candidate(right(390)), costly(**times))
    assert failed(verdict) == [name]
    assert rule(verdict, name).factor == pytest.approx(factor)
    assert decide(candidate(right(390)), costly(**times), **{f"{name}_factor": 12.0}).passed


@pytest.mark.parametrize("exported", [Parity(256, 3e-8, 0), Parity(256, 1e-4, 1)])
def test_onnx_program_that_agrees_with_the_model_passes(exported: Parity) -> None:
    verdict = decide(candidate(right(390), exported=exported), None)
    result = rule(verdict, "ONNX export")
    assert verdict.passed
    assert (result.images, result.largest_difference) == (256, exported.largest_difference)
    assert result.other_class == exported.other_class


@pytest.mark.parametrize(
    ("exported", "difference", "missing"),
    [
        (Parity(256, 0.02, 3), 0.02, ""),
        (Parity(256, float("nan"), 0), None, ""),
        (Parity(0, 0.0, 0), 0.0, ""),
        (NotExported("No ONNX function found for it"), None, "No ONNX function found for it"),
    ],
)
def test_missing_or_wrong_onnx_program_is_refused(
    exported: Parity | NotExported, difference: float | None, missing: str
) -> None:
    challenger = candidate(right(390), exported=exported)
    verdict = decide(challenger, None)
    assert failed(verdict) == ["ONNX export"]
    result = rule(verdict, "ONNX export")
    assert (result.largest_difference, result.missing, result.limit) == (difference, missing, 1e-4)
    assert decide(challenger, None, export_difference=1.0).passed


def test_rules_are_switched_off_by_their_settings() -> None:
    off = {"calibration_error": 1.0, "latency_factor": 0.0, "size_factor": 0.0, "export_difference": 1.0}
    challenger = candidate(right(390), calibration_error=Interval(0.8, 0.9, 1.0), exported=Parity(256, 0.5, 99))
    verdict = decide(challenger, costly(weights=100.0, single=100.0), **off)
    assert verdict.passed
    assert [result.name for result in verdict.rules] == ["accuracy", "champion", "reload"]


def test_costs_of_a_champion_of_another_task_are_ignored() -> None:
    other = champion(right(0), target=Classes(("frog", "bird")), costs=costly(single=9.0).costs)
    assert failed(decide(candidate(right(400)), other)) == ["champion"]


def against_constant(low: float, *, one_answer: bool = False) -> ConstantResult:
    accuracy = NamedMetric("accuracy", "accuracy", Interval(0.5, 0.618, 0.73), share=True)
    return ConstantResult(
        "always answering 'cat'", accuracy, 0.618, accuracy, 0.5, Interval(low, 0.118, 0.23), smallest=0.2,
        answer="'cat'", answered=400 if one_answer else 250, one_answer=one_answer,
    )  # fmt: skip


def test_first_version_must_beat_the_best_constant_answer() -> None:
    good, unsure = (candidate(right(300), constant=against_constant(low)) for low in (0.01, -0.01))
    assert decide(good, None).passed
    refused = decide(unsure, None)
    assert failed(refused) == ["constant"]
    assert "but with 400 images that can be chance" in message(refused)
    assert "gate.constant" in message(refused)
    allowed = decide(unsure, None, constant="report")
    assert allowed.passed
    assert [result.name for result in allowed.doubts] == ["constant"]
    assert "not shown: constant" in allowed.summary
    assert "  --  constant" in verdict_table(allowed)
    assert "  ok  constant" in verdict_table(decide(good, None))
    assert decide(unsure, champion(right(200))).passed, "the champion decides about later versions"


def test_a_floor_of_balanced_accuracy_guards_rare_classes() -> None:
    """Of 1,000 images 80 are of the rare class: the champion knows 48 of them, the new version 12."""
    rare, old = np.arange(1000) < 80, np.arange(1000) % 1000 >= 32
    old[80:148], new = False, np.arange(1000) >= 68
    recalls = new[rare].mean(), new[~rare].mean()
    assert (old.mean(), new.mean(), np.mean(recalls)) == pytest.approx((0.9, 0.932, 0.575))
    balanced = NamedMetric("balanced_accuracy", "balanced accuracy", Interval(0.53, 0.575, 0.63), share=True)
    version = candidate(new, labels=rare.astype(np.int64))
    version = replace(version, metrics={**version.metrics, "balanced_accuracy": balanced})
    assert decide(version, champion(old)).passed
    floor = decide(version, champion(old), minimum_metric="balanced_accuracy", minimum=0.7)
    assert failed(floor) == ["minimum"]


@pytest.mark.parametrize("setting", ["required", "report"])
def test_one_answer_to_all_is_refused_whatever_the_champion(setting: str) -> None:
    constant = candidate(right(300), constant=against_constant(0.01, one_answer=True))
    for old in (None, champion(right(100))):
        verdict = decide(constant, old, constant=setting)
        assert failed(verdict) == ["constant"]
        assert "gives one answer: 'cat' to 400 of 400 images" in message(verdict)


def test_one_answer_to_all_is_never_ok_without_the_rule() -> None:
    verdict = decide(candidate(right(300), constant=against_constant(0.01, one_answer=True)), None, constant="off")
    assert failed(verdict) == []
    assert [rule.name for rule in verdict.doubts] == ["constant"]
    assert "gives one answer: 'cat' to 400 of 400 images" in message(verdict)


@pytest.mark.parametrize("side", ["candidate", "champion"])
def test_scores_that_are_not_numbers_are_refused(side: str) -> None:
    """One NaN must not win: its comparison had p = 0."""
    broken = right(400).astype(np.float64)
    broken[7] = np.nan
    good = right(300)
    new, old = (candidate(good), champion(good))
    if side == "candidate":
        new = replace(new, score=broken)
    else:
        old = replace(old, score=broken)
    verdict = decide(new, old)
    assert "scores" in failed(verdict)
    assert verdict.comparison is None
    name = "the model" if side == "candidate" else "pets version 3"
    assert f"not finite numbers: {name} on 1 of 400 test images" in message(verdict)
    assert p_larger_mean(np.array([1.0, np.nan, 2.0])) == 1.0
    if side == "candidate":
        assert failed(decide(new, None)) == ["scores"]


def test_baseline_that_was_not_beaten_is_never_ok() -> None:
    accuracy = NamedMetric("baseline", "accuracy", Interval(0.5, 0.618, 0.73), share=True)
    result = BaselineResult("majority class", accuracy, accuracy, Interval(-0.05, 0.2353, 0.5), False, rows=34)
    verdict = decide(candidate(right(300), baseline=result), None)
    assert verdict.passed
    assert "not shown: baseline" in verdict.summary
    table = verdict_table(verdict)
    assert "ok  baseline" not in table
    assert "23.5 points better" in table
    assert "but with 34 images that can be chance" in " ".join(table.split())
