"""Ready-made settings: a file in examples/ holds the settings that differ from the defaults."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ratchet import files, git, settings
from ratchet.errors import SettingsError
from ratchet.project_files import FOLDER
from ratchet.settings import messages as settings_errors
from ratchet.settings.file import usual_code
from ratchet.settings.model import Params
from ratchet.workspace import Workspace

__all__ = ["Example", "compose", "find", "listed", "use", "values"]

_KEPT = ("tracking", "platform", "serving")  # sections about the servers of this machine, not about the training
_SCHEMA = "$schema=src/ratchet/settings/", "$schema=.ratchet/"  # in the repository, and in another project


@dataclass(frozen=True)
class Example:
    """One file in examples/."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def about(self) -> str:
        """Purpose in one line: the first comment of the file below the line for editors."""
        lines = self.path.read_text(encoding="utf-8").splitlines()
        return next(line.removeprefix("# ") for line in lines if not line.startswith("# yaml-language-server"))

    @property
    def settings(self) -> dict[str, object]:
        """Its settings by dotted key.

        Raises:
            SettingsError: the file is not YAML.
        """
        from ruamel.yaml import YAML
        from ruamel.yaml.error import YAMLError

        try:
            return settings.dotted(YAML().load(self.path.read_text(encoding="utf-8")) or {})
        except (YAMLError, AttributeError) as error:
            problem = getattr(error, "problem", None) or error
            raise SettingsError(
                f"examples/{self.path.name}: not settings in YAML ({problem}). Fix: correct it"
            ) from None


def listed(root: Path) -> list[Example]:
    """Return the examples of the project folder `root`, by name."""
    paths = {path.name: path for folder in (FOLDER, root) for path in (folder / "examples").glob("*.yaml")}
    return [Example(path) for _, path in sorted(paths.items())]


def compose(example: Example | None = None, *, own: Mapping[str, object] | None = None, has_code: bool = True) -> str:
    """Return the shipped params.yaml with the settings of the example and of `own` (dotted keys).

    Args:
        has_code: the project has the code of Ratchet, and so the schema for editors.

    Raises:
        SettingsError: a setting of the example is not allowed.
    """
    text = _composed(example, own or {}).after
    return text if has_code else text.replace(*_SCHEMA, 1)


def values(root: Path, name: str | None) -> dict[str, object]:
    """Return all settings of an example by dotted key, or the defaults.

    Raises:
        SettingsError: there is no such example, or a setting of it is not allowed.
    """
    return settings.flatten(_composed(find(root, name), {}).params if name else Params())


def _composed(example: Example | None, own: Mapping[str, object]) -> settings.Edit:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / (example.path.name if example else "params.yaml")  # its errors name the example
        files.write_text(path, settings.template())
        return settings.plan(path, {**(example.settings if example else {}), **own})


def find(root: Path, name: str) -> Example:
    """Return an example of the project folder `root`.

    Raises:
        SettingsError: there is no such example.
    """
    names = [example.name for example in listed(root)]
    if name in names:
        return listed(root)[names.index(name)]
    near = settings_errors.nearest(name, names)
    raise SettingsError(
        f"examples/{name}.yaml: no such example. Allowed: {', '.join(names) or 'none'}"
        + (f". Did you mean {near[0]}?" if near else "")
    )


def use(root: Path, name: str, *, force: bool = False) -> dict[str, tuple[object, object]]:
    """Write an example into params.yaml. Return the changes: (before, after) by dotted key.

    All other settings get their default, except the sections about servers, which stay.

    Raises:
        SettingsError: there is no such example; or params.yaml has changes that would be lost, and `force` is False.
    """
    params, has_code = root / "params.yaml", Workspace(root).has_code
    example = find(root, name)
    with files.locked(params.resolve().parent):
        before = _current(params, force=force)
        defaults, codes = settings.flatten(Params()), () if has_code else usual_code(Workspace(root))
        kept = [key for key in before if key.partition(".")[0] in _KEPT or key in codes]
        own = {key: before[key] for key in kept if before[key] != defaults[key]}
        if not (force or _is_reproducible(params, own)):
            raise SettingsError(
                "params.yaml: it has uncommitted changes (see `git diff params.yaml`). Fix: commit them first, or "
                f"replace them with `ratchet use {name} --force`"
            )
        files.write_text(params.resolve(), compose(example, own=own, has_code=has_code))
    loaded = settings.load(params)
    source = root / Path(loaded.data.path).expanduser()
    folder = source.parent if source.suffix else source
    folder.mkdir(parents=True, exist_ok=True)  # for the user's files; DVC requires that the inputs of a stage exist
    after = settings.flatten(loaded)
    return {key: (before[key], value) for key, value in after.items() if before[key] != value}


def _current(params: Path, *, force: bool) -> dict[str, object]:
    """Return the settings of the file; with `force`, the defaults if it cannot be read."""
    try:
        return settings.flatten(settings.load(params))
    except SettingsError:
        if not force:
            raise
        return {**settings.flatten(Params()), **usual_code(Workspace(params.parent))}


def _is_reproducible(params: Path, own: Mapping[str, object]) -> bool:
    """Whether params.yaml is as committed, as shipped or as an earlier `use` wrote it, so that nothing is lost."""
    text, root = params.read_text(encoding="utf-8"), params.parent
    shipped = (compose(each, own=own, has_code=Workspace(root).has_code) for each in [None, *listed(root)])
    return text == _committed(params) or any(text == each for each in shipped)


def _committed(params: Path) -> str | None:
    """Return params.yaml of the last commit; None without git, or if it was never committed."""
    try:
        return git.run(params.parent, "show", "HEAD:./params.yaml").decode()
    except git.GitError:
        return None
