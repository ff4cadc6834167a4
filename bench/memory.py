"""Whether memory grows with the data (B2).

    python -m bench.memory [--rounds 3]

The stage `train` makes the same number of steps on a packed set and on one of 8 times the size, in several shards; the
larger one's steps take rows from all over it. The peak anonymous memory of the process is measured (RssAnon in
/proc/PID/status, every 20 ms). Pages of mapped files do not count, because the kernel frees them when it needs memory.
"""

import re
import sys
from pathlib import Path

from bench.project import Project, pack, scratch
from bench.report import Row, alone, options, ratio, spread
from bench.throughput import STAGE

__all__ = ["measure"]

_TIMES, _GROWTH = 8, 0.05


class Peak:
    """The largest RssAnon that was seen of a process and those that it began, MiB."""

    def __init__(self) -> None:
        self.mib = 0.0

    def __call__(self, process: int) -> None:
        self.mib = max(self.mib, _anonymous_mib(process))


def _anonymous_mib(process: int) -> float:
    """RssAnon of a process and of all below it; 0 of what has just ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return 0.0
    result = re.search(r"RssAnon:\s+(\d+) kB", status)
    return (int(result[1]) / 1024 if result else 0.0) + sum(_anonymous_mib(int(child)) for child in children)


def measure(rounds: int, *, quick: bool) -> list[Row]:
    """The table's rows."""
    if not sys.platform.startswith("linux"):
        return [Row("peak memory on 8 times the data", "needs Linux's /proc", "not measured", f"< {_GROWTH:.0%}")]
    rows, steps = (4_000, 10) if quick else (50_000, 150)
    peaks: dict[int, list[float]] = {1: [], _TIMES: []}
    with scratch() as folder:
        projects = {}
        for times in peaks:
            pack(folder / f"packed-{times}", rows=times * rows)
            changes = {**STAGE, "training.max_steps": steps}
            projects[times] = Project(folder / f"project-{times}", changes, packed=folder / f"packed-{times}")
            projects[times].train(seed=0)  # makes MLflow's database, and everything that is made but once
        for number in range(rounds):
            for times, project in projects.items():
                peak = Peak()
                project.train(seed=number + 1, sample=peak)
                peaks[times].append(peak.mib)
            print(f"round {number + 1}: {peaks[1][-1]:,.0f} MiB, {_TIMES} times the data {peaks[_TIMES][-1]:,.0f} MiB")
    growth = ratio(peaks[_TIMES], peaks[1]) - 1
    condition = f"{steps} steps, median of {rounds} rounds"
    sizes = {times: f"{times * rows:,} images, {times * rows * 3072 / 2**20:,.0f} MiB; {condition}" for times in peaks}
    return [
        Row("peak anonymous memory, MiB", sizes[1], spread(peaks[1])),
        Row("peak anonymous memory, MiB", sizes[_TIMES], spread(peaks[_TIMES])),
        Row(f"growth on {_TIMES} times the data", condition, f"{growth:+.1%}", f"< {_GROWTH:.0%}", growth < _GROWTH),
    ]


if __name__ == "__main__":
    alone(options(__doc__, rounds=3), lambda requested: measure(requested.rounds, quick=requested.quick))
