"""States of flow runs and their tasks, as a Prefect server has recorded them."""

import sqlite3
from contextlib import closing
from pathlib import Path

from waiting import until

OVER = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


def newest_states(folder: Path, *, last: str) -> tuple[str, dict[str, str]]:
    """Return the state names of the newest flow run and of its tasks, from the server of the project in `folder`.

    A server that goes on records the events of tasks a moment after the run: wait until the task `last` has ended.
    """

    def read() -> tuple[str, dict[str, str]] | None:
        query = "select id, state_name from flow_run order by created desc limit 1"
        with closing(sqlite3.connect(folder / ".ratchet" / "prefect" / "prefect.db")) as database:
            run, state = database.execute(query).fetchone()
            query = "select name, state_name, state_type from task_run where flow_run_id = ?"
            tasks = database.execute(query, (run,)).fetchall()
        ended = {name for name, _, kind in tasks if kind in OVER}
        is_complete = last in ended and len(ended) == len(tasks)
        return (state, {name: named for name, named, _ in tasks}) if is_complete else None

    states = until(read)
    assert states is not None
    return states
