"""Copies of an image, and the samples of a group, are no independent proof against the champion."""

import json
from dataclasses import replace

import numpy as np
import pytest

from ratchet import files
from ratchet.gate import Candidate, Case, Champion, judge, reload_rule
from ratchet.gate.case import ChampionTest
from ratchet.gate.rules import ChampionResult
from ratchet.gate.significance import p_better, p_larger_mean
from ratchet.gate.units import SharedBy, Units, UnitVotes
from ratchet.gate.verdict import Verdict
from ratchet.gate.verdict_text import rule_text
from ratchet.problems import Numbers
from ratchet.registry.sample_digests import Samples
from ratchet.registry.tries import TryKey
from ratchet.settings.model import EvaluationSettings, GateSettings
from ratchet.typed_json import parse, to_plain
from tests.gate.test_rules import candidate, champion, right

SETTINGS = EvaluationSettings(resamples=400)
Scores = np.ndarray


def units_of(keys: np.ndarray, by: SharedBy = "groups") -> Units:
    units = Units.of(by, keys)
    assert units is not None
    return units


COPIES = units_of(np.arange(600) % 60, "copies")  # 60 images, each 10 times


def decide(new: Candidate, old: Champion, **gate: object) -> Verdict:
    reloaded = reload_rule(images=1, largest_difference=0.0, tolerance=1e-4)
    return judge(new, old, GateSettings(**gate), SETTINGS, reloaded=reloaded)


def champion_rule(new: Candidate, old: Champion, **gate: object) -> ChampionResult:
    result = next(rule for rule in decide(new, old, **gate).rules if isinstance(rule, ChampionResult))
    assert parse(ChampionResult, json.dumps(to_plain(result))) == result
    return result


def compare(ours: Scores, theirs: Scores, *units: Units, **gate: object) -> ChampionTest:
    test = Case(candidate(ours, units=units), champion(theirs), GateSettings(**gate), SETTINGS).comparison
    assert test is not None
    return test


def repeated(correct: np.ndarray) -> np.ndarray:
    return np.tile(correct, 10)


def test_copies_of_one_fixed_error_prove_nothing() -> None:
    new, old = candidate(repeated(right(60, 60))), champion(repeated(right(59, 60)))
    assert champion_rule(new, old).passed  # each copy for itself: 10 errors fixed
    new = replace(new, units=(COPIES,))
    result = champion_rule(new, old)
    assert not result.passed
    assert rule_text(result).measured == (
        "not comparable with pets version 3: only 60 different images of 600 test images can be compared, and "
        "gate.minimum_rows asks for 100"
    )
    assert rule_text(result).fix.startswith("add different test images that neither model saw")
    result = champion_rule(new, old, minimum_rows=60)
    assert result.comparison is not None
    assert (result.passed, result.comparison.p, result.comparison.rows) == (False, 0.5, 600)
    assert result.comparison.votes == UnitVotes(60, "copies", better=1, worse=0)
    assert "Counted by 60 different images: 1 better, 0 worse;" in rule_text(result).details
    assert rule_text(result).fix.startswith("add different test images, which reveal smaller differences")


