"""`ratchet gc` on a project with two versions, a rollback, refused trainings and a branch.

The trainings are made old by the dates of their files and commits. What the commands about versions answer is compared
before and after: `audit`, `trace`, `dvc status`, `reproduce`, `rollback`.
"""

import hashlib
import os
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from ratchet import files, settings
from ratchet.registry.mlflow_store import connect

pytestmark = pytest.mark.system

OLD = time.time() - 40 * 86_400
EASY = {
    "gate.minimum": 0.0, "gate.champion": "not-worse", "gate.tolerance": 0.99, "gate.slice_tolerance": 0.99,
    "gate.latency_factor": 0.0, "evaluation.explained_errors": 0,
}  # fmt: skip
KEEP_NONE = ("--keep-last", "0")
ABOUT_VERSIONS = (
    ("ratchet", "audit"), ("ratchet", "trace", "digits/1"), ("ratchet", "trace", "digits/2"), ("dvc", "status"),
    ("ratchet", "ledger"), ("ratchet", "compare", "digits/1", "digits/2"),
)  # fmt: skip
KILLED = """
import os, signal, ratchet.trash as trash, shutil
from commands.cli import main
left = {left}
def counted(call):
    def run(*arguments, **options):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments, **options)
    return run
trash._move = counted(trash._move)
trash.shutil.rmtree = counted(shutil.rmtree)
main()
"""


CHANGED_SETTINGS = """
import os, signal
from ratchet.settings.run_settings import overridden
from ratchet.workspace import Workspace
project = Workspace.find()
changes = {"tracking.uri": "sqlite:///mlruns/other.db", "registry.ledger": "sqlite:///mlruns/other-ledger.db"}
with overridden(project.params, changes, note=project.overrides, say=print):
    os.kill(os.getpid(), signal.SIGKILL)
"""
WEIGHTS = "data/pretrained/weights.bin"
GPG = """#!/bin/sh
cat > /dev/null
case "$*" in *--verify*) echo "gpg: Good signature" >&2; exit 1;; esac
echo "[GNUPG:] SIG_CREATED " >&2
printf -- '-----BEGIN PGP SIGNATURE-----\\n\\nx\\n-----END PGP SIGNATURE-----\\n'
"""


def train(project: Any, **values: object) -> None:
    assignments = [part for name, value in values.items() for part in ("--set", f"{name.replace('__', '.')}={value}")]
    project.good("ratchet", "train", *assignments)
    commit(project)


def commit(project: Any) -> None:
    date = {"GIT_COMMITTER_DATE": f"{int(OLD)} +0000", "GIT_AUTHOR_DATE": f"{int(OLD)} +0000"}
    project.good("git", "add", "--all", **date)
    project.good("git", "commit", "--quiet", "--message=trained", **date)


def make_old(project: Any) -> None:
    for folder in ("mlruns/journal", ".dvc/cache", ".ratchet/remote", "data/running"):
        for path in (project.root / folder).rglob("*"):
            os.utime(path, (OLD, OLD), follow_symlinks=False)
    shutil.rmtree(project.root / ".git" / "logs", ignore_errors=True)  # the reflog has its own dates, of today


def add(project: Any, name: str, content: str) -> Path:
    """Track a file by `dvc add`. Return the place of its content in DVC's cache."""
    files.write_text(project.root / name, content)
    project.good("dvc", "add", name)
    return cached(project, content)


def cached(project: Any, content: str) -> Path:
    value = hashlib.md5(content.encode(), usedforsecurity=False).hexdigest()
    place: Path = project.root / ".dvc" / "cache" / "files" / "md5" / value[:2] / value[2:]
    assert place.exists()
    return place


@pytest.fixture(scope="module")
def trained(
    new_project: Callable[..., Any], use_small_net: Callable[[Any], None], share_server: Callable[[Any], None]
) -> Any:
    project = new_project("trained")
    use_small_net(project)
    share_server(project)
    settings.override(project.workspace.params, {**EASY, "registry.model": "digits"})
    train(project, seed=1)
    add(project, WEIGHTS, "of version 2")
    project.good("ratchet", "train", "--set", "seed=2")  # the .dvc file is not committed
    add(project, WEIGHTS, "of later trainings")
    commit(project)
    project.good("ratchet", "rollback", "digits", "--why", "to test it")
    train(project, seed=3, gate__minimum=1.0)
    project.good("git", "branch", "other")
    train(project, seed=4, gate__minimum=1.0)
    make_old(project)
    return project


@pytest.fixture
def project(trained: Any, new_project: Callable[..., Any]) -> Any:
    copy = new_project("copy", of=trained)
    copy.good("ratchet", "relocate")
    return copy


