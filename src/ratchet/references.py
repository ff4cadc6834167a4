"""Settings that name a file, folder, model, experiment or registered name: does it exist, before anything runs?

The same check finds settings that exclude each other. It takes milliseconds and imports no library. `ratchet set`
prints what it finds as a warning, because the next command can make it right; a run refuses.
"""

import re
import sqlite3
import symtable
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from ratchet.augmentations import own_classes
from ratchet.combinations import (
    blend_fault,
    column_faults,
    gap_fault,
    objective_faults,
    pruning_fault,
    training_faults,
)
from ratchet.errors import DataError, SettingsError, TrackingRefused, TrackingUnavailable
from ratchet.kinds.registry import kind_chosen
from ratchet.problems import PROBLEMS
from ratchet.registry.parents import continued_model
from ratchet.registry.versions import REFERENCE
from ratchet.settings import model_names, source_names
from ratchet.settings.file import usual_code
from ratchet.settings.model import DataSettings, Params, ServingSettings, TrackingSettings
from ratchet.terminal_lines import echo
from ratchet.weights_sources import address_fault, is_address
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from ratchet.data.manifest import Manifest

__all__ = ["broken_references", "canary_fault", "packed_before", "require_measurable", "require_references"]

NO_RESULT = "it checks at the start that what the settings name exists"

_SQLITE = "sqlite:///"
_WEIGHTS = (".safetensors", ".pt", ".pth")
_UNSEEN_NAMES = re.compile(r"import \*|__getattr__|globals\(|setattr\(|exec\(")  # a module may get names by them


def require_references(params: Params, workspace: Workspace) -> None:
    """Check at the start of a run that everything exists which its settings name, but the data: ingest is first.

    Weights of an address are fetched if they are not in data/pretrained.

    Raises:
        SettingsError: something does not; one line for each setting.
        TrainingError: the weights of an address cannot be fetched.
        TrackingRefused: the experiment is deleted on a tracking server.
    """
    _refuse(_broken_after_ingest(params, workspace))
    if is_address(params.model.pretrained):
        from ratchet.weights import provide

        provide(workspace, params.model.pretrained, echo)
    if params.tracking.uri.startswith(_SQLITE):
        return
    from ratchet.registry.mlflow_store import check_experiment

    try:
        check_experiment(workspace, params.tracking)
    except TrackingRefused:
        raise
    except TrackingUnavailable:
        return  # a run works without the server: the journal keeps what it records


def require_measurable(params: Params, packed: Path) -> None:
    """Raise SettingsError before a training whose packed data lack a column or metric that the settings name."""
    _refuse(_unmeasurable(params, packed))


def _refuse(faults: Iterator[str]) -> None:
    if named := list(dict.fromkeys(faults)):
        raise SettingsError("\n".join(f"params.yaml: {fault}" for fault in named))


def broken_references(params: Params, workspace: Workspace) -> Iterator[str]:
    """Yield one message for each setting that names something which does not exist, or which cannot be used."""
    measuring = _unmeasurable(params, workspace.packed) if packed_before(params, workspace) else ()
    yield from dict.fromkeys([*_broken_after_ingest(params, workspace), *measuring])
    if fault := _missing_data(params, workspace.root):
        yield fault
    if fault := canary_fault(params.serving):
        yield fault


def packed_before(params: Params, workspace: Workspace) -> "Manifest | None":
    """Return the manifest of the packed data if they are from the source of the settings."""
    from ratchet.data.manifest import Manifest

    data = params.data
    with suppress(DataError):  # nothing is ingested yet
        manifest = Manifest.read(workspace.packed)
        if manifest.source == (data.source if kind_chosen(data.kind).has_sources else data.path):
            return manifest
    return None


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
    if fault := _unread_path(params.data, workspace):
        yield fault
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
    if params.evaluation.flip_average and not kind_chosen(params.data.kind).mirrors:
        yield (
            f"evaluation.flip_average: found true; data.kind {params.data.kind} has no mirror images. Allowed: false. "
            "Fix: `ratchet set evaluation.flip_average=false`"
        )
    if fault := gap_fault(params.data):
        yield fault
    yield from _columns_without_table(params.data)
    if problem := PROBLEMS.get(params.data.problem):
        yield from objective_faults(training, problem)
        yield from _missing_metric(params, problem.problem)
    yield from _metric_keys(params.evaluation.metrics)


