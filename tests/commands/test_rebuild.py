"""A rebuild: its libraries, and its copies of data, weights and code."""

import platform
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from commands.rebuild import Rebuild, Recipe
from ratchet import files, git, settings
from ratchet.errors import RegistryError
from ratchet.provenance.comparison import Change
from ratchet.provenance.record import installed_packages
from ratchet.workspace import Workspace
from tasks.dvc_store import DvcStore, hash_of
from tests.registry.conftest import RECORD


def test_a_source_file_or_folder_is_copied(tmp_path: Path) -> None:
    """DVC has neither any more, and the project has both unchanged."""
    project, again = tmp_path / "project", tmp_path / "again"
    (project / "raw" / "clips").mkdir(parents=True)
    again.mkdir()
    sources = {"raw/hour.csv": "raw/hour.csv", "raw/clips": "raw/clips/1.wav"}
    for file in sources.values():
        (project / file).write_text(file)
    record = replace(RECORD, dvc_inputs={path: hash_of(project / path) for path in sources})
    recipe = Recipe("m/1", record, tmp_path, tmp_path / "params.yaml", None, "")
    for path, file in sources.items():
        Rebuild(recipe, Workspace(project), Workspace(again))._fetch_source(path, DvcStore({}, {}))
        assert (again / file).read_text() == file


def test_a_library_that_the_record_lacks_is_no_difference(tmp_path: Path) -> None:
    """Records of before lack libraries that are recorded now, where they are installed."""
    packages = installed_packages()
    del packages["polars"]
    record = replace(RECORD, python=platform.python_version(), packages=packages)
    recipe = Recipe("m/1", record, tmp_path, tmp_path / "params.yaml", None, "")
    assert recipe.other_versions() == []
    other = replace(recipe, record=replace(record, packages={**packages, "torch": "0.1"}))
    assert other.other_versions() == [Change("torch", "0.1", packages["torch"])]


def test_settings_of_a_rebuild_have_no_hooks(tmp_path: Path) -> None:
    """They decide no weight, and git may not have their code."""
    again = Workspace(tmp_path / "again")
    again.root.mkdir()
    params = tmp_path / "params.yaml"
    params.write_text(settings.template())
    settings.override(params, {"training.epochs": 3, "training.hooks": ["plots:write"]})
    recipe = Recipe("m/1", RECORD, tmp_path, params, None, "")
    Rebuild(recipe, Workspace(tmp_path), again)._write_settings()
    assert settings.load(again.params).training.hooks == ()
    assert settings.load(again.params).training.epochs == 3


def test_a_parent_without_its_registry_is_copied(tmp_path: Path) -> None:
    """The project still has the files that the training began with; the version was deleted."""
    project, again = Workspace(tmp_path / "project"), Workspace(tmp_path / "again")
    weights = project.pretrained / "pets" / "3" / "model.safetensors"
    files.write_text(weights, "weights")
    record = replace(RECORD, parent="models:/pets/3", inputs={"pretrained": files.digest_file(weights)})
    recipe = Recipe("m/1", record, tmp_path, tmp_path / "params.yaml", None, "")
    Rebuild(recipe, project, again)._fetch_parent("models:/pets/3")
    assert (again.pretrained / "pets" / "3" / "model.safetensors").read_text() == "weights"


def test_pretrained_weights_under_another_name_are_copied(tmp_path: Path) -> None:
    """The recorded name is that of a cache, and the project fetched them by their address."""
    project, again = Workspace(tmp_path / "project"), Workspace(tmp_path / "again")
    files.write_text(project.pretrained / "tiny-other.safetensors", "other")
    files.write_text(project.pretrained / "tiny-0123abcd.safetensors", "weights")
    digest = files.digest_file(project.pretrained / "tiny-0123abcd.safetensors")
    recipe = Recipe("m/1", replace(RECORD, inputs={"pretrained": digest}), tmp_path, tmp_path / "p", None, "")
    Rebuild(recipe, project, again)._fetch_pretrained("tiny.safetensors", "pretrained", DvcStore({}, {}))
    assert (again.pretrained / "tiny.safetensors").read_text() == "weights"


@pytest.mark.parametrize("is_shallow", [False, True])
def test_another_ratchet_is_refused_by_name(tmp_path: Path, is_shallow: bool) -> None:
    """Also of a commit that only a ref of a shallow clone has, because it was amended."""
    own = ("-c", "user.name=N", "-c", "user.email=n@example.com", "commit", "--quiet", "--message", "New")
    project, again = tmp_path / "project", tmp_path / "again"
    files.write_text(project / "dvc.yaml", "stages:\n  code:\n    deps:\n      - ratchet.lock\n")
    files.write_json(project / "ratchet.lock", {"ratchet": "0.0.9", "code": "0123456789"})
    git.run(project, "init", "--quiet")
    git.run(project, "add", "--all")
    git.run(project, *own)
    if is_shallow:
        git.run(tmp_path, "clone", "--quiet", "--depth=1", project.as_uri(), "shallow")
        project = tmp_path / "shallow"
        git.run(project, *own, "--allow-empty")
    record = replace(RECORD, git_commit=git.text(project, "rev-parse", "HEAD"))
    git.keep(project, str(record.git_commit))
    git.run(project, *own, "--allow-empty", "--amend", "--message", "Again")
    recipe = Recipe("m/1", record, tmp_path, tmp_path / "params.yaml", None, "")
    with pytest.raises(
        RegistryError, match=r"m/1: its ratchet.lock names Ratchet 0.0.9 \(code 01234567\), and .*anyway"
    ):
        Rebuild.checkout_revision(recipe, Workspace(project), again, DvcStore({}, {}), anyway=False)
    assert not again.exists()


def test_a_missing_submodule_is_named_with_the_version(tmp_path: Path) -> None:
    own = ("-c", "user.name=N", "-c", "user.email=n@example.com", "-c", "protocol.file.allow=always")
    library, project = tmp_path / "library", tmp_path / "project"
    for folder in (library, project):
        files.write_text(folder / "code.py", "x = 1\n")
        git.run(folder, "init", "--quiet")
        git.run(folder, "add", "--all")
        git.run(folder, *own, "commit", "--quiet", "--message", "New")
    git.run(project, *own, "submodule", "--quiet", "add", str(library), "library")
    git.run(project, *own, "commit", "--quiet", "--message", "Library")
    shutil.rmtree(project / "library")
    shutil.rmtree(project / ".git" / "modules")
    record = replace(RECORD, git_commit=git.text(project, "rev-parse", "HEAD"))
    recipe = Recipe("m/1", record, tmp_path, tmp_path / "params.yaml", None, "")
    with pytest.raises(RegistryError, match=r"^m/1: its code cannot be checked out: the submodule library at commit"):
        Rebuild.checkout_revision(recipe, Workspace(project), tmp_path / "again", DvcStore({}, {}), anyway=False)
