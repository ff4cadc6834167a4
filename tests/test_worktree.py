"""A revision is laid down as it is committed, beside what a person has in the folder. The truth is git's own."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from ratchet.errors import WorkspaceBusy, WorkspaceError
from ratchet.provenance.git_worktree import checkout_revision, current_commit
from ratchet.registry.ledger import Ledger
from ratchet.registry.mlflow_store import address
from ratchet.settings.model import Params
from ratchet.workspace import Workspace

Git = Callable[..., str]


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Git:
    """git in tmp_path/project, whatever the user's settings are."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    (tmp_path / "project").mkdir()

    def run(*arguments: str) -> str:
        identity = ["-c", "user.name=tests", "-c", "user.email=tests@localhost"]
        command = ["git", "-C", str(tmp_path / "project"), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    run("init", "--quiet", "--initial-branch=main")
    return run


@pytest.fixture
def project(tmp_path: Path, git: Git) -> Workspace:
    """Two commits, the first with the tag `old`; uncommitted changes on top."""
    root = tmp_path / "project"
    (root / ".gitignore").write_text("/.ratchet/\n/data/\n")
    for number in ("1", "2"):
        (root / "params.yaml").write_text(f"seed: {number}\n")
        git("add", "--all")
        git("commit", "--quiet", f"--message={number}")
        if number == "1":
            git("tag", "old")
    (root / "params.yaml").write_text("seed: 3\n")
    (root / "note.txt").write_text("mine")
    return Workspace(root)


def test_a_revision_lies_as_committed_and_the_persons_folder_stays(project: Workspace, git: Git) -> None:
    before = git("status", "--porcelain"), git("branch", "--list")
    made = checkout_revision(project, "HEAD")
    assert made.params.read_text() == "seed: 2\n"
    assert current_commit(made) == git("rev-parse", "HEAD")
    assert not (made.root / "note.txt").exists()
    assert project.params.read_text() == "seed: 3\n"
    assert (git("status", "--porcelain"), git("branch", "--list")) == before


def test_the_folder_is_given_to_one_revision_after_another_and_outputs_stay(project: Workspace, git: Git) -> None:
    made = checkout_revision(project, "main")
    (made.root / "params.yaml").write_text("seed: 9\n")  # as `overrides` do
    (made.root / "data").mkdir()
    (made.root / "data" / "output").touch()
    again = checkout_revision(project, "old")
    assert again == made
    assert made.params.read_text() == "seed: 1\n"
    assert (made.root / "data" / "output").exists()
    assert current_commit(made) == git("rev-parse", "old")


def test_the_record_of_what_was_made_stays_until_another_is_committed(project: Workspace, git: Git) -> None:
    made = checkout_revision(project, "main")
    (made.root / "dvc.lock").write_text("made here")
    checkout_revision(project, "old")
    assert (checkout_revision(project, "main").root / "dvc.lock").read_text() == "made here"
    (project.root / "dvc.lock").write_text("made by a person")
    git("add", "dvc.lock")
    git("commit", "--quiet", "--message=trained")
    assert (checkout_revision(project, "main").root / "dvc.lock").read_text() == "made by a person"
    (made.root / "dvc.lock").write_text("made here, from that")
    git("commit", "--quiet", "--allow-empty", "--message=more")
    assert (checkout_revision(project, "main").root / "dvc.lock").read_text() == "made here, from that"


def test_mlflow_and_the_ledger_are_the_projects(project: Workspace) -> None:
    made = checkout_revision(project, "HEAD")
    assert made.project == project
    assert made.mlruns == project.root / "mlruns"
    assert address(made, Params().tracking) == address(project, Params().tracking)
    uri = Params().registry.ledger
    assert Ledger(made, uri).uri == Ledger(project, uri).uri
    assert made.data != project.data


def test_a_project_below_the_top_of_its_repository_is_found_there(project: Workspace, git: Git) -> None:
    below = project.root / "models" / "digits"
    below.mkdir(parents=True)
    (below / "params.yaml").write_text("seed: 5\n")
    git("add", "--all")
    git("commit", "--quiet", "--message=below")
    made = checkout_revision(Workspace(below), "main")
    assert made.root == below / ".ratchet" / "production" / "models" / "digits"
    assert made.params.read_text() == "seed: 5\n"
    assert made.project.root == below


@pytest.mark.parametrize("left", [".git", "rubbish"])
def test_what_a_killed_git_left_is_put_right(project: Workspace, left: str) -> None:
    top = project.production.root
    top.mkdir(parents=True)
    (top / left).write_text("gitdir: /nowhere\n")
    made = checkout_revision(project, "HEAD")
    (made.root / "params.yaml").unlink()
    Path((top / ".git").read_text().removeprefix("gitdir: ").strip(), "index.lock").touch()
    assert checkout_revision(project, "HEAD").params.read_text() == "seed: 2\n"


def test_a_folder_that_a_person_removed_is_made_again(project: Workspace) -> None:
    shutil.rmtree(checkout_revision(project, "HEAD").root)
    assert checkout_revision(project, "HEAD").params.exists()


def test_a_copy_of_the_project_has_a_folder_of_its_own(project: Workspace, tmp_path: Path) -> None:
    before = current_commit(checkout_revision(project, "HEAD"))
    shutil.copytree(project.root, tmp_path / "copy")
    copy = Workspace(tmp_path / "copy")
    made = checkout_revision(copy, "old")
    assert (made.project, made.params.read_text()) == (copy, "seed: 1\n")
    assert current_commit(project.production) == before


def test_submodules_are_laid_down_as_committed_or_the_run_says_why_not(
    project: Workspace, git: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git("clone", "--quiet", ".", str(tmp_path / "library"))
    git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(tmp_path / "library"), "library")
    git("commit", "--quiet", "--message=library")
    (project.root / "library" / "params.yaml").write_text("seed: 7\n")
    with pytest.raises(WorkspaceError, match=r"^revision: git submodule failed .*not allowed.*leave `revision` empty"):
        checkout_revision(project, "HEAD")  # git clones no local paths, unless it is told to
    for name, value in {"COUNT": "1", "KEY_0": "protocol.file.allow", "VALUE_0": "always"}.items():
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    assert (checkout_revision(project, "HEAD").root / "library" / "params.yaml").read_text() == "seed: 2\n"


@pytest.mark.parametrize("revision", ["nowhere", "-q", "main:params.yaml"])
def test_what_is_no_revision_is_named(project: Workspace, revision: str) -> None:
    with pytest.raises(WorkspaceError, match=rf"^revision: .*{revision}"):
        checkout_revision(project, revision)


def test_a_revision_without_the_project_is_refused(project: Workspace, git: Git) -> None:
    git("rm", "--quiet", "--cached", "params.yaml")
    git("commit", "--quiet", "--message=gone")
    with pytest.raises(WorkspaceError, match=r"main has no params\.yaml"):
        checkout_revision(project, "main")


def test_of_a_remote_branch_the_newest_commit_is_fetched(project: Workspace, git: Git, tmp_path: Path) -> None:
    git("clone", "--quiet", ".", str(tmp_path / "clone"))
    git("commit", "--quiet", "--all", "--message=newer")
    made = checkout_revision(Workspace(tmp_path / "clone"), "origin/main")
    assert current_commit(made) == git("rev-parse", "HEAD")


def test_without_a_repository_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    (tmp_path / "params.yaml").touch()
    with pytest.raises(WorkspaceError, match=r"not a git repository.*leave `revision` empty"):
        checkout_revision(Workspace(tmp_path), "HEAD")


def test_without_git_it_says_so(project: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(WorkspaceError, match=r"git cannot be run.*install git"):
        checkout_revision(project, "HEAD")


def test_a_folder_in_which_a_run_works_is_left_to_it(project: Workspace) -> None:
    made = checkout_revision(project, "main")
    with FileLock(made.state / "workspace.lock"), pytest.raises(WorkspaceBusy, match="another run holds"):
        checkout_revision(project, "old")
    assert made.params.read_text() == "seed: 2\n"
