"""The patch of uncommitted changes: applied to a clone it gives the same files, and the repository is unchanged."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from ratchet.errors import WorkspaceError
from ratchet.git import keep, line
from ratchet.provenance.git_patch import MAX_UNTRACKED, UncommittedChanges, uncommitted_changes
from ratchet.provenance.record import begin_record, new_record
from ratchet.registry.provenance_record import Provenance
from ratchet.settings.model import Params
from ratchet.workspace import Workspace


def git(root: Path, *arguments: str) -> bytes:
    own = ("-c", "user.name=tests", "-c", "user.email=tests@localhost", "-c", "init.defaultBranch=main")
    return subprocess.run(["git", "-C", str(root), *own, *arguments], check=True, capture_output=True).stdout


def commit(root: Path) -> None:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message=one")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with three committed files and one that is ignored."""
    root = tmp_path / "project"
    root.mkdir()
    git(root, "init", "--quiet")
    for name, content in {"a.py": "a = 1\n", "b.py": "b = 1\n", "c.bin": "\0\1", ".gitignore": "ignored*\n"}.items():
        (root / name).write_text(content)
    commit(root)
    return root


def content(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".git" not in path.parts
    }


def test_the_patch_restores_the_files_on_a_clone(root: Path, tmp_path: Path) -> None:
    (root / "a.py").write_text("a = 2")  # no newline at its end
    (root / "b.py").unlink()
    (root / "c.bin").write_bytes(b"\0\2\xff\r\n  \n\n")
    (root / "nets").mkdir()
    (root / "nets" / "ü b.py").write_text("new = 1  \n\n\n")
    (root / "staged.py").write_text("staged = 1\n")
    git(root, "add", "staged.py")
    before = {path: path.read_bytes() for path in (root / ".git").rglob("*") if path.is_file()}

    changes = uncommitted_changes(root)
    assert {path: path.read_bytes() for path in (root / ".git").rglob("*") if path.is_file()} == before
    patch = tmp_path / "patch"
    patch.write_bytes(changes.patch)
    clone = tmp_path / "clone"
    git(root, "clone", "--quiet", str(root), str(clone))
    git(clone, "apply", "--binary", str(patch))
    assert content(clone) == content(root)
    assert changes.left_out == ()


def test_without_changes_the_patch_is_empty(root: Path) -> None:
    (root / "ignored.txt").write_text("x")
    (root / "dvc.lock").write_text("written by a run")
    changes = uncommitted_changes(root)
    assert (changes.patch, changes.digest, changes.left_out) == (b"", None, ())


