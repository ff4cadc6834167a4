"""The pages in docs/ keep up with the product."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from commands.app import Panel
from commands.cli import app
from flows.server.alert_rules import ALERT_RULES
from ratchet.evaluation.robustness import KINDS
from ratchet.settings import messages as settings_errors
from ratchet.settings.model import BudgetSettings, EvaluationSettings, TrainingSettings

DOCS = Path(__file__).parents[1] / "docs"
ROW = re.compile(r"^\| `(\w+)` \| `(.+?)` \| (.*) \|$", re.MULTILINE)  # of a table of settings


@pytest.fixture(scope="module")
def page() -> str:
    return (DOCS / "training.md").read_text(encoding="utf-8")


def test_rows_of_training_are_settings_with_their_defaults(page: str) -> None:
    """In the order of the file, each once and under the heading of its group; the advice is not the description."""
    fields, group = TrainingSettings.model_fields, ""
    rows = [row for row in ROW.findall(page) if row[0] not in BudgetSettings.model_fields]
    names = [name for name, _, _ in rows]
    assert names == sorted(set(names), key=list(fields).index)
    groups = {name: (group := TrainingSettings.captions.get(name, group)) for name in fields}
    for name, default, advice in rows:
        assert default == settings_errors.spell(fields[name].default)
        assert advice != fields[name].description
        assert f"| `{name}` |" in page.partition(f"## {groups[name]}\n")[2].partition("\n## ")[0]


def test_every_choice_of_a_setting_is_named(page: str) -> None:
    for name in ("loss", "optimizer", "schedule", "flip", "crop_fill", "precision", "compile", "best", "doctor"):
        field = TrainingSettings.model_fields[name]
        schema = TrainingSettings.model_json_schema()["properties"][name]
        for choice in next(each["enum"] for each in (schema, *schema.get("anyOf", ())) if "enum" in each):
            assert choice == field.default or f"`{choice}`" in page, f"{name}: {choice}"


@pytest.mark.parametrize("path", sorted(DOCS.glob("*.md")), ids=lambda path: path.name)
def test_every_training_setting_that_a_page_names_exists(path: Path) -> None:
    named = set(re.findall(r"`training\.(\w+)", path.read_text(encoding="utf-8")))
    assert named <= TrainingSettings.model_fields.keys()


def test_every_evaluation_setting_is_named_on_its_page() -> None:
    page = (DOCS / "evaluation.md").read_text(encoding="utf-8")
    missing = [name for name in EvaluationSettings.model_fields if not re.search(rf"`{name}\b", page)]
    assert not missing
    for kind in KINDS:
        assert f"`robustness_{kind}`" in page


def commands(group: TyperGroup, prefix: str = "ratchet") -> Iterator[tuple[str, TyperCommand | TyperGroup]]:
    """Yield each command, in the order of `ratchet --help`; of a group also its own name, if that is a command."""
    for name, command in group.commands.items():
        if not isinstance(command, TyperGroup) or command.invoke_without_command:
            yield f"{prefix} {name}", command
        if isinstance(command, TyperGroup):
            yield from commands(command, f"{prefix} {name}")


def test_every_command_is_listed_with_its_help() -> None:
    """Under the heading of its panel in `ratchet --help`."""
    _, *sections = (DOCS / "commands.md").read_text(encoding="utf-8").split("\n## ")
    listed = [
        (section.partition("\n")[0], *row)
        for section in sections
        for row in re.findall(r"^\| `(ratchet .+?)` \| (.+) \|$", section, re.MULTILINE)
    ]
    top = get_command(app)
    assert isinstance(top, TyperGroup)
    shown = [
        (top.commands[name.split()[1]].rich_help_panel, name, command.get_short_help_str(limit=1000))
        for name, command in commands(top)
    ]
    assert listed == sorted(shown, key=lambda row: list(Panel).index(row[0]))


def test_every_value_has_a_metavar_of_one_style() -> None:
    """A noun in capitals, without brackets and dots: typer adds those."""
    top = get_command(app)
    assert isinstance(top, TyperGroup)
    odd = [
        f"{name} {parameter.name}: {parameter.metavar}"
        for name, command in commands(top)
        for parameter in command.params
        if not getattr(parameter, "is_flag", False) and not re.fullmatch("[A-Z]+(=[A-Z]+)?", parameter.metavar or "")
    ]
    assert odd == []


def test_every_command_that_a_message_names_exists() -> None:
    """In backquotes, or as the whole of a text, which is how the advice at the end of a run names a command."""
    top = get_command(app)
    assert isinstance(top, TyperGroup)
    known = {name.removeprefix("ratchet ") for name, _ in commands(top)}
    groups = {name.split()[0] for name in known if " " in name}
    unknown = []
    for folder in ("src", "tasks", "flows", "commands"):
        for path in sorted((DOCS.parent / folder).rglob("*.py")):
            for first, second in re.findall(r'[`"]ratchet ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?', path.read_text()):
                if (f"{first} {second}" if first in groups and second else first) not in known | groups:
                    unknown.append(f"{path.name}: ratchet {first} {second}")
    assert not unknown


def test_every_alert_is_documented() -> None:
    page = (DOCS / "operate.md").read_text(encoding="utf-8")
    table = page.partition("| alert | when |")[2].partition("\n\n")[0]
    assert table.count("\n| ") == len(ALERT_RULES)
    kinds = re.findall(r"`([\w-]+)`", page.partition("\n`next` and `occurred`. `kind` is")[2].partition(".")[0])
    assert sorted(kinds) == sorted(rule.kind for rule in ALERT_RULES)
    assert {6: "six", 7: "seven"}[len(ALERT_RULES)] in page.partition("*automation*")[2].partition("\n\n")[0]


def test_the_systemd_unit_holds(tmp_path: Path) -> None:
    """As systemd reads it; the programs it names are put where this machine has something to start."""
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze, which reads units as systemd does, is not on this machine")
    [unit] = re.findall(r"```ini\n(.*?)```", (DOCS / "operate.md").read_text(encoding="utf-8"), re.DOTALL)
    program = tmp_path / ".venv" / "bin" / "ratchet"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    path = tmp_path / "ratchet.service"
    path.write_text(unit.replace("/srv/ratchet", str(tmp_path)), encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False)
    faults = [line for line in done.stderr.splitlines() if path.name in line]  # other units of this machine are its own
    assert not faults
