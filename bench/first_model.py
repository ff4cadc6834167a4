"""Compare the first `ratchet train` with a bare script, and break down the difference.

    python -m bench.first_model [--rounds 5]

Each round trains the digits model twice, one after the other: `ratchet train` in a fresh clone of this repository (last
commit; set-up done, no cache), and bench/bare_digits.py on the same packed rows for the same epochs. The table has
medians and the ratio, the time of each stage from Prefect's records, and the time of the first logged optimizer step
(the tenth) from the run's journal.
"""

import json
import sqlite3
import statistics
import time
from datetime import UTC, datetime
from pathlib import Path

from bench.project import Clone, scratch
from bench.report import Row, alone, options, ratio, spread

__all__ = ["measure"]


def measure(rounds: int) -> list[Row]:
    """Return the rows of the table."""
    pipeline, bare, first, splits = [], [], [], []
    for number in range(rounds):
        with scratch() as folder:
            clone = Clone(folder / "clone")
            began = time.time()
            clone.python("-m", "commands", "train")
            pipeline.append(time.time() - began)
            clone.python("-m", "commands", "down")
            splits.append(_stages(clone.folder, began, began + pipeline[-1]))
            first.append(_first_step(clone.folder) - began)
            began = time.time()
            result = clone.python("bench/bare_digits.py", "data/packed", str(folder / "bare.pt")).strip()
            bare.append(time.time() - began)
        print(f"round {number + 1}: pipeline {pipeline[-1]:.1f} s, bare script {bare[-1]:.1f} s ({result})")
    condition = f"digits, 30 epochs, median of {rounds} rounds"
    return [
        Row("s: ratchet train, fresh clone", condition, spread(pipeline, form=".1f")),
        Row("s: bare script", condition, spread(bare, form=".1f")),
        Row("ratchet train / bare script", condition, f"{ratio(pipeline, bare):.2f}"),
        Row("s to the tenth step", "ratchet train, fresh clone", spread(first, form=".1f")),
        *(
            Row(f"s: {name}", "of ratchet train", f"{statistics.median(split[name] for split in splits):.2f}")
            for name in splits[0]
        ),
    ]


def _first_step(clone: Path) -> float:
    (journal,) = (clone / "mlruns" / "journal").glob("*/events.jsonl")
    entries = map(json.loads, journal.read_text().splitlines())
    return float(next(entry["time"] for entry in entries if entry["kind"] == "metrics")) / 1000


def _stages(clone: Path, began: float, ended: float) -> dict[str, float]:
    with sqlite3.connect(next((clone / ".ratchet").rglob("prefect.db"))) as database:
        flow = database.execute("select start_time, end_time from flow_run").fetchone()
        tasks = database.execute("select name, start_time, end_time from task_run order by start_time").fetchall()
    first, last = map(_seconds, flow)
    split = {"before the flow": first - began}
    split |= {name: _seconds(end) - _seconds(start) for name, start, end in tasks}
    split["between the stages"] = last - first - sum(split[name] for name, _, _ in tasks)
    split["after the flow"] = ended - last
    return split


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


if __name__ == "__main__":
    alone(options(__doc__), lambda arguments: measure(arguments.rounds))