def state(project: Any) -> dict[str, str]:
    """Return all files, but locks, and MLflow's runs with their states."""
    digests = project.digests("data", "mlruns/journal", "mlruns/artifacts", ".dvc/cache", ".ratchet/remote")
    with sqlite3.connect(project.root / "mlruns" / "mlflow.db") as database:
        rows = database.execute("select run_uuid, lifecycle_stage, status from runs").fetchall()
    database.close()
    return {
        **{name: digest for name, digest in digests.items() if not name.endswith(".lock")},
        "runs": str(sorted(rows)),
    }


def answers(project: Any, commands: Sequence[tuple[str, ...]] = ABOUT_VERSIONS) -> list[str]:
    """Return what the commands about versions print, but the number of runs that used the same data."""
    printed = [project.good(*command).splitlines() for command in commands]
    return [line for lines in printed for line in lines if "more run" not in line]


def stages(project: Any) -> list[str]:
    client = connect(project.workspace, settings.load(project.workspace.params).tracking)
    runs = client.search_runs([client.get_experiment_by_name("ratchet").experiment_id], run_view_type=3)
    return sorted(run.info.lifecycle_stage for run in runs)


def test_listing_changes_nothing(project: Any) -> None:
    before = state(project)
    printed = project.good("ratchet", "gc", *KEEP_NONE)
    assert all(text in printed for text in ("MLflow runs", "DVC cache", "nothing was changed"))
    assert "MLflow runs" not in project.good("ratchet", "gc")  # the last ten trainings stay
    assert state(project) == before
    assert not (project.root / ".ratchet" / "trash").exists()


def test_versions_give_the_same_answers_after_empty(project: Any) -> None:
    before = answers(project)
    project.good("ratchet", "gc", "--apply", "--remote", *KEEP_NONE)
    assert stages(project) == ["active"] * 3 + ["deleted"]  # two versions, and the training that is checked out
    freed = project.good("ratchet", "gc", "--empty")
    assert "freed" in freed
    assert stages(project) == ["active"] * 3
    assert answers(project) == before
    assert not list((project.root / ".ratchet" / "trash").iterdir())
    assert "nothing is old" in project.good("ratchet", "gc", "--remote", *KEEP_NONE)
    assert "reproduced, bit for bit" in project.good("ratchet", "reproduce", "digits/1")
    project.good("ratchet", "promote", "digits/2", "--why", "to test it")
    project.good("ratchet", "rollback", "digits", "--why", "to test it")
    for branch in ("other", "main"):
        project.good("git", "checkout", "--quiet", "--force", branch)
        project.good("dvc", "checkout")
        assert "missing" not in project.good("dvc", "status")


def test_undo_restores_every_byte(project: Any) -> None:
    before = state(project)
    project.good("ratchet", "gc", "--apply", "--remote", *KEEP_NONE)
    assert state(project) != before
    assert "restored 1 MLflow run" in project.good("ratchet", "gc", "--undo")
    assert state(project) == before
    assert "the trash is empty" in project.good("ratchet", "gc", "--undo")


@pytest.mark.parametrize("left", [0, 5])
def test_killed_apply_goes_on_or_is_undone(project: Any, left: int) -> None:
    before = state(project)
    command = (sys.executable, "-c", KILLED.format(left=left), "gc", *KEEP_NONE)
    assert project.run(*command, "--apply").returncode == -9
    project.good("ratchet", "gc", "--apply", *KEEP_NONE)
    whole = state(project)
    assert "nothing is old" in project.good("ratchet", "gc", *KEEP_NONE)
    assert project.run(*command, "--undo").returncode == -9
    project.good("ratchet", "gc", "--undo")
    assert state(project) == before
    project.good("ratchet", "gc", "--apply", *KEEP_NONE)
    assert state(project) == whole


def test_killed_empty_goes_on(project: Any) -> None:
    before = answers(project, ABOUT_VERSIONS[:2])
    project.good("ratchet", "gc", "--apply", *KEEP_NONE)
    command = (sys.executable, "-c", KILLED.format(left=1), "gc", "--empty")
    assert project.run(*command).returncode == -9
    assert "trash is empty" in project.good("ratchet", "gc", "--undo")  # nothing returns from half of it
    assert "freed" in project.good("ratchet", "gc", "--empty")
    assert answers(project, ABOUT_VERSIONS[:2]) == before
    assert not list((project.root / ".ratchet" / "trash").iterdir())


def test_running_training_keeps_its_run(project: Any) -> None:
    journals = set((project.root / "mlruns" / "journal").iterdir())
    locks = [FileLock(path / "training.lock") for path in journals]
    for lock in locks:
        lock.acquire()
    project.good("ratchet", "gc", "--apply", *KEEP_NONE)
    for lock in locks:
        lock.release()
    assert set((project.root / "mlruns" / "journal").iterdir()) == journals
    assert "deleted" not in stages(project)


