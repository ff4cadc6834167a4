"""Abstention in report and card: rows that are answered at an error rate, and the errors among them."""

from ratchet.evaluation.metrics import Metrics
from ratchet.evaluation.selective import SelectiveError
from ratchet.reports.number_text import percent, percent_range
from ratchet.reports.problem_sections import ReportSection, Table

__all__ = ["abstention_limits", "abstention_section", "abstention_table"]


def abstention_table(metrics: Metrics) -> Table:
    """Return answered rows and errors at each rate; empty where there are none."""
    level = f"{100 * metrics.confidence:g} % CI"
    header = ["error rate that is asked for", "answered", level, "errors among the answered", level]
    return Table("", header, [_row(each) for each in metrics.abstention.rates] if metrics.abstention else [])


def abstention_section(metrics: Metrics) -> list[ReportSection]:
    """Return the section of abstention; nothing where the answers have no confidence."""
    if metrics.abstention is None:
        return []
    thresholds, table = metrics.abstention.thresholds, abstention_table(metrics)
    note = (
        "A request may ask for an error rate: rows whose confidence is below a threshold get no answer. The thresholds "
        f"are chosen on {thresholds.rows:,} validation samples. If samples are independent, all rates hold with "
        f"{100 * thresholds.confidence:g} % confidence (exact binomial bounds with Bonferroni's correction). The table "
        "has the test samples."
    )
    lowest = f"The lowest rate that can be asked for is {percent(thresholds.lowest, 2)}."
    none = f"No rate can be asked for: {thresholds.rows:,} validation samples support none."
    sentences = [lowest if thresholds.lowest < 1 else none, *abstention_limits(metrics)]
    return [ReportSection("Abstention", note, sentences, tables=[table] if table.rows else [])]


def abstention_limits(metrics: Metrics) -> list[str]:
    """Return one sentence for each rate that does not hold on the test samples, and where nothing is guaranteed."""
    if metrics.abstention is None:
        return []
    sentences = [
        f"Where an error rate of {percent(each.rate)} is asked for, {percent(each.error.value)} (CI "
        f"{percent_range(each.error)}) of the answers to test samples are wrong. That is significantly more."
        for each in metrics.abstention.rates
        if each.error and each.is_high
    ]
    if (groups := metrics.abstention.groups) and metrics.abstention.rates:
        sentences.append(
            f"The {metrics.abstention.thresholds.rows:,} validation samples are of {groups:,} groups, and the samples "
            "of a group err together, so error rates that are asked for are not guaranteed."
        )
    if (column := metrics.abstention.ordered_by) != "none" and metrics.abstention.rates:
        sentences.append(
            f"The splits are in the order of {column}, so error rates that are asked for are not guaranteed. The "
            "errors among the answered test samples are only measured."
        )
    return sentences


def _row(each: SelectiveError) -> tuple[str, ...]:
    answered, error = each.answered, each.error
    errors = (percent(error.value), percent_range(error)) if error else ("-", "-")
    return (percent(each.rate), percent(answered.value), percent_range(answered), *errors)
