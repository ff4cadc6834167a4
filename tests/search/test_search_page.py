"""The page of a search: any study gives a page, all text is escaped, and a thousand trials stay a small file."""

import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from simulated_search import CannotTrain

from ratchet.reports.search_charts import objective_scale, slices
from ratchet.reports.search_page import search_page
from ratchet.search.finalists import winner
from ratchet.search.importance import dimensions, importance
from ratchet.search.optuna_view import frozen, pareto_front
from ratchet.search.records import Study
from tests.servers.browser import chromium, needs_chromium

from .made_study import SPACE, Values, accuracy, accuracy_and_size, made_study, many_trials

NASTY = "<script>alert('x')</script>\"&{{ 1 }}\n\u202e<b>"
VOID = {"meta", "br"}
LARGEST = 600_000  # bytes of a page with 1,000 trials; it must not exceed 1.5 MB
TWO = ("validation/accuracy", "parameters")


class Reader(HTMLParser):
    """Collect tags with attributes and the visible text, and check that every tag is closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert self.open == []
        self.text = " ".join(self.text.replace("\N{NO-BREAK SPACE}", " ").split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "head" not in self.open:
            self.text += f" {data}"

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def failing(values: Values, seed: int | None, epoch: int) -> tuple[float, ...]:
    """Fail with a high learning rate."""
    if values["training.learning_rate"] > 0.02 and epoch > 1:
        raise CannotTrain(f"loss is not finite at epoch {epoch}: {NASTY}")
    return accuracy(values, seed, epoch)


def always_failing(values: Values, seed: int | None, epoch: int) -> tuple[float, ...]:
    raise CannotTrain(NASTY)


def empty() -> Study:
    return replace(made_study(trials=1, assignments=1), trials=())


STUDIES: dict[str, Callable[[], Study]] = {
    "empty": empty,
    "first epoch": lambda: made_study(assignments=1),
    "running": lambda: made_study(assignments=12, sampler="random"),
    "ended": lambda: made_study(trials=12, sampler="random"),
    "failures": lambda: made_study(trials=12, objectives=failing, sampler="random", pruner="none", epochs=3),
    "all failed": lambda: made_study(trials=3, objectives=always_failing),
    "two objectives": lambda: made_study(trials=12, objectives=accuracy_and_size, names=TWO, epochs=3),
}


@pytest.mark.parametrize("name", STUDIES)
def test_page_of_any_study_is_whole_and_loads_nothing(name: str) -> None:
    study = STUDIES[name]()
    page = search_page(study)
    reader = Reader(page)
    assert not {tag for tag, _ in reader.tags} & {"script", "link", "iframe", "b"}
    assert not re.search(r"https?://|<[^>]* on\w+=|nan|inf\b", page)
    assert all(attributes["role"] == "img" for tag, attributes in reader.tags if tag == "svg")
    assert f"Search {study.name} · {study.state}" in reader.text
    assert reader.count("title") == 1 + reader.count("svg") == 1 + reader.count("desc")
    assert page == search_page(study)


def test_winner_is_shown_with_interval_and_expected_regression() -> None:
    study = STUDIES["ended"]()
    best = winner(study)
    assert best
    assert best.low is not None
    assert best.again is not None
    text = Reader(search_page(study)).text
    assert f"Winner: trial {best.trial.number}" in text
    assert f"(95 % CI {100 * best.low:.2f} to " in text
    assert (
        f"Selected score {100 * best.selected:.2f} %. Expected from another training: {100 * best.again:.2f} %" in text
    )
    assert "Test samples were not touched." in text
    assert f"learning_rate 0.002 {best.trial.values['training.learning_rate']}" in text


def test_failed_trials_have_their_reason_as_plain_text() -> None:
    study = STUDIES["failures"]()
    text = Reader(search_page(study)).text
    failed = [trial for trial in study.trials if trial.state == "failed"]
    assert failed
    reason = "loss is not finite at epoch 2: <script>alert('x')</script>\"&{{ 1 }} \N{REPLACEMENT CHARACTER}<b>"
    assert text.count(reason) == len(failed) + 1  # once in the head


def test_present_settings_outside_the_space_are_on_the_page() -> None:
    space = {
        "training.learning_rate": {"float": [0.01, 0.1], "log": True},
        "training.optimizer": {"choice": ["adam", "sgd"]},
        "training.label_smoothing": {"float": [0.1, 0.2]},
    }
    study = made_study(trials=30, space=space, epochs=3, sampler="gp", seeds=1)
    assert list(study.trials[0].values.values()) == [0.002, "adamw", "auto"]
    text = Reader(search_page(study)).text
    assert "adamw" in text
    assert {*importance(study)} == {*space}
    copied = frozen(study.trials[0], dimensions(study))
    assert (copied.params, copied.user_attrs["values"]["training.optimizer"]) == ({}, "adamw")


def test_hostile_values_of_settings_are_escaped() -> None:
    space = {**SPACE, "training.schedule": {"choice": ["constant", "cosine"]}}
    study = made_study(trials=6, space=space, sampler="random", epochs=3)
    choices = {"choice": ["constant", NASTY]}
    search = study.search.model_copy(update={"space": {**space, "training.schedule": choices}})
    trials = [replace(trial, values={**trial.values, "training.schedule": NASTY}) for trial in study.trials]
    page = search_page(replace(study, search=search, trials=trials, reason=NASTY, name="study"))
    reader = Reader(page)
    assert not {tag for tag, _ in reader.tags} & {"script", "b"}
    assert "\u202e" not in page
    assert reader.text.count("<script>alert('x')</script>") > len(trials)


def test_settings_that_are_lists_have_a_place_on_their_axis() -> None:
    space = {"training.betas": {"choice": [[0.9, 0.999], [0.8, 0.99]]}}
    (chart,) = slices(made_study(trials=2, space=space, epochs=3, seeds=1))
    assert "0.9, 0.999" in chart.drawing


def test_two_objectives_have_a_front_that_nothing_beats() -> None:
    study = STUDIES["two objectives"]()
    front = pareto_front(study)
    for trial in study.searched:
        beaten = any(
            other.objectives[0] >= trial.objectives[0] and other.objectives[1] <= trial.objectives[1]
            and other.objectives != trial.objectives
            for other in study.searched
        )  # fmt: skip
        assert (trial in front) is not beaten
    text = Reader(search_page(study)).text
    assert text.count("Pareto front") > 1
    assert f"{front[0].objectives[1]:,.0f}" in text


def test_page_of_thousand_trials_is_small_and_folded() -> None:
    page = search_page(many_trials(1000))
    assert len(page.encode()) < LARGEST
    reader = Reader(page)
    assert reader.count("details") == 1
    assert "The other 800 trials" in reader.text
    assert reader.count("path") < 200
    assert len(search_page(many_trials(200)).encode()) < LARGEST / 2


def test_diverged_trials_do_not_hide_the_others() -> None:
    values = [0.2 + number / 100 for number in range(30)] + [1e9]
    study = made_study(trials=1, names=("validation/loss",), assignments=1)
    scale = objective_scale(study, values)
    assert scale.high < 10
    assert scale.inside(1e9) == scale.high


@pytest.mark.system
@needs_chromium
def test_page_is_never_wider_than_the_window(tmp_path: Path) -> None:
    pages = {"few": STUDIES["failures"](), "two": STUDIES["two objectives"](), "many": many_trials(1000)}
    for name, study in pages.items():
        (tmp_path / f"{name}.html").write_text(search_page(study), encoding="utf-8")
    with chromium(tmp_path, {}) as browser:
        for name in pages:
            browser.open((tmp_path / f"{name}.html").as_uri())
            for width in (400, 1200):
                assert browser.screenshot(tmp_path / f"{name}-{width}.png", width) <= width