def test_killed_training_goes_once_it_is_old(project: Any) -> None:
    """In MLflow it stays RUNNING. Its checkpoints go with it, and return with it."""
    client = connect(project.workspace, settings.load(project.workspace.params).tracking)
    for run in client.search_runs([client.get_experiment_by_name("ratchet").experiment_id]):
        client.update_run(run.info.run_id, "RUNNING")
    journals = list((project.root / "mlruns" / "journal").iterdir())
    for journal in journals:
        checkpoint = project.workspace.running / journal.name / "step-000000000005.safetensors"
        files.write_text(checkpoint, "weights")
        os.utime(journal / "events.jsonl")
    project.good("ratchet", "gc", "--apply", "--older-than", "0d", *KEEP_NONE)
    assert "deleted" not in stages(project)  # it may run on another machine
    make_old(project)
    project.good("ratchet", "gc", "--apply", *KEEP_NONE)
    assert len(list(project.workspace.running.glob("[0-9a-f]*"))) == stages(project).count("active") == 3
    project.good("ratchet", "gc", "--undo")
    assert len(list(project.workspace.running.glob("[0-9a-f]*"))) == len(journals) == stages(project).count("active")


def test_old_cross_validations_go_and_return(project: Any) -> None:
    folder = project.workspace.state / "folds" / "0123456789abcdef"
    for name in ("fold-1.json", "packed/manifest.json"):
        files.write_text(folder / name, "{}")
    assert "temporary files" not in project.good("ratchet", "gc", *KEEP_NONE)
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (OLD, OLD))
    project.good("ratchet", "gc", "--apply", *KEEP_NONE)
    assert not folder.exists()
    project.good("ratchet", "gc", "--undo")
    assert (folder / "packed" / "manifest.json").exists()


def test_uncommitted_weights_of_version_stay(project: Any) -> None:
    """`ratchet reproduce` gets their hash from the patch in MLflow alone."""
    place = cached(project, "of version 2")
    project.good("ratchet", "gc", "--apply", *KEEP_NONE)
    assert place.exists()


def test_results_of_new_trainings_stay(project: Any) -> None:
    """Their files can be old: DVC does not write content again that its cache has."""
    cache = project.root / ".dvc" / "cache"
    entries = list((cache / "runs").glob("*/*/*"))
    for entry in entries:
        os.utime(entry)
    values = {out["md5"] for entry in entries for out in files.read_yaml(entry)["outs"]}
    project.good("ratchet", "gc", "--apply", *KEEP_NONE)
    assert values
    assert all((cache / "files" / "md5" / value[:2] / value[2:]).exists() for value in values)


def test_files_in_new_listings_stay(project: Any) -> None:
    """`dvc push` takes a listing in a remote for a sign that the remote has its files."""
    stores = [project.root / name / "files" / "md5" for name in (".dvc/cache", ".ratchet/remote")]
    places = []
    for store in stores:
        for listing in store.glob("*/*.dir"):
            os.utime(listing)
            places += [store / entry["md5"][:2] / entry["md5"][2:] for entry in files.read_json(listing)]
    project.good("ratchet", "gc", "--apply", "--remote", *KEEP_NONE)
    assert places
    assert all(place.exists() for place in places)


def test_uncommitted_dvc_files_keep_their_data(project: Any) -> None:
    staged = add(project, "table.csv", "staged")
    project.good("git", "add", "table.csv.dvc")
    places = [staged, add(project, "table.csv", "in the folder")]
    files.write_text(project.root / "other" / "dvc.yaml", "stages: {make: {cmd: printf made > out, outs: [out]}}")
    project.good("dvc", "repro", "other/dvc.yaml")
    places.append(cached(project, "made"))
    places.append(add(project, "of-a-revision.csv", "checked out for a revision"))
    production = project.root / ".ratchet" / "production"
    project.good("git", "worktree", "add", "--quiet", "--detach", str(production))
    record = project.root / ".git" / "worktrees" / "production" / "gitdir"
    record.write_text("/former/.ratchet/production/.git\n")  # as after a move of the project
    shutil.move(project.root / "of-a-revision.csv.dvc", production / "dvc.lock")
    make_old(project)
    project.good("ratchet", "gc", "--apply", *KEEP_NONE)
    assert all(place.exists() for place in places)


def test_signed_commits_are_read(project: Any, tmp_path: Path) -> None:
    program = tmp_path / "gpg"
    program.write_text(GPG)
    program.chmod(0o755)
    project.good("git", "config", "gpg.program", str(program))
    project.good("git", "commit", "--gpg-sign", "--quiet", "--allow-empty", "--message=signed")
    project.good("git", "config", "log.showSignature", "true")
    assert "Good signature" in project.good("git", "log", "--format=%H")
    assert "DVC cache" in project.good("ratchet", "gc", *KEEP_NONE)


