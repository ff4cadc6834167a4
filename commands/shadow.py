"""`ratchet shadow`: answers of shadow versions against those that were given."""

from pathlib import Path

from commands.app import new_console
from ratchet import files
from ratchet.traffic.log_reader import log_folder
from ratchet.traffic.shadow_comparison import comparisons
from ratchet.workspace import Workspace

__all__ = ["print_shadow"]


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
