"""The candidate is better than the champion, or not worse (gate.champion)."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ratchet.evaluation.answers import ScoreUnit
from ratchet.evaluation.intervals import Interval
from ratchet.evaluation.metrics import NamedMetric
from ratchet.evaluation.wording import gain_text, value_text
from ratchet.gate.case import Case, ChampionTest, LeftOut, Obstacle
from ratchet.gate.result_text import (
    Noun,
    RuleText,
    difference_text,
    listed,
    percent,
    probability,
    result_text,
    tolerance_text,
)
from ratchet.gate.units import SharedBy, UnitVotes

__all__ = ["ChampionResult", "PairedTest", "better_than_champion"]


_OTHER_TASK = "set registry.model to another name, because it is another task"


@dataclass(frozen=True)
class PairedTest:
    """Scores of both models on the same test samples."""

    candidate: NamedMetric  # mean in the units of the metric
    champion: NamedMetric
    difference: Interval  # mean score of the candidate minus mean score of the champion
    unit: ScoreUnit  # of the difference
    better: int  # samples on which the candidate's score is larger
    worse: int
    exact: bool = False  # all scores are 0 or 1: right or wrong


@dataclass(frozen=True)
class ChampionResult:
    """The comparison with the champion; exactly one of `obstacle` and `comparison` is set where there is one."""

    passed: bool
    champion: str | None = None  # for example "digits version 3"; None: there is none yet
    obstacle: Obstacle | None = None
    comparison: ChampionTest | None = None
    scores: PairedTest | None = None
    goal: Literal["better", "not-worse"] = "better"  # gate.champion
    tolerance: float = 0.0  # gate.tolerance, a share
    confidence: float = 0.95  # gate.confidence
    test_images: int = 0
    new_share: float = 1.0  # of the test samples: those that no earlier candidate was judged on
    left_out: LeftOut = field(default_factory=LeftOut)
    input_shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None  # candidate's and champion's, if they differ
    name: Literal["champion"] = "champion"

    def text(self, noun: Noun, kind: str) -> RuleText:
        if self.champion is None:
            return RuleText("none yet", "no comparison", short="none yet")
        if self.obstacle is not None:
            reason, fix = _obstacle(self, self.obstacle, noun)
            if self.obstacle.kind == "same weights":
                measured = f"nothing new: the weights of {self.champion}"
                return RuleText(measured, "other weights", fix, measured)
            measured = f"not comparable with {self.champion}: {reason}"
            return RuleText(measured, "a champion of the same task", fix, measured)
        comparison = self.comparison
        assert comparison is not None, "without an obstacle there is a comparison"
        ci = f"{percent(self.confidence)} CI "
        same, gain, sentence = _paired(self, comparison, noun, ci)
        measured = same or f"{gain}, p = {probability(comparison.p)}"
        limit = f"limit {probability(comparison.level)} (try {comparison.number:,})"
        parts = [
            sentence,
            _counted(comparison.votes, comparison.largest, noun) if comparison.votes else "",
            _compared(self, comparison, noun),
            _significance(self, comparison, same=bool(same)),
            _level(self, comparison, noun),
        ]
        details = " ".join(part for part in parts if part)
        if comparison.votes and comparison.largest:
            fix = f"leave the group empty where it is not known, or test on fewer {noun[1]} of the largest group"
        elif self.goal == "better":
            add = _to_add(comparison.votes.by if comparison.votes else None, noun)
            fix = f"add {add}, which reveal smaller differences, or set gate.champion to not-worse"
        else:
            fix = "raise gate.tolerance to allow more"
        short = measured if same and self.passed else f"{measured}, {limit}"
        required = f"p at most {limit.removeprefix('limit ')}"
        return result_text(measured, required, passed=self.passed, fix=fix, short=short, details=details)


def better_than_champion(case: Case) -> ChampionResult:
    """Check that the candidate is significantly better than the champion, or not worse (gate.champion).

    A test on the same samples decides, at the level of this try (see significance.py). A model whose scores are exactly
    the champion's is not worse at any level.
    """
    champion, gate, comparison = case.champion, case.gate, case.comparison
    if champion is None:
        return ChampionResult(True)
    scores, passed = None, False
    if comparison is not None:
        ours, theirs = (case.mean(score) for score in case.scores)
        gains = np.subtract(*case.scores)
        by_unit = [units.mean(gains, confidence=gate.confidence) for units in case.units]
        difference = max(by_unit, key=lambda interval: interval.high - interval.low, default=None) or case.difference()
        scores = PairedTest(ours, theirs, difference, case.candidate.unit, *case.counts, case.is_exact)
        passed = comparison.won or (case.counts == (0, 0) and gate.champion == "not-worse")
    shapes, obstacle = (case.candidate.input_shape, champion.input_shape), case.obstacle
    return ChampionResult(
        passed,
        champion=champion.name,
        obstacle=obstacle,
        comparison=comparison,
        scores=scores,
        goal=gate.champion,
        tolerance=gate.tolerance,
        confidence=gate.confidence,
        test_images=len(case.candidate.score),
        new_share=case.tries.new_rows,
        left_out=case.left_out if obstacle is None or obstacle.kind == "too few images" else LeftOut(),
        input_shapes=shapes if shapes[0] != shapes[1] else None,
    )


def _obstacle(rule: ChampionResult, obstacle: Obstacle, noun: Noun) -> tuple[str, str]:
    """Return the reason and the fix."""
    match obstacle.kind:
        case "input":
            return obstacle.mismatch, _OTHER_TASK
        case "scores":
            return f"scores of {obstacle.mismatch} are not finite numbers", "see the rule `scores`"
        case "problem":
            return f"it was trained for {obstacle.mismatch}", _OTHER_TASK
        case "targets":
            ours, theirs = (listed(names) or "nothing more" for names in (obstacle.new_classes, obstacle.lost_classes))
            return f"it predicts other targets ({theirs}; the new model: {ours})", _OTHER_TASK
        case "no shared class":
            return f"it knows none of the new model's classes, only {listed(obstacle.lost_classes)}", _OTHER_TASK
        case "classes":
            return _other_classes(obstacle, noun)
        case "same weights":
            return "the weights are the champion's", "train with other data or settings"
        case "no record" if obstacle.mismatch:
            return (
                f"{obstacle.mismatch}, so test {noun[1]} may be among its training {noun[1]} and not be recognised",
                "restore them, or set registry.model to another name. Once data.group_column names a column that "
                f"identifies {noun[1]}, later versions recognise them whatever else changes",
            )
        case "no record":
            return (
                f"no record says which samples it was trained on, so test {noun[1]} may be among them",
                "`ratchet rollback` to a version with a record, or set registry.model to another name",
            )
        case "too few images":
            why = f" ({_left_out(rule)})" if _left_out(rule) else ""
            return (
                f"only {_units(obstacle.compared, obstacle.by, noun)} of {rule.test_images:,} test {noun[1]} can be "
                f"compared{why}, and {_needed(obstacle)}",
                f"add {_to_add(obstacle.by, noun)} that neither model saw, restore the splits that the champion was "
                "trained with (data.test_fraction, or the split column), or lower gate.minimum_rows",
            )


def _units(count: int, by: SharedBy | None, noun: Noun) -> str:
    """Return a number of units: "3 groups", "60 different images"; of samples the number alone."""
    match by:
        case "groups":
            return f"{count:,} {'group' if count == 1 else 'groups'}"
        case "copies":
            return f"{count:,} different {noun[count != 1]}"
        case None:
            return f"{count:,}"


def _to_add(by: SharedBy | None, noun: Noun) -> str:
    """Return the test samples that would be more units."""
    more = {"groups": "test groups", "copies": f"different test {noun[1]}"}
    return more.get(by or "", f"test {noun[1]}")


def _counted(votes: UnitVotes, largest: int, noun: Noun) -> str:
    units = _units(votes.count, votes.by, noun)
    text = f"Counted by {units}: {votes.better:,} better, {votes.worse:,} worse; the largest p-value decides."
    if not largest:
        return text
    alike = f"groups as large as one here ({largest:,})"
    return f"{text} It is the chance that this test set lacks {alike} and wrong throughout."


def _needed(obstacle: Obstacle) -> str:
    if obstacle.setting in (0, obstacle.minimum):
        return f"gate.minimum_rows asks for {obstacle.minimum:,}"
    many = "units" if obstacle.by else "real scores"
    failures = f"failures of 1 in {obstacle.setting:,} (gate.minimum_rows)"
    return f"{obstacle.minimum:,} are needed: so many {many} show {failures}"


def _other_classes(obstacle: Obstacle, noun: Noun) -> tuple[str, str]:
    """Return the reason and the fix if the classes changed more than gate.classes allows."""
    parts = [f"it does not know {listed(obstacle.new_classes)}"] if obstacle.new_classes else []
    if obstacle.lost_classes:
        parts.append(f"it knows {listed(obstacle.lost_classes)}, which the data no longer has")
    value = "may-change" if obstacle.lost_classes else "may-grow"
    return (
        f"{' and '.join(parts)}, and gate.classes is {obstacle.allowed}",
        f"`ratchet set gate.classes={value}` compares them on the {noun[1]} of the classes that both know; or "
        "set registry.model to another name if it is another task",
    )


def _paired(rule: ChampionResult, comparison: ChampionTest, noun: Noun, ci: str) -> tuple[str, str, str]:
    """Return a text if all scores are the same, the difference, and a sentence with both models' values."""
    scores, rows = rule.scores, f"{comparison.rows:,} {noun[1]}"
    assert scores is not None, "a comparison has scores"
    unit, equal = scores.unit, scores.better + scores.worse == 0
    if scores.exact:
        gain = difference_text(scores.difference, ci)
        if equal:
            same = f"right on the same {rows} as {rule.champion}"
            return same, gain, f"On all {rows} this model is right exactly where the champion ({rule.champion}) is."
        ours, theirs = (round(model.interval.value * comparison.rows) for model in (scores.candidate, scores.champion))
        errors = "1 error" if scores.better == 1 else f"{scores.better:,} errors"
        return (
            "",
            gain,
            (
                f"On the same {rows} this model is right on {ours:,} and the champion ({rule.champion}) on {theirs:,}: "
                f"{errors} fixed, {scores.worse:,} new, {gain}."
            ),
        )
    gain = f"{unit.name} {gain_text(scores.difference, factor=abs(unit.factor), share=unit.share, ci=ci)}"
    if equal:
        same = f"same {unit.name} on each of {rows} as {rule.champion}"
        return same, gain, f"On all {rows} this model scores exactly as {rule.champion}."
    return (
        "",
        gain,
        (
            f"On the same {rows} this model has {unit.name} {value_text(scores.candidate)} and the champion "
            f"({rule.champion}) {value_text(scores.champion)}: better on {scores.better:,}, worse on {scores.worse:,}, "
            f"{gain}."
        ),
    )


