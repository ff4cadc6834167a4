"""States of flow runs and their tasks, as a Prefect server has recorded them."""

import sqlite3
from contextlib import closing
from pathlib import Path


def newest_states(folder: Path) -> tuple[str, dict[str, str]]:
    """Return the state names of the newest flow run and of its tasks, from the server of the project in `folder`."""
    with closing(sqlite3.connect(folder / ".ratchet" / "prefect" / "prefect.db")) as database:
        run, state = database.execute("select id, state_name from flow_run order by created desc limit 1").fetchone()
        tasks = database.execute("select name, state_name from task_run where flow_run_id = ?", (run,)).fetchall()
    return state, dict(tasks)
