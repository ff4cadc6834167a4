"""CI's second chance for a failed test (.ci/retry.py), with real runs of pytest on small folders of tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system
RETRY = Path(__file__).parents[1] / ".ci" / "retry.py"
PARALLEL = ("--numprocesses=2", "--dist=loadfile")
# `first(name)` is true in the first run of a test, and false in the second.
HEAD = """
import os, signal
from pathlib import Path
import pytest

def first(name):
    try:
        Path(f"{name}.ran").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True

def test_good():
    pass
"""
ONCE = "def test_once(): assert not first('once')\n"


def retry(folder: Path, source: str, *options: str) -> tuple[int, str]:
    """Write the tests in one file and another file of good ones; run them as CI does. Return exit code and output."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_made.py").write_text(HEAD + source)
    (folder / "test_other.py").write_text("def test_other(): pass\n")
    command = [sys.executable, str(RETRY), *(("-p", "xdist") if "--numprocesses=2" in options else ()), *options]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"HOME": str(folder / "no-home"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # others' take seconds
    environment["PYTEST_DEBUG_TEMPROOT"] = str(folder)  # or it deletes folders of sessions before this one, for minutes
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.returncode, done.stdout


def listed(output: str, heading: str) -> list[str]:
    """The tests below a heading, in order."""
    lines = output.splitlines()
    at = next((number for number, line in enumerate(lines) if line.startswith("=") and f" {heading}" in line), None)
    if at is None:
        return []
    ends = (number for number, line in enumerate(lines) if number > at and "::" not in line)
    return lines[at + 1 : next(ends, len(lines))]


def test_a_test_that_passes_alone_is_unstable(tmp_path: Path) -> None:
    code, output = retry(tmp_path, ONCE)
    assert code == 0, output
    assert listed(output, "unstable") == ["test_made.py::test_once"]


# Each fails once in its own way; the last also has a name that a command line may read in another way.
PAIRS = {
    "fixtures": (
        "@pytest.fixture\ndef early(): assert not first('early')\ndef test_a(early): pass\n"
        "@pytest.fixture\ndef late():\n yield\n assert not first('late')\ndef test_b(late): pass\n",
        ["test_made.py::test_a", "test_made.py::test_b"],
    ),
    "workers": (
        "def test_a():\n if first('a'): os._exit(0)\n"
        "def test_b():\n if first('b'): os.kill(os.getpid(), signal.SIGSEGV)\n",
        ["test_made.py::test_a", "test_made.py::test_b"],
    ),
    "names": (
        "@pytest.mark.parametrize('name', ['x::y z', '[--w'], ids=str)\ndef test_a(name): assert not first(name)\n",
        ["test_made.py::test_a[x::y z]", "test_made.py::test_a[[--w]"],
    ),
}


@pytest.mark.parametrize(("source", "tests"), PAIRS.values(), ids=PAIRS)
def test_every_way_to_fail_gets_one_retry(source: str, tests: list[str], tmp_path: Path) -> None:
    code, output = retry(tmp_path, source, *PARALLEL)
    assert code == 0, output
    assert listed(output, "unstable") == tests


def test_three_unstable_tests_fail(tmp_path: Path) -> None:
    source = "".join(f"def test_{name}(): assert not first('{name}')\n" for name in "abc")
    code, output = retry(tmp_path, source)
    assert code == 1, output
    assert len(listed(output, "unstable")) == 3


def test_a_test_that_fails_twice_fails(tmp_path: Path) -> None:
    """So does one that skips the second time, or that then ends its process."""
    source = "def test_bad(): assert False\ndef test_dies():\n assert not first('dies')\n os._exit(0)\n"
    source += "def test_skips():\n assert not first('skips')\n pytest.skip('this time')\n"
    code, output = retry(tmp_path, ONCE + source, *PARALLEL)
    assert code == 1, output
    assert listed(output, "failed twice") == [f"test_made.py::test_{name}" for name in ("bad", "dies", "skips")]
    assert listed(output, "unstable") == ["test_made.py::test_once"]


UNIMPORTABLE = ONCE + "import nothing_like_it\n"
NO_RETRY = {
    "collection": (UNIMPORTABLE, PARALLEL, {1, 2}),
    "interruption": (ONCE + "def test_z(): raise KeyboardInterrupt\n", (), {2}),
}


@pytest.mark.parametrize(("source", "options", "codes"), NO_RETRY.values(), ids=NO_RETRY)
def test_an_incomplete_run_fails_without_a_retry(
    source: str, options: tuple[str, ...], codes: set[int], tmp_path: Path
) -> None:
    code, output = retry(tmp_path, source, *options)
    assert code in codes, output
    assert listed(output, "run once more") == []


def test_a_good_run_runs_nothing_again(tmp_path: Path) -> None:
    code, output = retry(tmp_path, "def test_known():\n pytest.xfail('known')\n", *PARALLEL)
    assert code == 0, output
    assert listed(output, "run once more") == []
