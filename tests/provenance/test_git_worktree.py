"""Revisions are checked out in a folder of their own, and the project folder does not change."""

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


def test_a_checkout_does_not_change_the_project_folder(project: Workspace, git: Git) -> None:
    before = git("status", "--porcelain"), git("branch", "--list")
    checkout = checkout_revision(project, "HEAD")
    assert checkout.params.read_text() == "seed: 2\n"
    assert current_commit(checkout) == git("rev-parse", "HEAD")
    assert not (checkout.root / "note.txt").exists()
    assert project.params.read_text() == "seed: 3\n"
    assert (git("status", "--porcelain"), git("branch", "--list")) == before


def test_the_folder_is_reused_and_outputs_stay(project: Workspace, git: Git) -> None:
    checkout = checkout_revision(project, "main")
    (checkout.root / "params.yaml").write_text("seed: 9\n")  # as `overrides` do
    (checkout.root / "data").mkdir()
    (checkout.root / "data" / "output").touch()
    again = checkout_revision(project, "old")
    assert again == checkout
    assert checkout.params.read_text() == "seed: 1\n"
    assert (checkout.root / "data" / "output").exists()
    assert current_commit(checkout) == git("rev-parse", "old")


def test_dvc_lock_stays_until_another_is_committed(project: Workspace, git: Git) -> None:
    checkout = checkout_revision(project, "main")
    (checkout.root / "dvc.lock").write_text("from a run")
    checkout_revision(project, "old")
    assert (checkout_revision(project, "main").root / "dvc.lock").read_text() == "from a run"
    (project.root / "dvc.lock").write_text("from a user")
    git("add", "dvc.lock")
    git("commit", "--quiet", "--message=trained")
    assert (checkout_revision(project, "main").root / "dvc.lock").read_text() == "from a user"
    (checkout.root / "dvc.lock").write_text("from the run after that")
    git("commit", "--quiet", "--allow-empty", "--message=more")
    assert (checkout_revision(project, "main").root / "dvc.lock").read_text() == "from the run after that"


def test_mlflow_and_the_ledger_are_the_projects(project: Workspace) -> None:
    checkout = checkout_revision(project, "HEAD")
    assert checkout.project == project
    assert checkout.mlruns == project.root / "mlruns"
    assert address(checkout, Params().tracking) == address(project, Params().tracking)
    uri = Params().registry.ledger
    assert Ledger(checkout, uri).uri == Ledger(project, uri).uri
    assert checkout.data != project.data


def test_a_project_can_be_a_folder_of_its_repository(project: Workspace, git: Git) -> None:
    below = project.root / "models" / "digits"
    below.mkdir(parents=True)
    (below / "params.yaml").write_text("seed: 5\n")
    git("add", "--all")
    git("commit", "--quiet", "--message=below")
    checkout = checkout_revision(Workspace(below), "main")
    assert checkout.root == below / ".ratchet" / "production" / "models" / "digits"
    assert checkout.params.read_text() == "seed: 5\n"
    assert checkout.project.root == below


@pytest.mark.parametrize("left", [".git", "rubbish"])
def test_an_incomplete_worktree_is_completed(project: Workspace, left: str) -> None:
    top = project.production.root
    top.mkdir(parents=True)
    (top / left).write_text("gitdir: /nowhere\n")
    checkout = checkout_revision(project, "HEAD")
    assert (top / left).exists()
    (checkout.root / "params.yaml").unlink()
    Path((top / ".git").read_text().removeprefix("gitdir: ").strip(), "index.lock").touch()
    assert checkout_revision(project, "HEAD").params.read_text() == "seed: 2\n"


def test_a_removed_worktree_is_created_again(project: Workspace) -> None:
    shutil.rmtree(checkout_revision(project, "HEAD").root)
    assert checkout_revision(project, "HEAD").params.exists()


def test_a_copied_project_has_its_own_worktree(project: Workspace, tmp_path: Path) -> None:
    before = current_commit(checkout_revision(project, "HEAD"))
    shutil.copytree(project.root, tmp_path / "copy")
    copy = Workspace(tmp_path / "copy")
    checkout = checkout_revision(copy, "old")
    assert (checkout.project, checkout.params.read_text()) == (copy, "seed: 1\n")
    assert current_commit(project.production) == before


def write_checkpoint(checkout: Workspace) -> Path:
    """Write a file that git ignores, as an interrupted training does. Return its path in the project."""
    path = checkout.running / "key" / "step.safetensors"
    path.parent.mkdir(parents=True)
    path.write_text("hours of work")
    return path.relative_to(checkout.root.parents[1])


def test_a_moved_project_keeps_its_checkouts_files(project: Workspace, git: Git, tmp_path: Path) -> None:
    """A container that has the project at another path, in turn with its host, is such a case too."""
    commit = git("rev-parse", "HEAD")
    checkpoint = write_checkpoint(checkout_revision(project, "old"))
    for name in ("moved", "project"):
        root = project.root.rename(tmp_path / name)
        project = Workspace(root)
        checkout = checkout_revision(project, "HEAD")
        assert (root / checkpoint).read_text() == "hours of work"
        assert (current_commit(checkout), checkout.params.read_text()) == (commit, "seed: 2\n")
        assert len(list((root / ".git" / "worktrees").iterdir())) == 1