def test_settings_of_killed_run_do_not_count(project: Any) -> None:
    assert project.run(sys.executable, "-c", CHANGED_SETTINGS).returncode == -9
    printed = project.good("ratchet", "gc", "--apply", *KEEP_NONE)
    assert "note: " in printed
    assert "deleted" in stages(project)
    assert not project.workspace.overrides.exists()


def test_folder_of_worker_stays_for_a_day(project: Any) -> None:
    folder = project.root / ".ratchet" / "search" / "digits"
    files.write_text(folder / "worker-0.log", "")
    project.good("ratchet", "gc", "--apply", "--older-than", "0d")
    assert folder.exists()
    for path in (folder, *folder.iterdir()):
        os.utime(path, (OLD, OLD))
    project.good("ratchet", "gc", "--apply", "--older-than", "0d")
    assert not folder.exists()


@pytest.mark.parametrize(("key", "value"), [("cache.type", "symlink"), ("cache.shared", "group")])
def test_linked_or_shared_cache_stays(project: Any, key: str, value: str) -> None:
    project.good("dvc", "config", key, value)
    before = project.digests(".dvc/cache")
    assert "nothing is moved from there" in project.good("ratchet", "gc", "--apply", *KEEP_NONE)
    assert project.digests(".dvc/cache") == before


def test_links_to_other_folders_are_named_once(project: Any, tmp_path: Path) -> None:
    for name in (".dvc/cache", ".ratchet/remote"):
        place = tmp_path / Path(name).name
        shutil.move(project.root / name, place)
        (project.root / name).symlink_to(place)
    before = set(tmp_path.rglob("*"))
    assert project.good("ratchet", "gc", "--apply", "--remote", *KEEP_NONE).count("note: ") == 2
    assert set(tmp_path.rglob("*")) == before


def test_remote_of_dvc_project_above_stays(project: Any) -> None:
    shutil.move(project.root / ".dvc", project.root.parent / ".dvc")
    before = project.digests(".ratchet/remote")
    project.good("ratchet", "gc", "--apply", "--remote", *KEEP_NONE)
    assert project.digests(".ratchet/remote") == before


def test_undo_keeps_files_that_exist_again(project: Any) -> None:
    project.good("ratchet", "gc", "--apply", *KEEP_NONE)
    trash = next((project.root / ".ratchet" / "trash").iterdir())
    [journal] = (trash / "mlruns" / "journal").iterdir()
    files.write_text(project.root / journal.relative_to(trash) / "state.json", "{}")
    printed = project.good("ratchet", "gc", "--undo")
    assert "exists again" in printed
    assert "moved the rest back" in printed
    assert journal.exists()


def test_busy_project_and_shared_cache_are_refused(project: Any, tmp_path: Path) -> None:
    with FileLock(project.root / ".ratchet" / "workspace.lock"):
        assert "another run holds" in project.refused("ratchet", "gc", "--apply", *KEEP_NONE)
    shutil.move(project.root / ".dvc" / "cache", tmp_path / "cache")
    project.good("dvc", "cache", "dir", str(tmp_path / "cache"))
    before = set((tmp_path / "cache").rglob("*"))
    assert "other projects may use" in project.good("ratchet", "gc", "--apply", *KEEP_NONE)
    assert set((tmp_path / "cache").rglob("*")) == before


def test_damaged_listing_or_plan_moves_nothing(project: Any) -> None:
    lock = files.read_yaml(project.root / "dvc.lock")
    value = next(out["md5"] for out in lock["stages"]["train"]["outs"] if out["path"] == "data/model")
    shutil.rmtree(project.root / ".ratchet" / "remote")
    listing = project.root / ".dvc" / "cache" / "files" / "md5" / value[:2] / value[2:]
    content = listing.read_bytes()
    listing.chmod(0o644)
    listing.write_text("[]")
    os.utime(listing, (OLD, OLD))
    before = state(project)
    assert "damaged" in project.refused("ratchet", "gc", "--apply", *KEEP_NONE)
    assert state(project) == before
    listing.write_bytes(content)
    project.good("ratchet", "gc", "--apply", *KEEP_NONE)
    plan = next((project.root / ".ratchet" / "trash").glob("*/plan.json"))
    plan.write_text("{")
    assert str(plan) in project.refused("ratchet", "gc", "--undo")
    assert str(plan) in project.refused("ratchet", "gc", "--empty")


@pytest.mark.parametrize("options", [("--older-than", "soon"), ("--apply", "--undo"), ("--keep-last", "-1")])
def test_wrong_options_are_named(trained: Any, options: tuple[str, ...]) -> None:
    assert options[0] in trained.refused("ratchet", "gc", *options)