def _columns_without_table(data: DataSettings) -> Iterator[str]:
    """Yield a message for each setting of a table's columns where there is no table. A level of folders is a group."""
    kind = kind_chosen(data.kind)
    if kind.has_sources and data.source != "image-manifest":
        has_levels = data.source == "image-folder"
        yield from column_faults(data, f"data.source {data.source}", but="group_column" if has_levels else "")
    elif kind.generates:
        yield from column_faults(data, f"data.kind {data.kind}")


def _unmeasurable(params: Params, packed: Path) -> Iterator[str]:
    from ratchet.data.manifest import Manifest

    yield from _missing_metric(params, Manifest.read(packed).target.problem)
    if params.evaluation.slices != "auto":
        from ratchet.evaluation.slices import missing_column

        yield from missing_column(packed, params.evaluation.slices)


def _missing_metric(params: Params, problem: str) -> Iterator[str]:
    if params.gate.minimum_metric in ("auto", "none"):
        return
    from ratchet.evaluation.problems import metric_fault

    yield from metric_fault(params.gate.minimum_metric, problem, params.evaluation.metrics)


def _metric_keys(names: tuple[str, ...]) -> Iterator[str]:
    if not names:
        return
    from ratchet.evaluation.own_metrics import key_faults
    from ratchet.evaluation.problems import ANSWERS

    yield from key_faults(names, set().union(*(answers.metrics.keys() for answers in ANSWERS.values())))


def _missing_weights(params: Params, workspace: Workspace) -> Iterator[str]:
    folder, name, teacher = workspace.pretrained, params.model.pretrained, params.training.teacher
    if (stored := continued_model(workspace, params)) is not None:
        yield from (f"model.pretrained: {name} {fault}" for fault in _continuation_faults(params, stored))
    elif is_address(name):
        if fault := address_fault(name):
            yield fault
    elif name != "none" and not (folder / name).is_file():
        files = sorted(path.name for path in folder.glob("*") if path.suffix in _WEIGHTS)
        model = params.model.name
        fixes = [f"`ratchet weights {model}` fetches weights"] if model in model_names.torchvision_classifiers() else []
        if params.data.source == "image-folder":
            fixes.append("`ratchet use photos-from-scratch` trains without weights")
        if REFERENCE.match(name):
            fixes.append(f"`ratchet train --from {name}` fetches a registered version")
        fixes.append("name weights of Hugging Face's hub: hf://ORG/NAME")
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


def _continuation_faults(params: Params, stored: dict[str, Any]) -> Iterator[str]:
    """Yield why these settings cannot continue a stored model, from the content of its model.json."""
    model, kind, spec = params.model, kind_chosen(params.data.kind), stored["spec"]
    parent_input = spec.get("input", {"kind": "image"})
    factory, context = spec.get("factory", "none"), parent_input.get("context") or parent_input.get("longest")
    name = next(iter(kind.networks)) if model.name in ("auto", *model_names.VARIANTS) else model.name
    if "baseline" in stored or model.name == "baseline":
        yield "continues a network; baselines, and averages with one, cannot be continued. Fix: name another version"
    elif parent_input["kind"] != kind.name:
        yield f"takes samples of kind {parent_input['kind']}, and data.kind has {kind.name}. Fix: name another version"
    elif factory != model.factory:
        yield f"is a model of factory {factory}. Fix: `ratchet set model.factory={factory}`"
    elif factory == "none" and spec["name"] != name:
        yield f"is the model {spec['name']}, and model.name has {name}. Fix: `ratchet set model.name={spec['name']}`"
    for key, setting, value in (
        ("tokenizer", model.tokenizer, parent_input.get("tokenizer")),
        ("context", model.context or "auto", context),
    ):
        if value and setting not in ("auto", value):
            yield f"has the {key} {value}, and model.{key} has {setting}. Fix: `ratchet set model.{key}={value}`"


