"""`ratchet new`: a project in a folder of its own, which runs on the installed Ratchet."""

import json
import re
import shlex
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commands.app import Panel, echo, new_group
from ratchet import files, git, project_files
from ratchet.errors import WorkspaceError
from ratchet.workspace import Workspace, disk_errors

if TYPE_CHECKING:
    from ratchet.settings.example_files import Example

__all__ = ["new_project"]

new_project = new_group()

_OWN_FILES = {
    "pyproject.toml": "[tool.prefect.server.ephemeral]\nenabled = false  # without a server Prefect says so\n",
    "own/kind.py": '"""Your own kind of data, as data.kind=own.kind:CLASS (docs/your-own-kind.md)."""\n',
    "own/model.py": '"""Your own model, as model.factory=own.model:FUNCTION (docs/bring-your-model.md)."""\n',
}
_README = """\
# {name}

A Ratchet project. `ratchet train` makes the first model; a second run has nothing to do.

- `params.yaml`: the settings. `ratchet set KEY=VALUE` changes one, `ratchet use` lists examples.
- `data/raw/`: your data, or set `data.path`. `own/`: your own kind of data or model.
- `ratchet.lock`: which Ratchet made the results. Commit it with `dvc.lock`.
- `ratchet up` starts the pages of Prefect and MLflow and the model server; `ratchet --help` lists the rest.
"""


@new_project.command("new", rich_help_panel=Panel.SETTINGS)
def new(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="It must not exist, or be empty.")],
    like: Annotated[str, typer.Option(metavar="EXAMPLE", help="Whose settings it begins with.")] = "digits",
) -> None:
    """Make a project in a folder of its own."""
    from ratchet.settings import example_files
    from tasks.code import lock

    root = folder.expanduser().resolve()
    if root.exists() and not (root.is_dir() and {path.name for path in root.iterdir()} <= {".git"}):
        raise WorkspaceError(f"{folder}: exists. Allowed: a folder that does not exist, or is empty. Fix: another name")
    example = example_files.find(project_files.FOLDER, like)
    with disk_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=files.DRAFT, dir=root) as draft:
            _fill(Path(draft), root.name, example)
            for path in Path(draft).iterdir():
                path.rename(root / path.name)
        lock(Workspace(root))
    echo(f"{root}: a project with the settings of {example.name} ({example.about})")
    _commit(root)
    echo(f"next: cd {shlex.quote(str(folder))}, then ratchet train")


def _commit(root: Path) -> None:
    """Make it a git repository with one commit. A folder of another repository is left to its owner."""
    top = git.line(root, "rev-parse", "--show-toplevel")
    if top is not None and Path(top).resolve() != root:
        echo(f"it is a folder of the git repository {top}: commit it there")
        return
    git.run(root, "init", "--quiet")
    git.run(root, "add", "--all")
    if git.line(root, "config", "user.email") is None:
        echo(
            "not committed: git does not know you. Fix: `git config --global user.email ADDRESS` and user.name, "
            "then `git commit --message New` there"
        )
        return
    git.run(root, "commit", "--quiet", "--message", "New project")


def _fill(root: Path, name: str, example: "Example") -> None:
    from ratchet.settings import example_files

    for path in project_files.NAMES:
        text = (project_files.FOLDER / path).read_text(encoding="utf-8")
        files.write_text(root / path, _adapted(path, text, name))
    for path, text in _OWN_FILES.items():
        files.write_text(root / path, text)
    files.write_text(root / "README.md", _README.format(name=name))
    files.write_text(root / "params.yaml", example_files.compose(example, own=example_files.OWN_CODE, has_code=False))


def _adapted(path: str, text: str, name: str) -> str:
    """Return a file of the repository as a project without its code needs it."""
    match path:
        case "dvc.yaml":  # -P: a folder `tasks` of the project is not taken for Ratchet's
            text = text.replace("cmd: python -m ", "cmd: python -P -m ")
            return text.replace(
                "      - commands\n      - flows\n      - src/ratchet\n      - tasks\n", "      - ratchet.lock\n"
            )
        case "prefect.yaml":
            text = text.replace("\nname: ratchet\n", f"\nname: {json.dumps(name)}\n")
            return re.sub(r"entrypoint: flows/(\w+)\.py:(\w+)", r"entrypoint: flows.\1.\2", text)
    return text
