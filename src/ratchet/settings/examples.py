"""Ready settings for real work: a file in examples/ holds what differs from the defaults, and why."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ratchet import files, git, settings
from ratchet.errors import SettingsError
from ratchet.settings.model import Params
from ratchet.workspace import Workspace

__all__ = ["Example", "compose", "listed", "use"]

_STAY = ("tracking", "platform")  # say where this machine's servers are, not what is trained


@dataclass(frozen=True)
class Example:
    """One file of settings."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def about(self) -> str:
        """What it is for, in one line: the file's first comment below the editors'."""
        lines = self.path.read_text(encoding="utf-8").splitlines()
        return next(line.removeprefix("# ") for line in lines if not line.startswith("# yaml-language-server"))

    @property
    def settings(self) -> dict[str, object]:
        """What it sets, by dotted key.

        Raises:
            SettingsError: the file is not YAML.
        """
        from ruamel.yaml import YAML
        from ruamel.yaml.error import YAMLError

        try:
            return settings.dotted(YAML().load(self.path.read_text(encoding="utf-8")) or {})
        except (YAMLError, AttributeError) as error:
            problem = getattr(error, "problem", None) or error
            raise SettingsError(f"examples/{self.path.name}: not settings in YAML ({problem}); mend it") from None


def listed(workspace: Workspace) -> list[Example]:
    """The examples there are, by name."""
    return [Example(path) for path in sorted((workspace.root / "examples").glob("*.yaml"))]


def compose(example: Example | None = None, *, stay: Mapping[str, object] | None = None) -> str:
    """params.yaml as it is shipped, with what the example sets and with `stay` (dotted keys) in it.

    Raises:
        SettingsError: it sets what it must not.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / (example.path.name if example else "params.yaml")  # its errors name the example
        files.write_text(path, settings.template())
        settings.override(path, {**(example.settings if example else {}), **(stay or {})})
        return path.read_text(encoding="utf-8")


def use(workspace: Workspace, name: str, *, force: bool = False) -> dict[str, tuple[object, object]]:
    """Put an example into params.yaml; what changed: (before, after) by dotted key.

    Everything it does not name becomes its default, but for the sections that say where servers are: they stay.

    Raises:
        SettingsError: there is no such example, or params.yaml holds changes that nothing else does, and not `force`.
    """
    known = listed(workspace)
    example = next((one for one in known if one.name == name), None)
    if example is None:
        there = ", ".join(one.name for one in known) or "none"
        raise SettingsError(f"examples/{name}.yaml: not there; there are {there}")
    before = _current(workspace, force=force)
    stay = {key: value for key, value in before.items() if key.partition(".")[0] in _STAY}
    if not (force or _is_kept_elsewhere(workspace, known, stay)):
        raise SettingsError(
            "params.yaml: holds changes of yours that are not committed (see `git diff params.yaml`): commit them "
            f"first, or replace them with `ratchet use {name} --force`"
        )
    text = compose(example, stay=stay)
    files.write_text(workspace.params, text)
    params = settings.load(workspace.params)
    source = workspace.root / Path(params.data.path).expanduser()
    source.mkdir(parents=True, exist_ok=True)  # DVC wants what a stage reads to be there
    after = settings.flatten(params)
    return {key: (before[key], value) for key, value in after.items() if before[key] != value}


def _current(workspace: Workspace, *, force: bool) -> dict[str, object]:
    """The settings in force; of a file that cannot be read, if it is to be replaced by force, the defaults."""
    try:
        return settings.flatten(settings.load(workspace.params))
    except SettingsError:
        if not force:
            raise
        return settings.flatten(Params())


def _is_kept_elsewhere(workspace: Workspace, known: list[Example], stay: Mapping[str, object]) -> bool:
    """Whether params.yaml is as committed, as shipped, or as an earlier `use` left it: then nothing of it is lost."""
    text = workspace.params.read_text(encoding="utf-8")
    return text == _committed(workspace) or any(text == compose(one, stay=stay) for one in [None, *known])


def _committed(workspace: Workspace) -> str | None:
    """params.yaml as the last commit has it; None without git, or before it was committed."""
    try:
        return git.run(workspace.root, "show", "HEAD:./params.yaml").decode()
    except git.GitError:
        return None
