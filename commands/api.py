"""`ratchet.open` and `ratchet.new`: a project in Python and notebooks, by the same commands, flow and files."""

import contextlib
import glob
import html
import io
import json
import os
import re
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from commands.command_process import CommandEnded, run_command
from commands.compare import compare, print_comparison
from commands.cross_validate import fold_line, summary
from commands.training_run import TrainingRun, last_run, run_of_version
from ratchet import settings
from ratchet.data.reading.storage import is_url
from ratchet.errors import DataError, SettingsError, WorkspaceError
from ratchet.evaluation.cross_validation import CrossValidation
from ratchet.provenance.comparison import Comparison
from ratchet.references import require_references
from ratchet.settings.messages import dotted_keys
from ratchet.settings.model import Params
from ratchet.workspace import Workspace
from tasks.score import absolute

if TYPE_CHECKING:
    import polars

__all__ = ["ModelVersion", "Project", "ShownComparison", "ShownCrossValidation", "new", "open"]

_GLOB = "*?["
_NAMED = 100  # files without answers
_NOT_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")  # but as escapes of a quoted text


def open(folder: str | PathLike[str] | None = None) -> "Project":
    """Open a project folder; without a name that of the working folder, or the one above it that is a project.

    Raises:
        WorkspaceError: it has no params.yaml, or its path has a question mark.
    """
    if folder is None:
        return Project(Workspace.find())
    root = Path(folder).expanduser().resolve()
    if not (root / "params.yaml").is_file():
        raise WorkspaceError(
            f"{folder}: no project, it has no params.yaml (looked in {root}). Fix: name the folder of a project, or "
            f"make one with `ratchet.new({str(folder)!r})`"
        )
    return Project(Workspace(root).with_usable_path())


def new(folder: str | PathLike[str], *, like: str = "digits") -> "Project":
    """Make a project in a new folder, with the settings of an example, as `ratchet new` does.

    Raises:
        WorkspaceError: the folder has files already.
        SettingsError: there is no such example.
    """
    from commands.new import new as new_project

    new_project(Path(folder), like)
    return open(folder)


@dataclass(frozen=True)
class Project:
    """A project folder. What it does is what the commands do there; nothing else is stored."""

    workspace: Workspace

    @property
    def folder(self) -> Path:
        """The folder of the project."""
        return self.workspace.root

    def train(self, *, start: str = "", continue_with_changed_code: bool = False, **changes: object) -> TrainingRun:
        """Run `ratchet train` in a process of its own, show its progress, and return its result.

        If the kernel ends, the training writes a checkpoint and ends; the next call continues there. What has not
        changed since the last run is not done again.

        Args:
            start: a registered version whose weights the training begins with: "pets@champion" or "pets/3".
            continue_with_changed_code: let an interrupted training go on though its code changed.
            changes: settings of this run, which stay in params.yaml if it completes: `epochs=5` where one setting has
                that last name, and any by its whole name: `**{"training.epochs": 5}`.

        Raises:
            SettingsError: a setting is not allowed.
            RatchetError: the run has failed. The message is that of the command.
        """
        options = [*self._checked(changes, start), *(["--from", start] if start else [])]
        if continue_with_changed_code:
            options.append("--continue-with-changed-code")
        run_command(self.workspace, "train", *options)
        return last_run(self.workspace)

    def cross_validate(self, folds: int = 5, **changes: object) -> "ShownCrossValidation":
        """Run `ratchet train --folds`: train the settings on each of so many folds. Nothing is registered.

        If the kernel ends, the next call continues. `changes` and errors are those of `train`.
        """
        run_command(self.workspace, "train", "--folds", str(folds), *self._checked(changes))
        return ShownCrossValidation.read(self.workspace.reports / "folds.json")

    def _checked(self, changes: Mapping[str, object], start: str = "") -> list[str]:
        """Return settings of a run as options of its command; `start`: a version that the command fetches."""
        assignments = [f"{key}={_yaml(key, value)}" for key, value in _whole_names(changes).items()]
        if not self.workspace.overrides.exists():  # else params.yaml still has the settings of a killed run
            replaced = {"model.pretrained": "none"} if start else {}  # it may name what is not here
            planned = settings.plan(self.workspace.params, replaced | settings.parse_assignments(assignments))
            require_references(planned.params, self.workspace)
        return [option for assignment in assignments for option in ("--set", assignment)]

    def run(self, version: str | None = None) -> TrainingRun:
        """Return the run of a registered version, "pets/1" or "pets@champion"; without one the last run."""
        return last_run(self.workspace) if version is None else run_of_version(self.workspace, version)

    def compare(self, a: str, b: str) -> "ShownComparison":
        """Explain why two versions or runs differ, as `ratchet compare` does."""
        return ShownComparison(**vars(compare(self.workspace, a, b)))

    @property
    def champion(self) -> "ModelVersion":
        """The version in use.

        Raises:
            RegistryError: there is none.
        """
        from ratchet.registry.names import registered_name

        return self.model(f"{registered_name(settings.load(self.workspace.params), self.workspace)}@champion")

    def model(self, version: str) -> "ModelVersion":
        """Return a registered version: "pets/1" or "pets@challenger".

        Raises:
            RegistryError: there is no such version.
        """
        from ratchet.registry.models import ModelRegistry

        registered = ModelRegistry(self.workspace, settings.load(self.workspace.params)).find(version)
        return ModelVersion(self.workspace, registered.name, registered.number, registered.aliases)


