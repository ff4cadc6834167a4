"""The page of a search: the winner first, then what was tried. One offline file, also while the search runs."""

from collections.abc import Sequence
from dataclasses import dataclass

from ratchet.reports import search_text as text
from ratchet.reports.numbers import percent, setting, shown
from ratchet.reports.search_charts import curves, front, history, parallel
from ratchet.reports.templating import render_html
from ratchet.search.finalists import Finalist, finalists, winner
from ratchet.search.front import pareto_front
from ratchet.search.importance import comparison, importance
from ratchet.search.pace import epochs_trained
from ratchet.search.records import Study, Trial

__all__ = ["search_page"]

_LISTED = 200  # trials of the table; the others are folded away
_SETTING, _REASON = 40, 240  # longest texts in the table, characters
_GAP = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True)
class Row:
    """A trial as a row of the table."""

    name: str
    cells: Sequence[str]
    reason: str
    run_id: str


def search_page(study: Study) -> str:
    """Return the page of a search. The same study gives the same text; any text in it is escaped."""
    best = winner(study)
    names = text.short_names(study.search.space)
    rows = [_row(study, trial) for trial in text.table_order(study)]
    shares = importance(study)
    return render_html(
        "search.html.j2",
        study=study,
        best=best,
        failed=study.state == "ended" and best is None,
        score="" if best is None else text.value_text(study.objectives[0], best.mean),
        summary=_summary(study),
        score_sentence=text.score_sentence(study),
        cards=_cards(study),
        changes=[] if best is None else _changes(study, best.trial),
        regression="" if best is None else text.regression_sentence(study, best),
        more=[each for each in (text.before_sentence(study), text.failure_sentence(study)) if each],
        finalists=_finalist_rows(study),
        front=_front_rows(study),
        charts=[each for each in (history(study), curves(study), front(study)) if each],
        parallel=parallel(study),
        importance={names[key]: (share, percent(share)) for key, share in shares.items()},
        compared=_compared(study),
        columns=[names[key] for key in study.search.space],
        rows=rows,
        listed=_LISTED if len(rows) > _LISTED else len(rows),
        unit=text.unit(study),
        method=_method(study),
    )


def _summary(study: Study) -> str:
    budget = f"{study.search.trials:,} trials"
    if study.state == "running":
        state = "The search is being stopped." if study.stop else "The search is running."
    else:
        state = f"The search has ended{f': {study.reason}' if study.reason else f' with its {budget}'}."
    return state


def _cards(study: Study) -> list[tuple[str, str, str]]:
    """Return caption, number and details of each card."""
    search = study.search
    states = ", ".join(f"{count:,} {state}" for state, count in text.counts(study).items())
    seeds = len(study.trials) - len(study.searched)
    budget = [f"{search.hours:g} hours"] if search.hours else []
    budget += [f"{search.cpu_hours:g} CPU-hours"] if search.cpu_hours else []
    return [
        ("Trials", f"{len(study.searched):,}", states),
        (
            f"{text.unit(study).capitalize()} trained", f"{epochs_trained(study):,}",
            f"{seeds:,} trainings with other seeds included" if seeds else "",
        ),
        ("CPU-hours", shown(round(study.cpu_hours, 2)), f"{study.active / 3600:.2f} hours of searching"),
        ("Budget", f"{search.trials:,} trials", " and ".join(budget or ["no limit of time"])),
    ]  # fmt: skip


def _changes(study: Study, trial: Trial) -> list[tuple[str, str, str, bool]]:
    """Return key, setting before the search and of the trial, and whether they differ."""
    changed = {key for key, _, _ in text.changes(study, trial)}
    names = text.short_names(study.search.space)
    return [
        (names[key], setting(text.setting_before(study, key)), setting(value), key in changed)
        for key, value in trial.values.items()
    ]


def _finalist_rows(study: Study) -> list[tuple[str, ...]]:
    """Return the finalists, if other seeds have been trained."""
    known = finalists(study)
    return [_finalist_row(study, each) for each in known] if any(len(each.scores) > 1 for each in known) else []


def _finalist_row(study: Study, finalist: Finalist) -> tuple[str, ...]:
    objective = study.objectives[0]
    return (
        f"{finalist.trial.number}",
        text.value_text(objective, finalist.mean),
        shown(None) if finalist.low is None or finalist.high is None else (
            f"{text.value_text(objective, finalist.low).removesuffix(' %')}\N{EN DASH}"
            f"{text.value_text(objective, finalist.high)}"
        ),
        f"{len(finalist.scores)}",
        text.value_text(objective, finalist.selected),
        text.value_text(objective, finalist.again),
        text.settings_text(study, finalist.trial.values, gap=_GAP),
    )  # fmt: skip


def _front_rows(study: Study) -> list[tuple[str, ...]]:
    if len(study.objectives) == 1:
        return []
    return [
        (
            f"{trial.number}",
            *(text.value_text(name, value) for name, value in zip(study.objectives, trial.objectives, strict=True)),
            text.settings_text(study, trial.values, gap=_GAP),
        )
        for trial in pareto_front(study)
    ]


def _compared(study: Study) -> str:
    """Return which values the importance compares."""
    compared = comparison(study)
    if compared is None:
        return ""
    when = "at the end" if compared.epoch is None else f"after {text.length_text(study, compared.epoch)}"
    sentence = f"Compared: values of {len(compared.values):,} trials {when}, of which the best {compared.best:,} count."
    if compared.ended:
        sentence += f" {len(compared.ended):,} trials ended before, so they are not among the best."
    return sentence


def _row(study: Study, trial: Trial) -> Row:
    given = [setting(trial.values[key]) if key in trial.values else "" for key in study.search.space]
    return Row(
        text.trial_name(trial),
        (
            text.state_text(trial), f"{trial.epochs:,}",
            *text.value_texts(study, trial), *(text.one_line(value, _SETTING) for value in given),
            f"{trial.steps:,}", f"{trial.cpu:,.1f}",
        ),
        text.one_line(trial.reason, _REASON), trial.run_id,
    )  # fmt: skip


def _method(study: Study) -> dict[str, object]:
    search = study.search
    seeds = f"{search.seeds} seeds of the best {search.finalists}" if search.seeds > 1 else "one seed"
    goals = [f"{name} ({'larger' if larger else 'smaller'} is better)" for name, larger in zip(
        study.objectives, study.maximize, strict=True)]  # fmt: skip
    return {
        "objective": ", ".join(goals), "sampler": f"{search.sampler}, seed {search.sampler_seed}",
        "pruner": study.pruner,
        "training": f"{study.epochs} epochs", "finalists": seeds, "MLflow run": study.run_id or None,
    }  # fmt: skip
