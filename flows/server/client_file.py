"""prefect.toml in the project folder: lets Prefect's commands find the server from any shell."""

import json

from ratchet import files
from ratchet.workspace import Workspace

__all__ = ["remove_client_file", "write_client_file"]

_MARK = "# Written by `ratchet up`, removed by `ratchet down`: how Prefect's commands find the server in this folder."


def write_client_file(workspace: Workspace, api: str) -> bool:
    """Write the file. Returns False, and writes nothing, if the user has a file of their own."""
    path = workspace.root / "prefect.toml"
    if path.exists() and not _is_ours(workspace):
        return False
    home = json.dumps(str(workspace.state / "prefect"), ensure_ascii=False)  # a JSON string is a TOML string
    files.write_text(path, f'{_MARK}\nhome = {home}\n\n[api]\nurl = "{api}"\n')
    return True


def remove_client_file(workspace: Workspace) -> None:
    """Remove the file that `write_client_file` wrote; a user's own file stays."""
    if _is_ours(workspace):
        (workspace.root / "prefect.toml").unlink()


def _is_ours(workspace: Workspace) -> bool:
    path = workspace.root / "prefect.toml"
    return path.is_file() and path.read_text(encoding="utf-8", errors="replace").startswith(_MARK)