@dataclass(frozen=True)
class ModelVersion:
    """A registered version of a model, with the aliases that it had when it was looked up."""

    workspace: Workspace
    name: str
    number: str
    aliases: tuple[str, ...]

    def predict(
        self,
        *paths: str | PathLike[str],
        column: str | None = None,
        interval: float | None = None,
        abstain: float | None = None,
        novelty: bool = False,
    ) -> "polars.DataFrame":
        """Score files, as `ratchet predict` does: images, tables, texts, folders of them, or patterns such as *.jpg.

        `column` is the one with the texts of a text model, `interval` the level of prediction intervals or sets, such
        as 0.9. With `abstain`, an error rate such as 0.02, unsure rows have no class; with `novelty`, each row has how
        unusual it is. A row without an answer has the reason in `refused`; a file that cannot be read is named by a
        warning.

        Raises:
            RatchetError: no row could be read, or there is no such file.
        """
        import polars

        with tempfile.TemporaryDirectory(prefix="ratchet-predict-") as folder:
            out = Path(folder, "answers.parquet")
            options = ["--model", f"{self.name}/{self.number}", "--out", str(out)]
            options += ["--column", column] if column else []
            options += ["--interval", str(interval)] if interval is not None else []
            options += ["--abstain", str(abstain)] if abstain is not None else []
            options += ["--novelty"] if novelty else []
            try:
                run_command(self.workspace, "predict", *options, "--", *_files(paths))
            except CommandEnded as error:
                if not out.exists():
                    raise
                if error.faults:  # else every row is refused, and `refused` says why
                    warnings.warn(_unanswered(error.faults), stacklevel=2)
            return polars.read_parquet(out)

    @property
    def run(self) -> TrainingRun:
        """The run that trained it."""
        return run_of_version(self.workspace, f"{self.name}/{self.number}")


class ShownCrossValidation(CrossValidation):
    """A cross-validation, which is shown as `ratchet train --folds` prints it."""

    def __repr__(self) -> str:
        return "\n".join([*(fold_line(fold, len(self.folds)) for fold in self.folds), *summary(self)])


class ShownComparison(Comparison):
    """A comparison, which is shown as `ratchet compare` prints it."""

    def __repr__(self) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            print_comparison(self, most=20)
        return printed.getvalue()

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"


def _unanswered(faults: Sequence[str]) -> str:
    others = len(faults) - _NAMED
    more = [f"and {others:,} more"] if others > 0 else []
    return "\n".join(["predict: these files have no answers:", *faults[:_NAMED], *more])


def _whole_names(changes: Mapping[str, object]) -> dict[str, object]:
    """Return settings by dotted key: a name without a dot is the only setting that ends with it.

    Raises:
        SettingsError: several end with it, or a setting is named twice.
    """
    keys = list(dotted_keys(Params))
    whole: dict[str, object] = {}
    for name, value in changes.items():
        named = [name] if name in keys else [key for key in keys if key.rpartition(".")[2] == name] or [name]
        if len(named) > 1:
            raise SettingsError(
                f"{name}: several settings have this name. Allowed: {', '.join(named)}. Fix: "
                f"`**{{{named[0]!r}: {value!r}}}`"
            )
        if named[0] in whole:
            raise SettingsError(
                f"{named[0]}: is given twice. Allowed: each setting once. Fix: leave out one of the two"
            )
        whole[named[0]] = value
    return whole


def _yaml(key: str, value: object) -> str:
    """Return a value as YAML in one line, of which JSON is a part. Numbers and arrays of NumPy are as Python's."""
    try:
        plain = str(value) if isinstance(value, PathLike) else value
        text = json.dumps(plain, ensure_ascii=False, default=lambda each: each.tolist())
        return _NOT_IN_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    except (AttributeError, TypeError, ValueError):
        raise SettingsError(
            f"{key}: found {value!r} ({type(value).__name__}). Allowed: numbers, texts, lists and mappings of Python"
        ) from None


def _files(paths: tuple[str | PathLike[str], ...]) -> list[str]:
    """Return absolute paths, with the files of each pattern, which the shell does for the command.

    Raises:
        DataError: a pattern matches no file, or there is no path.
    """
    if not paths:
        raise DataError(
            "predict: no files. Allowed: paths of files and folders, or patterns. Fix: predict('new/*.jpg')"
        )
    listed: list[str] = []
    for path in (each if is_url(each) else os.path.expanduser(each) for each in map(str, paths)):
        is_pattern = any(letter in path for letter in _GLOB) and not is_url(path) and not Path(path).exists()
        matching = sorted(glob.glob(path, recursive=True)) if is_pattern else [path]
        if not matching:
            raise DataError(f"{path}: matches no file in {Path.cwd()}. Fix: name files that exist")
        listed += matching
    return list(absolute(listed, base=Path.cwd()))
