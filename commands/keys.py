"""`ratchet keys`: API keys of the model server."""

from typing import TYPE_CHECKING, Annotated

import typer

from commands.app import new_group, project_folder
from ratchet.terminal_lines import echo
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from ratchet.serving.keys import KeyStore

__all__ = ["keys"]

keys = new_group("API keys of the model server.")
_Name = Annotated[str, typer.Argument(metavar="NAME", help="Who uses the key, for the log.")]


@keys.command("add")
def add_key(name: _Name) -> None:
    """Make a key and print it, once. From then on the model server refuses requests without a key."""
    with project_folder() as workspace:
        echo(_store(workspace).add(name))


@keys.command("list")
def list_keys() -> None:
    """List the names of the keys, and when they were made."""
    with project_folder() as workspace:
        for key in _store(workspace).read():
            echo(f"{key.name}: made {key.created}")


@keys.command("remove")
def remove_key(name: _Name) -> None:
    """Remove a key. Running servers refuse it within a second."""
    with project_folder() as workspace:
        store = _store(workspace)
        store.remove(name)
        if not store.read():
            echo(
                "No key is left: the model server refuses all requests. To answer without keys on this machine: "
                "`ratchet keys off`",
                err=True,
            )


@keys.command("off")
def switch_off() -> None:
    """Remove all keys, and answer requests of this machine without one."""
    with project_folder() as workspace:
        _store(workspace).off()


def _store(workspace: Workspace) -> "KeyStore":
    from ratchet.serving.keys import KeyStore

    return KeyStore.of(workspace)
