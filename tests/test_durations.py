"""The order in which test files run."""

from types import SimpleNamespace
from typing import Any

import durations


def test_recorded_files_are_there(pytestconfig) -> None:
    """After a file is renamed or deleted: `make durations`, or edit its line."""
    assert [name for name in durations.read() if not (pytestconfig.rootpath / name).exists()] == []


def test_unrecorded_files_run_first_then_the_longest() -> None:
    tests = ["a.py::x", "a.py::y[1::2]", "b.py::x", "c.py::x", "c.py::y", "d.py::x", "e.py::x"]
    items: list[Any] = [SimpleNamespace(nodeid=name) for name in tests]
    durations.order(items, {"a.py": 1.0, "b.py": 2.0, "c.py": 2.0, "e.py": 30.0})
    assert [item.nodeid for item in items] == [tests[5], tests[6], *tests[2:5], *tests[:2]]
