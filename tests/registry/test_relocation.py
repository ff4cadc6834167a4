"""A project folder that was moved or copied, and files of models that are not where MLflow recorded them."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from commands.cli import app
from ratchet import files
from ratchet.errors import RegistryError, TrackingRefused, TrackingUnavailable
from ratchet.references import broken_references
from ratchet.registry.mlflow_store import connect, experiment_id
from ratchet.registry.models import ModelRegistry
from ratchet.registry.relocation import former_roots, moved_fault, relocate
from ratchet.servers.server_record import ServerRecord
from ratchet.settings import load, template
from ratchet.settings.model import TrackingSettings
from ratchet.workspace import Workspace
from tasks.scratch_project import ScratchProject

NewLine = Callable[[Any], Any]
pytestmark = pytest.mark.usefixtures("mlflows_own")


@pytest.fixture
def before(tmp_path: Path, database: Any, new_line: NewLine) -> Any:
    """A project with a champion, in a folder whose name must be quoted in an address."""
    root = tmp_path / "my project é"
    root.mkdir()
    line = new_line(replace(database, workspace=Workspace(root.resolve())))
    line.champion()
    return line


def at(root: Path, line: Any, **changes: Any) -> Any:
    """Return the same model in another folder."""
    return replace(line, place=replace(line.place, workspace=Workspace(root.resolve())), **changes)


def relocated(line: Any, former: Path | None = None) -> list[str]:
    return list(relocate(line.place.workspace, line.params.tracking, former))


def champion_files(line: Any, into: Path) -> Path:
    champion = ModelRegistry(line.place.workspace, line.params).champion(line.name, into)
    assert champion is not None
    return champion.folder


def test_a_scratch_projects_records_are_in_their_place(tmp_path: Path) -> None:
    """Such as those of the training that `ratchet verify-resume` kills and resumes."""
    scratch = ScratchProject(tmp_path, tmp_path / "killed")
    tracking = TrackingSettings(uri=str(scratch.own["tracking.uri"]))
    for _ in range(2):
        experiment_id(connect(scratch, tracking), scratch, tracking)
    assert (scratch.mlruns / "mlflow.db").exists()
    assert moved_fault(scratch, tracking) is None


def test_moved_project_works_once_it_is_relocated(before: Any, tmp_path: Path) -> None:
    old = before.place.workspace.root
    after = at(old.rename(tmp_path / "after"), before)
    message = (
        f"recorded at {old}, which does not exist; this project is at {tmp_path / 'after'}. Fix: .*ratchet relocate"
    )
    with pytest.raises(TrackingRefused, match=message):
        after.faults()
    assert any("ratchet relocate" in fault for fault in broken_references(after.params, after.place.workspace))
    assert relocated(after) == [f"5 paths in {old} are now in {tmp_path / 'after'}"]
    assert relocated(after) == []
    assert after.faults() == []
    after.champion()
    assert not old.exists()
    assert champion_files(after, tmp_path / "files").is_dir()


def test_copied_project_leaves_the_original_alone(before: Any, tmp_path: Path) -> None:
    old = before.place.workspace.root
    copy = at(Path(shutil.copytree(old, tmp_path / "copy")), before)
    with pytest.raises(TrackingRefused, match=f"recorded at {old}, which still exists, and is not used"):
        champion_files(copy, tmp_path / "files")
    relocated(copy)
    weights = next(before.place.workspace.mlruns.rglob("*.safetensors"))
    weights.write_bytes(b"damaged")
    assert copy.faults() == []
    assert any("was replaced" in fault for fault in before.faults())
    stored = set(old.rglob("*"))
    copy.version()
    assert set(old.rglob("*")) == stored


def test_shared_database_keeps_the_files_of_each_project(before: Any, tmp_path: Path) -> None:
    """A database outside the project folder can hold the runs of several projects."""
    shared = tmp_path / "mlflow.db"
    os.replace(before.place.workspace.mlruns / "mlflow.db", shared)
    tracking = before.params.tracking.model_copy(update={"uri": f"sqlite:///{shared}"})
    params = before.params.model_copy(update={"tracking": tracking})
    (tmp_path / "other").mkdir()
    other = at(tmp_path / "other", before, params=params)
    assert champion_files(other, tmp_path / "files").is_dir()
    old = before.place.workspace.root
    old.rename(tmp_path / "after")
    with pytest.raises(RegistryError, match=f"recorded at {old}.*, which does not exist; .*`ratchet relocate FOLDER`"):
        champion_files(other, tmp_path / "none")
    after = at(tmp_path / "after", other)
    relocated(after, old)
    assert champion_files(after, tmp_path / "again").is_dir()


def test_missing_files_are_named_with_their_recorded_folder(before: Any, tmp_path: Path) -> None:
    artifacts = before.place.workspace.mlruns / "artifacts"
    artifacts.rename(tmp_path / "aside")
    with pytest.raises(RegistryError, match=f"recorded at {artifacts}/.*, which does not exist; .*mount") as refusal:
        champion_files(before, tmp_path / "files")
    assert "registry.model" not in str(refusal.value)
    assert [fault for fault in before.faults() if "which does not exist" in fault] == before.faults()[-1:]


def test_relocation_through_a_server_is_refused(served: Any) -> None:
    with pytest.raises(RegistryError, match=r"is a server\. Allowed: a database"):
        list(relocate(served.workspace, served.params.tracking))


def test_copy_does_not_own_the_servers_of_the_original(tmp_path: Path) -> None:
    original, copy = Workspace(tmp_path / "original"), Workspace(tmp_path / "copy")
    service = {"name": "mlflow", "address": "", "log": str(original.state / "logs" / "mlflow.log"), "mark": "m",
               "grace": 1.0}  # fmt: skip
    (original.state / "logs").mkdir(parents=True)
    files.write_json(original.state / "servers.json", {"pid": os.getpid(), "created": 0.0, "services": [service]})
    shutil.copytree(original.root, copy.root)
    assert list(ServerRecord.read(original).services) == ["mlflow"]
    assert ServerRecord.read(copy).services == {}
    shutil.rmtree(original.root)
    assert list(ServerRecord.read(copy).services) == ["mlflow"], "a moved project still ends its own servers"


def project_at(root: Path, *places: str) -> Workspace:
    """Return a project whose database has experiments with their files at these places."""
    workspace = Workspace(root)
    workspace.mlruns.mkdir(parents=True)
    workspace.params.write_text(template(), encoding="utf-8")
    with closing(sqlite3.connect(workspace.mlruns / "mlflow.db")) as connection, connection:
        connection.execute("create table experiments (artifact_location text)")
        connection.executemany("insert into experiments values (?)", [(place,) for place in places])
    return workspace


def places_of(workspace: Workspace) -> list[str]:
    with closing(sqlite3.connect(workspace.mlruns / "mlflow.db")) as connection:
        return [place for (place,) in connection.execute("select artifact_location from experiments")]


def test_absolute_place_of_files_is_no_former_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "store"
    workspace = project_at(tmp_path / "project", store.as_uri())
    monkeypatch.chdir(workspace.mlruns)
    assert former_roots(workspace, TrackingSettings(artifacts=str(store))) == []


def test_second_relocation_changes_nothing_more(tmp_path: Path) -> None:
    """A project that moved down a folder is inside of the former one."""
    root = tmp_path / "work" / "project"
    workspace = project_at(root, (tmp_path / "work" / "mlruns" / "artifacts").as_uri())
    for _ in range(2):
        list(relocate(workspace, TrackingSettings(), tmp_path / "work"))
        assert places_of(workspace) == [(root / "mlruns" / "artifacts").as_uri()]


def test_relocation_takes_a_folder_relative_to_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = project_at(tmp_path / "new", (tmp_path / "old" / "mlruns" / "artifacts").as_uri())
    monkeypatch.chdir(workspace.root)
    assert CliRunner().invoke(app, ["relocate", "../old"]).exit_code == 0
    assert places_of(workspace) == [(workspace.mlruns / "artifacts").as_uri()]


def test_mistyped_former_folder_is_refused(tmp_path: Path) -> None:
    workspace = project_at(tmp_path / "new", str(tmp_path / "old" / "mlruns" / "artifacts"))
    with pytest.raises(
        RegistryError, match=f"old/mlrun: MLflow has no files .* but in {tmp_path}/old/mlruns/artifacts"
    ):
        list(relocate(workspace, TrackingSettings(), tmp_path / "old" / "mlrun"))


def test_relocation_creates_no_database(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    workspace.mlruns.mkdir()
    assert list(relocate(workspace, TrackingSettings(), tmp_path / "old")) == []
    assert list(workspace.mlruns.iterdir()) == []


def test_former_folder_that_cannot_be_looked_into_is_named(tmp_path: Path) -> None:
    """As that of another user, but so for the administrator as well: a name longer than a disk has."""
    former = tmp_path / ("x" * 300)
    workspace = project_at(tmp_path / "copy", (former / "mlruns" / "artifacts").as_uri())
    assert f"recorded at {former}, which" in (moved_fault(workspace, load(workspace.params).tracking) or "")


@pytest.mark.parametrize("uri", ["sqlite:///mlruns/mlflow.db", "postgresql://127.0.0.1:1/db", "mssql+none://host/db"])
def test_relocation_without_a_readable_database_changes_nothing(tmp_path: Path, uri: str) -> None:
    workspace = Workspace(tmp_path)
    workspace.mlruns.mkdir()
    (workspace.mlruns / "mlflow.db").write_text("no database")
    with pytest.raises(TrackingUnavailable, match=r"Nothing was changed\. Fix: start the database"):
        list(relocate(workspace, TrackingSettings(uri=uri), tmp_path / "old"))
    assert (workspace.mlruns / "mlflow.db").read_text() == "no database"
