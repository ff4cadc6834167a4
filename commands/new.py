"""`ratchet new`: a project in a folder of its own, which runs on the installed Ratchet."""

import json
import re
import shlex
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commands.app import Panel, new_group
from ratchet import files, git, project_files
from ratchet.errors import WorkspaceError
from ratchet.terminal_lines import echo
from ratchet.workspace import Workspace, disk_errors

if TYPE_CHECKING:
    from ratchet.settings.example_files import Example

__all__ = ["new_project"]

new_project = new_group()

_OWN_FILES = {
    ".dvc/config": """\
[core]
    analytics = false
    autostage = false
    remote = local
['remote "local"']
    url = ../.ratchet/remote
""",
    "data/releases.csv": "source,rule,content,reason,by,at\n",
    "pyproject.toml": "[tool.prefect.server.ephemeral]\nenabled = false  # without a server Prefect says so\n",
    "own/kind.py": '"""Your own data, as data.kind=own.kind:CLASS (the repository\'s docs/your-own-kind.md)."""\n',
    "own/model.py": '"""Your model, as model.factory=own.model:MAKE (the repository\'s docs/bring-your-model.md)."""\n',
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
    from commands.settings import next_step
    from ratchet.settings import example_files
    from tasks.code import lock

    root = folder.expanduser().resolve()
    Workspace(root).with_usable_path()
    if root.exists() and not (root.is_dir() and all(_is_no_file(path) for path in root.iterdir())):
        raise WorkspaceError(f"{folder}: exists. Allowed: a folder that does not exist, or is empty. Fix: another name")
    example = example_files.find(project_files.FOLDER, like)
    with disk_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        files.clear_drafts(root)
        with tempfile.TemporaryDirectory(prefix=files.DRAFT, dir=root) as draft:
            _fill(Path(draft), root.name, example)
            for path in Path(draft).iterdir():
                path.rename(root / path.name)
        lock(Workspace(root))
    echo(f"{root}: a project with the settings of {example.name} ({example.about})")
    step = next_step(Workspace(root))
    _commit(root)
    echo(f"next: cd {shlex.quote(str(folder))}, then {step}")


def _commit(root: Path) -> None:
    """Make it a git repository with one commit. A folder of another repository is left to its owner."""
    try:
        top = git.line(root, "rev-parse", "--show-toplevel")
        if top is not None and Path(top).resolve() != root:
            echo(f"it is a folder of the git repository {top}: commit it there")
            return
        git.run(root, "init", "--quiet")
        git.run(root, "add", "--all")
        _require_identity(root)
        git.run(root, "commit", "--quiet", "--message", "New project")
    except git.GitError as error:
        reason = str(error) if ". Fix: " in str(error) else f"{error}. Fix: correct that"
        echo(f"not committed: {reason}, then `git init`, `git add --all` and `git commit --message New` there")


def _require_identity(root: Path) -> None:
    try:
        for role in ("AUTHOR", "COMMITTER"):
            git.run(root, "var", f"GIT_{role}_IDENT")
    except git.GitError as error:
        fix = "`git config --global user.email ADDRESS` and user.name"
        raise git.GitError(f"git does not know you. Fix: {fix}") from error


def _is_no_file(path: Path) -> bool:
    """True for a new repository of git, and for what a killed `ratchet new` left."""
    return path.name == ".git" or path.name.startswith(files.DRAFT)


def _fill(root: Path, name: str, example: "Example") -> None:
    from ratchet.settings import example_files
    from ratchet.settings.file import usual_code

    for path in project_files.NAMES:
        text = (project_files.FOLDER / path).read_text(encoding="utf-8")
        files.write_text(root / path, _adapted(path, text, name))
    for path, text in _OWN_FILES.items():
        files.write_text(root / path, text)
    files.write_text(root / "README.md", _README.format(name=name))
    settings = example_files.compose(example, own=usual_code(Workspace(root)), has_code=False)
    files.write_text(root / "params.yaml", settings)


def _adapted(path: str, text: str, name: str) -> str:
    """Return a file of the repository as a project without its code needs it."""
    match path:
        case "dvc.yaml":  # -P: a folder `tasks` of the project is not taken for Ratchet's
            code = "      - commands\n      - flows\n      - src/ratchet\n      - tasks\n"
            changes = {"cmd: python -m ": "cmd: python -P -m ", code: "      - ratchet.lock\n"}
        case "prefect.yaml":
            changes = {"\nname: ratchet\n": f"\nname: {json.dumps(name)}\n"}
            text = re.sub(r"entrypoint: flows/(\w+)\.py:(\w+)", r"entrypoint: flows.\1.\2", text)
        case _:
            changes = {}
    for old, new in changes.items():
        if old not in text:
            raise WorkspaceError(
                f"{project_files.FOLDER / path}: has no {old.strip()!r}, so no project can be made of it. Fix: "
                f"`git checkout {path}`"
            )
        text = text.replace(old, new)
    return text
