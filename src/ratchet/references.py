"""Settings that name a file, folder, model, experiment or registered name: does it exist, before anything runs?

The same check finds settings that exclude each other. It takes milliseconds and imports no library. `ratchet set`
prints what it finds as a warning, because the next command can make it right; a run refuses.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from ratchet.combinations import blend_fault, objective_faults, order_fault, pruning_fault, training_faults
from ratchet.errors import SettingsError, TrackingRefused, TrackingUnavailable
from ratchet.kinds.registry import kind_chosen
from ratchet.problems import PROBLEMS
from ratchet.settings import model_names, source_names
from ratchet.settings.file import usual_code
from ratchet.settings.model import Params, ServingSettings, TrackingSettings
from ratchet.workspace import Workspace

__all__ = ["broken_references", "canary_fault", "require_references"]

NO_RESULT = "it checks at the start that what the settings name exists"

_SQLITE = "sqlite:///"
_WEIGHTS = (".safetensors", ".pt", ".pth")


def require_references(params: Params, workspace: Workspace) -> None:
    """Check at the start of a run that everything exists which its settings name, but the data: ingest is first.

    Raises:
        SettingsError: something does not; one line for each setting.
        TrackingRefused: the experiment is deleted on a tracking server.
    """
    if faults := list(_broken_after_ingest(params, workspace)):
        raise SettingsError("\n".join(f"params.yaml: {fault}" for fault in faults))
    if params.tracking.uri.startswith(_SQLITE):
        return
    from ratchet.registry.mlflow_store import check_experiment

    try:
        check_experiment(workspace, params.tracking)
    except TrackingRefused:
        raise
    except TrackingUnavailable:
        return  # a run works without the server: the journal keeps what it records


def broken_references(params: Params, workspace: Workspace) -> Iterator[str]:
    """Yield one message for each setting that names something which does not exist, or which cannot be used."""
    yield from _broken_after_ingest(params, workspace)
    if fault := _missing_data(params, workspace.root):
        yield fault
    if fault := canary_fault(params.serving):
        yield fault


def canary_fault(serving: ServingSettings) -> str:
    """Return why the model server cannot have a canary, whose outcomes one process counts; empty: it can."""
    if serving.processes == 1 or serving.canary == "none":
        return ""
    return (
        f"serving.processes: found {serving.processes}, with serving.canary {serving.canary}; a canary needs one "
        "process. Fix: `ratchet set serving.processes=1`, or `ratchet set serving.canary=none`"
    )


def _broken_after_ingest(params: Params, workspace: Workspace) -> Iterator[str]:
    from ratchet.registry.names import name_fault
    from ratchet.registry.relocation import moved_fault

    yield from _combinations(params)
    yield from _missing_weights(params, workspace)
    if params.model.factory == "none" and (fault := model_names.refusal(params.model.name, params.data.kind)):
        yield fault
    yield from _missing_code(params, workspace)
    if params.registry.model != "auto" and (fault := name_fault(params.registry.model)):
        yield fault
    if fault := _deleted_experiment(params.tracking, workspace):
        yield fault
    if fault := moved_fault(workspace, params.tracking):
        yield f"tracking.uri: {fault}"


def _combinations(params: Params) -> Iterator[str]:
    """Yield a message for each combination of settings that a stage would refuse."""
    model, training = params.model, params.training
    if model.factory != "none" or model.name != "baseline":
        yield from training_faults(training)
    if model.factory == "none" and model.name in model_names.VARIANTS:
        if fault := pruning_fault(training, model.name):
            yield fault
        if fault := blend_fault(model.name, params.data.kind, kind_chosen(params.data.kind).baseline):
            yield fault
    if fault := order_fault(params.data):
        yield fault
    if problem := PROBLEMS.get(params.data.problem):
        yield from objective_faults(training, problem)


def _missing_weights(params: Params, workspace: Workspace) -> Iterator[str]:
    folder, name, teacher = workspace.pretrained, params.model.pretrained, params.training.teacher
    if name != "none" and not (folder / name).is_file():
        files = sorted(path.name for path in folder.glob("*") if path.suffix in _WEIGHTS)
        model = params.model.name
        fixes = [f"`ratchet weights {model}` fetches weights"] if model in model_names.torchvision_classifiers() else []
        if params.data.source == "image-folder":
            fixes.append("`ratchet use photos-from-scratch` trains without weights")
        fixes.append("put a state dict there (.safetensors, .pt or .pth), or name an existing file")
        yield (
            f"model.pretrained: there is no file {name} in {folder}. Existing: {', '.join(files) or 'none'}. Fix: "
            f"{'; '.join(fixes)}; or set model.pretrained to none"
        )
    if teacher != "none" and not (folder / teacher / "model.json").is_file():
        yield (
            f"training.teacher: there is no model in {folder / teacher}. Fix: `ratchet export NAME@champion --variant "
            f"model --to {folder / teacher}`, or `ratchet set training.teacher=none`"
        )


def _missing_code(params: Params, workspace: Workspace) -> Iterator[str]:
    """Look for the modules of the user's own code, and for the files and folders of code that DVC tracks."""
    model, data, root = params.model, params.data, workspace.root
    own_kind = data.kind if ":" in data.kind else "none"
    pipeline = (root / "dvc.yaml").read_text(encoding="utf-8") if (root / "dvc.yaml").exists() else ""
    for key, name, group, section in (
        ("model.factory", model.factory, "model", model),
        ("data.kind", own_kind, "data", data),
    ):
        module = name.partition(":")[0].replace(".", "/")
        if name != "none" and not any((root / f"{module}{end}").is_file() for end in (".py", "/__init__.py")):
            yield (
                f"{key}: no module of {name}: there is neither {module}.py nor {module}/__init__.py in the project "
                f"folder {root}"
            )
        elif not (root / section.code).exists() and (name != "none" or f"${{{group}.code}}" in pipeline):
            usual = f"`ratchet set {group}.code={usual_code(workspace)[f'{group}.code']}`"
            yield (
                f"{group}.code: {section.code} is not a file or folder in the project folder {root}. Fix: "
                f"{usual if name == 'none' else f'set it to the one that holds the module of {key}'}"
            )