def _compared(rule: ChampionResult, comparison: ChampionTest, noun: Noun) -> str:
    """Return how many of the test samples were compared, and at which input size."""
    sentences = []
    if comparison.rows < rule.test_images:
        sentences.append(f"These are {comparison.rows:,} of {rule.test_images:,} test {noun[1]}: {_left_out(rule)}.")
    if rule.input_shapes is not None:
        ours, theirs = (" x ".join(map(str, shape)) for shape in rule.input_shapes)
        sentences.append(f"The champion was measured at its own input size: {ours} {noun[1]} resized to {theirs}.")
    return " ".join(sentences)


def _left_out(rule: ChampionResult) -> str:
    reasons = (
        (rule.left_out.seen, "were used to train or select one of the two models"),
        (rule.left_out.unknown, "are of classes that the champion does not know"),
    )
    return ", ".join(f"{count:,} {reason}" for count, reason in reasons if count)


def _significance(rule: ChampionResult, comparison: ChampionTest, *, same: bool) -> str:
    if same and rule.passed:
        return "It is not worse."
    test = f"p = {probability(comparison.p)}, limit {probability(comparison.level)}."
    if rule.goal == "better":
        return f"{'Significantly' if rule.passed else 'Not significantly'} better: {test}"
    limit = tolerance_text(rule.tolerance, rule.scores.unit if rule.scores else None)
    if rule.passed:
        return f"Not worse{limit}: {test}"
    return f"It may be worse{limit}: {test}" if limit else f"Not shown to be as good (gate.tolerance is 0): {test}"


def _level(rule: ChampionResult, comparison: ChampionTest, noun: Noun) -> str:
    new = f", {rule.new_share:.0%} of which are new" if 0.0 < rule.new_share < 1.0 else ""
    return (
        f"Try {comparison.number:,} on these test {noun[1]}{new} since the last promotion. It may use "
        f"{probability(comparison.level)} of the {probability(1 - rule.confidence)} that gate.confidence allows for "
        f"all tries; {probability(comparison.remaining)} is left. A promotion restores it, and a test set without "
        f"any of these {noun[1]}."
    )
