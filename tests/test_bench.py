"""The measurements themselves are made by hand, on a quiet machine; what they stand on is tested."""

import ast
import json
import signal
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name

import numpy as np
import pytest

from bench import ingest, manifest, project, run
from bench.project import ROOT, SIDE, StageRun, pack
from bench.report import Row, options, ratio, show
from ratchet.data.manifest import Manifest
from ratchet.training import open_split

CHECKS = [resolve_name(f"ratchet.data.{check}") for check in ingest._CHECKS]  # pandera changes the environment


@pytest.mark.system
def test_every_measurement_can_be_asked_for() -> None:
    output = subprocess.run(
        [sys.executable, "-m", "bench.run", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    named = {path.stem for path in (ROOT / "bench").glob("*.py") if "def measure(" in path.read_text()}
    assert len(named) == 27
    claims = {path.stem for path in (ROOT / "bench").glob("*.py") if "Row(" in path.read_text()}
    assert claims - named == {"run"}
    assert all(name in output for name in named)


def test_peers_import_what_ratchet_has() -> None:
    """They need packages that are not in the environment of the tests, so nothing else runs them."""
    imports = [
        (node.module, name.name)
        for path in (ROOT / "bench" / "peers").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ratchet")
        for name in node.names
    ]
    assert imports
    assert all(resolve_name(f"{module}:{name}") for module, name in imports)


def test_a_bench_that_raises_does_not_end_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All rows are shown, and the error is a claim that does not hold, also of a trial run."""

    def raises(*_: object, **__: object) -> list[Row]:
        raise OSError("no such file: x.csv")

    monkeypatch.setattr(run.coverage, "measure", raises)
    monkeypatch.setattr(run.manifest, "measure", lambda rounds, quick: [Row("speed", "here", "3", ">= 2", True)])
    monkeypatch.setattr("bench.run.end_in_order", lambda: None)
    monkeypatch.setattr(sys, "argv", ["bench.run", "--only", "coverage", "manifest", "--quick"])
    with pytest.raises(SystemExit) as end:
        run.main()
    assert end.value.code == 1
    output = capsys.readouterr().out
    assert "\nspeed " in output
    assert "\nClaims that do not hold: 1\n  coverage (the whole): OSError: no such file: x.csv" in output


def test_contract_and_bare_pass_refuse_the_same_rows() -> None:
    contract, bare = (
        act().select("source", "row", "rule").sort("row", "rule") for act in manifest.judges(1200).values()
    )
    assert contract.equals(bare)
    rules = ["no-path", "repeated-header", "unknown-split", "personal-data", "outside-folder", "missing-file"]
    assert contract["rule"].to_list() == 2 * rules


@pytest.mark.parametrize("check", CHECKS)
def test_measured_check_of_ingest_exists(check: object) -> None:
    assert callable(check)


def test_measurement_that_is_terminated_ends_what_it_started() -> None:
    program = """
import signal
from bench.report import alone, options

def measure(_):
    try:
        print("began", flush=True)
        signal.pause()
    finally:
        print("ended", flush=True)

alone(options(None), measure)
"""
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "began\n"
    process.terminate()
    assert process.communicate()[0] == "ended\n"
    assert process.returncode == 128 + signal.SIGTERM


def test_packed_set_repeats_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (7, SIDE, SIDE, 3), dtype=np.uint8)
    monkeypatch.setattr(project, "source", lambda: (images, np.arange(7), "seven"))
    monkeypatch.setattr(project, "_SHARD_ROWS", 5)
    assert pack(tmp_path / "packed", rows=12, held_out=3) == "seven"
    train = open_split(tmp_path / "packed", "train")
    assert len(Manifest.read(tmp_path / "packed").splits["train"].arrays["images"]) == 3
    np.testing.assert_array_equal(train.targets, np.arange(12) % 7)
    np.testing.assert_array_equal(train.images(np.arange(12)), images[np.arange(12) % 7])
    assert len(set(train.keys.tolist())) == 12


def test_rate_counts_the_steps_after_the_warm_up_alone() -> None:
    times = {10: 50_000, 20: 52_000, 30: 53_000, 40: 54_000}  # milliseconds
    entries = [
        {"kind": "metrics", "time": time, "content": {"step": step, "values": {"step/loss": 1.0}}}
        for step, time in times.items()
    ]
    epoch = {"kind": "metrics", "time": 99_000, "content": {"step": 1, "values": {"train/loss": 1.0}}}
    run = StageRun(40.0, [*entries, epoch])
    assert run.rate(after=20, batch=256) == 256 * 20 / 2.0
    assert run.when("metrics", "step/loss") == 10.0
    assert run.values("step/loss", after=20) == [1.0, 1.0]


def test_ratio_pairs_the_rounds() -> None:
    assert ratio([10.0, 100.0, 30.0], [10.0, 50.0, 10.0]) == 2.0


def test_table_marks_claims_that_are_not_met(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [Row("speed", "here", "2.9", ">= 3", False), Row("time", "here", "1 s")]
    to = ["--json", str(tmp_path / "rows.json")]
    show(rows, described="a machine", arguments=options(None).parse_args(to))
    output = capsys.readouterr().out.splitlines()
    assert output[2].endswith("NO")
    assert output[3].endswith("1 s")
    assert output[-2:] == ["Claims that do not hold: 1", "  speed (here): 2.9; claim: >= 3"]
    assert json.loads((tmp_path / "rows.json").read_text())["rows"][0]["met"] is False
    show(rows, described="a machine", arguments=options(None).parse_args([*to, "--quick"]))
    output = capsys.readouterr().out.splitlines()
    assert not any(line.endswith("NO") or line.startswith("Claims") for line in output)
    assert json.loads((tmp_path / "rows.json").read_text())["rows"][0]["met"] is None
    show([Row("speed", "here", "3", ">= 3", True)], described="a machine", arguments=options(None).parse_args([]))
    assert capsys.readouterr().out.endswith("Claims that do not hold: none\n")
