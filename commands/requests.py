"""`ratchet requests`: the logged requests by hour and version, with the quality of labelled answers."""

from commands.app import new_console
from ratchet.traffic.log_reader import log_folder
from ratchet.traffic.log_summary import HourOfVersion, summary
from ratchet.workspace import Workspace

__all__ = ["print_requests"]


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
