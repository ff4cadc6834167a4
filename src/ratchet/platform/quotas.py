"""How much at once: what `up` tells Prefect's server of the settings, and the names by which runs find it there.

Persons are not known before they run something: each one's own limit is made by their first run, after the one that
says how much is anybody's.
"""

import re
from typing import Any

from ratchet.platform.servers import POOL, call
from ratchet.settings.model import PlatformSettings

__all__ = ["GPUS", "RUNS", "anybodys", "everybodys", "one_persons", "tell"]

RUNS, GPUS = "runs", "gpus"  # what there may be only so many of
_PAGE = 200  # limits that the server gives at once


def everybodys(what: str) -> str:
    """The limit on what all hold together."""
    return f"ratchet-{what}"


def anybodys(what: str) -> str:
    """The limit that says what each person may hold; nobody holds a place of it itself."""
    return f"ratchet-{what}-each"


def one_persons(what: str, who: str) -> str:
    """The limit on what one person holds."""
    return f"ratchet-{what}-of-{re.sub('[/%&<>]', '-', who)}"  # what Prefect allows in no name


def tell(api: str, settings: PlatformSettings) -> None:
    """Make Prefect's limits, and its queue's, what the settings say.

    Raises:
        PlatformError: Prefect's server refuses or does not answer.
    """
    found = {one["name"]: one for one in _limits(api)}
    wanted = {
        anybodys(RUNS): settings.person_runs,
        everybodys(GPUS): settings.gpus,
        anybodys(GPUS): settings.person_gpus,
    }
    for name, limit in wanted.items():
        there = found.get(name)
        if there is None and limit:
            call(api, "/v2/concurrency_limits/", {"name": name, "limit": limit})
        elif there and not limit:
            call(api, f"/v2/concurrency_limits/{there['id']}", method="DELETE")
        elif there and there["limit"] != limit:
            call(api, f"/v2/concurrency_limits/{there['id']}", {"limit": limit}, method="PATCH")
    queue = f"/work_pools/{POOL}/queues/default"
    if call(api, queue)["concurrency_limit"] != (settings.queue_runs or None):
        call(api, queue, {"concurrency_limit": settings.queue_runs or None}, method="PATCH")


def _limits(api: str) -> list[dict[str, Any]]:
    """Every limit that the server has."""
    found: list[dict[str, Any]] = []
    while page := call(api, "/v2/concurrency_limits/filter", {"limit": _PAGE, "offset": len(found)}):
        found += page
    return found
