"""The gate's promises: equal models pass as rarely as the level says, better ones nearly always; the words say why."""

import itertools
import json
import re

import numpy as np
import pytest

from bench.gate_errors import FIVE_PER_CENT, Pair, detectable, nights, share_promoted
from ratchet.evaluation.intervals import Interval
from ratchet.evaluation.latency import Cost, Costs
from ratchet.gate import CandidateFigures, ChampionRows, Tries, answers_rule, judge
from ratchet.gate.level import spend
from ratchet.gate.verdict import RuleResult, Unused, Verdict
from ratchet.serving.program import NotExported, Parity
from ratchet.settings.model import EvaluationSettings, GateSettings

ANSWERS = answers_rule(rows=64, largest_difference=0.0, tolerance=1e-4)
MEASURED = EvaluationSettings(resamples=1000)
IDS = tuple(f"row {number}" for number in range(400))
CLASSES = ("cat", "dog")


def candidate(correct: np.ndarray, **changes: object) -> CandidateFigures:
    value = float(correct.mean())
    labels = np.zeros(len(correct), np.int64)
    figures = {"ids": IDS[: len(correct)], "labels": labels, "classes": CLASSES, "input_shape": (32, 32, 3)} | changes
    honest = {"calibration_error": Interval(0.0, 0.02, 0.06)}
    return CandidateFigures(accuracy=Interval(value, value, value), correct=correct, **(honest | figures))


def champion(correct: np.ndarray, **changes: object) -> ChampionRows:
    saw = np.zeros(len(correct), np.bool_)
    figures = {"ids": IDS[: len(correct)], "classes": CLASSES, "input_shape": (32, 32, 3), "saw": saw} | changes
    return ChampionRows(name="pets version 3", correct=correct, **figures)


def rows(right: int, total: int = 400) -> np.ndarray:
    return np.arange(total) < right


def rule(verdict: Verdict, name: str) -> RuleResult:
    return next(one for one in verdict.rules if one.name == name)


FIRST_LEVEL = 0.05 * (0.3 / 2 + 0.7 / 31)  # docs/gate.md: of the first try


def test_equal_models_are_promoted_as_rarely_as_the_docs_say() -> None:
    assert share_promoted(Pair(0.9, 0.0), rows=400, sets=2000) <= FIRST_LEVEL + 3 * (FIRST_LEVEL / 2000) ** 0.5


@pytest.mark.parametrize("accuracy", [0.97, 0.99])  # 400 rows: some 8 rows differ, and some 3
def test_equal_models_that_hardly_differ_are_promoted_no_more_often(accuracy: float) -> None:
    assert share_promoted(Pair(accuracy, 0.0), rows=400, sets=1000) <= FIRST_LEVEL + 3 * (FIRST_LEVEL / 1000) ** 0.5


def test_improvement_that_the_docs_call_detectable_is_promoted_four_times_in_five() -> None:
    better = detectable(0.9, 1000)
    assert 0.018 < better < 0.03
    assert 0.75 <= share_promoted(Pair(0.9, better), rows=1000, sets=600) <= 0.85


def test_clearly_better_model_is_promoted_nearly_always() -> None:
    assert share_promoted(Pair(0.85, 0.08), rows=400, sets=300) >= 0.96


def test_worse_model_is_never_promoted() -> None:
    assert share_promoted(Pair(0.9, -0.08), rows=400, sets=300) == 0.0


def test_higher_level_asks_for_more_proof() -> None:
    new, old = rows(400), rows(392)  # fixes 8 errors and makes none: p = 1/256
    for level, passes in ((0.95, True), (0.9999, False)):
        settings = GateSettings(confidence=level)
        verdict = judge(candidate(new), champion(old), settings, MEASURED, answers=ANSWERS)
        assert rule(verdict, "champion").passed is passes
        assert f"{level * 100:g} % CI" in verdict.words
        assert "p = 0.0039" in verdict.words


def test_first_model_passes_and_is_told_so() -> None:
    verdict = judge(candidate(rows(300)), None, GateSettings(), MEASURED, answers=ANSWERS)
    assert verdict.passed
    assert "no champion yet" in verdict.words
    assert "75.00%" in verdict.words