def test_data_and_large_files_are_left_out_and_named(root: Path) -> None:
    for name in ("data/pets/1.png", "data/pets/2.png", "data/pets.dvc", "photos/3.png", "photos/net.py", "nets/net.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "nets" / "large.bin").write_bytes(bytes(MAX_UNTRACKED + 1))
    (root / "nets" / "exact.bin").write_bytes(bytes(MAX_UNTRACKED))
    changes = uncommitted_changes(root, data=("data", "photos"), code=("photos/net.py",))
    assert changes.left_out == ("data", "nets/large.bin", "photos")
    for name in ("data/pets.dvc", "photos/net.py", "nets/net.py", "nets/exact.bin"):
        assert f"b/{name}".encode() in changes.patch


def test_a_nested_repository_is_left_out(root: Path) -> None:
    (root / "other").mkdir()
    git(root / "other", "init", "--quiet")
    (root / "other" / "x.py").write_text("x = 1\n")
    commit(root / "other")
    changes = uncommitted_changes(root)
    assert (changes.patch, changes.left_out) == (b"", ("other/",))


def test_a_project_in_a_repositorys_folder_has_its_patch(root: Path, tmp_path: Path) -> None:
    (root / "project").mkdir()
    (root / "project" / "new.py").write_text("new = 1\n")
    (root / "project" / "dvc.lock").write_text("made")
    (root / "a.py").write_text("a = 3\n")
    changes = uncommitted_changes(root / "project")
    assert b"b/project/new.py" in changes.patch
    assert b"b/a.py" in changes.patch
    assert b"dvc.lock" not in changes.patch


@pytest.mark.parametrize(
    "setting",
    ["diff.noprefix true", "diff.mnemonicPrefix true", "diff.relative true", "diff.orderFile /gone", "diff.context 0"],
)
def test_the_users_git_settings_do_not_change_the_patch(root: Path, tmp_path: Path, setting: str) -> None:
    (root / "project").mkdir()
    (root / "project" / "net.py").write_text("one\n" * 9 + "net = 1\n" + "two\n" * 9)
    commit(root)
    (root / "project" / "net.py").write_text("one\n" * 9 + "net = 2\n" + "two\n" * 9)
    (root / "a.py").write_text("a = 3\n")
    usual = uncommitted_changes(root / "project").patch
    git(root, "config", *setting.split())
    changes = uncommitted_changes(root / "project")
    (tmp_path / "patch").write_bytes(changes.patch)
    git(root, "clone", "--quiet", str(root), str(tmp_path / "clone"))
    git(tmp_path / "clone", "apply", "--binary", str(tmp_path / "patch"))
    assert content(tmp_path / "clone") == content(root)
    assert changes.patch == usual


@pytest.fixture
def with_submodule(root: Path, tmp_path: Path) -> Path:
    """The repository with another one in it as the submodule `library`."""
    root.rename(tmp_path / "library")
    root.mkdir()
    git(root, "init", "--quiet")
    git(root, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(tmp_path / "library"), "library")
    commit(root)
    return root


@pytest.mark.parametrize("setting", ["diff.submodule log", "diff.submodule diff", "diff.ignoreSubmodules all"])
def test_a_submodule_at_another_commit_is_in_the_patch(with_submodule: Path, tmp_path: Path, setting: str) -> None:
    root = with_submodule
    git(root, "config", *setting.split())
    git(root / "library", "commit", "--quiet", "--allow-empty", "--message=two")
    (tmp_path / "patch").write_bytes(uncommitted_changes(root).patch)
    git(root, "clone", "--quiet", str(root), str(tmp_path / "clone"))
    git(tmp_path / "clone", "apply", "--index", str(tmp_path / "patch"))
    recorded = git(tmp_path / "clone", "rev-parse", ":library")
    assert recorded == git(root / "library", "rev-parse", "HEAD")


@pytest.mark.parametrize("flag", ["--skip-worktree", "--assume-unchanged"])
def test_changes_that_are_hidden_from_git_are_in_the_patch(
    root: Path, flag: str, caplog: pytest.LogCaptureFixture
) -> None:
    git(root, "update-index", flag, "a.py", "b.py")
    assert (uncommitted_changes(root).patch, caplog.text) == (b"", "")
    (root / "a.py").write_text("a = 2\n")
    assert git(root, "diff") == b""
    index = (root / ".git" / "index").read_bytes()
    patch = uncommitted_changes(root).patch
    assert (b"+a = 2" in patch, b"b.py" in patch) == (True, False)
    assert "git hides (--skip-worktree, --assume-unchanged): a.py" in caplog.text
    assert (root / ".git" / "index").read_bytes() == index


def test_a_hidden_deletion_is_in_the_patch(root: Path) -> None:
    git(root, "update-index", "--assume-unchanged", "a.py")
    (root / "a.py").unlink()
    assert b"deleted file" in uncommitted_changes(root).patch


def test_files_outside_of_a_sparse_checkout_are_not_deleted(root: Path) -> None:
    git(root, "sparse-checkout", "set", "--no-cone", "/a.py")
    assert not (root / "b.py").exists()
    assert uncommitted_changes(root).patch == b""
    (root / "b.py").write_text("b = 30\n")
    (root / "new.py").write_text("new = 1\n")
    patch = uncommitted_changes(root).patch
    assert (b"+b = 30" in patch, b"+new = 1" in patch, b"a.py" in patch) == (True, True, False)


@pytest.mark.parametrize("change", ["edited", "new", "staged"])
def test_changes_inside_a_submodule_are_named(with_submodule: Path, change: str) -> None:
    root = with_submodule
    git(root / "library", "config", "status.showUntrackedFiles", "no")
    assert uncommitted_changes(root).left_out == ()
    (root / "library" / ("new.py" if change == "new" else "a.py")).write_text("a = 2\n")
    if change == "staged":
        git(root / "library", "add", "a.py")
    assert uncommitted_changes(root).left_out == ("library/",)
    commit(root / "library")
    changes = uncommitted_changes(root)
    assert (changes.left_out, b"+Subproject commit" in changes.patch) == ((), True)


def test_a_submodule_that_git_cannot_read_is_named(with_submodule: Path) -> None:
    """As in a copy of the project: its .git is a file that leads nowhere."""
    (with_submodule / "a.py").write_text("a = 1\n")
    commit(with_submodule)
    (with_submodule / "a.py").write_text("a = 2\n")
    (with_submodule / "library" / ".git").write_text("gitdir: /nowhere\n")
    changes = uncommitted_changes(with_submodule)
    assert (changes.left_out, b"+a = 2" in changes.patch, b"library" in changes.patch) == (("library/",), True, False)


def test_without_git_there_is_no_patch_and_no_commit(tmp_path: Path) -> None:
    for _ in ("no repository", "no commit"):
        assert uncommitted_changes(tmp_path) == UncommittedChanges(None, b"", ())
        record = new_record(Workspace(tmp_path), Params(), flow_run=None)
        assert (record.git_commit, record.git_origin, record.git_uncommitted) == (None, None, None)
        git(tmp_path, "init", "--quiet")


def test_a_repository_above_a_ceiling_is_none_of_the_projects(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "project").mkdir()
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(root))
    assert uncommitted_changes(root / "project") == UncommittedChanges(None, b"", ())


