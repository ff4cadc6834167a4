"""Coverage of prediction intervals and sets in report and card."""

from dataclasses import dataclass

from ratchet.evaluation.coverage import MAIN_LEVEL, Coverage, CoverageMetrics
from ratchet.evaluation.metrics import Metrics
from ratchet.evaluation.wording import number
from ratchet.problems.regions import LEVELS, REGIONS, Regions
from ratchet.reports.number_text import percent, percent_range
from ratchet.reports.problem_sections import ReportSection, Table

__all__ = ["coverage_limits", "coverage_section", "coverage_table"]

_LISTED = 24  # rows of a table
_NAMED = 5  # numbers or slices in sentences


def coverage_table(metrics: Metrics) -> Table:
    """Return the coverage at each level; empty where the problem has none."""
    return _Text(metrics.coverage, REGIONS[metrics.problem], metrics).table if metrics.coverage else Table("", [], [])


def coverage_section(metrics: Metrics) -> list[ReportSection]:
    """Return the section of intervals or sets; nothing where the problem has none."""
    return [_Text(metrics.coverage, REGIONS[metrics.problem], metrics).section] if metrics.coverage else []


def coverage_limits(metrics: Metrics) -> list[str]:
    """Return one sentence for each limit of the intervals or sets."""
    return _Text(metrics.coverage, REGIONS[metrics.problem], metrics).limits if metrics.coverage else []


@dataclass(frozen=True)
class _Text:
    """Text about the coverage of one evaluation."""

    coverage: CoverageMetrics
    regions: type[Regions]
    metrics: Metrics

    @property
    def table(self) -> Table:
        header = [f"prediction {self.regions.noun}", "coverage", self._ci, self.regions.size]
        levels, main = self.coverage.levels, self.coverage.main
        rows = [
            (f"{each.percent} %{_of(each)}", percent(each.share.value), percent_range(each.share), number(each.size))
            for each in (levels if len(levels) <= _LISTED else main)[:_LISTED]
        ]
        return Table("", header, rows)

    @property
    def section(self) -> ReportSection:
        noun, main = self.regions.noun, self.coverage.main[:_NAMED]
        note = (
            f"Prediction {noun} of split conformal prediction, calibrated on {self.coverage.calibration.rows:,} "
            f"validation samples. Score: {self.regions.method}. Coverage: share of the test samples whose true value "
            "is inside."
        )
        high = [
            f"{each.percent} % {noun}{_of(each)} cover significantly more than they promise: {self.regions.excess}."
            for each in main
            if each.is_high
        ]
        sentences = [*(self._sentence(each) for each in main if not each.is_low), *self.limits, *high]
        tables = [table for table in (self.table, self._slice_table) if table.rows]
        return ReportSection(f"Prediction {noun}", note, sentences, tables=tables)

    @property
    def limits(self) -> list[str]:
        low = sorted((each for each in self.coverage.main if each.is_low), key=lambda each: each.share.value)
        sentences = self._few + [
            f"{self._sentence(each)} That is significantly less than they promise." for each in low[:_NAMED]
        ]
        sentences += [
            f"Where {part.column} is {part.value}, {each.percent} % {self.regions.noun}{_of(each)} cover only "
            f"{percent(each.share.value)} of {part.rows:,} test samples (CI {percent_range(each.share)})."
            for part in self.coverage.lowest_slices[:_NAMED]
            if (each := part.coverage).is_low
        ]
        if (column := self.coverage.ordered_by) != "none":
            sentences.append(
                f"The splits are in the order of {column}: validation samples are older than test samples, so the "
                f"level of prediction {self.regions.noun} is not guaranteed. Their coverage is only measured."
            )
        return sentences

    @property
    def _few(self) -> list[str]:
        """The sentence about too few validation samples."""
        highest, rows, noun = self.coverage.calibration.highest, self.coverage.calibration.rows, self.regions.noun
        if highest >= MAIN_LEVEL:
            return []
        most = f"at most {highest} % {noun}" if highest in LEVELS else f"no prediction {noun}"
        needed = MAIN_LEVEL // (100 - MAIN_LEVEL)
        return [f"There are {most}: {rows:,} validation samples calibrate them, and {MAIN_LEVEL} % needs {needed}."]

    @property
    def _slice_table(self) -> Table:
        header = ["slice", "samples", "coverage", "corrected CI", self.regions.size]
        rows = [
            (
                f"{part.column}: {part.value}{_of(part.coverage)}",
                part.rows,
                percent(part.coverage.share.value),
                percent_range(part.coverage.share),
                number(part.coverage.size),
            )
            for part in self.coverage.lowest_slices[:_LISTED]
        ]
        level = self.coverage.main[0].percent if self.coverage.main else MAIN_LEVEL
        return Table(f"Slices with the lowest coverage of {level} % {self.regions.noun}", header, rows)

    def _sentence(self, each: Coverage) -> str:
        return (
            f"{each.percent} % {self.regions.noun}{_of(each)} cover {percent(each.share.value)} "
            f"({self._ci} {percent_range(each.share)}) of the test samples, {self.regions.size} {number(each.size)}."
        )

    @property
    def _ci(self) -> str:
        return f"{100 * self.metrics.confidence:g} % CI"


def _of(each: Coverage) -> str:
    return f" of {each.name}" if each.name else ""
