"""May this model take the champion's place? Rules that each give their figures and say them in plain words.

A pure function of figures: who asks, loads models and moves aliases is elsewhere.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ratchet.evaluation.intervals import Interval, paired_difference
from ratchet.evaluation.slices import parts
from ratchet.evaluation.verdict import RuleResult, Verdict
from ratchet.params import EvaluationSettings, GateSettings

__all__ = ["CandidateFigures", "ChampionRows", "answers_rule", "judge"]

_IN_A_TAIL = 200  # resamples that should lie outside an interval, so that its bounds are not of a few


@dataclass(frozen=True)
class CandidateFigures:
    """The model that asks to be let in: which test rows it answers rightly."""

    accuracy: Interval
    ids: tuple[str, ...]  # of the test rows
    correct: NDArray[np.bool_]  # (rows,), in the order of `ids`
    classes: tuple[str, ...]  # in the order of the model's outputs
    input_shape: tuple[int, ...]  # of one sample, as the model takes it
    parts: Mapping[str, Sequence[str | None]] = field(default_factory=dict)  # column -> each row's value


@dataclass(frozen=True)
class ChampionRows:
    """The model that now holds the place, measured on the same test rows."""

    name: str  # as a person would say it: "digits version 3"
    ids: tuple[str, ...]
    correct: NDArray[np.bool_]
    classes: tuple[str, ...]
    input_shape: tuple[int, ...]


def judge(
    candidate: CandidateFigures,
    champion: ChampionRows | None,
    settings: GateSettings,
    evaluation: EvaluationSettings,
    *,
    answers: RuleResult,
    seed: int = 0,
) -> Verdict:
    """Hold every rule against the candidate; all must pass.

    `answers` comes from whoever loaded the registered model and asked it (see `answers_rule`); `seed` decides the
    bootstrap's resamples.
    """
    rules = (
        _minimum_accuracy(candidate, settings),
        _champion(candidate, champion, settings, evaluation, seed=seed),
        *_slices(candidate, champion, settings, evaluation, seed=seed),
        answers,
    )
    failed = [rule for rule in rules if not rule.passed]
    if not failed:
        opening = f"Passed: all {len(rules)} rules hold."
    else:
        opening = f"Refused: {len(failed)} of {len(rules)} rules {'does' if len(failed) == 1 else 'do'} not hold."
    ordered = failed + [rule for rule in rules if rule.passed]
    return Verdict(not failed, rules, " ".join([opening, *(rule.words for rule in ordered)]))


def answers_rule(*, rows: int, largest_difference: float, tolerance: float) -> RuleResult:
    """Does the registered model, once loaded, answer `rows` rows as evaluation did, to within `tolerance`?

    Both in the unit the model answers in: probabilities, or logits.
    """
    passed = rows > 0 and largest_difference <= tolerance  # NaN does not pass
    found = f"largest difference {largest_difference:.1e} on {rows:,} rows"
    if passed and largest_difference == 0.0:
        words = f"The stored model loads and answers {rows:,} rows exactly as it did in evaluation."
    elif passed:
        words = f"The stored model loads and answers {rows:,} rows as it did in evaluation ({found})."
    else:
        words = (
            f"The stored model loads, but does not answer as it did in evaluation: {found}, allowed is "
            f"{tolerance:.1e}. What was saved is not what was measured: train again."
        )
    return RuleResult("answers", passed, found, f"at most {tolerance:.1e}", words)


def _minimum_accuracy(candidate: CandidateFigures, settings: GateSettings) -> RuleResult:
    accuracy, minimum = candidate.accuracy, settings.minimum_accuracy
    passed = accuracy.value >= minimum
    found = f"{accuracy.value:.2%} ({accuracy.low:.2%} to {accuracy.high:.2%})"
    words = f"Test accuracy is {found} on {len(candidate.ids):,} rows; " + (
        f"at least {minimum:.2%} was needed." if passed else f"at least {minimum:.2%} is needed."
    )
    return RuleResult("minimum accuracy", passed, found, f"at least {minimum:.2%}", words)


def _champion(
    candidate: CandidateFigures,
    champion: ChampionRows | None,
    settings: GateSettings,
    evaluation: EvaluationSettings,
    *,
    seed: int,
) -> RuleResult:
    if champion is None:
        words = "There is no champion yet, so there is nothing to compare with."
        return RuleResult("champion", True, "no champion yet", _needed(settings), words)
    obstacle = _obstacle(candidate, champion)
    if obstacle:
        words = f"The champion ({champion.name}) cannot be compared with: {obstacle}."
        return RuleResult("champion", False, "not comparable", "the same classes, input and test rows", words)
    champion_correct = _in_order(champion, candidate.ids)
    difference = paired_difference(
        candidate.correct,
        champion_correct,
        resamples=evaluation.resamples,
        confidence=evaluation.confidence,
        seed=seed,
    )
    passed = difference.low > 0.0 if settings.champion == "better" else difference.low >= -settings.tolerance
    points = f"{_points(difference.value)} points ({_points(difference.low)} to {_points(difference.high)})"
    words = _comparison(candidate, champion_correct, champion.name, points, evaluation) + _judgement(settings, passed)
    return RuleResult("champion", passed, points, _needed(settings), words)


def _in_order(champion: ChampionRows, ids: Sequence[str]) -> NDArray[np.bool_]:
    """The champion's answers, right or wrong, in the order of these rows."""
    theirs = dict(zip(champion.ids, champion.correct.tolist(), strict=True))
    return np.array([theirs[one] for one in ids], dtype=np.bool_)


