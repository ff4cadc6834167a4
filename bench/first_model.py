"""What the first model costs over the bare script, and where the difference goes.

    python bench/first_model.py [ROUNDS]

Each round trains the digits model twice, one after the other: `ratchet train` in a fresh clone of this repository
(set-up done, no cache), and bench/bare_digits.py on the same packed rows for the same epochs. Medians and the ratio are
printed, and for the pipeline how long each stage took, as Prefect recorded it.
"""

import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parent.parent


def main(rounds: int) -> None:
    """Measure and print."""
    pipeline, bare, splits = [], [], []
    for number in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            clone = Path(folder) / "clone"
            subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
            environment = {**os.environ, "PYTHONPATH": f"{clone / 'src'}{os.pathsep}{clone}"}
            began = time.time()
            subprocess.run(
                [sys.executable, "-m", "ratchet.cli", "train"],
                cwd=clone,
                env=environment,
                check=True,
                capture_output=True,
            )
            pipeline.append(time.time() - began)
            splits.append(_stages(clone, began, began + pipeline[-1]))
            began = time.time()
            script = [
                sys.executable,
                str(ROOT / "bench" / "bare_digits.py"),
                str(clone / "data" / "packed"),
                f"{folder}/bare.pt",
            ]
            said = subprocess.run(script, check=True, capture_output=True, text=True).stdout.strip()
            bare.append(time.time() - began)
        print(f"round {number + 1}: pipeline {pipeline[-1]:.1f} s, bare script {bare[-1]:.1f} s ({said})")
    middle, other = statistics.median(pipeline), statistics.median(bare)
    print(f"median of {rounds}: pipeline {middle:.1f} s, bare script {other:.1f} s, ratio {middle / other:.2f}")
    for name in splits[0]:
        print(f"  {name:<28} {statistics.median(split[name] for split in splits):6.2f} s")


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
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
