"""`ratchet use`, `set`, `get` and `diff`: the settings in params.yaml."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from commands.app import Panel, new_group
from ratchet.terminal_lines import echo
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from ratchet.settings.model import Params

__all__ = ["next_step", "settings_commands"]

settings_commands = new_group()


@settings_commands.command(rich_help_panel=Panel.SETTINGS)
def use(
    name: Annotated[str | None, typer.Argument(metavar="EXAMPLE")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace uncommitted settings, too.")] = False,
) -> None:
    """Copy an example's settings into params.yaml. Without a name, list the examples."""
    from ratchet.settings import example_files

    workspace = Workspace.find()
    if name is None:
        for example in example_files.listed(workspace.root):
            echo(f"{example.name:22} {example.about}")
        return
    _restore_settings(workspace)
    _print_changes(example_files.use(workspace.root, name, force=force))
    _note_running(workspace)
    echo(f"next: {next_step(workspace)}")


@settings_commands.command("set", rich_help_panel=Panel.SETTINGS)
def set_(assignments: Annotated[list[str], typer.Argument(metavar="KEY=VALUE")]) -> None:
    """Change settings in params.yaml, and print what changed. Comments are kept."""
    from ratchet.settings.file import changing, parse_assignments

    workspace = Workspace.find()
    _restore_settings(workspace)
    with changing(workspace.params, parse_assignments(assignments)) as edit:
        changes, params = edit.changes, edit.params
    _print_changes(changes)
    _warn(params, workspace)
    _note_running(workspace)


@settings_commands.command(rich_help_panel=Panel.SETTINGS)
def get(
    key: Annotated[str, typer.Argument(metavar="KEY", help="A setting, such as training.epochs, or a section.")],
) -> None:
    """Print the value of a setting, or all settings of a section."""
    from ratchet import settings
    from ratchet.errors import SettingsError
    from ratchet.settings import messages as settings_errors
    from ratchet.settings.model import Params

    workspace = Workspace.find()
    _restore_settings(workspace)
    values = settings.flatten(settings.load(workspace.params))
    if key in values:
        echo(settings_errors.spell(values[key]))
        return
    section = {name: value for name, value in values.items() if name.startswith(f"{key}.")}
    if not section:
        raise SettingsError(f"params.yaml: {settings_errors.unknown(Params, key)}")
    for name, value in section.items():
        echo(f"{name}: {settings_errors.spell(value)}")


@settings_commands.command(rich_help_panel=Panel.SETTINGS)
def diff(
    example: Annotated[
        str | None, typer.Argument(metavar="EXAMPLE", help="Compare with this example.", show_default="the defaults")
    ] = None,
) -> None:
    """List the settings that differ from the defaults or from an example. The defaults are params.yaml as shipped."""
    from ratchet import settings
    from ratchet.settings import example_files

    workspace = Workspace.find()
    _restore_settings(workspace)
    now, other = settings.flatten(settings.load(workspace.params)), example_files.values(workspace.root, example)
    _print_changes({key: (other[key], value) for key, value in now.items() if value != other[key]})
    if now == other:
        echo(f"No setting differs from {f'the example {example}' if example else 'the defaults'}.")


def next_step(workspace: Workspace) -> str:
    """Look for the weights of new settings, warn of what is missing, and return what comes next."""
    from commands.weight_files import find_named
    from ratchet import settings

    find_named(workspace, settings.load(workspace.params))
    return f"{'what the warnings say, then ' * bool(_warn(settings.load(workspace.params), workspace))}ratchet train"


def _print_changes(changes: Mapping[str, tuple[object, object]]) -> None:
    """Print values before and after. A value before may be wrong: an address with a password."""
    from ratchet import urls
    from ratchet.settings import messages as settings_errors

    for key, (before, after) in changes.items():
        old, new = urls.redacted(settings_errors.spell(before)), settings_errors.spell(after)
        echo(f"{key}: {old} -> {new}" if old != new else f"{key}: {new} (unchanged)")


def _warn(params: "Params", workspace: Workspace) -> int:
    """Print a warning for each setting that names what does not exist; return their number.

    The next command may make it true.
    """
    from ratchet.references import broken_references

    faults = list(broken_references(params, workspace))
    for fault in faults:
        echo(f"warning: {fault}", err=True)
    return len(faults)


def _restore_settings(workspace: Workspace) -> None:
    """Undo what a killed run has set, before params.yaml is read or changed."""
    if restored := workspace.restore_if_idle():
        echo(restored, err=True)


def _note_running(workspace: Workspace) -> None:
    """Say that a run works on the settings that it has read, if one is running."""
    if held := workspace.holder():
        echo(f"{held} goes on with the settings that it has read. The new ones are for the next run", err=True)
