"""Submodules of a rebuild's checkout: from the project's own copies, nested ones too, at the commits of the patch."""

import shutil
from pathlib import Path

import pytest

from ratchet import git
from ratchet.git import GitError
from ratchet.provenance.git_patch import uncommitted_changes
from ratchet.provenance.submodules import update_submodules

OPTIONS = ("-c", "user.name=N", "-c", "user.email=n@example.com", "-c", "protocol.file.allow=always")


def repository(path: Path, **submodules: Path) -> Path:
    """Make a repository with a file, and submodules from other folders."""
    path.mkdir()
    git.run(path, "init", "--quiet")
    (path / "code.py").write_text(f"name = {path.name!r}\n")
    for name, source in submodules.items():
        git.run(path, *OPTIONS, "submodule", "--quiet", "add", str(source), name)
    commit(path)
    return path


def commit(path: Path) -> None:
    git.run(path, "add", "--all")
    git.run(path, *OPTIONS, "commit", "--quiet", "--message", "New")


def clone(project: Path, into: Path) -> Path:
    git.run(project, "clone", "--quiet", str(project), str(into))
    return into


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with the submodule `library`, which has the submodule `inner`. Their sources are deleted."""
    inner = repository(tmp_path / "source-inner")
    library = repository(tmp_path / "source-library", inner=inner)
    path = repository(tmp_path / "project", library=library)
    git.run(path, *OPTIONS, "submodule", "--quiet", "update", "--init", "--recursive")
    shutil.rmtree(inner)
    shutil.rmtree(library)
    return path


def test_nested_submodules_come_from_the_project_offline(project: Path, tmp_path: Path) -> None:
    checkout = clone(project, tmp_path / "checkout")
    assert not (checkout / "library" / "code.py").exists()
    update_submodules(checkout, project)
    assert (checkout / "library" / "code.py").read_text() == "name = 'source-library'\n"
    assert (checkout / "library" / "inner" / "code.py").read_text() == "name = 'source-inner'\n"


def test_a_local_commit_of_a_patch_is_checked_out(project: Path, tmp_path: Path) -> None:
    """No branch of the submodule has it."""
    git.run(project / "library", "checkout", "--quiet", "--detach")
    (project / "library" / "code.py").write_text("changed = 1\n")
    commit(project / "library")
    (tmp_path / "patch").write_bytes(uncommitted_changes(project).patch)
    checkout = clone(project, tmp_path / "checkout")
    git.run(checkout, "apply", "--index", str(tmp_path / "patch"))
    update_submodules(checkout, project)
    assert (checkout / "library" / "code.py").read_text() == "changed = 1\n"


@pytest.mark.parametrize("name", ["own", "my nets"])
def test_a_repository_inside_the_project_is_used(project: Path, tmp_path: Path, name: str) -> None:
    """As `git submodule add` leaves a folder that was a repository before."""
    repository(project / name)
    git.run(project, *OPTIONS, "submodule", "--quiet", "add", f"./{name}", name)
    commit(project)
    checkout = clone(project, tmp_path / "checkout")
    update_submodules(checkout, project)
    assert (checkout / name / "code.py").exists()


def test_submodules_of_a_git_worktree_are_found(project: Path, tmp_path: Path) -> None:
    """It has repositories of its own for them. Those of the first checkout are gone."""
    worktree = tmp_path / "worktree"
    git.run(project, "worktree", "add", "--quiet", str(worktree))
    parts = {"source-library": "library", "source-inner": "library/inner"}
    sources = [clone(project / place, tmp_path / source) for source, place in parts.items()]
    git.run(worktree, *OPTIONS, "submodule", "--quiet", "update", "--init", "--recursive")
    for source in sources:
        shutil.rmtree(source)
    shutil.rmtree(project / ".git" / "modules")
    checkout = clone(project, tmp_path / "checkout")
    update_submodules(checkout, worktree)
    assert (checkout / "library" / "code.py").exists()


def test_a_submodule_that_cannot_be_fetched_is_named(project: Path, tmp_path: Path) -> None:
    shutil.rmtree(project / ".git" / "modules")
    shutil.rmtree(project / "library")
    with pytest.raises(GitError, match=r"^the submodule library at commit [0-9a-f]{12} is not in .*Fix: fetch that"):
        update_submodules(clone(project, tmp_path / "checkout"), project)


def test_a_project_without_submodules_needs_nothing(tmp_path: Path) -> None:
    project = repository(tmp_path / "plain")
    update_submodules(clone(project, tmp_path / "checkout"), project)
