"""The tries that the ledger counts, and the acts that restore the significance level."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ratchet.gate.case import ChampionTest
from ratchet.gate.rules import ChampionResult
from ratchet.gate.significance import Tries, spend
from ratchet.gate.verdict import Verdict
from ratchet.registry.ledger import LedgerEntry
from ratchet.registry.sample_digests import Samples
from ratchet.registry.tries import TryKey, judgement, known_try, tries_before


def samples(first: int, count: int) -> Samples:
    """Return samples by number; the same number is the same sample."""
    digests = np.random.default_rng(7).integers(1, 2**64, 60_000, dtype=np.uint64)
    mine = digests[first : first + count]
    return Samples(mine, mine ^ np.uint64(2**63), np.zeros(count, np.uint64))


class Log:
    """The entries of one model in memory."""

    def __init__(self) -> None:
        self.entries: list[LedgerEntry] = []

    def add(self, what: str, version: str | None = None, **content: Any) -> None:
        written: Mapping[str, Any] = json.loads(json.dumps(content))
        number = len(self.entries) + 1
        self.entries.append(LedgerEntry(number, "", "ann", what, "pets", version, "", written, "", f"seal {number}"))

    def judge(self, run: str, rows: Samples, *, over: str | None = "1", won: bool = False) -> Tries:
        """Add one candidate's try; return the tries before it."""
        question = TryKey(run, over, f"answers of {run}", rows, {"confidence": 0.95})
        before = tries_before(self.entries, rows, np.ones(len(rows), np.bool_))
        level = spend(before, confidence=0.95)
        p = level.level if won else 0.5
        comparison = ChampionTest(before.count + 1, len(rows), p, level.level, level.remaining, won)
        verdict = Verdict(won, (ChampionResult(won, champion=over, comparison=comparison if over else None),))
        self.add("judge", **judgement(self.entries, question, before, verdict))
        return before


ROWS = samples(0, 3000)


def test_tries_on_the_same_rows_add_up() -> None:
    log = Log()
    tries = [log.judge(f"run {number}", ROWS) for number in range(4)]
    assert [(before.count, before.spent) for before in tries] == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0)]


def test_a_won_promotion_restores_the_level_until_a_rollback() -> None:
    log = Log()
    log.add("promote", "1", run="first")
    for number in range(5):
        log.judge(f"run {number}", ROWS)
    log.judge("good", ROWS, won=True)
    assert tries_before(log.entries, ROWS, np.ones(3000, bool)).spent == 6
    log.add("promote", "2", run="good")
    assert tries_before(log.entries, ROWS, np.ones(3000, bool)).spent == 0
    log.judge("later", ROWS, over="2")
    log.add("rollback", "1", run="first")
    tries = tries_before(log.entries, ROWS, np.ones(3000, bool))
    assert (tries.count, tries.spent) == (7, 7.0)


def test_a_promotion_that_won_no_comparison_restores_nothing() -> None:
    log = Log()
    log.judge("run", ROWS)
    log.add("promote", "2", run="run")
    assert tries_before(log.entries, ROWS, np.ones(3000, bool)).spent == 1


@pytest.mark.parametrize(("first", "share"), [(3000, 1.0), (0, 0.0), (1500, 0.5), (300, 0.1)])
def test_only_a_wholly_new_set_restores_the_level(first: int, share: float) -> None:
    log = Log()
    for number in range(10):
        log.judge(f"run {number}", ROWS)
    tries = tries_before(log.entries, samples(first, 3000), np.ones(3000, bool))
    assert tries.new_rows == pytest.approx(share, abs=0.04)  # from a sample of the digests
    assert (tries.count, tries.spent) == ((0, 0.0) if first == 3000 else (10, 10.0))


