"""Page and table of `ratchet simulate` and `ratchet backtest-triggers`: what each rule about retraining costs."""

from collections.abc import Sequence

from ratchet.monitoring.triggers import Replay, TriggerComparison
from ratchet.reports.charts import Chart, Line, line_chart
from ratchet.reports.problem_sections import ReportSection, Table
from ratchet.reports.templating import render_html

__all__ = ["HEADER", "trigger_page", "trigger_rows", "trigger_sentences"]

HEADER = ("trigger", "trainings", "useless", "delay", "CPU-hours", "false alarms", "loss", "cost", "cost before")
"""Columns of the table. Loss and cost are of the second half, the last one is of the first."""
_COLOURS = ("--series-1", "--series-2", "--series-3")


def trigger_rows(comparison: TriggerComparison) -> list[list[str]]:
    """Return a row for each trigger."""
    return [_row(replay, comparison.half) for replay in comparison.replays]


def trigger_sentences(comparison: TriggerComparison) -> list[str]:
    """Return which trigger is best by the first half, and how it did in the second."""
    best, least = comparison.recommended, comparison.optimum
    ratio = f"{best.cost[1] / least - 1:+.1%}" if least else "no loss was necessary"
    return [
        f"best in the first {comparison.half} periods: {best.trigger}",
        f"in the {len(best.steps) - comparison.half} periods after them its cost is {best.cost[1]:.4g} a row; "
        f"in hindsight {least:.4g} was possible ({ratio})",
    ]


def trigger_page(comparison: TriggerComparison, title: str, notes: Sequence[str]) -> str:
    """Return the page. `notes`: what the figures are, and their assumptions."""
    best = comparison.recommended
    shown = [best, *(each for each in comparison.replays if each.trigger in ("never", "always") and each != best)]
    lines = [Line(each.trigger, _COLOURS[place], _points(each)) for place, each in enumerate(shown)]
    drawing = line_chart(lines, name="Loss by period", x_label="period")
    table = Table("", HEADER, trigger_rows(comparison), "tight")
    trained = [
        [each.trigger, ", ".join(_training_text(each, place) for place, _ in _trainings(each)) or "none"]
        for each in comparison.replays
    ]
    sections = [
        ReportSection("Triggers", note=" ".join(notes), tables=[table]),
        ReportSection("Loss of each period, per row", charts=[Chart("Loss", drawing, lines)]),
        ReportSection("Trainings", tables=[Table("", ["trigger", "at the end of period"], trained, "text")]),
    ]
    sentences = trigger_sentences(comparison)
    return render_html(
        "drift.html.j2", title=title, kicker="When to train again", verdicts=sentences, sections=sections
    )


def _row(replay: Replay, half: int) -> list[str]:
    delay = "-" if replay.delay is None else f"{replay.delay:.1f}"
    false = "-" if replay.false_alarm is None else f"{replay.false_alarm:.2f}"
    counts = [replay.trigger, str(replay.trainings), str(replay.useless), delay, f"{replay.cpu_hours:.3f}", false]
    return [*counts, f"{replay.loss(half):.4g}", f"{replay.cost[1]:.4g}", f"{replay.cost[0]:.4g}"]


def _points(replay: Replay) -> list[tuple[float, float]]:
    return [(period, step.loss / step.rows) for period, step in enumerate(replay.steps, start=1) if step.rows]


def _trainings(replay: Replay) -> list[tuple[int, int]]:
    """Return period and champion afterwards of each training."""
    return [(at, step.champion) for at, step in enumerate(replay.steps, start=1) if step.champion is not None]


def _training_text(replay: Replay, period: int) -> str:
    return f"{period}" if replay.steps[period - 1].champion == period else f"{period} (refused)"