def test_accuracy_below_the_minimum_is_refused_with_both_figures() -> None:
    verdict = judge(candidate(rows(100)), None, GateSettings(minimum_accuracy=0.5), MEASURED, answers=ANSWERS)
    assert not verdict.passed
    assert verdict.words.startswith("Refused: 1 of 4 rules does not hold. Test accuracy is 25.00%")
    assert "at least 50.00% is needed" in verdict.words


def test_accuracy_at_the_minimum_passes() -> None:
    assert judge(candidate(rows(200)), None, GateSettings(minimum_accuracy=0.5), MEASURED, answers=ANSWERS).passed


def test_same_answers_are_not_better_but_not_worse() -> None:
    correct = rows(390)
    better = judge(candidate(correct), champion(correct), GateSettings(), MEASURED, answers=ANSWERS)
    assert not better.passed
    assert "right exactly where the champion (pets version 3) is" in better.words
    kept = GateSettings(champion="not-worse")
    assert judge(candidate(correct), champion(correct), kept, MEASURED, answers=ANSWERS).passed


@pytest.mark.parametrize(("tolerance", "passes"), [(0.0, False), (0.005, False), (0.1, True)])
def test_slightly_worse_model_passes_within_the_tolerance_only(tolerance: float, passes: bool) -> None:
    settings = GateSettings(champion="not-worse", tolerance=tolerance)
    verdict = judge(candidate(rows(380)), champion(rows(388)), settings, MEASURED, answers=ANSWERS)
    assert verdict.passed is passes
    assert "0 errors fixed, 8 new" in verdict.words


def test_rows_are_paired_by_id_whatever_their_order() -> None:
    generator = np.random.default_rng(0)
    new, old = generator.random(400) < 0.9, generator.random(400) < 0.8
    order = generator.permutation(400)
    shuffled = champion(old[order], ids=tuple(IDS[place] for place in order))
    straight = judge(candidate(new), champion(old), GateSettings(), MEASURED, answers=ANSWERS)
    assert judge(candidate(new), shuffled, GateSettings(), MEASURED, answers=ANSWERS) == straight


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"classes": ("frog", "bird")},
            "it knows none of the classes of the new model, but 'frog', 'bird'. That is an",
        ),
        ({"unable": "it takes float32 pixels, and these are uint8"}, "it takes float32 pixels, and these are uint8. T"),
        ({"classes": ("cat", "bird")}, "it does not know 'dog' and it knows 'bird', which the data no longer has, and"),
        (
            {"classes": ("cat",)},
            "it does not know 'dog', and gate.classes is same. Fix: `ratchet set gate.classes=may-gr",
        ),
    ],
)
def test_champion_of_another_task_is_not_compared_with(changes: dict[str, object], words: str) -> None:
    verdict = judge(candidate(rows(400)), champion(rows(0), **changes), GateSettings(), MEASURED, answers=ANSWERS)
    assert not verdict.passed
    assert words in rule(verdict, "champion").words
    assert "set registry.model to another name" in verdict.words


@pytest.mark.parametrize("changes", [{"classes": ("dog", "cat")}, {"input_shape": (16, 16, 3)}])
def test_other_class_order_or_image_size_is_the_same_task(changes: dict[str, object]) -> None:
    verdict = judge(candidate(rows(400)), champion(rows(300), **changes), GateSettings(), MEASURED, answers=ANSWERS)
    assert verdict.passed
    asked = "asked at its own input size: 32 x 32 x 3 images resized to 16 x 16 x 3"
    assert (asked in verdict.words) is ("input_shape" in changes)


LABELS = np.arange(400) % 4 // 3  # a quarter of the rows are of the second class


@pytest.mark.parametrize(("allowed", "passes"), [("same", False), ("may-grow", True), ("may-change", True)])
def test_a_model_that_gains_a_class_passes_where_allowed(allowed: str, passes: bool) -> None:
    """It is compared on the 300 rows of the class that both know, and new rows count for the minimum accuracy."""
    asking = candidate(rows(400), labels=LABELS)
    verdict = judge(
        asking, champion(rows(200), classes=("cat",)), GateSettings(classes=allowed), MEASURED, answers=ANSWERS
    )
    assert verdict.passed is passes
    if passes:
        assert "300 of 400 test rows: 100 are of classes that the champion does not know" in verdict.words


