"""compare, trace and reproduce read the ledger and sealed files, and every name that they print can be traced."""

import hashlib
import io
import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars
import pytest

from commands.compare import compare
from commands.reproduce import require_evidence
from commands.trace import trace
from ratchet.errors import RegistryError
from ratchet.provenance.archive import Archive
from ratchet.provenance.lineage import data_link
from ratchet.provenance.sealed import SealedReader
from ratchet.registry.alias_sync import AliasSync
from ratchet.registry.provenance_record import RECORD_TAG, Provenance, record_tags
from ratchet.registry.runs import Run
from ratchet.registry.statement import SealedValues, write_statement
from ratchet.settings.model import Params, TrackingSettings
from ratchet.typed_json import parse
from ratchet.workspace import Workspace
from tasks.summary import model_line

pytestmark = [pytest.mark.usefixtures("mlflows_own"), pytest.mark.system]
Line = Any  # conftest.py's


def test_the_summary_has_the_current_aliases(line: Line) -> None:
    """After a rollback, without MLflow, and with a broken ledger."""
    line.champion()
    line.champion()
    line.promotions.rollback(None, why="2 is bad")
    away = line.params.model_copy(update={"tracking": TrackingSettings(uri="http://127.0.0.1:9")})
    for params in (line.params, away):
        summaries = [model_line(params, line.place.workspace, line.name, number) for number in ("1", "2", "9")]
        assert summaries == [
            f"{line.name} version 1 (champion)",
            f"{line.name} version 2 (no alias); champion is version 1",
            f"{line.name} version 9 (no alias); champion is version 1",
        ]
    with closing(sqlite3.connect(line.folder / "ledger.db")) as connection, connection:
        connection.execute("DROP TRIGGER ledger_no_update")
        connection.execute("UPDATE ledger SET version = '2'")
    summary = model_line(line.params, line.place.workspace, line.name, "2")
    assert summary.startswith(f"{line.name} version 2 (its aliases are unknown: the ledger ")
    assert "champion" not in summary


def test_reproduce_names_a_flipped_bit_first(line: Line) -> None:
    version = line.champion()
    kept = AliasSync(line.place.workspace, line.params, line.name)
    assert "digests in the ledger match the stored files" in require_evidence(kept, version)
    path = line.artifact(version, "model.safetensors")
    expected = hashlib.sha256(path.read_bytes()).hexdigest()
    flipped = bytearray(path.read_bytes())
    flipped[-1] ^= 1
    path.write_bytes(flipped)
    actual = hashlib.sha256(flipped).hexdigest()
    with pytest.raises(RegistryError) as refusal:
        require_evidence(kept, version)
    assert f"model.safetensors: expected SHA-256 {expected}, found {actual}. Nothing was rebuilt" in str(refusal.value)


DAMAGED = {
    "truncated": b'{"dvc": {"data/pa',
    "empty": b"",
    "not text": b"\xff\xfe\x00",
    "a list": b"[]",
    "of another schema": b'{"dvc": []}',
    "nested": b"[" * 5000,
}


def test_a_damaged_provenance_file_is_named(line: Line) -> None:
    """The audit, acts and readers name it. The audit continues with the next version."""
    version, intact = line.challenger(), line.challenger()
    archive = Archive(line.place.workspace, line.params)
    run, _ = archive.version(f"{line.name}/1")
    for content in DAMAGED.values():
        line.artifact(version, "provenance.json").write_bytes(content)
        faults = line.faults()
        assert f"{line.name} version 1: provenance/provenance.json was replaced" in faults
        assert not [fault for fault in faults if f"version {intact.number}" in fault]
        with pytest.raises(RegistryError, match=r"provenance/provenance\.json was replaced"):
            line.promotions.approve(version, why="x")
        (doubt, *_) = SealedReader(archive, line.promotions.ledger).verify(run).doubts
        assert "provenance/provenance.json was changed since it was registered" in doubt


def test_a_damaged_record_in_mlflow_hides_no_run(line: Line) -> None:
    """A damaged record or data set's profile is a doubt about this run only."""
    version = line.version()
    client = line.promotions.registry.client
    for content in (content.decode() for kind, content in DAMAGED.items() if kind != "not text"):
        client.set_tag(version.run_id, RECORD_TAG, content)
        client.set_model_version_tag(line.name, version.number, RECORD_TAG, content)
        archive = Archive(line.place.workspace, line.params)
        (run,) = (run for run in archive.runs() if run.run_id == version.run_id)
        expected = f"MLflow run {version.run_id}: the tag {RECORD_TAG} is damaged: it is not a provenance record"
        for read in (run, archive.version(f"{line.name}/1")[0]):
            assert read.record is None
            assert [doubt for doubt in read.doubts if doubt.startswith(expected)]
        tree = str(data_link([replace(run, dataset={"name": "x", "profile": {"rows": 3}})], storage="here"))
        assert "its provenance record cannot be read" in tree
        assert "the data set's profile in MLflow is damaged" in tree
        with pytest.raises(RegistryError, match="is damaged"):
            line.promotions.registry.provenance_of(version.run_id)


