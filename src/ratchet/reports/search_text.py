"""A search as text."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from ratchet.counts import count_of
from ratchet.reports.number_text import percent, setting, shown
from ratchet.search.finalists import Finalist, winner
from ratchet.search.optuna_view import pareto_front
from ratchet.search.records import Study, Trial
from ratchet.settings import dotted
from ratchet.settings.search_space import plain_value

__all__ = ["score_sentence", "short_names", "summary", "trial_table"]

_SHARES = ("accuracy", "f1")
_LONGEST, _REASON = 40, 240  # characters of a setting and of a reason


def is_share(objective: str) -> bool:
    """Return whether an objective is between 0 and 1, and is written in per cent."""
    return objective.endswith(_SHARES)


def value_text(objective: str, value: float | None) -> str:
    """Return a value of an objective with its unit."""
    if value is None or not math.isfinite(value):
        return shown(None)
    if is_share(objective):
        return percent(value, 2)
    return f"{value:,.0f}" if objective == "parameters" else f"{value:.4g}"


def interval_text(study: Study, finalist: Finalist) -> str:
    """Return the 95 % confidence interval of the mean over seeds; a dash: there is one seed."""
    if finalist.low is None or finalist.high is None:
        return shown(None)
    low, high = (value_text(study.objectives[0], end) for end in (finalist.low, finalist.high))
    return f"{low.removesuffix(' %')} to {high}"


def counts(study: Study) -> str:
    """Return the number of trials by state, without other seeds of finalists: "2 running, 3 complete"."""
    states = Counter(map(_state, study.searched))
    return ", ".join(f"{count:,} {state}" for state, count in sorted(states.items()))


def trial_table(study: Study) -> tuple[list[str], list[list[str]]]:
    """Return titles and rows: the best trial first, each followed by its other seeds; those without a value last."""
    keys, titles = list(study.search.space), list(short_names(study.search.space).values())
    header = ["trial", "state", "epochs", *study.objectives, *titles, "steps", "CPU s", "reason"]
    return header, [
        [
            f"{trial.number}" if trial.seed_of is None else f"{trial.seed_of}, seed {trial.seed}",
            _state(trial),
            f"{trial.epochs:,}",
            *_values(study, trial),
            *(one_line(setting(trial.values[key]), _LONGEST) if key in trial.values else "" for key in keys),
            f"{trial.steps:,}",
            f"{trial.cpu:,.1f}",
            one_line(trial.reason, _REASON),
        ]
        for trial in _ordered(study)
    ]


def _ordered(study: Study) -> Iterator[Trial]:
    ranked = study.ranked()
    for trial in [*ranked, *(trial for trial in study.searched if trial not in ranked)]:
        yield trial
        yield from (each for each in study.trials if each.seed_of == trial.number)


def _values(study: Study, trial: Trial) -> list[str]:
    values = [trial.value, *trial.objectives[1:]] + [None] * len(study.objectives)
    return [value_text(name, value) for name, value in zip(study.objectives, values, strict=False)]


def _state(trial: Trial) -> str:
    return "ended early" if trial.state == "pruned" else trial.state


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Return short names of settings: without `training.`, unless another key ends the same."""
    keys = list(keys)
    ends = [key.rpartition(".")[2] for key in keys]
    return {key: key.removeprefix("training.") if ends.count(key.rpartition(".")[2]) == 1 else key for key in keys}


def one_line(text: str, most: int) -> str:
    """Return a text without line breaks and control characters, shortened to `most` characters."""
    line = " ".join(shown(text).split())
    return line if len(line) <= most else f"{line[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


def changes(study: Study, trial: Trial) -> list[tuple[str, Any, Any]]:
    """Return key, value before the search and value of the trial, of each setting that differs."""
    before = dotted(study.params)
    pairs = [(key, before[key], value) for key, value in trial.values.items()]
    return [pair for pair in pairs if plain_value(pair[1]) != plain_value(pair[2])]


def summary(study: Study) -> list[str]:
    """Return the result as sentences: state, winner, expected regression, present settings, failures."""
    end = f": {study.reason}" if study.reason else ""
    state = "is being stopped" if study.stop else "is running"
    epochs = sum(trial.epochs for trial in study.trials)
    first = (
        f"Study {study.name} {state if study.state == 'running' else f'has ended{end}'}. "
        f"{len(study.searched):,} of {study.search.trials:,} trials ({counts(study) or 'none yet'}), "
        f"{count_of(epochs, 'epoch')}, {study.cpu_hours:.2f} CPU-hours."
    )
    best = winner(study)
    lines = [first, score_sentence(study), regression_sentence(study, best) if best else "", before_sentence(study)]
    if best and len(study.objectives) > 1:
        numbers = ", ".join(f"{trial.number}" for trial in pareto_front(study))
        lines.append(f"Pareto front: trials {numbers}. {study.objectives[0]} decides the winner.")
    if best and not changes(study, best.trial):
        lines.append("The settings before the search are the best ones.")
    return [line for line in (*lines, failure_sentence(study)) if line]


def score_sentence(study: Study) -> str:
    """Return the best trial and its score."""
    best = winner(study)
    if best is None:
        return "No trial has a value yet." if study.state == "running" else "No trial has a value: there is no winner."
    text = f"Trial {best.trial.number}: {study.objectives[0]} {value_text(study.objectives[0], best.mean)}"
    if best.low is not None:
        text += f" (95 % CI {interval_text(study, best)}, {len(best.scores)} seeds)"
    return f"{text}{_unfinished(study, best.trial)}."


def regression_sentence(study: Study, best: Finalist) -> str:
    """Return how far the score falls with fresh seeds."""
    objective = study.objectives[0]
    selected = value_text(objective, best.selected)
    if best.again is None:
        return f"Selected score {selected}. No fresh seed was trained, so expect less from the next training."
    again, fall = value_text(objective, best.again), best.again - best.selected
    difference = f"{100 * fall:+.2f} points" if is_share(objective) else f"{fall:+.3g}"
    seeds = "1 fresh seed" if len(best.fresh) == 1 else f"{len(best.fresh)} fresh seeds"
    return f"Selected score {selected}. Expected from another training: {again}, the mean of {seeds} ({difference})."


def before_sentence(study: Study) -> str:
    """Return the score of the settings before the search; empty: no trial had them."""
    trial = next((trial for trial in study.searched if not changes(study, trial)), None)
    if trial is None or trial.value is None:
        return ""
    score = value_text(study.objectives[0], trial.value)
    return f"Settings before the search (trial {trial.number}): {score}{_unfinished(study, trial)}."


def failure_sentence(study: Study) -> str:
    """Return the most frequent reason of failed trials; empty: none has failed."""
    reasons = Counter(one_line(trial.reason, 300) for trial in study.trials if trial.state == "failed")
    if not reasons:
        return ""
    (reason, count), failed = reasons.most_common(1)[0], reasons.total()
    number = "1 trial" if failed == 1 else f"{failed:,} trials"
    return f"{number} failed. {'Most frequent reason' if count < failed else 'Reason'}: {reason or 'unknown'}"


def _unfinished(study: Study, trial: Trial) -> str:
    return "" if trial.state == "complete" else f", after {trial.epochs} of {study.epochs} epochs"
