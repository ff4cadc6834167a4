"""The gate's promises: equal models pass as rarely as the level says, better ones nearly always; the words say why."""

import json
import re

import numpy as np
import pytest

from bench.gate_errors import Pair, detectable, share_promoted
from ratchet.evaluation.intervals import Interval
from ratchet.evaluation.latency import Cost, Costs
from ratchet.evaluation.verdict import RuleResult, Verdict
from ratchet.params import EvaluationSettings, GateSettings
from ratchet.registry.gate import CandidateFigures, ChampionRows, answers_rule, judge
from ratchet.serving.program import NotExported, Parity

ANSWERS = answers_rule(rows=64, largest_difference=0.0, tolerance=1e-4)
MEASURED = EvaluationSettings(resamples=1000)
IDS = tuple(f"row {number}" for number in range(400))
CLASSES = ("cat", "dog")


def candidate(correct: np.ndarray, **changes: object) -> CandidateFigures:
    value = float(correct.mean())
    figures = {"ids": IDS[: len(correct)], "classes": CLASSES, "input_shape": (3, 32, 32)} | changes
    honest = {"calibration_error": Interval(0.0, 0.02, 0.06)}
    return CandidateFigures(accuracy=Interval(value, value, value), correct=correct, **(honest | figures))


def champion(correct: np.ndarray, **changes: object) -> ChampionRows:
    figures = {"ids": IDS[: len(correct)], "classes": CLASSES, "input_shape": (3, 32, 32)} | changes
    return ChampionRows(name="pets version 3", correct=correct, **figures)


def rows(right: int, total: int = 400) -> np.ndarray:
    return np.arange(total) < right


def rule(verdict: Verdict, name: str) -> RuleResult:
    return next(one for one in verdict.rules if one.name == name)


def test_equal_models_are_promoted_as_rarely_as_the_docs_say() -> None:
    """docs/gate.md: (1 - .95) / 2 = .025 of the time; on few rows that differ, and by luck, never above .035."""
    assert 0.015 <= share_promoted(Pair(0.9, 0.0), rows=400, sets=2000) <= 0.035


@pytest.mark.parametrize("accuracy", [0.97, 0.99])  # 400 rows: some 8 rows differ, and some 3
def test_equal_models_that_hardly_differ_are_promoted_no_more_often(accuracy: float) -> None:
    assert share_promoted(Pair(accuracy, 0.0), rows=400, sets=1000) <= 0.035


def test_improvement_that_the_docs_call_detectable_is_promoted_four_times_in_five() -> None:
    better = detectable(0.9, 1000)
    assert 0.018 < better < 0.028
    assert 0.75 <= share_promoted(Pair(0.9, better), rows=1000, sets=600) <= 0.85


def test_clearly_better_model_is_promoted_nearly_always() -> None:
    assert share_promoted(Pair(0.85, 0.08), rows=400, sets=300) >= 0.98


def test_worse_model_is_never_promoted() -> None:
    assert share_promoted(Pair(0.9, -0.08), rows=400, sets=300) == 0.0


def test_higher_level_asks_for_more_proof() -> None:
    new, old = rows(400), rows(393)  # mends 7 and breaks none: 95 % sure, and not 99.99 %
    for level, passes in ((0.95, True), (0.9999, False)):
        settings = GateSettings(confidence=level)
        verdict = judge(candidate(new), champion(old), settings, MEASURED, answers=ANSWERS)
        assert rule(verdict, "champion").passed is passes
        assert f"at {level * 100:g}% confidence" in verdict.words


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
    assert "mends 0 and breaks 8" in verdict.words


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
        ({"classes": ("cat", "bird")}, "it does not know 'dog' and it knows 'bird', which the data no longer has"),
        ({"classes": ("dog", "cat")}, "the same classes in another order"),
        ({"input_shape": (1, 28, 28)}, "it takes input of 1 x 28 x 28, the new model 3 x 32 x 32"),
    ],
)
def test_champion_of_another_task_is_not_compared_with(changes: dict[str, object], words: str) -> None:
    verdict = judge(candidate(rows(400)), champion(rows(0), **changes), GateSettings(), MEASURED, answers=ANSWERS)
    assert not verdict.passed
    assert words in rule(verdict, "champion").words
    assert "set registry.model to another name" in verdict.words


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
    other = ChampionRows("pets version 3", IDS, rows(0), ("cat", "bird"), (3, 32, 32), costs=costly(one=9.0).costs)
    verdict = judge(candidate(rows(400)), other, GateSettings(), MEASURED, answers=ANSWERS)
    assert [one.name for one in verdict.rules if not one.passed] == ["champion"]


def test_every_refusal_names_the_setting_that_allows_it() -> None:
    error = Interval(0.8, 0.9, 1.0)
    asking = candidate(rows(100), calibration_error=error, parts=halves(), exported=Parity(256, 0.5, 99))
    holding = ChampionRows(
        "pets version 3", IDS, rows(400), CLASSES, (3, 32, 32), costs=costly(weights=99, one=9).costs
    )
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