def _slices(
    candidate: CandidateFigures,
    champion: ChampionRows | None,
    settings: GateSettings,
    evaluation: EvaluationSettings,
    *,
    seed: int,
) -> tuple[RuleResult, ...]:
    """On no part of the rows may it be worse than the champion beyond chance and tolerance. No rule without parts.

    The level is shared among the parts (Bonferroni), and the resamples are so many that its quantiles can be told.
    """
    found = parts(candidate.parts, least=evaluation.slice_rows)
    if champion is None or not found or _obstacle(candidate, champion):
        return ()
    tail = (1 - evaluation.confidence) / len(found)
    theirs = _in_order(champion, candidate.ids)
    differences = {
        f"{column}: {value}": paired_difference(
            candidate.correct[rows],
            theirs[rows],
            resamples=max(evaluation.resamples, math.ceil(_IN_A_TAIL / tail)),
            confidence=1 - tail,
            seed=seed,
        )
        for column, value, rows in found
    }
    worst = min(differences, key=lambda name: (differences[name].high, differences[name].value))
    worse = [name for name, one in differences.items() if one.high < -settings.slice_tolerance]
    one = differences[worst]
    points = f"{_points(one.value)} points ({_points(one.low)} to {_points(one.high)})"
    beyond = f"by more than {settings.slice_tolerance * 100:.2f} points " if settings.slice_tolerance else ""
    if worse:
        words = (
            f"On {len(worse)} of {len(found)} parts of the rows it is worse than the champion {beyond}beyond chance: "
            f"{_listed(worse)}; on {worst!r} by {points}."
        )
    else:
        words = f"On none of {len(found)} parts of the rows is it worse than the champion {beyond}beyond chance."
    return (RuleResult("slices", not worse, f"{worst}: {points}", _not_worse(settings.slice_tolerance), words),)


def _not_worse(tolerance: float) -> str:
    return f"no part whose interval ends below {_points(-tolerance)}"


def _obstacle(candidate: CandidateFigures, champion: ChampionRows) -> str | None:
    """Why the two cannot be compared row by row, and the way out; None if they can."""
    way_out = (
        ". That is another task: set registry.model to another name, so that the new model gets a place of its own"
    )
    if candidate.classes != champion.classes:
        new = [name for name in candidate.classes if name not in champion.classes]
        gone = [name for name in champion.classes if name not in candidate.classes]
        parts = [f"it does not know {_listed(new)}"] if new else []
        parts += [f"it knows {_listed(gone)}, which the data no longer has"] if gone else []
        return (" and ".join(parts) or "it has the same classes in another order") + way_out
    if candidate.input_shape != champion.input_shape:
        return (
            f"it takes input of {_shape(champion.input_shape)}, the new model {_shape(candidate.input_shape)}{way_out}"
        )
    if len(candidate.ids) != len(champion.ids) or set(candidate.ids) != set(champion.ids):
        missing = len(set(candidate.ids) - set(champion.ids))
        return (
            f"it was measured on other test rows ({missing:,} of {len(candidate.ids):,} are missing there, and it has "
            f"{len(set(champion.ids) - set(candidate.ids)):,} of its own). Measure it on these rows and judge again"
        )
    return None


def _comparison(
    candidate: CandidateFigures,
    champion_correct: NDArray[np.bool_],
    name: str,
    points: str,
    evaluation: EvaluationSettings,
) -> str:
    rows = len(candidate.ids)
    mended = int(np.count_nonzero(candidate.correct & ~champion_correct))
    broken = int(np.count_nonzero(champion_correct & ~candidate.correct))
    if mended + broken == 0:
        return f"On all {rows:,} rows this model is right exactly where the champion ({name}) is. "
    return (
        f"On the same {rows:,} rows this model is right on {np.count_nonzero(candidate.correct):,} and the champion "
        f"({name}) on {np.count_nonzero(champion_correct):,}: it mends {mended:,} and breaks {broken:,}, a difference "
        f"of {points} at {evaluation.confidence:.0%} confidence. "
    )


def _judgement(settings: GateSettings, passed: bool) -> str:
    if settings.champion == "better":
        return (
            "It is better beyond chance."
            if passed
            else "That is not proof of being better: the interval must lie above 0."
        )
    if settings.tolerance == 0.0:
        return (
            "It is not worse."
            if passed
            else "It may be worse, and gate.tolerance is 0: the interval must not go below 0."
        )
    below = f"{settings.tolerance * 100:.2f} points"
    return f"It is not worse by more than {below}." if passed else f"It may be worse by more than the allowed {below}."


def _needed(settings: GateSettings) -> str:
    if settings.champion == "better":
        return "an interval above 0"
    return f"an interval not below {_points(-settings.tolerance)}"


def _points(share: float) -> str:
    """A difference of accuracies in percentage points, signed as prose is."""
    return f"{share * 100:+.2f}".replace("-", "\N{MINUS SIGN}") if share else "0.00"


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(str(side) for side in shape)


def _listed(names: list[str], most: int = 5) -> str:
    shown = ", ".join(repr(name) for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