def _missing_code(params: Params, workspace: Workspace) -> Iterator[str]:
    """Look for the modules of the user's own code, and for the files and folders of code that DVC tracks."""
    model, data, root = params.model, params.data, workspace.root
    own_kind, own_loss = (name if ":" in name else "none" for name in (data.kind, params.training.loss))
    pipeline = _pipeline(root)
    functions = [("evaluation.metrics", name) for name in params.evaluation.metrics]
    functions += [("training.augment", name) for name in own_classes(params.training)]
    for key, name, group, code in (
        ("model.factory", model.factory, "model", model.code),
        ("training.loss", own_loss, "model", model.code),
        *((key, name, "model", model.code) for key, name in functions),
        *(("training.hooks", name, "model", str(_file_of(name, root) or "")) for name in params.training.hooks),
        ("data.kind", own_kind, "data", data.code),
    ):
        if name != "none" and _file_of(name, root) is None:
            module = name.partition(":")[0].replace(".", "/")
            yield (
                f"{key}: no module of {name}: there is neither {module}.py nor {module}/__init__.py in the project "
                f"folder {root}"
            )
        elif not (root / code).exists() and (name != "none" or f"${{{group}.code}}" in pipeline):
            usual = f"`ratchet set {group}.code={usual_code(workspace)[f'{group}.code']}`"
            yield (
                f"{group}.code: {code} is not a file or folder in the project folder {root}. Fix: "
                f"{usual if name == 'none' else f'set it to the one that holds the module of {key}'}"
            )
        elif name != "none" and (fault := _outside(group, name, root, code) or _missing_function(name, root)):
            yield f"{key}: {fault}"


def _pipeline(root: Path) -> str:
    """Return the text of dvc.yaml; empty if there is none."""
    return (root / "dvc.yaml").read_text(encoding="utf-8") if (root / "dvc.yaml").exists() else ""


def _unread_path(data: DataSettings, workspace: Workspace) -> str:
    """Return why DVC cannot record the data of a source that reads no file; empty: it can. Others name it at ingest."""
    path = workspace.root / data.path
    is_read = data.source != "digits" or not kind_chosen(data.kind).has_sources
    if is_read or "://" in data.path or path.exists() or "${data.path}" not in _pipeline(workspace.root):
        return ""
    return (
        f"data.path: {path} does not exist. data.source {data.source} reads no file of it, but DVC tracks it. Fix: "
        f"`mkdir -p {quote(str(path))}`, or set data.path to a folder that exists"
    )


def _file_of(name: str, root: Path) -> Path | None:
    """Return the file of the module of "package.module:function"."""
    module = name.partition(":")[0].replace(".", "/")
    return next((path for end in (".py", "/__init__.py") if (path := root / f"{module}{end}").is_file()), None)


def _outside(group: str, name: str, root: Path, code: str) -> str:
    """Return why DVC does not track the module as code of the section `group`; empty: it does."""
    path = _file_of(name, root)
    if path is None or (root / code).resolve() in (path.resolve(), *path.resolve().parents):
        return ""
    inside = path.relative_to(root)
    return (
        f"{name.partition(':')[0]} ({inside}) is outside {group}.code ({code}), so DVC would not see "
        f"a change of it. Fix: `ratchet set {group}.code={inside.parts[0]}`; if {code} has other code of yours, first "
        "move both into one folder"
    )


def _missing_function(name: str, root: Path) -> str:
    """Return why the module has no such function or class, without importing it; empty: it has, or may have, one."""
    path = _file_of(name, root)
    module, _, function = name.partition(":")
    try:
        source = "" if path is None else path.read_text(encoding="utf-8")
        symbols = symtable.symtable(source, str(path), "exec").get_symbols()
    except (SyntaxError, ValueError) as error:
        return f"{module} does not import ({type(error).__name__}: {error}). Fix: correct {path}"
    names = {symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()}
    if function in names or _UNSEEN_NAMES.search(source):
        return ""
    own = [symbol.get_name() for symbol in symbols if symbol.is_namespace() and not symbol.get_name().startswith("_")]
    return f"{module} has no function or class {function}. Allowed: {', '.join(own) or 'none'}"


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
