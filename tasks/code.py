"""Stage code: the digests of the code that decides each stage (data/code.json), and the settings (data/settings.json).

DVC tracks both as parameters of the stages. So a stage runs again if deciding code changed, and not for an edited
comment. DVC runs this stage when any file of code or a setting changed, and `ratchet` before every run.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet import __version__, files, settings
from ratchet.augmentations import own_classes
from ratchet.code.closure import Choice, closure, digest_sources, module_path
from ratchet.errors import SettingsError, WorkspaceError
from ratchet.kinds.registry import kind_chosen
from ratchet.settings.generated import SCHEMA
from ratchet.settings.messages import spell
from ratchet.settings.model import RUNTIME_SECTIONS, Params, neutral
from ratchet.workspace import Workspace
from tasks.progress import StageProgress

__all__ = [
    "Code",
    "choice",
    "code",
    "completed_settings",
    "lock",
    "other_ratchet",
    "own_code",
    "require_current",
    "require_own",
    "stage_files",
]

NO_RESULT = "it only reads code and settings; what it writes is tracked"

_CODE, _SETTINGS = "data/code.json", "data/settings.json"
_SHOWN = 3  # changed files in a message


@dataclass(frozen=True)
class Code:
    """The digests by stage."""

    stages: dict[str, str]

    @property
    def summary(self) -> str:
        return f"data/code.json has the code of {', '.join(self.stages)}"


def code(params: Params, workspace: Workspace, *, progress: StageProgress | None = None) -> Code:
    """Write data/code.json and data/settings.json.

    Raises:
        WorkspaceError: the code that runs is not that of the workspace.
    """
    require_own(workspace)
    before, sources = None, _sources(params, workspace)
    while before != sources:  # again, if a file was edited meanwhile
        by_stage = {name: stage_files(name, params, workspace) for name in _stages(workspace)}
        before, sources = sources, _sources(params, workspace)
    digests = {name: files.digest_json(paths)[:16] for name, paths in by_stage.items()}
    files.write_json(workspace.code, {**digests, "sources": sources, "files": by_stage})
    files.write_json(workspace.settings, completed_settings(params))
    return Code(digests)


def completed_settings(params: Params) -> dict[str, Any]:
    """Return all settings that decide a result, by section."""
    content = params.model_dump(mode="json", exclude=set(RUNTIME_SECTIONS))
    unused = neutral(params.training.reduction)
    return {**content, "training": {name: value for name, value in content["training"].items() if name not in unused}}


def require_current(name: str, params: Params, workspace: Workspace) -> None:
    """Refuse to run a stage if DVC would record its result for other settings or other code.

    Raises:
        SettingsError: a setting of the stage is not that of data/settings.json.
        WorkspaceError: the message names the files, or the code that runs is not that of the workspace.
    """
    require_own(workspace)
    _require_current_settings(name, params, workspace)
    content: dict[str, Any] = (
        files.read_json(workspace.code) if workspace.code.exists() else {"files": {}, "sources": ""}
    )
    if content["sources"] == _sources(params, workspace):
        return
    recorded = content["files"].get(name, {})
    now = stage_files(name, params, workspace)
    changed = [path for path in sorted({**recorded, **now}) if recorded.get(path) != now.get(path)]
    if changed:
        more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
        raise WorkspaceError(
            f"data/code.json: {', '.join(changed[:_SHOWN])}{more} changed since it was written, so DVC would record "
            f"the result of {name} for other code. Fix: run `ratchet train`, or `dvc repro`"
        )


def _require_current_settings(name: str, params: Params, workspace: Workspace) -> None:
    recorded = files.read_json(workspace.settings) if workspace.settings.exists() else {}
    before, now = settings.dotted(recorded), settings.dotted(completed_settings(params))
    deciding = _tracked(workspace, _SETTINGS).get(name, ())
    if name == "register":  # it records the settings of all stages
        deciding = list(now)
    changed = [
        f"{key} is {spell(value)}, and was {spell(before.get(key))}"
        for key, value in now.items()
        if value != before.get(key) and any(f"{key}.".startswith(f"{tracked}.") for tracked in deciding)
    ]
    if changed:
        raise SettingsError(
            f"{workspace.params}: {'; '.join(changed[:_SHOWN])} when data/settings.json was written, so DVC would "
            f"record the result of {name} for other settings. Fix: run `ratchet train`, or `dvc repro`"
        )


def lock(workspace: Workspace) -> None:
    """Note in ratchet.lock which Ratchet is installed, so that DVC sees an upgrade."""
    files.write_json(workspace.lock, _installed())
    files.write_bytes(workspace.schema, SCHEMA.read_bytes())


def _installed() -> dict[str, str]:
    return {"ratchet": __version__, "code": digest_sources([], Path())}


def other_ratchet(workspace: Workspace) -> str | None:
    """Return how ratchet.lock differs from the installed Ratchet; None if it does not, or the code is in the folder."""
    if workspace.has_code:
        return None
    installed = _installed()
    try:
        locked = {name: str(files.read_json(workspace.lock)[name]) for name in installed}
    except (FileNotFoundError, ValueError, KeyError, TypeError):  # such as the marks of a merge conflict
        return f"is {'damaged' if workspace.lock.exists() else 'missing'}"
    names, runs = (f"{each['ratchet']} (code {each['code'][:8]})" for each in (locked, installed))
    return None if locked == installed else f"names Ratchet {names}, and {runs} is installed"


def require_own(workspace: Workspace) -> None:
    """Refuse to record a result for the code of the workspace if Python has found another folder's code.

    Raises:
        WorkspaceError: the message names both folders.
    """
    if not workspace.has_code:
        if other := other_ratchet(workspace):
            raise WorkspaceError(
                f"{workspace.lock}: {other}, so DVC would record its result for other code. Fix: `ratchet train`, "
                "which writes it again"
            )
        return
    own, running = (workspace.root / "src/ratchet").resolve(), module_path("ratchet")
    if own.is_dir() and running is not None and running.resolve().parent != own:
        raise WorkspaceError(
            f"{own}: this code does not run, but that of {running.parent}, so DVC would record its result for other "
            "code. Fix: run `export PYTHONPATH=$PWD/src:$PWD` in the project folder"
        )


def stage_files(name: str, params: Params, workspace: Workspace) -> dict[str, str]:
    """Return the digest of each file of code that decides the outputs of a stage, by its path."""
    chosen: Choice = choice(params)
    if name == "register":  # it also runs the champion, which may be of another kind
        chosen = {**chosen, "kind": None, "model": None}
    own = own_code(params, workspace.root, name)
    roots = [f"tasks.{name}", *(["ratchet.training.fit"] if name == "train" else [])]  # processes run it, too
    return closure(roots, stage=name, choice=chosen, code=own, root=workspace.root)


def choice(params: Params, *, variant: str | None = None) -> Choice:
    """Return what the settings choose, for modules that count only if they are chosen (`ratchet.code.closure`).

    `variant` is what a training stores; each stage also uses the baseline.
    """
    kind = kind_chosen(params.data.kind)
    name = params.model.name
    model: str | None = next(iter(kind.networks)) if name in ("auto", "baseline", "blend") else name
    if params.training.teacher != "none":
        model = variant = None  # the teacher may be another network, a baseline or a blend
    elif params.model.factory != "none":
        model = "none"
    return {"kind": kind.name, "model": model, "variant": variant}


def own_code(params: Params, root: Path, stage: str) -> list[Path]:
    """Return the files and folders of the user's own code that decide the result of a stage; "code" reads all."""
    data, model = params.data, params.model
    named = [data.code] if ":" in data.kind else []
    decides = model.factory != "none" or ":" in params.training.loss or own_classes(params.training)
    named += [model.code] if stage != "ingest" and decides else []
    named += [model.code] if stage in ("code", "evaluate") and params.evaluation.metrics else []
    return [root / name for name in dict.fromkeys(named) if (root / name).exists()]


def _sources(params: Params, workspace: Workspace) -> str:
    return digest_sources(own_code(params, workspace.root, "code"), workspace.root)


def _stages(workspace: Workspace) -> list[str]:
    """Return the stages whose code DVC tracks. A user may have added others."""
    return list(_tracked(workspace, _CODE))


def _tracked(workspace: Workspace, file: str) -> dict[str, list[str]]:
    """Return the keys of a file that DVC tracks, by stage."""
    stages: dict[str, Any] = files.read_yaml(workspace.root / "dvc.yaml")["stages"]
    return {
        name: entry[file]
        for name, stage in stages.items()
        for entry in stage.get("params", ())
        if isinstance(entry, dict) and file in entry
    }


if __name__ == "__main__":
    from tasks.stage_runner import run

    run(code, unit="stages")