def test_a_model_that_loses_a_class_needs_may_change() -> None:
    holding = champion(rows(300), classes=("cat", "dog", "owl"))
    for allowed, passes in (("same", False), ("may-grow", False), ("may-change", True)):
        verdict = judge(candidate(rows(400)), holding, GateSettings(classes=allowed), MEASURED, answers=ANSWERS)
        assert verdict.passed is passes
        assert ("gate.classes=may-change" in verdict.words) is not passes


def test_rows_of_a_new_class_count_for_the_minimum_accuracy() -> None:
    """All right on the old class and never on the new one, which is a quarter of the rows."""
    asking = candidate(LABELS == 0, labels=LABELS)
    settings = GateSettings(classes="may-grow", minimum_accuracy=0.8)
    verdict = judge(asking, champion(rows(100), classes=("cat",)), settings, MEASURED, answers=ANSWERS)
    assert [one.name for one in verdict.rules if not one.passed] == ["minimum accuracy"]


def test_rows_that_the_champion_was_trained_on_are_not_compared() -> None:
    """The champion is right on all of its 280 training rows; on the others the new model is clearly better."""
    saw = np.arange(400) < 280
    new, old = np.arange(400) % 5 > 0, np.where(saw, True, np.arange(400) % 2 > 0)
    unfair = judge(candidate(new), champion(old), GateSettings(), MEASURED, answers=ANSWERS)
    assert not unfair.passed
    verdict = judge(candidate(new), champion(old, saw=saw), GateSettings(), MEASURED, answers=ANSWERS)
    assert verdict.passed
    assert "These are 120 of 400 test rows: 280 were used to train or select one of the two models." in verdict.words


def test_too_few_rows_left_to_compare_are_refused_with_the_fix() -> None:
    saw = np.arange(400) < 350
    verdict = judge(candidate(rows(400)), champion(rows(360), saw=saw), GateSettings(), MEASURED, answers=ANSWERS)
    found = rule(verdict, "champion")
    assert not found.passed
    assert "only 50 of 400 test rows can be compared (350 were used to train" in found.words
    assert "gate.minimum_rows is 100. Fix: add test samples" in found.words
    fewer = GateSettings(minimum_rows=50)
    assert judge(candidate(rows(400)), champion(rows(360), saw=saw), fewer, MEASURED, answers=ANSWERS).passed


def test_a_small_test_set_need_not_be_whole() -> None:
    """40 rows are fewer than gate.minimum_rows; at least half of them must remain."""
    for seen, passes in ((20, True), (21, False)):
        holding = champion(rows(0, 40), saw=np.arange(40) < seen)
        verdict = judge(candidate(rows(40, 40)), holding, GateSettings(), MEASURED, answers=ANSWERS)
        assert verdict.passed is passes


def test_a_champion_without_a_record_of_its_samples_is_refused() -> None:
    verdict = judge(candidate(rows(400)), champion(rows(0), saw=None), GateSettings(), MEASURED, answers=ANSWERS)
    assert not verdict.passed
    assert "no record of the samples that it was trained on" in rule(verdict, "champion").words
    assert "Fix: `ratchet rollback`" in verdict.words


@pytest.mark.parametrize(("count", "passes"), [(0, True), (3, False)])
def test_later_tries_on_the_same_rows_need_more_proof(count: int, passes: bool) -> None:
    tries = Tries(count=count, spent=float(count), new_rows=0.0)
    verdict = judge(candidate(rows(400)), champion(rows(392)), GateSettings(), MEASURED, answers=ANSWERS, tries=tries)
    assert verdict.passed is passes
    assert f"This is try {count + 1} on these test rows since the last promotion." in verdict.words
    assert "A promotion restores it, and so do test rows that no earlier candidate was judged on." in verdict.words


def test_levels_of_all_tries_add_up_to_the_error_and_no_more() -> None:
    levels = [spend(Tries(count=one, spent=float(one)), confidence=0.95) for one in range(5000)]
    assert sum(level.level for level in levels) + levels[-1].left == pytest.approx(0.05)
    assert all(level.level > later.level > 0 for level, later in itertools.pairwise(levels))


