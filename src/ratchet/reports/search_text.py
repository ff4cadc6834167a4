"""A search as text, for its page and for the terminal."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ratchet.reports.numbers import percent, points, setting, shown
from ratchet.search.finalists import Finalist, winner
from ratchet.search.records import Study, Trial

__all__ = [
    "before_sentence",
    "changes",
    "counts",
    "failure_sentence",
    "interval_text",
    "is_share",
    "length_text",
    "one_line",
    "progress_text",
    "regression_sentence",
    "score_sentence",
    "setting_before",
    "settings_text",
    "short_names",
    "state_text",
    "table_order",
    "trial_name",
    "unit",
    "value_text",
    "value_texts",
]

_SHARES = ("accuracy", "f1")
_STATES = ("running", "waiting", "ended early", "complete", "failed")


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


def difference_text(objective: str, difference: float) -> str:
    """Return a signed difference of two values."""
    if is_share(objective):
        return f"{points(difference, 2)} points"
    return f"{difference:+.3g}".replace("-", "\N{MINUS SIGN}")


def interval_text(study: Study, finalist: Finalist) -> str:
    """Return the mean over seeds with its interval."""
    objective, count = study.objectives[0], len(finalist.scores)
    mean = value_text(objective, finalist.mean)
    if finalist.low is None or finalist.high is None:
        return mean
    low, high = value_text(objective, finalist.low), value_text(objective, finalist.high)
    return f"{mean} (95 % CI {low.removesuffix(' %')} to {high}, {count} seeds)"


def unit(study: Study, count: int = 2) -> str:
    """Return the unit in which the length of a training is counted."""
    return "epoch" if count == 1 else "epochs"


def length_text(study: Study, count: int) -> str:
    """Return a number of epochs."""
    return f"{count:,} {unit(study, count)}"


def state_text(trial: Trial) -> str:
    """Return the state of a trial."""
    return "ended early" if trial.state == "pruned" else trial.state


def counts(study: Study) -> dict[str, int]:
    """Return the number of trials by state, without other seeds of finalists. States without trials are left out.

    "left" is the number of trials that the budget still has.
    """
    states = list(map(state_text, study.searched))
    numbers = {state: states.count(state) for state in _STATES}
    numbers["left"] = max(0, study.search.trials - len(states)) if study.state == "running" else 0
    return {state: number for state, number in numbers.items() if number}


def progress_text(study: Study, trial: Trial) -> str:
    """Return how far a trial is: "9 of 27"."""
    return f"{trial.epochs}" if trial.epochs > study.epochs else f"{trial.epochs} of {study.epochs}"


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Return short names of settings: without `training.`, unless another key ends the same."""
    keys = list(keys)
    ends = [key.rpartition(".")[2] for key in keys]
    return {key: key.removeprefix("training.") if ends.count(key.rpartition(".")[2]) == 1 else key for key in keys}


def trial_name(trial: Trial) -> str:
    """Return the number of a trial; of another seed that of its finalist, with the seed."""
    return f"{trial.number}" if trial.seed_of is None else f"{trial.seed_of}, seed {trial.seed}"


def value_texts(study: Study, trial: Trial) -> list[str]:
    """Return a text for each objective of a trial."""
    known = [trial.value, *trial.objectives[1:]]
    values = known + [None] * (len(study.objectives) - len(known))
    return [value_text(name, value) for name, value in zip(study.objectives, values, strict=True)]


def table_order(study: Study) -> Iterator[Trial]:
    """Yield all trials, the best first, each followed by its other seeds; those without a value are last."""
    ranked = study.ranked()
    numbers = {trial.number for trial in ranked}
    repeated: dict[int, list[Trial]] = {}
    for trial in study.trials:
        if trial.seed_of is not None:
            repeated.setdefault(trial.seed_of, []).append(trial)
    for trial in [*ranked, *(trial for trial in study.searched if trial.number not in numbers)]:
        yield trial
        yield from repeated.get(trial.number, [])


def one_line(text: str, most: int) -> str:
    """Return a text without line breaks and control characters, shortened to `most` characters."""
    line = " ".join(shown(text).split())
    return line if len(line) <= most else f"{line[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


def settings_text(study: Study, values: Mapping[str, Any], *, most: int = 24, gap: str = " ") -> str:
    """Return the settings of a trial in one line. `gap` is before each value.

    A value has at most `most` characters, and a number four digits.
    """
    names = short_names(study.search.space)
    return ", ".join(f"{names.get(key, key)}{gap}{one_line(_short(value), most)}" for key, value in values.items())


def setting_before(study: Study, key: str) -> Any:
    """Return the setting as the search began; None: it is not known."""
    section, _, name = key.partition(".")
    content = study.params.get(section)
    if not name:
        return content
    return content.get(name) if isinstance(content, Mapping) else None


def changes(study: Study, trial: Trial) -> list[tuple[str, Any, Any]]:
    """Return key, value before the search and value of the trial, of each setting that differs."""
    pairs = [(key, setting_before(study, key), value) for key, value in trial.values.items()]
    return [pair for pair in pairs if _plain(pair[1]) != _plain(pair[2])]


def score_sentence(study: Study) -> str:
    """Return the best trial and its score."""
    best = winner(study)
    if best is None:
        return "No trial has a value yet." if study.state == "running" else "No trial has a value: there is no winner."
    objective, trial = study.objectives[0], best.trial
    text = f"Trial {trial.number}: {objective} {interval_text(study, best)}"
    if trial.state != "complete":
        text += f", after {progress_text(study, trial)} {unit(study)}; no trial is complete"
    return f"{text}."


def regression_sentence(study: Study, best: Finalist) -> str:
    """Return how far the score falls with fresh seeds."""
    objective = study.objectives[0]
    selected = value_text(objective, best.selected)
    if best.again is None:
        return f"Selected score {selected}. No fresh seed was trained, so expect less from the next training."
    others = len(best.fresh)
    again, difference = value_text(objective, best.again), difference_text(objective, best.again - best.selected)
    seeds = "1 fresh seed" if others == 1 else f"{others} fresh seeds"
    return f"Selected score {selected}. Expected from another training: {again}, the mean of {seeds} ({difference})."


def before_sentence(study: Study) -> str:
    """Return the score of the settings before the search; empty: no trial had them."""
    trial = next((trial for trial in study.searched if not changes(study, trial)), None)
    if trial is None or trial.value is None:
        return ""
    text = f"Settings before the search (trial {trial.number}): {value_text(study.objectives[0], trial.value)}"
    if trial.state != "complete":
        text += f", after {progress_text(study, trial)} {unit(study)}"
    return f"{text}."


def failure_sentence(study: Study) -> str:
    """Return the most frequent reason of failed trials; empty: none has failed."""
    reasons = Counter(one_line(trial.reason, 300) for trial in study.trials if trial.state == "failed")
    if not reasons:
        return ""
    (reason, count), failed = reasons.most_common(1)[0], reasons.total()
    number = "1 trial" if failed == 1 else f"{failed:,} trials"
    return f"{number} failed. {'Most frequent reason' if count < failed else 'Reason'}: {reason or 'unknown'}"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else setting(value)


def _plain(value: Any) -> Any:
    return list(map(_plain, value)) if isinstance(value, list | tuple) else value
