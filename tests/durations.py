"""Seconds that each test file takes, in durations.json. The longest run first: parallel workers end together."""

import json
import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

FILE = Path(__file__).with_suffix(".json")


def read() -> dict[str, float]:
    """Return the recorded seconds by file name."""
    return {str(name): float(seconds) for name, seconds in json.loads(FILE.read_text(encoding="utf-8")).items()}


def order(items: list[pytest.Item], seconds: Mapping[str, float]) -> None:
    """Sort tests by their file's seconds; files without a record, which may be long, come first."""
    items.sort(key=lambda item: -seconds.get(item.nodeid.partition("::")[0], math.inf))


class Recorder:
    """A pytest plugin that adds up the seconds of each file, and records them at the end."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid.partition("::")[0]] += report.duration

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Keep the record of files that did not run, unless they are gone."""
        records = read() | {name: round(seconds, 1) for name, seconds in self.seconds.items()}
        there = {name: records[name] for name in sorted(records) if (session.config.rootpath / name).exists()}
        FILE.write_text(json.dumps(there, indent=1) + "\n", encoding="utf-8")
