"""The patch of uncommitted changes: applied to a clone it gives the same files, and the repository is unchanged."""

import subprocess
from pathlib import Path

import pytest

from ratchet.provenance.git_patch import MAX_UNTRACKED, uncommitted_changes
from ratchet.provenance.record import new_record
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
    assert changes is not None
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
    assert changes is not None
    assert (changes.patch, changes.digest, changes.left_out) == (b"", None, ())


def test_data_and_large_files_are_left_out_and_named(root: Path) -> None:
    for name in ("data/pets/1.png", "data/pets/2.png", "data/pets.dvc", "photos/3.png", "photos/net.py", "nets/net.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "nets" / "large.bin").write_bytes(bytes(MAX_UNTRACKED + 1))
    (root / "nets" / "exact.bin").write_bytes(bytes(MAX_UNTRACKED))
    changes = uncommitted_changes(root, data=("data", "photos"), code=("photos/net.py",))
    assert changes is not None
    assert changes.left_out == ("data", "nets/large.bin", "photos")
    for name in ("data/pets.dvc", "photos/net.py", "nets/net.py", "nets/exact.bin"):
        assert f"b/{name}".encode() in changes.patch


def test_a_nested_repository_is_left_out(root: Path) -> None:
    (root / "other").mkdir()
    git(root / "other", "init", "--quiet")
    (root / "other" / "x.py").write_text("x = 1\n")
    commit(root / "other")
    changes = uncommitted_changes(root)
    assert changes is not None
    assert (changes.patch, changes.left_out) == (b"", ("other/",))


def test_a_project_in_a_repositorys_folder_has_its_patch(root: Path, tmp_path: Path) -> None:
    (root / "project").mkdir()
    (root / "project" / "new.py").write_text("new = 1\n")
    (root / "project" / "dvc.lock").write_text("made")
    (root / "a.py").write_text("a = 3\n")
    changes = uncommitted_changes(root / "project")
    assert changes is not None
    assert b"b/project/new.py" in changes.patch
    assert b"b/a.py" in changes.patch
    assert b"dvc.lock" not in changes.patch


def test_without_git_there_is_no_patch_and_no_commit(tmp_path: Path) -> None:
    assert uncommitted_changes(tmp_path) is None
    record = new_record(Workspace(tmp_path), Params(), flow_run=None)
    assert (record.git_commit, record.git_origin, record.git_uncommitted) == (None, None, None)


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
