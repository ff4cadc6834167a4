"""`ratchet requests` and `ratchet shadow`: logged requests, and the answers of shadow versions beside the others."""

from commands.app import new_console
from ratchet.traffic.log_reader import log_folder
from ratchet.traffic.log_summary import HourOfVersion, summary
from ratchet.traffic.shadow_comparison import ShadowComparison, comparisons
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


def print_shadow(workspace: Workspace, *, by: str) -> None:
    """Print a line for each pair of versions, or for each slice of them by a logged column.

    Raises:
        DataError: the log does not have the column.
    """
    console = new_console()
    pairs = comparisons(log_folder(workspace), by=by)
    if not pairs:
        console.print("No version has answered in shadow. `ratchet set serving.shadow=NAME@challenger` chooses one.")
    for pair in pairs:
        part = f"  {by}={pair.part}" if by else ""
        console.print(
            f"{pair.shadow} beside {pair.served}{part}  {pair.requests} requests, {pair.rows} rows"
            f"{_shadow_quality(pair)}, median {pair.seconds * 1000:.1f} ms, served {pair.served_seconds * 1000:.1f} ms",
            markup=False,
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
