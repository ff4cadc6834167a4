"""`ratchet use`, `set`, `get`, `diff` and `--version`, on a params.yaml of its own."""

import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from commands.app import Panel
from commands.cli import app
from ratchet import __version__, files, settings

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a folder with the shipped settings and the examples."""
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    path = tmp_path / "params.yaml"
    path.write_text(settings.template(), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return path


def run(*arguments: str, code: int = 0) -> str:
    """Run a command that ends with `code`; return what it prints to either stream."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, result.output
    return result.output


def test_set_prints_what_changed(file: Path) -> None:
    output = run("set", "training.epochs=3", "training.betas=[0.8, 0.9]", "seed=0", "data.formats=[png]")
    assert output.splitlines() == [
        "training.epochs: 30 -> 3",
        "training.betas: [0.9, 0.999] -> [0.8, 0.9]",
        "seed: 0 (unchanged)",
        "data.formats: [jpeg, png, webp, bmp, tiff] -> [png]",
    ]
    assert run("set", "training.learning_rate=1e-3") == "training.learning_rate: 2.0e-3 -> 1.0e-3\n"


def test_set_repairs_a_file_with_a_wrong_value(file: Path) -> None:
    file.write_text(settings.template().replace("optimizer: adamw", "optimizer: AdamW"), encoding="utf-8")
    assert "Did you mean adamw?" in run("get", "training.optimizer", code=1)
    assert run("set", "training.optimizer=adamw") == "training.optimizer: AdamW -> adamw\n"
    assert file.read_text(encoding="utf-8") == settings.template()


def test_password_in_the_file_is_replaced_without_being_printed(file: Path) -> None:
    shipped = "sqlite:///mlruns/mlflow.db"
    file.write_text(settings.template().replace(shipped, "postgresql://ann:5ec4e7@host/db"), encoding="utf-8")
    assert run("set", f"tracking.uri={shipped}") == f"tracking.uri: postgresql://ann:***@host/db -> {shipped}\n"


def test_get_prints_a_value_or_a_section(file: Path) -> None:
    assert run("get", "training.learning_rate") == "2.0e-3\n"
    assert run("get", "data.formats") == "[jpeg, png, webp, bmp, tiff]\n"
    assert run("get", "seed") == "0\n"
    section = run("get", "budget").splitlines()
    assert section == [f"budget.{name}: 0.0" for name in type(settings.load(file).budget).model_fields]


@pytest.mark.parametrize("command", [("get", "training.epochs"), ("diff",)])
def test_a_killed_run_leaves_no_setting_to_print(file: Path, command: tuple[str, ...]) -> None:
    note, before = file.parent / ".ratchet" / "overrides.json", file.read_text()
    after = before.replace("epochs: 30", "epochs: 7")
    file.write_text(after)
    files.write_json(note, {"keys": ["training.epochs"], "before": before, "after": after})
    restored, value = run(*command).splitlines()
    assert "training.epochs is 30 again" in restored
    assert value == ("30" if command[0] == "get" else "No setting differs from the defaults.")


def test_get_of_an_unknown_key_names_the_nearest(file: Path) -> None:
    message = "params.yaml: training.epoch: unknown key. Did you mean training.epochs?"
    assert run("get", "training.epoch", code=1) == f"ratchet: {message}\n"
    assert "Did you mean training.epochs?" in run("get", "epochs", code=1)


def test_diff_lists_what_differs_from_the_defaults(file: Path) -> None:
    assert run("diff") == "No setting differs from the defaults.\n"
    run("set", "training.epochs=3", "search.space={training.weight_decay: {float: [0.1, 0.9]}}")
    assert run("diff").splitlines() == [
        "training.epochs: 30 -> 3",
        "search.space: {} -> {training.weight_decay: {float: [0.1, 0.9]}}",
    ]


def test_diff_lists_what_differs_from_an_example(file: Path) -> None:
    run("use", "cifar10")
    assert run("diff", "cifar10") == "No setting differs from the example cifar10.\n"
    run("set", "training.epochs=3")
    assert run("diff", "cifar10") == "training.epochs: 20 -> 3\n"
    assert "data.source: digits -> CIFAR10" in run("diff").splitlines()
    assert run("diff", "cifar", code=1).endswith("Did you mean cifar10?\n")


def test_version_is_that_of_the_package() -> None:
    assert run("--version") == f"ratchet {__version__}\n"


def test_help_lists_commands_by_workflow_in_whole_sentences() -> None:
    output = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}).output
    headings = re.findall(r"^([A-Z].+):$", output, re.MULTILINE)
    assert headings == ["Options", *(panel.value for panel in Panel if panel is not Panel.COMMANDS)]
    assert "..." not in output.replace("[ARGS]...", "")