def test_a_copied_projects_checkout_has_its_own_files(project: Workspace, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(checkout_revision(project, "HEAD"))
    copy = Workspace(Path(shutil.copytree(project.root, tmp_path / "copy")))
    checkout_revision(copy, "old")
    (copy.root / checkpoint).write_text("of the copy")
    assert checkout_revision(project, "HEAD").params.read_text() == "seed: 2\n"
    assert (project.root / checkpoint).read_text() == "hours of work"
    assert checkout_revision(copy, "old").params.read_text() == "seed: 1\n"
    assert (copy.root / checkpoint).read_text() == "of the copy"


def test_a_checkout_that_git_does_not_open_stays(
    project: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of another user, in a container whose safe.directory names the project only."""
    checkpoint = write_checkpoint(checkout_revision(project, "HEAD"))
    (tmp_path / "gitconfig").write_text(f"[safe]\n\tdirectory = {project.root}\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.raises(WorkspaceError, match=r"^revision: git .*dubious ownership.*production"):
        checkout_revision(project, "HEAD")
    assert (project.root / checkpoint).read_text() == "hours of work"
    with (tmp_path / "gitconfig").open("a") as config:
        config.write(f"\tdirectory = {project.production.root}\n")  # as the message says
    assert checkout_revision(project, "old").params.read_text() == "seed: 1\n"
    shutil.rmtree(project.root / ".git" / "worktrees")  # the new record, too, is made with these two folders only
    assert checkout_revision(project, "HEAD").params.read_text() == "seed: 2\n"


@pytest.mark.parametrize("branch", ["HEAD", "old"])
def test_a_checkout_whose_record_is_lost_keeps_files(project: Workspace, git: Git, branch: str) -> None:
    """`git worktree prune` in a container that does not see the folder loses it, and so does a new clone."""
    checkout = checkout_revision(project, "HEAD")
    checkpoint = write_checkpoint(checkout)
    shutil.rmtree(project.root / ".git" / "worktrees")
    assert checkout_revision(project, branch).params.read_text() == ("seed: 2\n" if branch == "HEAD" else "seed: 1\n")
    assert (project.root / checkpoint).read_text() == "hours of work"
    assert current_commit(checkout) == git("rev-parse", branch)


def test_a_checkout_whose_head_a_power_cut_emptied_is_repaired(project: Workspace, git: Git) -> None:
    (project.root / "more.py").touch()
    git("add", "more.py")
    git("commit", "--quiet", "--message=3")
    checkpoint = write_checkpoint(checkout_revision(project, "HEAD"))
    (project.root / ".git" / "worktrees" / "production" / "HEAD").write_text("")
    checkout = checkout_revision(project, "old")
    assert (checkout.params.read_text(), current_commit(checkout)) == ("seed: 1\n", git("rev-parse", "old"))
    assert not (checkout.root / "more.py").exists()
    assert (project.root / checkpoint).read_text() == "hours of work"


def test_a_repository_in_the_checkouts_place_is_named(project: Workspace, git: Git) -> None:
    git("clone", "--quiet", ".", str(project.production.root))
    with pytest.raises(WorkspaceError, match=r"production: found a repository of its own.*move it away"):
        checkout_revision(project, "HEAD")
    project.production.root.rename(project.root.parent / "away")
    assert checkout_revision(project, "HEAD").params.read_text() == "seed: 2\n"


def test_a_users_worktree_on_an_absent_disk_stays(project: Workspace, git: Git, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    git("worktree", "add", "--quiet", "--detach", str(disk / "production"), "old")
    git("-C", str(disk / "production"), "commit", "--quiet", "--allow-empty", "--message=on no branch")
    commit = git("-C", str(disk / "production"), "rev-parse", "HEAD")
    disk.rename(tmp_path / "away")
    # The name of the user's worktree, as a project has that was moved here from another clone.
    project.production.root.mkdir(parents=True)
    (project.production.root / ".git").write_text("gitdir: /nowhere/.git/worktrees/production\n")
    assert checkout_revision(project, "HEAD").params.read_text() == "seed: 2\n"
    (tmp_path / "away").rename(disk)
    assert git("-C", str(disk / "production"), "rev-parse", "HEAD") == commit
    assert (disk / "production" / "params.yaml").read_text() == "seed: 1\n"


def test_a_checkout_begun_by_a_killed_run_is_completed(project: Workspace, git: Git) -> None:
    draft = project.state / "production.new" / "production"
    for _ in range(2):  # the second one also has a folder from which its record was lost
        git("worktree", "add", "--quiet", "--detach", "--no-checkout", "--lock", "--force", str(draft), "HEAD")
        assert checkout_revision(project, "HEAD").params.read_text() == "seed: 2\n"
        assert not draft.exists()
        (project.production.root / ".git").unlink()
        shutil.rmtree(project.root / ".git" / "worktrees")


def test_submodules_are_checked_out_or_an_error_says_why(
    project: Workspace, git: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git("clone", "--quiet", ".", str(tmp_path / "library"))
    git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(tmp_path / "library"), "library")
    git("commit", "--quiet", "--message=library")
    (project.root / "library" / "params.yaml").write_text("seed: 7\n")
    with pytest.raises(WorkspaceError, match=r"^revision: git submodule failed .*not allowed.*leave `revision` empty"):
        checkout_revision(project, "HEAD")  # by default git clones no submodule from a local path
    for name, value in {"COUNT": "1", "KEY_0": "protocol.file.allow", "VALUE_0": "always"}.items():
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    assert (checkout_revision(project, "HEAD").root / "library" / "params.yaml").read_text() == "seed: 2\n"


@pytest.mark.parametrize("revision", ["nowhere", "-q", "main:params.yaml"])
def test_an_unknown_revision_is_named(project: Workspace, revision: str) -> None:
    with pytest.raises(WorkspaceError, match=rf"^revision: .*{revision}"):
        checkout_revision(project, revision)


def test_a_revision_without_the_project_is_refused(project: Workspace, git: Git) -> None:
    git("rm", "--quiet", "--cached", "params.yaml")
    git("commit", "--quiet", "--message=gone")
    with pytest.raises(WorkspaceError, match=r"main has no params\.yaml"):
        checkout_revision(project, "main")


def test_the_newest_commit_of_a_remote_branch_is_fetched(project: Workspace, git: Git, tmp_path: Path) -> None:
    git("clone", "--quiet", ".", str(tmp_path / "clone"))
    git("commit", "--quiet", "--all", "--message=newer")
    checkout = checkout_revision(Workspace(tmp_path / "clone"), "origin/main")
    assert current_commit(checkout) == git("rev-parse", "HEAD")


def test_outside_a_repository_there_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    (tmp_path / "params.yaml").touch()
    with pytest.raises(WorkspaceError, match=r"not a git repository.*leave `revision` empty"):
        checkout_revision(Workspace(tmp_path), "HEAD")


def test_without_git_there_is_an_error(project: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(WorkspaceError, match=r"git cannot be run.*install git"):
        checkout_revision(project, "HEAD")


@pytest.mark.system
@pytest.mark.parametrize("place", ["here", "/elsewhere/.git/worktrees/production"])  # where its run sees the project
def test_a_folder_in_use_is_not_changed(project: Workspace, place: str) -> None:
    checkout = checkout_revision(project, "main")
    if place != "here":
        (checkout.root / ".git").write_text(f"gitdir: {place}\n")
    with FileLock(checkout.state / "workspace.lock"), pytest.raises(WorkspaceBusy, match="another run holds"):
        checkout_revision(project, "old")
    assert checkout.params.read_text() == "seed: 2\n"
    assert place == "here" or place in (checkout.root / ".git").read_text()


def test_a_git_worktree_has_the_records_of_the_main_one(project: Workspace, git: Git, tmp_path: Path) -> None:
    git("worktree", "add", "--quiet", str(tmp_path / "second"), "HEAD")
    second = Workspace(tmp_path / "second")
    assert second.project == project
    assert second.mlruns == project.mlruns
    assert address(second, Params().tracking) == address(project, Params().tracking)
    assert second.params.parent == tmp_path / "second"
    assert project.project == project


@pytest.mark.parametrize(
    ("below", "dvc", "temporary"),  # of the project, of `dvc init` (with --subdir), and of the clone
    [
        ("", "", "tmp123"),  # --queue
        ("", "", "standalone/tmp123"),  # --temp
        ("models/digits", "", "standalone/tmp123"),
        ("models/digits", "models/digits", "tmp123"),
    ],
)
def test_a_dvc_experiment_has_the_records_of_the_project(
    project: Workspace, git: Git, below: str, dvc: str, temporary: str
) -> None:
    owner = Workspace(project.root / below)
    if below:
        owner.root.mkdir(parents=True)
        owner.params.write_text("seed: 4\n")
        git("add", owner.params.as_posix())
        git("commit", "--quiet", "--message=below")
    clone = project.root / dvc / ".dvc" / "tmp" / "exps" / temporary
    git("clone", "--quiet", str(project.root), str(clone))
    experiment = Workspace.find(clone / below)
    assert experiment.root == clone / below
    assert experiment.project == owner
    ledger = Params().registry.ledger
    assert experiment.database(ledger) == owner.database(ledger)
    assert experiment.packed == clone / below / "data" / "packed"


def test_an_experiment_in_a_worktree_has_the_projects_records(project: Workspace, git: Git, tmp_path: Path) -> None:
    git("worktree", "add", "--quiet", str(tmp_path / "second"), "HEAD")
    clone = tmp_path / "second" / ".dvc" / "tmp" / "exps" / "tmp123"
    git("clone", "--quiet", str(tmp_path / "second"), str(clone))
    assert Workspace(clone).project == project
