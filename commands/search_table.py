"""A search in the terminal: the live view, the table of its trials, and the lines at its end."""

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ratchet.reports import search_text as text
from ratchet.reports.numbers import setting
from ratchet.search.finalists import winner
from ratchet.search.front import pareto_front
from ratchet.search.pace import epochs_trained, seconds_left
from ratchet.search.records import Study, Trial

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

__all__ = ["overview", "summary", "trial_table"]

_COLUMNS = 100
_CAPTION = 9  # columns of a caption
_RUNNING = 8  # running trials that are listed
_SETTINGS_LINES = 3


def overview(study: Study, *, now: float) -> "RenderableType":
    """Return the state of a search in at most 20 lines of 100 columns. `now` is in seconds since 1970."""
    from rich.console import Group
    from rich.text import Text

    lines = [
        Text.assemble((f"{caption:<{_CAPTION}}", "bold"), line, no_wrap=True, overflow="ellipsis")
        for caption, line in _overview_lines(study, now=now)
    ]
    running = [trial for trial in study.trials if trial.state == "running"]
    if not running:
        return Group(*lines)
    listed: list[RenderableType] = [Text(), _running_table(study, running[:_RUNNING])]
    if running[_RUNNING:]:
        listed.append(Text(f"and {len(running) - _RUNNING:,} more"))
    return Group(*lines, *listed)


def trial_table(study: Study) -> "Table":
    """Return all trials: the best first, each followed by its other seeds; those without a value are last."""
    from rich.table import Table
    from rich.text import Text

    with_reason = any(trial.reason for trial in study.trials)
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    for title in ("trial", "state", text.unit(study), *_titles(study), "steps", "CPU s", "settings"):
        is_text = title in ("trial", "state", "settings")
        table.add_column(title, justify="left" if is_text else "right", no_wrap=title != "settings")
    if with_reason:
        table.add_column("reason", overflow="fold")
    for trial in text.table_order(study):
        cells = [
            text.trial_name(trial), text.state_text(trial), f"{trial.epochs:,}", *text.value_texts(study, trial),
            f"{trial.steps:,}", f"{trial.cpu:,.1f}",
            text.settings_text(study, trial.values) if trial.seed_of is None else f"those of {trial.seed_of}",
        ]  # fmt: skip
        table.add_row(*map(Text, cells + ([text.one_line(trial.reason, 200)] if with_reason else [])))
    return table


def summary(study: Study) -> list[str]:
    """Return the lines at the end of a search: result, winner, expected regression, changed settings."""
    states = ", ".join(f"{count:,} {state}" for state, count in text.counts(study).items())
    end = f": {study.reason}" if study.reason else ""
    lines = [
        f"Study {study.name} {'is running' if study.state == 'running' else f'has ended{end}'}. "
        f"{_trials(len(study.searched))}{f' ({states})' if states else ''}, "
        f"{text.length_text(study, epochs_trained(study))}, {study.cpu_hours:.2f} CPU-hours.",
        text.score_sentence(study),
    ]
    best = winner(study)
    if best is None:
        return [*lines, *filter(None, [text.failure_sentence(study)])]
    lines += [text.regression_sentence(study, best)]
    lines += filter(None, [text.before_sentence(study), text.failure_sentence(study)])
    if len(study.objectives) > 1:
        numbers = ", ".join(f"{trial.number}" for trial in pareto_front(study))
        lines.append(f"Pareto front: trials {numbers}. {study.objectives[0]} decides the winner.")
    changed = text.changes(study, best.trial)
    lines += [
        f"{key}: {text.one_line(setting(before), 60)} -> {text.one_line(setting(after), 60)}"
        for key, before, after in changed
    ]
    return lines if changed else [*lines, "The settings before the search are the best ones."]


def _overview_lines(study: Study, *, now: float) -> Iterator[tuple[str, str]]:
    """Yield caption and text of each line."""
    goals = [f"{name} ({'larger' if up else 'smaller'} is better)" for name, up in zip(
        study.objectives, study.maximize, strict=True)]  # fmt: skip
    state = "is being stopped" if study.stop and study.state == "running" else study.state
    yield "study", f"{study.name}, {state}{f': {text.one_line(study.reason, 60)}' if study.reason else ''}"
    yield "goal", ", ".join(goals)
    best = winner(study)
    yield "best", text.score_sentence(study)
    if best is not None:
        settings = text.settings_text(study, best.trial.values)
        wrapped = textwrap.wrap(
            settings, _COLUMNS - _CAPTION, max_lines=_SETTINGS_LINES, placeholder=" \N{HORIZONTAL ELLIPSIS}"
        )
        yield from (("", line) for line in wrapped)
    if before := text.before_sentence(study):
        yield "before", before
    states = ", ".join(f"{count:,} {state}" for state, count in text.counts(study).items())
    yield "trials", states or "none yet"
    seeds = [trial for trial in study.trials if trial.seed_of is not None]
    if seeds:
        complete = sum(trial.state == "complete" for trial in seeds)
        yield "seeds", f"{complete:,} of {len(seeds):,} trainings with other seeds complete"
    hours = f" of {study.search.cpu_hours:g}" if study.search.cpu_hours else ""
    yield "spent", f"{text.length_text(study, epochs_trained(study))}, {study.cpu_hours:.2f}{hours} CPU-hours"
    left = seconds_left(study, now=now)
    if left is not None:
        yield "end", f"in about {_span(left)}, at the pace so far"


def _running_table(study: Study, trials: list[Trial]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, width=_COLUMNS)
    for title in ("running", text.unit(study), "value", "settings"):
        table.add_column(title, no_wrap=True, overflow="ellipsis", ratio=1 if title == "settings" else None)
    for trial in trials:
        value = text.value_text(study.objectives[0], trial.value)
        settings = text.settings_text(study, trial.values, most=12)
        table.add_row(*map(Text, (text.trial_name(trial), text.progress_text(study, trial), value, settings)))
    return table


def _titles(study: Study) -> list[str]:
    """Return short names of the objectives. All are measured on validation samples."""
    return [name.removeprefix("validation/") for name in study.objectives]


def _trials(count: int) -> str:
    return f"{count:,} {'trial' if count == 1 else 'trials'}"


def _span(seconds: float) -> str:
    """Return a duration in its largest unit."""
    for length, name in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {name}"
    return f"{seconds:.0f} seconds"
