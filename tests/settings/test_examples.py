"""Ready-made settings, the schema (checked by jsonschema's own validator) and the generated docs tables."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from ratchet import settings
from ratchet.errors import SettingsError
from ratchet.settings import example_files
from ratchet.settings.generated import DOCS, SCHEMA, fill_tables, schema, table
from ratchet.settings.model import BudgetSettings, Params
from ratchet.settings.search_space import is_inside, parse_space, present_values
from ratchet.workspace import Workspace

REPOSITORY = Path(__file__).parents[2]
NAMES = [example.name for example in example_files.listed(REPOSITORY)]
VALIDATOR = Draft202012Validator(YAML(typ="safe").load(schema()))


def faults_in(text: str) -> list[str]:
    """Return the errors of a settings file by the schema."""
    return [error.message for error in VALIDATOR.iter_errors(YAML(typ="safe").load(text))]


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """Return a project with the examples and the shipped settings, committed."""
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


def test_all_examples_of_the_readme_exist() -> None:
    images = {"digits", "digits-search", "cifar10", "cifar10-fast", "fashion-mnist", "photos", "photos-from-scratch"}
    assert set(NAMES) == images | {"tabular-classification", "tabular-regression", "text-sentiment", "language-model"}


@pytest.mark.parametrize("name", NAMES)
def test_an_example_with_the_defaults_is_complete(name: str, tmp_path: Path) -> None:
    example = example_files.Example(REPOSITORY / "examples" / f"{name}.yaml")
    (tmp_path / "params.yaml").write_text(example_files.compose(example), encoding="utf-8")
    loaded, shipped = settings.flatten(settings.load(tmp_path / "params.yaml")), settings.flatten(Params())
    assert {key: value for key, value in loaded.items() if value != shipped[key]}.keys() <= example.settings.keys()
    expected = {key: tuple(value) if isinstance(value, list) else value for key, value in example.settings.items()}
    assert {key: loaded[key] for key in expected} == expected
    assert example.about.endswith(".")
    assert len(example.about) < 105  # it is shown beside the name on one line


@pytest.mark.parametrize("name", NAMES)
def test_the_space_of_an_example_contains_its_settings(name: str, tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(
        example_files.compose(example_files.Example(REPOSITORY / "examples" / f"{name}.yaml")), encoding="utf-8"
    )
    params = settings.load(path)
    space = parse_space(params)
    assert is_inside(space, present_values(space, params))


@pytest.mark.parametrize("path", ["params.yaml", *(f"examples/{name}.yaml" for name in NAMES)])
def test_the_schema_accepts_the_shipped_files(path: str) -> None:
    text = (REPOSITORY / path).read_text(encoding="utf-8")
    named = text.splitlines()[0].removeprefix("# yaml-language-server: $schema=")
    assert ((REPOSITORY / path).parent / named).resolve() == SCHEMA
    assert faults_in(text) == []


def test_the_schema_file_is_up_to_date() -> None:
    """Fix: python -m ratchet.settings.generated."""
    assert SCHEMA.read_text(encoding="utf-8") == schema()
    Draft202012Validator.check_schema(VALIDATOR.schema)


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_tables_of_settings_are_up_to_date(page: Path) -> None:
    """Fix: python -m ratchet.settings.generated."""
    text = page.read_text(encoding="utf-8")
    assert fill_tables(text) == text


def test_a_table_holds_one_group_of_settings() -> None:
    rows = table("training.max_rollbacks").splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == ["max_rollbacks", "doctor"]
    assert len(table("budget").splitlines()) == 2 + len(BudgetSettings.model_fields)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("training: {epohcs: 3}", "'epohcs' was unexpected"),
        ("training: {epochs: 0}", "0 is less than the minimum of 1"),
        ("training: {optimizer: adagrad}", "'adagrad' is not one of"),
        ("training: {class_weights: [1.0, 0.0]}", "is not valid under any of the given schemas"),
        ("trainig: {}", "'trainig' was unexpected"),
    ],
)
def test_the_schema_refuses_what_the_settings_refuse(text: str, expected: str) -> None:
    [fault] = faults_in(text)
    assert expected in fault


def test_every_setting_has_a_description_in_the_schema() -> None:
    groups: list[dict[str, Any]] = [VALIDATOR.schema, *VALIDATOR.schema["$defs"].values()]
    fields = [field for group in groups for field in group["properties"].values() if "$ref" not in field]
    assert len(fields) == len(settings.flatten(Params()))
    assert all(field["description"] and "default" in field for field in fields)


def test_use_changes_the_settings_of_the_example(workspace: Workspace) -> None:
    changed = example_files.use(workspace.root, "cifar10")
    assert changed["data.source"] == ("digits", "CIFAR10")
    assert changed["training.epochs"] == (30, 20)
    assert "training.optimizer" not in changed
    assert (workspace.root / "data" / "raw" / "cifar10").is_dir()
    before, after = settings.template().splitlines(), workspace.params.read_text(encoding="utf-8").splitlines()
    differing = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert len(differing) == len(changed)
    assert all(old.partition("  #")[2] == new.partition("  #")[2] for old, new in differing)  # comments are kept


def test_use_replaces_the_example_before(workspace: Workspace) -> None:
    example_files.use(workspace.root, "photos")
    example_files.use(workspace.root, "cifar10")
    example_files.use(workspace.root, "digits")
    assert workspace.params.read_text(encoding="utf-8") == settings.template()


def test_uncommitted_changes_are_lost_only_by_force(workspace: Workspace) -> None:
    settings.override(workspace.params, {"training.epochs": 3})
    mine = workspace.params.read_bytes()
    with pytest.raises(SettingsError, match=r"uncommitted changes.*ratchet use cifar10 --force"):
        example_files.use(workspace.root, "cifar10")
    assert workspace.params.read_bytes() == mine
    commit(workspace.root)
    assert example_files.use(workspace.root, "cifar10")["training.epochs"] == (3, 20)
    settings.override(workspace.params, {"training.epochs": 4})
    assert example_files.use(workspace.root, "cifar10", force=True) == {"training.epochs": (4, 20)}


def test_without_git_only_shipped_settings_are_replaced(workspace: Workspace) -> None:
    shutil.rmtree(workspace.root / ".git")
    example_files.use(workspace.root, "photos")
    settings.override(workspace.params, {"seed": 7})
    with pytest.raises(SettingsError, match="uncommitted"):
        example_files.use(workspace.root, "digits")


def test_settings_of_servers_stay(workspace: Workspace) -> None:
    settings.override(workspace.params, {"tracking.uri": "http://mlflow:5000", "platform.mlflow_port": 5050})
    commit(workspace.root)
    assert not {"tracking.uri", "platform.mlflow_port"} & example_files.use(workspace.root, "photos").keys()
    params = settings.load(workspace.params)
    assert (params.tracking.uri, params.platform.mlflow_port) == ("http://mlflow:5000", 5050)
    example_files.use(workspace.root, "digits")  # settings that `use` wrote do not count as changes


def test_a_broken_file_is_replaced_only_by_force(workspace: Workspace) -> None:
    workspace.params.write_text("training: {epochs: 0}\n", encoding="utf-8")
    with pytest.raises(SettingsError, match=r"training.epochs: found 0"):
        example_files.use(workspace.root, "digits")
    example_files.use(workspace.root, "digits", force=True)
    assert workspace.params.read_text(encoding="utf-8") == settings.template()


def test_an_unknown_name_is_reported_with_the_existing_ones(workspace: Workspace) -> None:
    with pytest.raises(SettingsError, match=r"examples/cifar\.yaml: no such example. Allowed: .*cifar10.*digits"):
        example_files.use(workspace.root, "cifar")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("training: {epohcs: 1}", "mine.yaml: training.epohcs: unknown key"),
        ("training: {epochs: 0}", "mine.yaml: training.epochs: found 0"),
        ("a: [", "examples/mine.yaml: not settings in YAML"),
        ("- a", "examples/mine.yaml: not settings in YAML"),
    ],
)
def test_a_wrong_example_is_reported_by_name(workspace: Workspace, text: str, expected: str) -> None:
    (workspace.root / "examples" / "mine.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError) as caught:
        example_files.use(workspace.root, "mine", force=True)
    assert expected in str(caught.value)
    assert workspace.params.read_text(encoding="utf-8") == settings.template()