def test_a_damaged_statement_in_the_evidence_is_named(line: Line) -> None:
    """A recovery takes the digests of files as they are, so their content can be damaged."""
    version = line.version()
    write_statement(line.promotions.registry, version, {"accuracy": 0.5})
    assert parse(SealedValues, line.artifact(version, "statement.json").read_bytes())
    line.artifact(version, "statement.json").write_text('{"metrics": {')
    line.promotions.register(version, why="x", over=None)
    assert [fault for fault in line.faults() if "report/statement.json is damaged" in fault]
    archive = Archive(line.place.workspace, line.params)
    run = SealedReader(archive, line.promotions.ledger).verify(archive.version(f"{line.name}/1")[0])
    assert [doubt for doubt in run.doubts if doubt.startswith("report/statement.json is damaged")]
    assert not run.metrics


def test_compare_says_which_files_are_damaged(tmp_path: Path) -> None:
    """There is no digest of runs that the ledger does not know."""
    root = tmp_path / "project"
    root.mkdir()
    (root / "params.yaml").write_bytes((Path(__file__).parents[2] / "params.yaml").read_bytes())
    subprocess.run([sys.executable, "-m", "dvc", "init", "--no-scm", "--quiet"], cwd=root, check=True)
    workspace = Workspace(root)
    registry, runs = AliasSync(workspace, Params(), "x").registry, []
    settings, answers = tmp_path / "params.yaml", tmp_path / "predictions.parquet"
    for number, (yaml, parquet) in enumerate([("a: [", b"PAR1"), ("- a", b"")]):
        run = Run(workspace, Params(), f"training-{number}")
        runs.append(run.send())
        run.journal.close()
        settings.write_text(yaml)
        answers.write_bytes(parquet)
        registry.log_files(runs[-1], {settings: "provenance", answers: "report"})
    comparison = compare(workspace, *runs)
    assert [doubt.partition(": ")[2] for doubt in comparison.doubts] == [
        "provenance/params.yaml is damaged: it is not read.",
        "report/predictions.parquet is damaged: it is not read.",
    ] * 2
    assert comparison.settings is None
    assert comparison.answers is None


def test_compare_reads_settings_with_defaults_of_their_time(tmp_path: Path) -> None:
    """A default may be another one now. A setting that is newer than a run has its default there."""
    (tmp_path / "params.yaml").write_bytes((Path(__file__).parents[2] / "params.yaml").read_bytes())
    subprocess.run([sys.executable, "-m", "dvc", "init", "--no-scm", "--quiet"], cwd=tmp_path, check=True)
    workspace = Workspace(tmp_path)
    registry, runs = AliasSync(workspace, Params(), "x").registry, []
    for number, completed in enumerate([{"training": {"ema_decay": 0.5, "betas": [0.9, 0.999]}}, {}]):
        run = Run(workspace, Params(), f"training-{number}")
        runs.append(run.send())
        run.journal.close()
        stored = tmp_path / "settings.json"
        stored.write_text(json.dumps(completed))
        registry.log_files(runs[-1], {workspace.params: "provenance", stored: "provenance"})
    changes = compare(workspace, *runs).settings or []
    assert [(change.name, change.before, change.after) for change in changes] == [("training.ema_decay", 0.5, 0.0)]


def test_every_printed_name_can_be_traced(tmp_path: Path, record: Provenance) -> None:
    """Weights, settings, commit, flow run, run, its short id and name, a sample, and the SHA-256 of a sample."""
    root = tmp_path / "project"
    root.mkdir()
    (root / "params.yaml").write_bytes((Path(__file__).parents[2] / "params.yaml").read_bytes())
    subprocess.run([sys.executable, "-m", "dvc", "init", "--no-scm", "--quiet"], cwd=root, check=True)
    rows = {
        "id": ["dog/1", "dog/1003.png"],
        "content": ["c" * 64, "d" * 64],
        "split": ["test"] * 2,
        "class": ["dog"] * 2,
    }
    index = io.BytesIO()
    polars.DataFrame(rows).write_parquet(index)

    def cached(content: bytes, end: str = "") -> str:
        value = hashlib.md5(content, usedforsecurity=False).hexdigest() + end
        path = root / ".dvc" / "cache" / "files" / "md5" / value[:2] / value[2:]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return value

    listing = [{"md5": cached(index.getvalue()), "relpath": "index.parquet"}]
    packed = cached(json.dumps(listing).encode(), ".dir")
    record = replace(record, dvc={"data/packed": packed})
    workspace = Workspace(root)
    run = Run(workspace, Params(), "training")
    run.tags(record_tags(record))
    run_id = run.send()
    run.journal.close()
    kept = [
        getattr(record, name)
        for name in ("id", "weights", "settings", "lock", "git_commit", "prefect_flow_run", "training")
    ]
    name = AliasSync(workspace, Params(), "x").registry.client.get_run(run_id).info.run_name
    names = [*kept, run_id, name]
    for printed in [*names, *rows["id"], *rows["content"], packed]:
        traced = trace(workspace, printed)
        (version,) = traced.chains[0].children
        assert version.children[0].title == f"run {run_id}", printed
        assert traced.descriptions, printed
    assert trace(workspace, "dog/1").descriptions == (f"dog/1 is sample dog/1 of data version {packed}: test, dog",)
    for nothing in ("5" * 64, "6" * 40, "7" * 8, "cat/1", "nothing", "", ".", "*", "'", "a" * 300, "a/" * 3000):
        with pytest.raises(RegistryError):
            trace(workspace, nothing)
