"""A search as text: sentences and rows, in which no text of a user has line breaks or control characters."""

from dataclasses import replace

import pytest
from simulated_search import CannotTrain

from ratchet.reports.search_text import summary, trial_table
from ratchet.search.records import Study, Trial

from .made_study import Values, made_study

NASTY = "[bold]out of memory[/] \x1b[31m\n" + "x" * 400


def failing(values: Values, seed: int | None, epoch: int) -> tuple[float, ...]:
    raise CannotTrain(NASTY)


@pytest.fixture(scope="module")
def ended() -> Study:
    return made_study(trials=10, sampler="random")


def test_reasons_are_one_line_of_plain_text() -> None:
    study = made_study(trials=2, objectives=failing)
    texts = [row[-1] for row in trial_table(study)[1]] + summary(study)
    assert "No trial has a value: there is no winner." in texts
    assert sum("[bold]out of memory[/]" in text for text in texts) == 3
    assert not any("\x1b" in text or "\n" in text or "x" * 300 in text for text in texts)


def test_summary_has_winner_and_regression(ended: Study) -> None:
    text = "\n".join(summary(ended))
    for part in ("has ended", "10 of 10 trials (", "95 % CI", "3 seeds", "Expected from another training",
                 "Settings before the search (trial 0)"):  # fmt: skip
        assert part in text


def test_table_has_a_row_for_each_trial(ended: Study) -> None:
    header, rows = trial_table(replace(ended, trials=(*ended.trials, Trial(99, "key", {}))))
    assert {len(row) for row in rows} == {len(header)}
    assert len(rows) == len(ended.trials) + 1
    assert any(row[:2] == [f"{ended.winner}, seed 2", "complete"] for row in rows)