def _missing_data(params: Params, root: Path) -> str | None:
    data = params.data
    if "://" in data.path or ":" in data.kind:
        return None
    is_downloaded = data.source not in source_names.OWN
    if kind_chosen(data.kind).has_sources and (data.source == "digits" or is_downloaded):
        return None
    path = root / data.path
    if any(place.with_name(f"{place.name}.dvc").exists() for place in (path, *path.parents) if place.name):
        return None  # `dvc pull` fetches it
    is_empty = path.is_dir() and not any(path.iterdir())
    if path.exists() and not is_empty:
        return None
    return (
        f"data.path: {path} {'is empty' if is_empty else 'does not exist'}. Fix: put the data there, or set data.path "
        "to where they are"
    )


def _deleted_experiment(tracking: TrackingSettings, workspace: Workspace) -> str | None:
    """Look into MLflow's database, without MLflow, which takes seconds to import."""
    uri = workspace.database(tracking.uri)
    path = Path(uri.removeprefix(_SQLITE))
    if not uri.startswith(_SQLITE) or not path.is_file():
        return None
    query = "select experiment_id from experiments where name = ? and lifecycle_stage = 'deleted'"
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
            row = database.execute(query, (tracking.experiment,)).fetchone()
    except sqlite3.Error:  # MLflow itself says what is wrong with it
        return None
    if row is None:
        return None
    return (
        f"tracking.experiment: {tracking.experiment} is deleted in MLflow at {uri}. Fix: `MLFLOW_TRACKING_URI={uri} "
        f"mlflow experiments restore --experiment-id {row[0]}`, or set tracking.experiment to another name"
    )
