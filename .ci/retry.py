"""Run pytest, and each test that failed once more, alone: `python .ci/retry.py [PYTEST OPTIONS]` in the project's root.

The exit code is pytest's, or 0 if at most two tests failed and each of them passed alone. Nothing runs again if pytest
did not reach every test: after an error in collection, an interruption, or --maxfail.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import pytest

MOST_UNSTABLE = 2
MOST_RETRIES = 20  # so many failures have one cause, and each retry takes seconds


class Outcomes:
    """A pytest plugin that records which tests were collected, ran and failed; with xdist, those of all workers."""

    def __init__(self) -> None:
        self.collected: set[str] = set()
        self.ran: set[str] = set()
        self.failed: dict[str, None] = {}
        self.uncollected: list[str] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.collected.update(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self.collected.update(ids)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.uncollected.append(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a phase of a test. The death of a worker is a failed report of the test that it ran."""
        self.ran.add(report.nodeid)
        if report.failed:
            self.failed[report.nodeid] = None

    def can_retry(self, code: int) -> bool:
        complete = not self.uncollected and self.collected <= self.ran
        return code == pytest.ExitCode.TESTS_FAILED and complete and 0 < len(self.failed) <= MOST_RETRIES


def passes_alone(test: str) -> bool:
    """Run one test in a new process. A test that skips this time has not passed."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results.xml")
        command = [sys.executable, "-P", "-m", "pytest", "-p", "no:xdist", f"--junitxml={results}", test]
        code = subprocess.run(command, check=False).returncode
        if code or not results.exists():
            return False
        suite = ElementTree.parse(results).getroot().find("testsuite")
        return suite is not None and suite.get("tests") == "1" and suite.get("skipped") == "0"


def print_list(heading: str, tests: list[str]) -> None:
    """Print the tests below a heading."""
    if tests:
        print(f"\n{f' {heading} ':=^120}", *tests, sep="\n", flush=True)


def main(arguments: list[str]) -> int:
    """Run pytest, then the failed tests. Return the exit code."""
    outcomes = Outcomes()
    code = int(pytest.main(arguments, plugins=[outcomes]))
    if not outcomes.can_retry(code):
        return code
    print_list("run once more, alone", list(outcomes.failed))
    passed = {test: passes_alone(test) for test in outcomes.failed}
    unstable = [test for test in passed if passed[test]]
    failed = [test for test in passed if not passed[test]]
    print_list("unstable: failed, then passed alone; repair before the change is done", unstable)
    print_list("failed twice", failed)
    if len(unstable) > MOST_UNSTABLE:
        print(f"\n{len(unstable)} unstable tests; CI allows {MOST_UNSTABLE}", flush=True)
    return 0 if not failed and len(unstable) <= MOST_UNSTABLE else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