@pytest.mark.parametrize(
    ("sets", "spent"),
    [
        ([(0, 500 + 20 * turn) for turn in range(12)], list(range(12))),  # growing
        ([(0, 500 - 20 * turn) for turn in range(12)], list(range(12))),  # shrinking
        ([(100 * turn, 500) for turn in range(12)], list(range(12))),  # a chain of overlaps
        ([(600 * (turn % 2), 500) for turn in range(12)], [turn // 2 for turn in range(12)]),  # two in turn
        ([(0, 500), (600, 500), (400, 300), (0, 500), (600, 500)], [0, 0, 2, 3, 3]),  # one that touches both
    ],
)
def test_tries_stay_with_rows_in_every_order(sets: list[tuple[int, int]], spent: list[int]) -> None:
    log = Log()
    assert [log.judge(f"run {turn}", samples(*rows)).spent for turn, rows in enumerate(sets)] == spent


def test_small_sets_between_restore_nothing() -> None:
    log = Log()
    for turn in range(30):
        log.judge(f"small {turn}", samples(3000 + 20 * turn, 20))
        assert log.judge(f"run {turn}", samples(0, 500)).spent == turn


def test_copies_of_images_are_not_new_samples() -> None:
    log = Log()
    log.judge("run", ROWS)
    others = samples(3000, 3000)
    again = Samples(others.content, ROWS.pixels, ROWS.groups)
    assert tries_before(log.entries, again, np.ones(3000, bool)).new_rows == 0.0


@pytest.mark.parametrize(
    ("identity", "tries"), [("columns a, b", (0, 1.0)), ("columns a, b, c", (10, 0.0)), ("", (10, 0.0))]
)
def test_samples_identified_in_another_way_are_never_new(identity: str, tries: tuple[int, float]) -> None:
    """Other columns give every row another digest: the same rows would look like a wholly new set."""
    log = Log()
    for number in range(10):
        log.judge(f"run {number}", replace(ROWS, identity="columns a, b"))
    other = replace(samples(3000, 3000), identity=identity)
    before = tries_before(log.entries, other, np.ones(3000, bool))
    assert (before.count, before.new_rows) == tries


@pytest.mark.parametrize(("first", "count"), [(0, 10), (2000, 10), (3000, 0)])
def test_groups_identify_samples_whatever_else_changed(first: int, count: int) -> None:
    log = Log()
    groups = samples(0, 6000).pixels
    for number in range(10):
        log.judge(f"run {number}", replace(ROWS, groups=groups[:3000], identity="columns a, b"))
    again = replace(samples(6000, 3000), groups=groups[first : first + 3000], identity="columns a, b, c")
    assert tries_before(log.entries, again, np.ones(3000, bool)).count == count


def test_samples_of_a_far_larger_set_are_recognized() -> None:
    log = Log()
    log.judge("large", samples(0, 50_000))
    assert tries_before(log.entries, samples(0, 8000), np.ones(8000, bool)).new_rows == 0.0
    assert tries_before(log.entries, samples(50_000, 8000), np.ones(8000, bool)).new_rows == 1.0
    assert len(json.dumps(log.entries[0].content)) < 60_000


def test_only_the_same_question_is_the_same_try() -> None:
    log = Log()
    log.judge("run", ROWS)
    first = TryKey("run", "1", "answers of run", ROWS, {"confidence": 0.95})
    assert known_try(log.entries, first) == Tries()
    assert known_try(log.entries, replace(first, run="another")) == Tries()
    for changed in ({"answers": "others"}, {"over": "2"}, {"settings": {"confidence": 0.9}}):
        assert known_try(log.entries, replace(first, **changed)) is None


def test_a_candidate_without_a_champion_uses_no_try() -> None:
    log = Log()
    log.judge("first", ROWS, over=None)
    assert tries_before(log.entries, ROWS, np.ones(3000, bool)) == Tries(0, 0.0, 0.0)


def test_a_damaged_entry_is_ignored() -> None:
    log = Log()
    log.add("judge")
    assert tries_before(log.entries, ROWS, np.ones(3000, bool)) == Tries()


def recovered(log: Log, intact: int, champion: str | None) -> tuple[list[LedgerEntry], list[LedgerEntry]]:
    """Add a recovery; return the valid entries and those set aside."""
    aside = log.entries[intact:]
    log.add("recover", models={"pets": {"champion": champion}}, intact=intact, aside=len(aside))
    return [*log.entries[:intact], log.entries[-1]], aside


@pytest.mark.parametrize("intact", [0, 1, 4])
def test_tries_that_a_recovery_sets_aside_stay_used(intact: int) -> None:
    log = Log()
    log.add("promote", "1", run="first")
    for number in range(6):
        log.judge(f"run {number}", ROWS)
    log.entries[6] = replace(log.entries[6], content={**log.entries[6].content, "before": vars(Tries())})  # an edit
    log.entries[5] = replace(log.entries[5], content={"damaged": "?"})
    valid, aside = recovered(log, intact, "1")
    tries = tries_before(valid, ROWS, np.ones(3000, bool), model="pets", aside=aside)
    assert (tries.count, tries.spent, tries.new_rows) == (6, 6.0, 0.0)


def test_a_recovery_reverts_the_level_of_a_promotion() -> None:
    log = Log()
    log.add("promote", "1", run="first")
    for number in range(5):
        log.judge(f"run {number}", ROWS)
    log.judge("good", ROWS, won=True)
    log.add("promote", "2", run="good")
    for champion, spent in (("2", 0.0), ("1", 6.0)):
        again = Log()
        again.entries = log.entries[:]
        valid, aside = recovered(again, 3, champion)
        assert tries_before(valid, ROWS, np.ones(3000, bool), model="pets", aside=aside).spent == spent