def test_new_rows_give_back_at_most_their_share_of_the_error() -> None:
    for spent, new in itertools.product((1.0, 5.5, 30.0, 400.0), (0.01, 0.3, 1.0)):
        before = spend(Tries(spent=spent), confidence=0.95).left
        after = spend(Tries(spent=spent * (1 - new)), confidence=0.95).left
        assert after - before <= 0.05 * new + 1e-12


def test_thirtieth_try_still_promotes_a_model_one_point_better() -> None:
    """10,000 rows, 5 % answered differently; the candidates before it are equal to the champion."""
    assert FIVE_PER_CENT.differing == pytest.approx(0.05, abs=0.0005)
    found = [nights(FIVE_PER_CENT, rows=10_000, count=31, better_on=30, seed=seed) for seed in range(60)]
    assert np.mean([30 in one.promotions for one in found]) >= 0.8 - 2 * (0.16 / 60) ** 0.5
    restored = [one.levels[30] for one in found if one.promotions == (30,)]
    assert restored == pytest.approx([FIRST_LEVEL] * len(restored))


def test_ninety_equal_nights_seldom_promote_anything() -> None:
    """bench/gate_errors.py: at most 5 % of histories; a bound of three standard errors for these few."""
    found = [nights(Pair(0.9, 0.0), rows=300, seed=seed) for seed in range(100)]
    assert np.mean([bool(one.wrong) for one in found]) <= 0.05 + 3 * (0.05 * 0.95 / 100) ** 0.5


def test_reserved_rows_are_in_no_comparison_and_give_the_unused_accuracy() -> None:
    uniform = np.arange(400) / 400
    asking, settings = candidate(rows(100), uniform=uniform), GateSettings(reserved_fraction=0.5)
    verdict = judge(asking, champion(rows(0)), settings, MEASURED, answers=ANSWERS)
    assert verdict.comparison is not None
    assert verdict.comparison.rows == 200
    assert verdict.unused == Unused(rows=200, right=100)
    assert "200 are reserved (gate.reserved_fraction)" in verdict.words
    fewer = Tries(count=1, spent=1.0, new_rows=0.0, reserved=0.25)  # an earlier try used some of them
    assert judge(asking, champion(rows(0)), settings, MEASURED, answers=ANSWERS, tries=fewer).unused == Unused(100, 100)


def test_rows_are_unused_only_where_no_try_compared_them() -> None:
    asking = candidate(rows(390), uniform=np.arange(400) / 400)
    assert judge(asking, None, GateSettings(), MEASURED, answers=ANSWERS).unused == Unused(400, 390)
    assert judge(asking, champion(rows(300)), GateSettings(), MEASURED, answers=ANSWERS).unused is None
    used = Tries(count=1, spent=1.0, new_rows=0.0, reserved=0.0)
    assert judge(asking, None, GateSettings(), MEASURED, answers=ANSWERS, tries=used).unused is None


def test_champion_measured_on_other_rows_is_not_compared_with() -> None:
    others = champion(rows(0), ids=tuple(f"other {name}" for name in IDS))
    verdict = judge(candidate(rows(400)), others, GateSettings(), MEASURED, answers=ANSWERS)
    assert not verdict.passed
    assert "other test rows (400 of 400 are missing there" in verdict.words


@pytest.mark.parametrize(
    ("rows_asked", "difference", "passes"),
    [(64, 0.0, True), (64, 1e-5, True), (64, 1e-2, False), (64, float("nan"), False), (0, 0.0, False)],
)
def test_model_must_answer_as_it_was_measured(rows_asked: int, difference: float, passes: bool) -> None:
    answers = answers_rule(rows=rows_asked, largest_difference=difference, tolerance=1e-4)
    assert answers.passed is passes
    verdict = judge(candidate(rows(400)), None, GateSettings(), MEASURED, answers=answers)
    assert verdict.passed is passes


def test_every_failed_rule_is_said_first() -> None:
    bad = answers_rule(rows=64, largest_difference=1.0, tolerance=1e-4)
    verdict = judge(candidate(rows(0)), champion(rows(400)), GateSettings(), MEASURED, answers=bad)
    assert verdict.words.startswith("Refused: 3 of 4 rules do not hold.")
    assert all(one.words in verdict.words for one in verdict.rules)