def test_three_groups_are_too_few() -> None:
    new = candidate(right(300, 300), units=(units_of(np.arange(300) // 100),))
    old = champion(right(50, 300))
    result = champion_rule(new, old)
    assert "only 3 groups of 300 test images can be compared, and gate" in rule_text(result).measured
    assert rule_text(result).fix.startswith("add test groups that neither model saw")
    result = champion_rule(new, old, minimum_rows=3)
    assert result.comparison is not None
    assert (result.passed, result.comparison.p) == (False, 0.125)
    assert "Counted by 3 groups: 3 better, 0 worse;" in rule_text(result).details


@pytest.mark.parametrize("by", ["groups", "copies"])
def test_the_fixes_of_too_few_units_work(by: SharedBy) -> None:
    """More different images, or more groups, of which each adds one."""
    units = units_of(np.arange(1200) % 120, by)
    assert champion_rule(candidate(right(1200, 1200), units=(units,)), champion(right(1000, 1200))).passed


@pytest.mark.parametrize("rows", [100, 200, 300])
def test_one_pair_of_copies_lets_no_worse_model_pass(rows: int) -> None:
    """The candidate is worse by the tolerance, and most test sets show no or few of its losses."""
    draw = np.random.default_rng(rows)
    units = units_of(np.r_[0, np.arange(rows)], "copies")
    for _ in range(100):
        theirs = np.ones(rows + 1)
        theirs[0] = 0.0  # the label of one copy contradicts that of the other
        ours = np.where(draw.random(rows + 1) < 0.01, 0.0, theirs)
        by_row = compare(ours, theirs, champion="not-worse", tolerance=0.01)
        by_unit = compare(ours, theirs, units, champion="not-worse", tolerance=0.01)
        assert by_unit.p >= by_row.p
        assert not by_unit.won


def test_gains_on_single_rows_outweigh_no_frequent_row() -> None:
    """Accuracy falls from 98.7 % to 3.4 %, because one row of the table is 9,000 of 9,400."""
    draw, is_frequent = np.random.default_rng(0), np.arange(9400) < 9000
    theirs, ours = is_frequent | (draw.random(9400) < 0.7), ~is_frequent & (draw.random(9400) < 0.9)
    units = units_of(np.where(is_frequent, 0, np.arange(9400)))
    test = compare(ours, theirs, units)
    assert test.votes is not None
    assert p_better(test.votes.better, test.votes.worse) < test.level
    assert (test.p, test.won) == (1.0, False)
    assert p_larger_mean(units.sums(ours * 1.0 - theirs)) > 0.5


def test_without_shared_units_no_byte_changes() -> None:
    """Also where copies are among the rows that are left out."""
    new = candidate(right(390), slices={"side": ["left", "right"] * 200}, saw=np.arange(400) < 100)
    old = champion(right(375))
    units = units_of(np.r_[np.zeros(101, int), np.arange(1, 300)])
    plain = to_plain(decide(new, old))
    assert to_plain(decide(replace(new, units=(units,)), old)) == plain
    assert not {"votes", "by"} & set(json.dumps(plain).replace('"', " ").split())
    few = to_plain(decide(new, old, minimum_rows=350))
    assert to_plain(decide(replace(new, units=(units,)), old, minimum_rows=350)) == few


@pytest.mark.parametrize("goal", ["better", "not-worse"])
@pytest.mark.parametrize("kind", ["equal groups", "small groups gain and large ones lose"])
def test_clusters_win_no_more_often_than_the_level(goal: str, kind: str) -> None:
    """Candidates whose mean is that of the champion, or worse by the tolerance. By rows they win far too often."""
    draw, wins, histories = np.random.default_rng(1), np.zeros(2), 400
    sizes = np.full(40, 100) if kind == "equal groups" else np.repeat([20, 200], [60, 20])
    shifts = np.zeros(40) if kind == "equal groups" else np.where(sizes == 20, 0.3, -0.3 * 60 * 20 / (20 * 200))
    tolerance = 0.05 if goal == "not-worse" else 0.0
    units, level = units_of(np.repeat(np.arange(len(sizes)), sizes)), 0.0
    gate = {"champion": goal, "tolerance": tolerance, "minimum_rows": 40, "confidence": 0.6}
    for _ in range(histories):
        gain = np.repeat(draw.normal(shifts, 0.2), sizes) - tolerance
        ours, theirs = draw.random((2, len(gain))) < 0.5 + np.stack([gain, -gain]) / 2
        for at, used in enumerate(((units,), ())):
            test = compare(ours, theirs, *used, **gate)
            wins[at] += test.won
            level = test.level
    by_unit, by_row = wins / histories
    assert by_unit <= level + 3 * (level / histories) ** 0.5
    assert by_row > 2.5 * level


def test_better_candidate_still_wins_by_groups() -> None:
    draw, wins = np.random.default_rng(3), 0
    units = units_of(np.repeat(np.arange(120), 20))
    for _ in range(50):
        gain = np.repeat(draw.normal(0.06, 0.05, 120), 20)
        ours, theirs = draw.random((2, 2400)) < 0.7 + np.stack([gain, -gain]) / 2
        wins += compare(ours, theirs, units).won
    assert wins >= 40


def test_real_scores_count_units() -> None:
    """The p-value of copies is that of each once, and groups, not rows, must show rare failures."""
    ours, theirs = -np.abs(np.random.default_rng(4).normal([[0.0], [0.2]], 1.0, (2, 500)))
    target, twice = Numbers(("y",), (0.0,), (1.0,)), np.arange(1000) % 500
    new = candidate(ours[twice], labels=None, target=target, units=(units_of(twice),))
    old = champion(theirs[twice], target=target)
    result = champion_rule(new, old)
    assert result.comparison is not None
    assert result.comparison.p == pytest.approx(p_larger_mean(ours - theirs), rel=1e-9)
    assert result.comparison.p > p_larger_mean((ours - theirs)[twice])
    result = champion_rule(replace(new, units=(units_of(np.arange(1000) % 400),)), old)
    assert "only 400 groups of 1,000 test images can be compared, and 473 are needed" in rule_text(result).measured


def test_units_are_groups_and_also_copies() -> None:
    content, none = np.arange(1, 7, dtype=np.uint64), np.zeros(6, np.uint64)
    copied = np.array([7, 7, 8, 9, 9, 9], np.uint64)
    assert Samples(content, content, none, are_copies=True).units == ()
    assert Samples(content, copied, none).units == ()  # rows of a table with equal values
    for alone in (none, content):  # without a group, and with a column that has another value for each file
        (copies,) = Samples(content, copied, alone, are_copies=True).units
        assert (copies.numbers.tolist(), copies.by) == ([0, 0, 1, 2, 2, 2], "copies")
    some = np.array([0, 0, 2**63, 2**63, 0, 0], np.uint64)
    (groups,) = Samples(content, copied, some).units
    assert (groups.numbers.tolist(), groups.by) == ([0, 1, 4, 4, 2, 3], "groups")
    both = Samples(content, copied, some, are_copies=True).units
    assert [units.by for units in both] == ["groups", "copies"]
    assert both[0].at(np.array([0, 2])) is None
    later = both[0].at(np.array([2, 3]))
    assert later is not None
    assert later.count == 1


def test_an_image_that_groups_share_does_not_join_them() -> None:
    """One frame of each of 120 videos is black. The larger p-value, and the smaller number of units, decide."""
    rows, groups = np.arange(600, dtype=np.uint64), np.repeat(np.arange(1, 121, dtype=np.uint64), 5)
    videos = Samples(rows, np.where(rows % 5 == 0, 0, rows), groups, are_copies=True).units
    assert [units.count for units in videos] == [120, 481]
    new, old = candidate(right(600, 600), units=videos), champion(right(400, 600))
    result = champion_rule(new, old)
    assert result.passed
    assert result.comparison is not None
    assert result.comparison.votes == UnitVotes(120, "groups", better=40, worse=0)
    alone = [compare(new.score, old.score, units) for units in videos]
    assert result.comparison.p >= max(test.p for test in alone) == alone[0].p
    few = champion_rule(new, old, minimum_rows=130)
    assert "only 120 groups of 600 test images" in rule_text(few).measured


def test_copies_in_many_groups_are_counted_once() -> None:
    """Ten images in each of 120 groups."""
    images, groups = np.tile(np.arange(1, 11, dtype=np.uint64), 120), np.repeat(np.arange(1, 121, dtype=np.uint64), 10)
    units = Samples(np.arange(1200, dtype=np.uint64), images, groups, are_copies=True).units
    theirs = images < 5
    result = champion_rule(candidate(np.ones(1200), units=units), champion(theirs), minimum_rows=10)
    assert not result.passed
    assert "Counted by 10 different images: 6 better, 0 worse" in rule_text(result).details
    assert champion_rule(candidate(np.ones(1200), units=units[:1]), champion(theirs), minimum_rows=10).passed


def test_dependence_by_group_and_by_image_adds_up() -> None:
    """Equal models on groups of 10, into which 150 images are copied 20 times. Each way alone lets too many win."""
    draw, wins, histories = np.random.default_rng(8), np.zeros(2), 300
    groups = np.r_[np.repeat(np.arange(300), 10), draw.integers(0, 300, 3000)]
    images = np.r_[np.arange(150, 3150), np.repeat(np.arange(150), 20)]
    ways, level = (units_of(groups), units_of(images, "copies")), 0.0
    target = Numbers(("y",), (0.0,), (1.0,))
    for _ in range(histories):
        gains = draw.normal(0, 1, 300)[groups] + draw.normal(0, 1, 3150)[images] * 2.0
        new = candidate(gains, labels=None, target=target, units=ways)
        old = champion(np.zeros(6000), target=target)
        test = Case(new, old, GateSettings(confidence=0.6, minimum_rows=40), SETTINGS).comparison
        assert test is not None
        alone = max(p_larger_mean(units.sums(gains)) for units in ways)
        wins, level = wins + np.array([test.won, alone <= test.level]), test.level
    assert wins[0] / histories <= level + 3 * (level / histories) ** 0.5
    assert wins[1] > 1.5 * wins[0]


def test_the_largest_group_is_named_only_where_that_helps() -> None:
    """The gain is on one image with 200 copies: fewer images of the group of 400 change nothing."""
    groups = np.r_[np.repeat(np.arange(200), 5), np.full(400, 200)]
    images = np.r_[np.tile([0, 1, 2, 3, 4], 200), np.arange(1000, 1400)]
    images[:1000] = np.where(images[:1000] == 0, 0, np.arange(1, 1001))
    ways = (units_of(groups), units_of(images, "copies"))
    result = champion_rule(candidate(np.ones(1400), units=ways), champion(images != 0))
    assert not result.passed
    assert result.comparison is not None
    assert result.comparison.largest == 0


def test_another_group_column_is_another_try() -> None:
    digests = np.arange(1, 8, dtype=np.uint64)
    rows = Samples(digests, digests, np.zeros(7, np.uint64))
    alone = TryKey("run", "1", "answers", rows, {"confidence": 0.95})
    assert alone.digest == files.digest_json(["1", "answers", rows.fingerprint, {"confidence": 0.95}])
    columns = (["ann", "ann", "bob", "bob", "bob", "eve"], ["b", "b", "a", "a", "a", "c"], [1, 1, 1, 2, 2, 2])
    compared = np.arange(6)
    patient, renamed, camera = (units_of(np.array(column)).digest(compared, 7) for column in columns)
    assert patient == renamed
    others = units_of(np.array(columns[0])).digest(compared + 1, 7)  # the same groups of other samples
    assert len({replace(alone, units=units).digest for units in ("", patient, camera, others)}) == 4


def test_values_that_cancel_out_prove_nothing() -> None:
    """The sums of 470 groups are rounding errors, and three groups show too little."""
    gains = np.r_[np.tile([0.4, 0.2, -0.6], 470), np.full(9, 0.2)]
    units = units_of(np.repeat(np.arange(473), 3))
    assert np.count_nonzero(np.bincount(units.numbers, weights=gains)) > 400
    assert p_larger_mean(units.sums(gains)) == 0.125
    assert units.votes(gains) == UnitVotes(473, "groups", better=3, worse=0)


@pytest.mark.parametrize(("groups", "share", "lost"), [(100, 0.01, 100), (100, 0.015, 76), (200, 0.01, 100)])
def test_losses_of_whole_groups_that_no_group_shows_count(groups: int, share: float, lost: int) -> None:
    """Each group gains a row, and a few lose so many that the candidate is worse on average."""
    draw, wins, by_sums, level = np.random.default_rng(groups + lost), 0, 0, 0.0
    units = units_of(np.repeat(np.arange(groups), 100))
    for _ in range(100):
        gain = np.zeros((groups, 100))
        gain[:, 0] = 1.0
        gain[draw.random(groups) < share, :lost] = -1.0
        test = compare((gain > 0).ravel() * 1.0, (gain < 0).ravel() * 1.0, units)
        wins, level = wins + test.won, test.level
        by_sums += p_larger_mean(units.sums(gain.ravel())) <= level
    assert wins == 0
    assert by_sums / 100 > 5 * level


def test_larger_groups_may_lose_what_smaller_ones_gain() -> None:
    """The few largest groups lose more than all others gain, and often none is among those that were tested."""
    draw, wins, by_votes, level = np.random.default_rng(5), 0, 0, 0.0
    for _ in range(60):
        sizes = np.minimum(5 * (1 + draw.pareto(2.0, 100)), 200).astype(int)
        units = units_of(np.repeat(np.arange(100), sizes))
        shift = np.repeat(np.where(sizes >= 50, -0.63, 0.06), sizes)
        ours, theirs = draw.random((2, len(shift))) < 0.5 + np.stack([shift, -shift]) / 2
        test = compare(ours, theirs, units)
        assert test.votes is not None
        wins, level = wins + test.won, test.level
        by_votes += p_better(test.votes.better, test.votes.worse) <= level
    assert wins == 0
    assert by_votes / 60 > 10 * level


@pytest.mark.parametrize("gate", [{}, {"champion": "not-worse", "tolerance": 0.05}])
def test_a_large_group_that_decides_has_its_fix(gate: dict[str, object]) -> None:
    """A gain of 10 points on 200 patients of 20 images each; the images without a patient are one group of 1,000."""
    ours, theirs = np.random.default_rng(7).random((2, 5000)) < np.array([[0.9], [0.8]])
    patients = np.r_[np.zeros(1000, int), np.repeat(np.arange(1, 201), 20)]
    new, old = candidate(ours, units=(units_of(patients),)), champion(theirs)
    result = champion_rule(new, old, **gate)
    assert not result.passed
    assert "this test set lacks groups as large as one here (1,000) and wrong" in rule_text(result).details
    assert rule_text(result).fix.startswith("leave the group empty where it is not known")
    empty = units_of(np.r_[np.arange(1000, 2000), patients[1000:]])
    result = champion_rule(replace(new, units=(empty,)), old, **gate)
    assert result.passed
    assert "lacks" not in rule_text(result).details


def test_one_frequent_image_keeps_no_model_from_winning() -> None:
    """46 errors are fixed and 22 new, on other images than the one that the test set has 50 times."""
    images = np.arange(1000)
    ours, theirs = (images < 46) | (images >= 68), images >= 46
    units = units_of(np.minimum(images, 950), "copies")
    assert champion_rule(candidate(ours, units=(units,)), champion(theirs)).passed


def test_equal_models_are_not_worse_by_groups() -> None:
    """And a candidate that is worse by the tolerance is."""
    draw, wins = np.random.default_rng(6), {0.0: 0, -0.05: 0}
    units = units_of(np.repeat(np.arange(120), 50))
    for gain in wins:
        for _ in range(50):
            ours, theirs = draw.random((2, 6000)) < 0.9 + np.array([[gain], [0.0]])
            wins[gain] += compare(ours, theirs, units, champion="not-worse", tolerance=0.05).won
    assert wins[0.0] >= 45
    assert wins[-0.05] <= 1


def test_interval_is_that_of_the_units() -> None:
    """Each image ten times has the interval of each once."""
    ours, theirs = right(590, 600), right(500, 600)
    once = champion_rule(candidate(ours), champion(theirs))
    ten = champion_rule(
        candidate(repeated(ours), units=(units_of(np.arange(6000) % 600, "copies"),)), champion(repeated(theirs))
    )
    assert once.scores is not None
    assert ten.scores is not None
    narrow, wide = once.scores.difference, ten.scores.difference
    assert wide.value == pytest.approx(narrow.value)
    assert wide.high - wide.low == pytest.approx(narrow.high - narrow.low, rel=0.1)
