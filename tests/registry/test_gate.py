"""The gate's promises: equal models pass as rarely as the level says, better ones nearly always; the words say why."""

import json

import numpy as np
import pytest

from ratchet.evaluation.intervals import Interval
from ratchet.evaluation.verdict import RuleResult, Verdict
from ratchet.params import EvaluationSettings, GateSettings
from ratchet.registry.gate import CandidateFigures, ChampionRows, answers_rule, judge

ANSWERS = answers_rule(rows=64, largest_difference=0.0, tolerance=1e-4)
MEASURED = EvaluationSettings(resamples=1000)
IDS = tuple(f"row {number}" for number in range(400))
CLASSES = ("cat", "dog")


def candidate(correct: np.ndarray, **changes: object) -> CandidateFigures:
    value = float(correct.mean())
    figures = {"ids": IDS[: len(correct)], "classes": CLASSES, "input_shape": (3, 32, 32)} | changes
    return CandidateFigures(accuracy=Interval(value, value, value), correct=correct, **figures)


def champion(correct: np.ndarray, **changes: object) -> ChampionRows:
    figures = {"ids": IDS[: len(correct)], "classes": CLASSES, "input_shape": (3, 32, 32)} | changes
    return ChampionRows(name="pets version 3", correct=correct, **figures)


def rows(right: int, total: int = 400) -> np.ndarray:
    return np.arange(total) < right


def rule(verdict: Verdict, name: str) -> RuleResult:
    return next(one for one in verdict.rules if one.name == name)


def share_promoted(chance_new: float, chance_old: float, *, sets: int = 1000) -> float:
    """How often the gate lets a model in, over fresh test sets on which both answer independently."""
    generator = np.random.default_rng(11)
    passed = 0
    for number in range(sets):
        new, old = generator.random(400) < chance_new, generator.random(400) < chance_old
        passed += judge(candidate(new), champion(old), GateSettings(), MEASURED, answers=ANSWERS, seed=number).passed
    return passed / sets


def test_equal_model_is_promoted_as_rarely_as_the_level_says() -> None:
    # (1 - .95) / 2 = .025 of the sets, give or take three standard errors of 1,000 sets (.015)
    assert 0.010 <= share_promoted(0.85, 0.85) <= 0.040


def test_clearly_better_model_is_promoted_nearly_always() -> None:
    assert share_promoted(0.95, 0.85, sets=300) >= 0.98


def test_worse_model_is_never_promoted() -> None:
    assert share_promoted(0.8, 0.9, sets=300) == 0.0


def test_first_model_passes_and_is_told_so() -> None:
    verdict = judge(candidate(rows(300)), None, GateSettings(), MEASURED, answers=ANSWERS)
    assert verdict.passed
    assert "no champion yet" in verdict.words
    assert "75.00%" in verdict.words


def test_accuracy_below_the_minimum_is_refused_with_both_figures() -> None:
    verdict = judge(candidate(rows(100)), None, GateSettings(minimum_accuracy=0.5), MEASURED, answers=ANSWERS)
    assert not verdict.passed
    assert verdict.words.startswith("Refused: 1 of 3 rules does not hold. Test accuracy is 25.00%")
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
    assert verdict.words.startswith("Refused: 3 of 3 rules do not hold.")
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
        assert [one.name for one in verdict.rules] == ["minimum accuracy", "champion", "answers"]


def test_parts_hardly_ever_refuse_a_model_that_is_as_good_everywhere() -> None:
    generator = np.random.default_rng(5)
    names = {"part": [f"part {number % 10}" for number in range(400)]}
    refused = 0
    for number in range(400):
        chance = generator.random(400)
        new, old = chance < 0.85, np.roll(chance, 1) < 0.85
        verdict = judge(
            candidate(new, parts=names), champion(old), GateSettings(), MEASURED, answers=ANSWERS, seed=number
        )
        refused += not rule(verdict, "slices").passed
    assert refused / 400 <= 0.025 + 3 * (0.025 * 0.975 / 400) ** 0.5