def test_verdict_comes_back_from_json_as_it_was() -> None:
    verdict = judge(candidate(rows(390)), champion(rows(350)), GateSettings(), MEASURED, answers=ANSWERS)
    assert Verdict.from_json(json.loads(json.dumps(verdict.to_json()))) == verdict


def halves(total: int = 400) -> dict[str, list[str | None]]:
    """Two columns that cut the rows in halves, crosswise."""
    return {
        "light": ["dark" if number % 2 else "bright" for number in range(total)],
        "ward": ["north" if number < total // 2 else "south" for number in range(total)],
    }


def test_a_better_model_that_fails_a_part_of_the_rows_is_refused_and_the_part_is_named() -> None:
    old = np.arange(400) % 5 > 0  # right on four of five, everywhere
    new = np.where(np.arange(400) < 200, True, np.arange(400) % 5 > 1)
    verdict = judge(candidate(new, parts=halves()), champion(old), GateSettings(), MEASURED, answers=ANSWERS)
    assert rule(verdict, "slices").passed is False
    assert "On 1 of 4 parts of the rows it is worse than the champion beyond chance: 'ward: south'" in verdict.words
    allowed = GateSettings(slice_tolerance=0.3)
    assert rule(
        judge(candidate(new, parts=halves()), champion(old), allowed, MEASURED, answers=ANSWERS), "slices"
    ).passed


def test_without_parts_or_a_champion_there_is_no_rule_about_them() -> None:
    for asking, holder in ((candidate(rows(390)), champion(rows(380))), (candidate(rows(390), parts=halves()), None)):
        verdict = judge(asking, holder, GateSettings(), MEASURED, answers=ANSWERS)
        assert [one.name for one in verdict.rules] == ["minimum accuracy", "champion", "calibration", "answers"]


def test_parts_hardly_ever_refuse_a_model_that_is_as_good_everywhere() -> None:
    generator = np.random.default_rng(5)
    names = {"part": [f"part {number % 10}" for number in range(400)]}
    refused = 0
    for number in range(200):
        chance = generator.random(400)
        new, old = chance < 0.85, np.roll(chance, 1) < 0.85
        verdict = judge(
            candidate(new, parts=names), champion(old), GateSettings(), MEASURED, answers=ANSWERS, seed=number
        )
        refused += not rule(verdict, "slices").passed
    assert refused / 200 <= 0.025 + 3 * (0.025 * 0.975 / 200) ** 0.5


@pytest.mark.parametrize(
    ("error", "passes"),
    [(Interval(0.0, 0.1, 0.2), True), (Interval(0.2, 0.35, 0.5), True), (Interval(0.26, 0.35, 0.44), False)],
)
def test_confidence_that_is_off_beyond_chance_is_refused(error: Interval, passes: bool) -> None:
    verdict = judge(candidate(rows(390), calibration_error=error), None, GateSettings(), MEASURED, answers=ANSWERS)
    found = rule(verdict, "calibration")
    assert (found.passed, verdict.passed) == (passes, passes)
    assert f"{error.value:.2%} ({error.low:.2%} to {error.high:.2%})" in found.words
    assert ("gate.calibration_error" in found.words) is not passes


def costly(*, weights: float = 1.0, one: float = 1.0, batch: float = 1.0) -> ChampionRows:
    """A champion beside a model that costs so many times as much."""
    theirs = Cost(weights=4096, one=0.001, batch=0.02)
    ours = Cost(weights=int(4096 * weights), one=0.001 * one, batch=0.02 * batch)
    return champion(rows(350), costs=Costs(ours, theirs, rows=64))


@pytest.mark.parametrize(
    ("times", "name", "words"),
    [
        ({"one": 5.0}, "latency", "5 ms for one row and the champion 1 ms"),
        ({"batch": 4.5}, "latency", "90 ms for 64 rows and the champion 20 ms: 4.50 times as long"),
        ({"weights": 11.0}, "size", "44 KiB and the champion's 4 KiB: 11.00 times as much; up to 10 times is allowed"),
    ],
)
def test_model_that_costs_many_times_the_champion_is_refused(times: dict[str, float], name: str, words: str) -> None:
    verdict = judge(candidate(rows(390)), costly(**times), GateSettings(), MEASURED, answers=ANSWERS)
    assert [one.name for one in verdict.rules if not one.passed] == [name]
    assert words in verdict.words
    assert f"gate.{name}_factor" in verdict.words
    allowed = GateSettings(**{f"{name}_factor": 12.0})
    assert judge(candidate(rows(390)), costly(**times), allowed, MEASURED, answers=ANSWERS).passed


@pytest.mark.parametrize(
    ("exported", "words"),
    [
        (Parity(256, 3e-8, 0), "as the model does (largest difference 3.0e-08 on 256 rows, each in the same class)"),
        (
            Parity(256, 1e-4, 1),
            "as the model does (largest difference 1.0e-04 on 256 rows, 1 of them in another class)",
        ),
    ],
)
def test_a_program_that_answers_as_the_model_does_passes(exported: Parity, words: str) -> None:
    verdict = judge(candidate(rows(390), exported=exported), None, GateSettings(), MEASURED, answers=ANSWERS)
    assert verdict.passed
    assert words in verdict.words


@pytest.mark.parametrize(
    ("exported", "words"),
    [
        (
            Parity(256, 0.02, 3),
            "largest difference 2.0e-02 on 256 rows, 3 of them in another class; no more than 0.0001",
        ),
        (Parity(256, float("nan"), 0), "largest difference nan on 256 rows"),
        (Parity(0, 0.0, 0), "on 0 rows"),
        (NotExported("No ONNX function found for it"), "no ONNX program of it (No ONNX function found for it): mend"),
    ],
)
def test_a_model_without_a_program_that_answers_as_it_does_is_refused(
    exported: Parity | NotExported, words: str
) -> None:
    asking = candidate(rows(390), exported=exported)
    verdict = judge(asking, None, GateSettings(), MEASURED, answers=ANSWERS)
    assert [one.name for one in verdict.rules if not one.passed] == ["export"]
    assert words in verdict.words
    assert "registry.export: none" in verdict.words
    assert judge(asking, None, GateSettings(export_difference=1.0), MEASURED, answers=ANSWERS).passed


def test_rules_are_switched_off_by_their_settings() -> None:
    off = GateSettings(calibration_error=1.0, latency_factor=0.0, size_factor=0.0, export_difference=1.0)
    asking = candidate(rows(390), calibration_error=Interval(0.8, 0.9, 1.0), exported=Parity(256, 0.5, 99))
    verdict = judge(asking, costly(weights=100.0, one=100.0), off, MEASURED, answers=ANSWERS)
    assert verdict.passed
    assert [one.name for one in verdict.rules] == ["minimum accuracy", "champion", "answers"]


def test_champion_of_another_task_is_not_asked_what_it_costs() -> None:
    other = champion(rows(0), classes=("frog", "bird"), costs=costly(one=9.0).costs)
    verdict = judge(candidate(rows(400)), other, GateSettings(), MEASURED, answers=ANSWERS)
    assert [one.name for one in verdict.rules if not one.passed] == ["champion"]


def test_every_refusal_names_the_setting_that_allows_it() -> None:
    error = Interval(0.8, 0.9, 1.0)
    asking = candidate(rows(100), calibration_error=error, parts=halves(), exported=Parity(256, 0.5, 99))
    holding = champion(rows(400), costs=costly(weights=99, one=9).costs)
    verdict = judge(asking, holding, GateSettings(), MEASURED, answers=ANSWERS)
    refused = {one.name: one.words for one in verdict.rules if not one.passed}
    assert list(refused) == ["minimum accuracy", "champion", "slices", "calibration", "latency", "size", "export"]
    for words in refused.values():
        named = re.findall(r"gate\.(\w+)", words)
        assert named
        assert set(named) <= set(GateSettings.model_fields)


def test_verdict_of_an_older_version_is_read() -> None:
    """As version 1 of a model may carry it in its tags."""
    content = {
        "passed": True,
        "words": "Passed: all 1 rules hold.",
        "rules": [{"name": "answers", "passed": True, "found": "", "needed": "", "words": ""}],
    }
    assert Verdict.from_json(content).rules[0].name == "answers"
