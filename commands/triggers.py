"""`ratchet simulate` and `ratchet backtest-triggers`: rules about when to train again, over a table or the own log."""

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet import files, settings
from ratchet.errors import RegistryError, SettingsError
from ratchet.kinds.registry import kind_chosen
from ratchet.monitoring.rule import DriftRule
from ratchet.monitoring.triggers import CALENDAR, TriggerComparison, compare, triggers_of
from ratchet.reports.trigger_page import HEADER, trigger_page, trigger_rows, trigger_sentences
from ratchet.settings.model import Params
from ratchet.terminal_lines import echo, echo_table
from ratchet.traffic.log_reader import log_folder
from ratchet.typed_json import to_plain
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from ratchet.monitoring.recorded import Recorded

__all__ = ["print_backtest", "print_simulation"]

_LOSS = "Loss of a row: 1 for a wrong answer, or the absolute error of a number. The cost adds the price of trainings."
_USELESS = "A training is useless if the loss of the next period is not lower with it than without it."


def print_simulation(
    workspace: Workspace,
    *,
    data: Path | None,
    column: str,
    periods: int,
    memory: int,
    price: float,
    html: Path | None,
) -> None:
    """Simulate a table, and print which trigger would have been best."""
    from tasks.progress import Terminal
    from tasks.simulate import simulate

    params = settings.load(workspace.params)
    if data is not None:
        params = params.model_copy(update={"data": params.data.model_copy(update={"path": str(data)})})
    kind = kind_chosen(params.data.kind)
    if not kind.in_tables or len(params.data.label_columns) != 1:
        raise SettingsError(
            "params.yaml: data.kind, data.label_column: `ratchet simulate` needs a table with one column to predict. "
            "Fix: `ratchet use tabular-classification`, then `ratchet set data.label_column=NAME`"
        )
    with Terminal("simulate", unit="periods") as progress:
        result = simulate(params, workspace, column, periods=periods, memory=memory, price=price, progress=progress)
    same = f"answers that repeat the last label have a loss of {result.same_as_last:.4g} a row in all periods"
    notes = [
        _LOSS,
        _USELESS,
        "Labels are there at the end of their period; models that the gate refuses do not answer.",
    ]
    _print(result.comparison, "Simulation", [*notes, f"To compare: {same}."], html or result.folder / "simulation.html")


def print_backtest(workspace: Workspace, *, hours: int, price: float, html: Path | None) -> None:
    """Replay the recorded history of the project, and print which trigger would have been best."""
    from ratchet.monitoring.recorded import Recorded

    params = settings.load(workspace.params)
    seconds, window = hours * 3600, params.monitoring.window * 60
    if seconds % window:
        raise SettingsError(
            f"--hours: found {hours}. Allowed: whole windows of monitoring.window={params.monitoring.window} minutes. "
            "Fix: another number of hours"
        )
    history = Recorded.read(log_folder(workspace), window=window, period=seconds, now=time.time())
    history.cost, deleted = _recorded_cost(workspace, params, history)
    chosen = params.monitoring
    rule = DriftRule(window, chosen.season, chosen.alpha, chosen.good_windows)
    comparison = compare(history, triggers_of(rule, CALENDAR, period=seconds), price=price, seed=params.seed)
    assumed = (
        "Assumed: a training takes back a significant rise of the loss since the first periods of the version, until "
        "data change again."
    )
    _print(
        comparison,
        "Backtest of triggers",
        [_LOSS, _USELESS, assumed, *deleted],
        html or workspace.state / "monitoring" / "backtest.html",
    )


def _recorded_cost(workspace: Workspace, params: Params, history: "Recorded") -> tuple[float, list[str]]:
    """Return the mean processor time of the trainings of the recorded versions, and notes about those without one.

    It is 0 if none was recorded.
    """
    from ratchet.registry.mlflow_store import or_none
    from ratchet.registry.models import ModelRegistry

    registry = ModelRegistry(workspace, params)
    hours, notes = list[float](), list[str]()
    for name in sorted({*history.versions}):
        try:
            run = or_none(partial(registry.client.get_run, registry.find(name).run_id))
        except RegistryError as error:
            notes.append(f"The cost of its training is not known. {error}.")
            continue
        hours += [run.data.metrics["cost/cpu_hours"]] if run and "cost/cpu_hours" in run.data.metrics else []
    return 3600 * sum(hours) / len(hours) if hours else 0.0, notes


def _print(comparison: TriggerComparison, title: str, notes: list[str], page: Path) -> None:
    echo_table(HEADER, trigger_rows(comparison))
    for sentence in [*trigger_sentences(comparison), *notes]:
        echo(sentence)
    files.write_text(page, trigger_page(comparison, title, notes))
    files.write_json(page.with_suffix(".json"), to_plain(comparison))
    echo(f"page: {page}")
