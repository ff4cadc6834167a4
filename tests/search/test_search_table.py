"""A search in the terminal: short enough for the live view, and no text of a user is markup."""

import io
from dataclasses import replace

import pytest
from rich.console import Console, RenderableType

from commands.search_table import overview, summary, trial_table
from ratchet.reports.search_text import short_names
from ratchet.search.records import Study, Trial

from .made_study import SPACE, CannotTrain, Values, accuracy_and_size, made_study

NASTY = "[bold]out of memory[/] \x1b[31m\n" + "x" * 400


def failing(values: Values, seed: int | None, epoch: int) -> tuple[float, ...]:
    raise CannotTrain(NASTY)


def printed(content: RenderableType, width: int = 100) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None, highlight=False).print(content)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def crowd(study: Study) -> Study:
    """Return the study with 30 running trials that have long settings."""
    long = {f"training.{name}": "y" * 200 for name in ("loss", "optimizer", "schedule", "flip", "crop_fill")}
    trials = [
        replace(study.trials[0], number=number, state="running", values={**study.trials[0].values, **long})
        for number in range(30)
    ]
    return replace(study, trials=trials)


@pytest.fixture(scope="module")
def running() -> Study:
    return made_study(assignments=12, sampler="random", cpu_hours=4.0)


@pytest.fixture(scope="module")
def ended() -> Study:
    return made_study(trials=10, sampler="random")


def test_overview_shows_best_running_left_and_expected_end(running: Study) -> None:
    text = "\n".join(printed(overview(running, now=1_003_600.0)))
    for part in ("digits, running", "validation/accuracy (larger is better)", "best", "1 running", "ended early",
                 "left", "of 4 CPU-hours", "in about", "learning_rate"):  # fmt: skip
        assert part in text
    assert "training.learning_rate" not in text


@pytest.mark.parametrize("width", [100, 60])
def test_overview_of_a_crowd_fits_the_terminal(running: Study, width: int) -> None:
    lines = printed(overview(replace(crowd(running), reason=NASTY), now=1_003_600.0), width)
    assert len(lines) <= 20
    assert max(map(len, lines)) <= width
    assert "and 22 more" in lines[-1]


def test_overview_of_a_new_study_is_complete() -> None:
    study = replace(made_study(assignments=1), trials=())
    text = "\n".join(printed(overview(study, now=1_000_001.0)))
    assert "No trial has a value yet" in text
    assert "40 left" in text


def test_table_has_a_row_for_each_trial(ended: Study) -> None:
    table = trial_table(ended)
    assert table.row_count == len(ended.trials)
    text = "\n".join(printed(table, 200))
    assert "ended early" in text
    assert ", seed 2" in text


def test_reasons_are_one_line_of_plain_text() -> None:
    study = made_study(trials=2, objectives=failing)
    text = "\n".join(printed(trial_table(study), 400))
    assert "[bold]out of memory[/]" in text
    assert "\x1b" not in text
    assert "x" * 300 not in text
    lines = summary(study)
    assert "No trial has a value: there is no winner." in lines
    assert any("out of memory" in line and "\n" not in line for line in lines)


def test_summary_has_winner_regression_and_changed_settings(ended: Study) -> None:
    text = "\n".join(summary(ended))
    for part in ("has ended", "10 trials (", "95 % CI", "3 seeds", "Expected from another training",
                 "Settings before the search (trial 0)", "training.learning_rate: 0.002 -> "):  # fmt: skip
        assert part in text


def test_summary_says_that_nothing_changed(ended: Study) -> None:
    first = replace(ended.trials[0], state="complete", objectives=(0.99,))
    assert summary(replace(ended, trials=(first,)))[-1] == "The settings before the search are the best ones."


def test_summary_of_several_objectives_names_the_front() -> None:
    study = made_study(
        trials=6, objectives=accuracy_and_size, names=("validation/accuracy", "parameters"), epochs=2
    )  # fmt: skip
    assert any(line.startswith("Pareto front: trials ") for line in summary(study))


def test_table_of_a_trial_without_values_is_drawn(ended: Study) -> None:
    assert trial_table(replace(ended, trials=(Trial(0, "key", {}),))).row_count == 1


def test_names_are_short_unless_ambiguous() -> None:
    assert short_names(SPACE)["training.learning_rate"] == "learning_rate"
    assert short_names(["training.factory", "model.factory"]) == {
        "training.factory": "training.factory",
        "model.factory": "model.factory",
    }
