"""`ratchet requests` and `ratchet shadow`: logged requests, and the answers of shadow versions beside the others."""

from pathlib import Path

from commands.app import new_console
from ratchet import files
from ratchet.traffic.log_reader import log_folder
from ratchet.traffic.log_summary import HourOfVersion, summary
from ratchet.traffic.shadow_comparison import comparisons
from ratchet.workspace import Workspace

__all__ = ["print_requests", "print_shadow"]


def print_requests(workspace: Workspace) -> None:
    """Print a line for each hour and version."""
    console = new_console()
    hours = summary(log_folder(workspace))
    if not hours:
        console.print("No requests are logged. `ratchet serve` logs them where `serving.log` is true.")
    for hour in hours:
        text = f"{hour.hour} UTC  {hour.version}  {hour.requests} requests, {hour.rows} rows, median "
        console.print(f"{text}{hour.seconds * 1000:.1f} ms{_quality(hour)}", markup=False)


def _quality(hour: HourOfVersion) -> str:
    if not hour.labels:
        return ""
    text = f"; {hour.labels} labels"
    if hour.quality is None:
        return text
    low, value, high = hour.quality.low, hour.quality.value, hour.quality.high
    if hour.metric == "accuracy":
        return f"{text}, accuracy {value:.1%} (95 % CI {low:.1%} to {high:.1%})"
    return f"{text}, {hour.metric} {value:.4g} (95 % CI {low:.4g} to {high:.4g})"


def print_shadow(workspace: Workspace, *, by: str, html: Path | None) -> None:
    """Print a line for each pair of versions, or for each slice of them by a logged column, and write them to a page.

    Raises:
        DataError: the log does not have the column.
    """
    from ratchet.reports.shadow_page import quality, shadow_page

    console = new_console()
    pairs = comparisons(log_folder(workspace), by=by)
    if not pairs:
        console.print("No version has answered in shadow. `ratchet set serving.shadow=NAME@challenger` chooses one.")
    for pair in pairs:
        part = f"  {by}={pair.part}" if by else ""
        console.print(
            f"{pair.shadow} beside {pair.served}{part}  {pair.requests} requests, {pair.rows} rows{quality(pair)}, "
            f"median {pair.seconds * 1000:.1f} ms",
            markup=False,
        )
    if html:
        files.write_text(html, shadow_page(pairs, by=by))
        console.print(f"page: {html}", markup=False)