def test_without_git_installed_there_is_no_patch(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert uncommitted_changes(root) == UncommittedChanges(None, b"", ())


def put_before_git(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a program `git` do this first, and then run the real one."""
    folder.mkdir()
    program, real = folder / "git", shutil.which("git")
    program.write_text(f'#!/bin/sh\n{script}\nexec {shlex.quote(str(real))} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def begin(root: Path, folder: Path) -> Provenance:
    return begin_record(folder, Workspace(root), Params(), flow_run=None, inputs=None, code_changes=())


def test_a_git_that_cannot_start_now_begins_no_record(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As without memory for another process: git is installed."""
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "git").touch(0o755)
    with monkeypatch.context() as only:
        only.setenv("PATH", str(tmp_path / "programs"))
        with pytest.raises(WorkspaceError, match=r"git cannot be run now .*Exec format error.*Fix: install git again"):
            begin(root, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert begin(root, tmp_path / "run").git_commit


def test_a_damaged_branch_is_not_taken_for_no_commit(root: Path) -> None:
    """A power cut can empty its file: git then says that there are no commits yet."""
    commit_id, branch = git(root, "rev-parse", "HEAD").decode().strip(), root / ".git" / "refs" / "heads" / "main"
    for damaged in (b"", bytes(41), b"garbage\n"):
        branch.write_bytes(damaged)
        with pytest.raises(WorkspaceError, match=r"refs/heads/main: damaged.*Fix: `rm ") as refused:
            uncommitted_changes(root)
        subprocess.run(str(refused.value).split("`")[1], shell=True, cwd=root, check=True)
        assert uncommitted_changes(root).commit == commit_id
    log = root / ".git" / "logs" / "refs" / "heads" / "main"
    for garbage in (b"garbage\n", bytes(9) + b"\n"):
        branch.write_bytes(b"")
        log.write_bytes(garbage)
        with pytest.raises(WorkspaceError, match=r"refs/heads/main: damaged.*update-ref HEAD COMMIT`"):
            uncommitted_changes(root)
    branch.write_text(f"{commit_id}\n")
    git(root, "checkout", "--quiet", "--orphan", "new")
    assert uncommitted_changes(root).commit is None
    head = root / ".git" / "HEAD"
    head.unlink()
    head.symlink_to("refs/heads/new")  # as core.preferSymlinkRefs makes it
    assert uncommitted_changes(root).commit is None


def test_a_git_that_fails_in_between_begins_no_record(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record without the patch would call the changed files clean, and one without commit cannot be repeated."""
    (root / "a.py").write_text("a = 2\n")
    folder = tmp_path / "run"
    fail_at_first = 'mkdir "$0.failed" 2>/dev/null && { echo "fatal: out of memory" >&2; exit 128; }'
    put_before_git(tmp_path / "programs", fail_at_first, monkeypatch)
    with pytest.raises(WorkspaceError, match="out of memory"):
        begin(root, folder)
    assert not folder.exists()
    record = begin(root, folder)
    assert record.git_commit == git(root, "rev-parse", "HEAD").decode().strip()
    assert (folder / "uncommitted.patch").read_bytes() == uncommitted_changes(root).patch != b""
    assert record.git_uncommitted == uncommitted_changes(root).digest


def test_a_commit_after_the_beginning_is_of_the_next_training(tmp_path: Path) -> None:
    """So the line about a record without a commit does not propose to commit and to continue."""
    root = tmp_path / "project"
    root.mkdir()
    (root / "a.py").write_text("a = 1\n")
    first = begin(root, tmp_path / "run")
    git(root, "init", "--quiet")
    commit(root)
    assert first.git_commit is None
    assert begin(root, tmp_path / "run").id == first.id
    assert begin(root, tmp_path / "next").git_commit == git(root, "rev-parse", "HEAD").decode().strip()


@pytest.mark.parametrize("fault", ["another owner", "no HEAD", "a worktree that was moved away"])
def test_a_repository_that_git_refuses_begins_no_record(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    if fault == "another owner":
        monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
        monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
        monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
        reason = r"dubious ownership.*safe\.directory"
    elif fault == "no HEAD":
        (root / ".git" / "HEAD").unlink()
        reason = (
            r"git rev-parse failed in .*not a git repository .*Fix: restore .*/\.git, which git cannot read, or delete"
        )
    else:
        git(root, "worktree", "add", "--quiet", str(tmp_path / "second"))
        root.rename(tmp_path / "moved")
        root, reason = tmp_path / "second", "git rev-parse failed in .*not a git repository: "
    with pytest.raises(WorkspaceError, match=reason):
        begin(root, tmp_path / "run")
    with pytest.raises(WorkspaceError, match=reason):
        new_record(Workspace(root), Params(), flow_run=None)
    assert not (tmp_path / "run").exists()


def test_a_commit_meanwhile_does_not_separate_patch_and_commit(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user commits the changes after the patch was made, while the record is written."""
    (root / "a.py").write_text("a = 2\n")
    first = git(root, "rev-parse", "HEAD").decode().strip()
    own = "-c user.name=tests -c user.email=tests@localhost"
    act = f"{shutil.which('git')} -C {shlex.quote(str(root))} {own} commit --quiet --all --message=two"
    put_before_git(tmp_path / "programs", f'case " $* " in *" config --get "*) {act};; esac', monkeypatch)
    record = begin(root, tmp_path / "run")
    assert git(root, "rev-parse", "HEAD").decode().strip() != first
    patch = (tmp_path / "run" / "uncommitted.patch").read_bytes()
    assert (record.git_commit, b"+a = 2" in patch) == (first, True)
    clone = tmp_path / "clone"
    git(root, "clone", "--quiet", str(root), str(clone))
    git(clone, "checkout", "--quiet", "--detach", first)
    git(clone, "apply", "--binary", str(tmp_path / "run" / "uncommitted.patch"))
    assert content(clone) == content(root)


def test_the_commit_of_a_version_outlives_an_amend(root: Path) -> None:
    """git deletes a commit that no branch has any more, and no other repository has one that was never pushed."""
    (root / "a.py").write_text("a = 2\n")
    recorded, lost = git(root, "rev-parse", "HEAD").decode().strip(), ""
    for content in ("two", "three"):
        (root / "a.py").write_text(content)
        git(root, "commit", "--quiet", "--amend", "--all", "--message=one")
        if content == "two":
            lost = git(root, "rev-parse", "HEAD").decode().strip()
    keep(root, recorded)
    git(root, "reflog", "expire", "--expire=now", "--all")
    git(root, "gc", "--quiet", "--prune=now")
    assert line(root, "rev-parse", "--quiet", "--verify", f"{recorded}^{{commit}}") == recorded
    assert line(root, "rev-parse", "--quiet", "--verify", f"{lost}^{{commit}}") is None


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://user:secret@example.org/team/project.git", "https://example.org/team/project.git"),
        ("https://secret@example.org:8443/project.git?token=secret", "https://example.org:8443/project.git"),
        ("ssh://git:secret@example.org/project.git", "ssh://git@example.org/project.git"),
        ("git@example.org:team/project.git", "git@example.org:team/project.git"),
        ("/srv/git/project.git", "/srv/git/project.git"),
    ],
)
def test_the_origin_has_no_password(root: Path, url: str, kept: str) -> None:
    git(root, "remote", "add", "origin", url)
    assert new_record(Workspace(root), Params(), flow_run=None).git_origin == kept


def test_the_id_is_a_digest_of_the_rest(root: Path) -> None:
    first, same = (new_record(Workspace(root), Params(), flow_run="flow") for _ in range(2))
    assert first == same
    assert new_record(Workspace(root), Params(seed=1), flow_run="flow").id != first.id
    (root / "a.py").write_text("a = 5\n")
    assert new_record(Workspace(root), Params(), flow_run="flow").id != first.id
