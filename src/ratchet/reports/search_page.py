"""The page of a search: the winner first, then what was tried. One offline file, also while the search runs."""

from ratchet.reports import search_text as text
from ratchet.reports.numbers import setting
from ratchet.reports.search_charts import curves, front, history, slices
from ratchet.reports.templating import render_html
from ratchet.search.finalists import finalists, winner
from ratchet.search.importance import importance
from ratchet.search.optuna_view import pareto_front
from ratchet.search.records import Study

__all__ = ["search_page"]

_LISTED = 200  # trials of the table; the others are folded away


def search_page(study: Study) -> str:
    """Return the page of a search. The same study gives the same text; any text in it is escaped."""
    best = winner(study)
    names = text.short_names(study.search.space)
    header, rows = text.trial_table(study)
    return render_html(
        "search.html.j2",
        study=study,
        best=best,
        failed=study.state == "ended" and best is None,
        score="" if best is None else text.value_text(study.objectives[0], best.mean),
        sentences=text.summary(study),
        changes=[] if best is None else [
            (names[key], setting(text.setting_before(study, key)), setting(value)) for key, value in
            best.trial.values.items()
        ],
        finalists=_finalist_rows(study),
        front=_front_rows(study),
        charts=[each for each in (history(study), curves(study), front(study)) if each],
        slices=list(slices(study)),
        importance={names[key]: round(100 * share, 1) for key, share in importance(study).items()},
        header=header,
        rows=rows,
        listed=_LISTED,
        method=_method(study),
    )  # fmt: skip


def _finalist_rows(study: Study) -> list[list[str]]:
    """Return the finalists, if other seeds have been trained."""
    known, objective = finalists(study), study.objectives[0]
    return [
        [
            f"{each.trial.number}", text.value_text(objective, each.mean), text.interval_text(study, each),
            f"{len(each.scores)}", text.value_text(objective, each.selected), text.value_text(objective, each.again),
            text.settings_text(study, each.trial.values),
        ]
        for each in known
    ] if any(len(each.scores) > 1 for each in known) else []  # fmt: skip


def _front_rows(study: Study) -> list[list[str]]:
    return [
        [
            f"{trial.number}", *map(text.value_text, study.objectives, trial.objectives),
            text.settings_text(study, trial.values),
        ]
        for trial in (pareto_front(study) if len(study.objectives) > 1 else ())
    ]  # fmt: skip


def _method(study: Study) -> dict[str, object]:
    search = study.search
    larger = zip(study.objectives, study.maximize, strict=True)
    return {
        "objective": ", ".join(f"{name} ({'larger' if up else 'smaller'} is better)" for name, up in larger),
        "sampler": f"{search.sampler}, seed {search.sampler_seed}",
        "pruner": study.pruner,
        "training": f"{study.epochs} epochs",
        "finalists": f"{search.seeds} seeds of the best {search.finalists}" if search.seeds > 1 else "one seed",
        "budget": ", ".join([
            f"{search.trials:,} trials", *([f"{search.hours:g} hours"] if search.hours else []),
            *([f"{search.cpu_hours:g} CPU-hours"] if search.cpu_hours else []),
        ]),
        "time": f"{study.active / 3600:.2f} hours",
        "MLflow run": study.run_id or None,
    }  # fmt: skip
