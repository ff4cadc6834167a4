"""How every group of commands behaves, and how one becomes another program."""

import os
import sys
from typing import Any, NoReturn

from ratchet.workspace import Workspace

__all__ = ["PLAIN", "become"]

PLAIN: dict[str, Any] = {
    "no_args_is_help": True,
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


def become(module: str, *arguments: object) -> NoReturn:
    """Run a module of the upper floors in the project folder, in place of this program.

    The library stands below flows and tasks and imports none of them.
    """
    os.chdir(Workspace.find().root)
    os.execv(sys.executable, [sys.executable, "-m", module, *map(str, arguments)])
