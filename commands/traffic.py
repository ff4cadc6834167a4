"""`ratchet requests`, `shadow` and `monitor`: logged requests, answers of shadow versions, and drift."""

import time
from pathlib import Path

from ratchet import files
from ratchet.counts import count_of
from ratchet.monitoring.drift_text import lines
from ratchet.monitoring.quality import quality_lines
from ratchet.monitoring.watch import current_versions, monitor_of
from ratchet.terminal_lines import echo
from ratchet.traffic.log_reader import log_folder
from ratchet.traffic.log_summary import HourOfVersion, summary
from ratchet.traffic.shadow_comparison import ShadowComparison, comparisons
from ratchet.workspace import Workspace

__all__ = ["print_drift", "print_requests", "print_shadow"]


def print_requests(workspace: Workspace) -> None:
    """Print a line for each hour and version."""
    hours = summary(log_folder(workspace))
    if not hours:
        echo("No requests are logged. `ratchet serve` logs them where `serving.log` is true.")
    for hour in hours:
        size = f"{count_of(hour.requests, 'request')}, {count_of(hour.rows, 'row')}"
        echo(f"{hour.hour} UTC  {hour.version}  {size}, median {hour.seconds * 1000:.1f} ms{_quality(hour)}")


def _quality(hour: HourOfVersion) -> str:
    if not hour.labels:
        return ""
    text = f"; {count_of(hour.labels, 'label')}"
    if hour.quality is None:
        return text
    low, value, high = hour.quality.low, hour.quality.value, hour.quality.high
    if hour.metric == "accuracy":
        return f"{text}, accuracy {value:.1%} (95 % CI {low:.1%} to {high:.1%})"
    return f"{text}, {hour.metric} {value:.4g} (95 % CI {low:.4g} to {high:.4g})"


def print_shadow(workspace: Workspace, *, by: str) -> None:
    """Print a line for each pair of versions, or for each slice of them by a logged column."""
    pairs = comparisons(log_folder(workspace), by=by)
    if not pairs:
        echo("No version has answered in shadow. `ratchet set serving.shadow=NAME@challenger` chooses one.")
    for pair in pairs:
        part = f"  {by}={pair.part}" if by else ""
        echo(
            f"{pair.shadow} beside {pair.served}{part}  {count_of(pair.requests, 'request')}, "
            f"{count_of(pair.rows, 'row')}{_shadow_quality(pair)}, "
            f"median {pair.seconds * 1000:.1f} ms, served {pair.served_seconds * 1000:.1f} ms",
        )


def _shadow_quality(pair: ShadowComparison) -> str:
    """Return failures, and agreement or difference, as text that follows others; empty if there is none of them."""
    failed = f", {pair.failed:,} failed" if pair.failed else ""
    if pair.agreement:
        low, value, high = pair.agreement.low, pair.agreement.value, pair.agreement.high
        return f"{failed}, agreement {value:.1%} (95 % CI {low:.1%} to {high:.1%})"
    if pair.difference:
        low, value, high = pair.difference.low, pair.difference.value, pair.difference.high
        return f"{failed}, mean absolute difference {value:.4g} (95 % CI {low:.4g} to {high:.4g})"
    return failed


def print_drift(workspace: Workspace, *, restart: bool, html: Path | None) -> bool:
    """Judge the windows of the log that are over, and print a line for each version. Return whether one drifts."""
    monitor = monitor_of(workspace)
    if restart:
        monitor.restart(now=time.time())
        echo("All windows are forgotten. The next reference begins with the next window.")
        return False
    state = monitor.update(now=time.time())
    quality = quality_lines(log_folder(workspace), set(current_versions(state)))
    for line in [*lines(state), *quality]:
        echo(line)
    if not state.versions:
        echo("No window is over in which requests were logged. `ratchet serve` logs them where `serving.log` is true.")
    if html:
        from ratchet.reports.drift_page import drift_page

        files.write_bytes(html, drift_page(state, quality).encode(), private=True)  # it may have values of kept inputs
        echo(f"page: {html}")
    return any(version.verdict.alarm for version in current_versions(state).values())
