"""`ratchet lr-find`: a range test of the learning rate, with its curve in the terminal and on a page."""

import math
import sys
from collections.abc import Sequence

from ratchet import files
from ratchet.errors import SettingsError
from ratchet.references import require_measurable, require_references
from ratchet.settings.run_settings import overridden
from ratchet.terminal_lines import columns_of, echo
from ratchet.workspace import Workspace
from tasks.rate_range import RateRange, rate_range

__all__ = ["curve_lines", "find_rate"]

_HEIGHT, _WIDTH = 12, 72  # of the curve in the terminal
_LARGEST_RISE = 0.5  # of the part of the curve that is drawn, as a share of its fall
_SOURCE = "range test: Smith (2017), Cyclical Learning Rates for Training Neural Networks"


def find_rate(workspace: Workspace, *, steps: int, lowest: float, highest: float) -> None:
    """Run the test on the settings, and print its curve and suggestions.

    Raises:
        SettingsError: the rates are not in order.
    """
    if not lowest < highest:  # or one is no number
        raise SettingsError(f"--from: found {lowest:g}. Allowed: below --to, which is {highest:g}. Fix: change one")
    with (
        workspace.hold("ratchet lr-find") as restored,
        overridden(workspace.params, {}, note=workspace.overrides, say=_print_note) as run,
    ):
        if restored:
            _print_note(restored)
        from flows.packed_data import bring_data
        from tasks.progress import Terminal

        require_references(run.params, workspace)
        bring_data(run.params, workspace)
        require_measurable(run.params, workspace.packed)
        with Terminal("lr-find", unit="steps") as progress:
            result = rate_range(run.params, workspace, steps=steps, lowest=lowest, highest=highest, progress=progress)
    for line in curve_lines(_drawn(result), width=min(_WIDTH, (columns_of(sys.stdout) or _WIDTH) - 12)):
        echo(line)
    for sentence in sentences(result, highest):
        echo(sentence)
    page = workspace.reports / "lr-find.html"
    files.write_text(page, _page(result, highest))
    echo(f"page  {page.as_uri()}")


def sentences(result: RateRange, highest: float) -> list[str]:
    """Return the suggestions, or why there are none, and where they are from."""
    end = f" ({result.end})" if result.end else ""
    lines = [f"{len(result.rates)} of {result.steps} steps{end}"]
    if not result.falls:
        rate = "a smaller --from" if result.end else "a larger --to"
        return [*lines, f"no suggestion: the loss did not fall. Fix: {rate}, more --steps, or look at the data"]
    lines.append(f"steepest descent at rate {result.steepest:.2g}")
    if result.still_falls:
        suggestion = result.steepest
        lines.append(f"the loss still fell at the largest rate, {highest:g}. Fix: a larger --to shows its minimum")
    else:
        suggestion = result.tenth
        lines.append(f"a tenth of the rate with the smallest loss: {suggestion:.2g}")
    lines.append(f"to use it: `ratchet set training.learning_rate={suggestion:.2g}`")
    return [*lines, f"{_SOURCE}; it is a start for `ratchet train`, no optimum"]


def curve_lines(points: Sequence[tuple[float, float]], *, width: int) -> list[str]:
    """Draw points as lines of text: the x axis has powers of ten. Nothing for fewer than two points."""
    if len(points) < 2:
        return []
    (left, right), values = (points[0][0], points[-1][0]), [y for _, y in points]
    low, span = min(values), max(values) - min(values) or 1.0
    rows = [[" "] * width for _ in range(_HEIGHT)]
    for x, y in points:
        column = round((x - left) / (right - left) * (width - 1))
        rows[round((1 - (y - low) / span) * (_HEIGHT - 1))][column] = "*"
    captions = [f"{max(values):9.4g}", *[""] * (_HEIGHT - 2), f"{low:9.4g}"]
    lines = [f"{caption:9} |{''.join(row)}".rstrip() for caption, row in zip(captions, rows, strict=True)]
    ends = f"{10**left:.1e}", f"{10**right:.1e}"
    return [*lines, f"{'loss':>9} +{'-' * width}", f"{'rate':>9}  {ends[0]}{ends[1]:>{width - len(ends[0])}}"]


def _drawn(result: RateRange) -> list[tuple[float, float]]:
    """Return the logarithm of the rate and the smoothed loss of each step, without the last rise."""
    pairs = list(zip(result.rates, result.smoothed, strict=True))
    if not pairs:
        return []
    first, least = pairs[0][1], min(result.smoothed)
    most = first + _LARGEST_RISE * (first - least or 1.0)
    lowest = result.smoothed.index(least)
    return [(math.log10(rate), loss) for step, (rate, loss) in enumerate(pairs) if step <= lowest or loss <= most]


def _page(result: RateRange, highest: float) -> str:
    from ratchet.reports.charts import COLOURS, Chart, Line, line_chart
    from ratchet.reports.problem_sections import ReportSection, Table
    from ratchet.reports.templating import render_html

    line = Line("smoothed loss", COLOURS[0], _drawn(result))
    drawing = line_chart([line], name="Loss by learning rate", x_label="learning rate, power of ten")
    rows = [
        [f"{rate:.3g}", f"{loss:.4g}", f"{smooth:.4g}"]
        for rate, loss, smooth in zip(result.rates, result.losses, result.smoothed, strict=True)
    ]
    step = max(1, len(rows) // 40)
    sections = [
        ReportSection("Loss", charts=[Chart("Smoothed loss", drawing, [line])]),
        ReportSection("Steps", tables=[Table("", ["rate", "loss", "smoothed loss"], rows[::step], "tight")]),
    ]
    return render_html(
        "drift.html.j2",
        title="Learning rate",
        kicker="Range test",
        verdicts=sentences(result, highest),
        sections=sections,
    )


def _print_note(text: str) -> None:
    echo(f"ratchet: {text}", err=True)
