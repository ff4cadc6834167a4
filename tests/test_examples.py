"""The ready settings, and how one is put in place. The truth about the schema is jsonschema's own validator."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from ratchet import settings
from ratchet.errors import SettingsError
from ratchet.settings import examples
from ratchet.settings.model import Params
from ratchet.settings.schema import PATH, schema
from ratchet.workspace import Workspace

REPOSITORY = Path(__file__).parents[1]
NAMES = [example.name for example in examples.listed(Workspace(REPOSITORY))]
VALIDATOR = Draft202012Validator(YAML(typ="safe").load(schema()))


def faults_in(text: str) -> list[str]:
    """What the schema has against a settings file."""
    return [error.message for error in VALIDATOR.iter_errors(YAML(typ="safe").load(text))]


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """A project with the examples and the shipped settings, committed."""
    shutil.copytree(REPOSITORY / "examples", tmp_path / "examples")
    (tmp_path / "params.yaml").write_text(settings.template(), encoding="utf-8")
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return Workspace(tmp_path)


def git(root: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(root), *arguments], check=True)


def commit(root: Path) -> None:
    git(root, "add", "--all")
    git(root, "-c", "user.name=tests", "-c", "user.email=tests@localhost", "commit", "--quiet", "--message=settings")


def test_there_are_examples_for_the_work_the_readme_names() -> None:
    assert set(NAMES) == {"digits", "cifar10", "cifar10-fast", "fashion-mnist", "photos"}


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_whole_settings_once_the_defaults_are_below_it(name: str, tmp_path: Path) -> None:
    example = examples.Example(REPOSITORY / "examples" / f"{name}.yaml")
    (tmp_path / "params.yaml").write_text(examples.compose(example), encoding="utf-8")
    loaded, shipped = settings.flatten(settings.load(tmp_path / "params.yaml")), settings.flatten(Params())
    assert {key: value for key, value in loaded.items() if value != shipped[key]}.keys() <= example.settings.keys()
    asked = {key: tuple(value) if isinstance(value, list) else value for key, value in example.settings.items()}
    assert {key: loaded[key] for key in asked} == asked
    assert example.about.endswith(".")
    assert len(example.about) < 105  # it is shown beside the name on one line


@pytest.mark.parametrize("path", ["params.yaml", *(f"examples/{name}.yaml" for name in NAMES)])
def test_an_editor_finds_the_schema_and_it_accepts_the_file(path: str) -> None:
    text = (REPOSITORY / path).read_text(encoding="utf-8")
    named = text.splitlines()[0].removeprefix("# yaml-language-server: $schema=")
    assert ((REPOSITORY / path).parent / named).resolve() == PATH
    assert faults_in(text) == []


def test_the_schema_file_is_of_these_settings() -> None:
    """If not: python -m ratchet.settings.schema."""
    assert PATH.read_text(encoding="utf-8") == schema()
    Draft202012Validator.check_schema(VALIDATOR.schema)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("training: {epohcs: 3}", "'epohcs' was unexpected"),
        ("training: {epochs: 0}", "0 is less than the minimum of 1"),
        ("training: {optimizer: adagrad}", "'adagrad' is not one of"),
        ("training: {class_weights: [1.0, 0.0]}", "is not valid under any of the given schemas"),
        ("trainig: {}", "'trainig' was unexpected"),
    ],
)
def test_the_schema_refuses_what_the_settings_refuse(text: str, words: str) -> None:
    [told] = faults_in(text)
    assert words in told


def test_every_setting_has_its_meaning_in_the_schema() -> None:
    groups: list[dict[str, Any]] = [VALIDATOR.schema, *VALIDATOR.schema["$defs"].values()]
    told = [field for group in groups for field in group["properties"].values() if "$ref" not in field]
    assert len(told) == len(settings.flatten(Params()))
    assert all(field["description"] and "default" in field for field in told)


def test_using_one_changes_what_it_says_and_says_what_it_changed(workspace: Workspace) -> None:
    changed = examples.use(workspace, "cifar10")
    assert changed["data.source"] == ("digits", "CIFAR10")
    assert changed["training.epochs"] == (30, 20)
    assert "training.optimizer" not in changed
    assert (workspace.root / "data" / "raw" / "cifar10").is_dir()
    before, after = settings.template().splitlines(), workspace.params.read_text(encoding="utf-8").splitlines()
    differing = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert len(differing) == len(changed)
    assert all(old.partition("  #")[2] == new.partition("  #")[2] for old, new in differing)  # comments are kept


def test_one_after_another_is_the_last_alone(workspace: Workspace) -> None:
    examples.use(workspace, "photos")
    examples.use(workspace, "cifar10")
    examples.use(workspace, "digits")
    assert workspace.params.read_text(encoding="utf-8") == settings.template()


def test_changes_that_only_this_file_holds_are_not_lost_unasked(workspace: Workspace) -> None:
    settings.override(workspace.params, {"training.epochs": 3})
    mine = workspace.params.read_bytes()
    with pytest.raises(SettingsError, match=r"changes of yours that are not committed.*ratchet use cifar10 --force"):
        examples.use(workspace, "cifar10")
    assert workspace.params.read_bytes() == mine
    commit(workspace.root)
    assert examples.use(workspace, "cifar10")["training.epochs"] == (3, 20)
    settings.override(workspace.params, {"training.epochs": 4})
    assert examples.use(workspace, "cifar10", force=True) == {"training.epochs": (4, 20)}


def test_without_git_shipped_settings_are_replaced_and_others_are_not(workspace: Workspace) -> None:
    shutil.rmtree(workspace.root / ".git")
    examples.use(workspace, "photos")
    settings.override(workspace.params, {"seed": 7})
    with pytest.raises(SettingsError, match="not committed"):
        examples.use(workspace, "digits")


def test_where_the_servers_are_stays(workspace: Workspace) -> None:
    settings.override(workspace.params, {"tracking.uri": "http://mlflow:5000", "platform.mlflow_port": 5050})
    commit(workspace.root)
    assert not {"tracking.uri", "platform.mlflow_port"} & examples.use(workspace, "photos").keys()
    params = settings.load(workspace.params)
    assert (params.tracking.uri, params.platform.mlflow_port) == ("http://mlflow:5000", 5050)
    examples.use(workspace, "digits")  # what `use` left is not a change of one's own


def test_a_broken_file_is_mended_by_force_alone(workspace: Workspace) -> None:
    workspace.params.write_text("training: {epochs: 1}\n", encoding="utf-8")
    with pytest.raises(SettingsError, match=r"seed: missing"):
        examples.use(workspace, "digits")
    examples.use(workspace, "digits", force=True)
    assert workspace.params.read_text(encoding="utf-8") == settings.template()


def test_a_name_that_is_not_there_is_told_with_those_that_are(workspace: Workspace) -> None:
    with pytest.raises(SettingsError, match=r"examples/cifar\.yaml: not there; there are .*cifar10.*digits"):
        examples.use(workspace, "cifar")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("training: {epohcs: 1}", "mine.yaml: training.epohcs: unknown key"),
        ("training: {epochs: 0}", "mine.yaml: training.epochs: found 0"),
        ("a: [", "examples/mine.yaml: not settings in YAML"),
        ("- a", "examples/mine.yaml: not settings in YAML"),
    ],
)
def test_an_example_of_one_s_own_that_is_wrong_is_named(workspace: Workspace, text: str, words: str) -> None:
    (workspace.root / "examples" / "mine.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError) as caught:
        examples.use(workspace, "mine", force=True)
    assert words in str(caught.value)
    assert workspace.params.read_text(encoding="utf-8") == settings.template()
