"""The waits of tests."""

import subprocess
import sys

import pytest
from waiting import let_run, until


def test_it_returns_the_first_true_value() -> None:
    values = iter([0, None, "", 7, 8])
    assert until(lambda: next(values), pause=0.0) == 7


def test_a_refused_connection_counts_as_false() -> None:
    answers = iter([ConnectionRefusedError("not yet"), None])

    def ask() -> bool:
        if error := next(answers):
            raise error
        return True

    assert until(ask, pause=0.0)


def test_the_limit_says_what_was_waited_for() -> None:
    with pytest.raises(AssertionError, match=r"0 s were not enough for .*1 > 2.*: False"):
        until(lambda: 1 > 2, seconds=0.0, pause=0.0)


def test_a_dead_process_ends_the_wait(tmp_path) -> None:
    (tmp_path / "log").write_text("no disk")
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]) as process:
        let_run(process, 60.0)
        with pytest.raises(AssertionError, match=r"ended with 3 before .*exists\n?no disk|ended with 3 before"):
            until((tmp_path / "never").exists, process=process, log=tmp_path / "log")
