"""A study: begin it or continue it, the data of its trials, and the check that nothing that decides them changed."""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from ratchet import settings as settings_file
from ratchet.data.manifest import Manifest
from ratchet.errors import SettingsError, StudyError, TrackingUnavailable, TrainingError
from ratchet.registry.names import registered_name
from ratchet.registry.runs import Run
from ratchet.search.records import Study
from ratchet.search.store import StudyStore
from ratchet.settings.messages import spell
from ratchet.settings.model import Params, neutral
from ratchet.settings.search_settings import SearchSettings
from ratchet.workspace import Workspace
from tasks.training_job import TrainingJob, make_plan

__all__ = ["begin", "require_same", "settings_of", "study_name", "study_of"]

_DECIDES = ("seed", "data", "model", "training")  # sections that a study remembers
_MAY_CHANGE = frozenset(SearchSettings.model_fields) - {"space", "objective", "sampler", "pruner"}
"""Settings of the search that may change while a study goes on."""
_SMALLER_IS_BETTER = ("loss", "mae", "rmse", "perplexity", "parameters")
_SHOWN = 5


def study_name(params: Params, workspace: Workspace) -> str:
    """Return the name of the study of these settings."""
    if params.search.study != "auto":
        return params.search.study
    name = registered_name(params, workspace)
    return (
        "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in name).lstrip("-.")[:64] or "study"
    )


def begin(params: Params, workspace: Workspace) -> tuple[StudyStore, Study, bool]:
    """Begin the study of these settings, or continue it. The third value is False if there is nothing to do.

    Raises:
        SettingsError: the space is empty, or the data have no such objective.
        StudyError: there is a study with this name about other data, settings or code.
    """
    if not params.search.space:
        raise SettingsError(
            "search.space: it is empty, so there is nothing to try. Fix: name settings and values in params.yaml, "
            "for example\n  space:\n    training.learning_rate: {float: [1.0e-4, 1.0e-1], log: true}\n"
            "    training.batch_size: {choice: [32, 64, 128]}\nor begin with `ratchet use digits-search`"
        )
    store = StudyStore(workspace, params.search.storage, study_name(params, workspace))
    wanted = study_of(params, workspace, store.name)
    if store.create(wanted):
        return store, _recorded(store, params, workspace), True
    before = store.require()
    require_same(before, wanted)
    budget = ("trials", "hours", "cpu_hours", "finalists", "seeds", "max_losses")
    same = all(getattr(before.search, name) == getattr(params.search, name) for name in budget)
    if before.state == "ended" and same and not before.stop:
        return store, before, False
    changed = {name: getattr(params.search, name) for name in _MAY_CHANGE}
    store.save(search=before.search.model_copy(update=changed), state="running", reason="", stop=False)
    return store, _recorded(store, params, workspace), True


def settings_of(study: Study, local: Params) -> Params:
    """Return the settings of a study, with the places of this machine: tracking, platform and so on."""
    content = local.model_dump()
    here = {"study": study.name, "folder": local.search.folder, "storage": local.search.storage}
    content |= {name: study.params[name] for name in _DECIDES}
    content["search"] = study.search.model_dump(mode="json") | here
    return Params.model_validate_json(json.dumps(content))


def require_same(study: Study, wanted: Study) -> None:
    """Check that a study is about these data, settings and code.

    Raises:
        StudyError: it is not; the message names the differences.
    """
    differences = list(_differences(study.parts, wanted.parts))
    if not differences:
        return
    hidden = len(differences) - _SHOWN
    more = f" and {hidden} more" if hidden > 0 else ""
    raise StudyError(
        f"{study.name}: the study was begun with other settings, data or code: {'; '.join(differences[:_SHOWN])}{more}"
        f". Fix: restore them, or begin another study: `ratchet set search.study=NAME`"
    )


def _differences(before: Mapping[str, Mapping[str, Any]], now: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for kind in now:
        old, new = before.get(kind, {}), now[kind]
        for name in {**old, **new}:
            if old.get(name) == new.get(name):
                continue
            if kind in ("code", "packed"):
                yield f"{name} changed"
            else:
                yield f"{name} was {spell(old.get(name))}, is now {spell(new.get(name))}"


def study_of(params: Params, workspace: Workspace, name: str) -> Study:
    """Return the study of these settings, data and code, without trials.

    Raises:
        SettingsError: the model cannot be searched, or the data have no such objective.
    """
    objectives = _objectives(params, workspace)
    job = TrainingJob.of(params, workspace, Manifest.read(workspace.packed))
    if job.variant != "network":
        raise SettingsError(
            f"model.name: found {job.variant}, which has no settings to search. Allowed: a network. Fix: "
            "`ratchet set model.name=auto`"
        )
    parts, content = job.parts, params.model_dump(mode="json")
    unused = neutral(params.training.reduction)
    decide = {name: value for name, value in content["training"].items() if name not in unused}
    settings = settings_file.dotted({"seed": params.seed, "training": decide, "model": content["model"]})
    search = params.search.model_dump(mode="json", exclude=set(_MAY_CHANGE))
    decisive = {
        "settings": {key: value for key, value in settings.items() if key not in params.search.space},
        "search": {f"search.{key}": value for key, value in search.items()},
        "packed": {"data/packed": job.identity["data"]},
        "files": {**parts["pretrained"], **parts["teacher"]},
        "code": parts["code"],
    }
    return Study(
        name=name,
        objectives=objectives,
        maximize=tuple(each.rpartition("/")[2] not in _SMALLER_IS_BETTER for each in objectives),
        search=params.search,
        params={section: content[section] for section in _DECIDES},
        parts=json.loads(json.dumps(decisive)),  # tuples become lists, as they are read back
        epochs=params.training.epochs,
    )


def _objectives(params: Params, workspace: Workspace) -> tuple[str, ...]:
    """Return the names of the objectives."""
    manifest = Manifest.read(workspace.packed)
    objective = params.search.objective
    names = (objective,) if isinstance(objective, str) else tuple(objective)
    if len({*names}) < len(names):
        raise SettingsError(f"search.objective: found {spell(list(names))}, with one twice. Fix: remove it")
    plan = partial(make_plan, target=manifest.target, seed=params.seed, kind=manifest.input.kind)
    resolved = []
    for name in names:
        if name == "auto":
            resolved.append(plan(params.training).best)
            continue
        if name != "parameters":
            try:
                plan(params.training.model_copy(update={"best": name}))
            except TrainingError as error:
                raise SettingsError(f"search.objective: {str(error).removeprefix('training.best: ')}") from error
        resolved.append(name)
    return tuple(resolved)


def _recorded(store: StudyStore, params: Params, workspace: Workspace) -> Study:
    """Give the study its run in MLflow, the parent of its trials'. Without MLflow it gets one at its end."""
    study = store.require()
    run = Run(workspace, params, f"study-{study.name}")
    try:
        listed = study.search.model_dump(mode="json", exclude={"storage", "winner"})
        run.settings({f"search.{key}": value for key, value in listed.items()})
        run.tags({"ratchet.study": study.name, "ratchet.objective": ", ".join(study.objectives)})
        run.status("RUNNING")
        run_id = run.send()
    except TrackingUnavailable:
        return study
    finally:
        run.journal.close()
    store.save(run_id=run_id)
    return store.require()
