"""The lineage of data, runs and versions as a tree of links. A missing link says why it is missing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ratchet.kinds.registry import kind_chosen
from ratchet.provenance.archive import ArchivedRun
from ratchet.registry.provenance_record import PACKED, PROVENANCE_TAG, Provenance

__all__ = ["Acts", "Link", "data_link", "run_link"]

_HEADLINES = ("accuracy", "mae", "micro_f1", "bits_per_character")  # of each problem


@dataclass(frozen=True)
class Link:
    """One node of the tree: its title, lines of text about it, and the links that came from it."""

    title: str
    lines: tuple[str, ...] = ()
    children: tuple["Link", ...] = ()


Acts = Mapping[tuple[str, str], Sequence[str]]
"""(model, version) -> lines about the acts on it in the ledger."""


def data_link(runs: Sequence[ArchivedRun], *, storage: str, others: int = 0, acts: Acts = MappingProxyType({})) -> Link:
    """Return the tree of one data version and at least one run that used it.

    `storage` says where the data is kept; `others` is the number of its runs that are not shown.
    """
    first = runs[0]
    count = "1 more run" if others == 1 else f"{others:,} more runs"
    more = (f"{count} used it: `ratchet trace {first.hash_of(PACKED)}` shows all",) if others else ()
    version = Link("data version", (*_data(first), storage, *more), tuple(run_link(run, acts) for run in runs))
    return Link("source", _source(first), (version,))


def run_link(run: ArchivedRun, acts: Acts = MappingProxyType({})) -> Link:
    """Return a run with its evaluation, verdict, versions and the acts on these, each below the one before."""
    verdict = Link("verdict", _verdict(run), (_versions(run, acts),))
    evaluation = Link("evaluation", _evaluation(run), (verdict,))
    doubts = tuple(f"! {doubt}" for doubt in run.doubts)
    return Link(f"run {run.run_id}", (*_run(run), *doubts), (evaluation,))


def _source(run: ArchivedRun) -> tuple[str, ...]:
    params = run.params
    kind = params.get("data.kind", "image")
    source, path = params.get("data.source") if kind_chosen(kind).has_sources else kind, params.get("data.path")
    if source is None or path is None:
        return ("unknown: the run's settings are not in MLflow",)
    value = run.record.dvc_inputs.get(path) if run.record else None
    dvc_hash = f"DVC hash {value}" if value else "DVC hash unknown: DVC had not recorded it when the run was made"
    return (f"{source}, read from {path}", dvc_hash)


def _data(run: ArchivedRun) -> tuple[str, ...]:
    profile = run.dataset.get("profile", {})
    if not profile:
        return ("unknown: the run names no data set in MLflow",)
    if not _is_profile(profile):
        return ("unknown: the data set's profile in MLflow is damaged",)
    splits = ", ".join(f"{count:,} {split}" for split, count in profile["rows"].items())
    value = run.hash_of(PACKED)
    return (
        f"DVC hash {value}" if value else "DVC hash unknown: DVC had not recorded it when the run was made",
        f"{run.dataset['name']}: {_target(profile)}, {splits}",
        f"{profile['quarantined']:,} quarantined",
    )


def _is_profile(profile: Mapping[str, Any]) -> bool:
    splits = profile.get("rows")
    counts = [profile.get("quarantined"), *(splits.values() if isinstance(splits, dict) else [None])]
    return bool(_target(profile)) and all(isinstance(count, int) for count in counts)


def _target(profile: Mapping[str, Any]) -> str:
    """Return the target as a text; runs from before there were kinds of data recorded the number of classes."""
    target, classes = profile.get("target"), profile.get("classes")
    if isinstance(target, str):
        return target
    return f"{classes:,} classes" if isinstance(classes, int) else ""


def _run(run: ArchivedRun) -> tuple[str, ...]:
    title, record = f"{run.run_name}, {run.status}", run.record
    if record is None:
        if any(key.startswith(PROVENANCE_TAG) for key in run.tags):
            return (title, "its provenance record cannot be read")
        return (title, "no provenance record: it ended before the gate judged it, or ratchet did not make it")
    flow, commit, weights = record.prefect_flow_run, record.git_commit, record.weights
    patched = ", with uncommitted changes (provenance/uncommitted.patch)" if record.git_uncommitted else ""
    parent = (f"continued from {record.parent}: `ratchet trace {record.parent}`",) if record.parent else ()
    return (
        title,
        *parent,
        f"Prefect flow run {flow}" if flow else "no Prefect flow run: started by `dvc repro` or as a single stage",
        f"commit {commit}{patched}" if commit else "no commit: made outside git",
        f"settings {record.settings}, seed {record.seed}{_chosen(record)}",
        *([f"initial weights {record.pretrained.description}"] if record.pretrained else []),
        f"weights SHA-256 {weights}" if weights else "no weights yet: the training is not over",
        f"provenance {record.id}",
    )


def _chosen(record: Provenance) -> str:
    return f", found by trial {record.search} of a search" if record.search else ""


def _evaluation(run: ArchivedRun) -> tuple[str, ...]:
    name = next((name for name in _HEADLINES if f"test/{name}" in run.metrics), None)
    if name is None:
        return ("none: the run was not evaluated, or it ended before the gate judged it",)
    value, named = run.metrics[f"test/{name}"], name.replace("_", " ")
    low, high = (run.metrics.get(f"test interval/{name}_{end}") for end in ("low", "high"))
    if low is None or high is None:
        return (f"test {named} {value:.4f}, without an interval",)
    return (f"test {named} {value:.4f} ({low:.4f} to {high:.4f})",)


def _verdict(run: ArchivedRun) -> tuple[str, ...]:
    if "ratchet.gate" not in run.tags:
        return ("none: the gate has not judged it",)
    return (run.tags.get("mlflow.note.content") or run.tags["ratchet.gate"],)


def _versions(run: ArchivedRun, acts: Acts) -> Link:
    if run.versions:
        unknown = ("the ledger has no entry about it",)
        children = (
            Link(version.label, tuple(acts.get((version.name, version.number), unknown))) for version in run.versions
        )
        return Link("versions", children=tuple(children))
    gate = run.tags.get("ratchet.gate")
    if gate and gate.startswith("passed"):
        return Link("versions", ("none: it passed the gate, but its version is no longer in the registry",))
    return Link("versions", ("none: the gate refused it" if gate else "none: it was not judged",))
