"""The chain from data to versions, as a tree of links. A link that is not there says which, and why."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ratchet.provenance.archive import Made

__all__ = ["PACKED", "Acts", "Link", "data_link", "run_link"]

PACKED = "data/packed"
"""The output by whose DVC hash a data version is known."""


@dataclass(frozen=True)
class Link:
    """One link of the chain: what it is, what there is to say of it, and what was made of it."""

    title: str
    lines: tuple[str, ...] = ()
    made: tuple["Link", ...] = ()


Acts = Mapping[tuple[str, str], Sequence[str]]
"""(model, version) -> what was done with it, by whom and when, as the ledger has it."""


def data_link(runs: Sequence[Made], *, kept: str, others: int = 0, acts: Acts = MappingProxyType({})) -> Link:
    """One data version with the runs made of it, at least one.

    `kept` tells where its content is; `others` how many runs of it are not shown.
    """
    first = runs[0]
    source = Link("source", _source(first))
    counted = "1 more run was" if others == 1 else f"{others:,} more runs were"
    more = (f"{counted} made of it: `ratchet trace {first.hash_of(PACKED)}` shows all",) if others else ()
    version = Link("data version", (*_data(first), kept, *more), tuple(run_link(one, acts) for one in runs))
    return Link(source.title, source.lines, (version,))


def _source(made: Made) -> tuple[str, ...]:
    kind, path = made.params.get("data.source"), made.params.get("data.path")
    if kind is None or path is None:
        return ("unknown: the run's settings are not in MLflow",)
    inputs = (made.record or {}).get("dvc_inputs") or {}
    told = f"{kind}, read from {path}"
    if path in inputs:
        return (told, f"DVC hash {inputs[path]}")
    return (told, "its hash is not known: DVC had recorded none when the run was made")


def _data(made: Made) -> tuple[str, ...]:
    profile = made.dataset.get("profile", {})
    if not profile:
        return ("unknown: the run names no data set in MLflow",)
    if not _is_profile(profile):
        return ("unknown: the data set's profile in MLflow is damaged",)
    rows = ", ".join(f"{count:,} {split}" for split, count in profile["rows"].items())
    value = made.hash_of(PACKED)
    return (
        f"DVC hash {value}" if value else "its DVC hash is not known: DVC had recorded none when the run was made",
        f"{made.dataset['name']}: {profile['classes']:,} classes, {rows}",
        f"{profile['quarantined']:,} quarantined",
    )


def _is_profile(profile: Mapping[str, Any]) -> bool:
    rows = profile.get("rows")
    counts = [
        profile.get("classes"),
        profile.get("quarantined"),
        *(rows.values() if isinstance(rows, dict) else [None]),
    ]
    return all(isinstance(count, int) for count in counts)


def run_link(made: Made, acts: Acts = MappingProxyType({})) -> Link:
    """A run with its evaluation, its verdict, its versions and what was done with them below one another."""
    versions = _versions(made, acts)
    verdict = Link("verdict", _verdict(made), (versions,))
    evaluation = Link("evaluation", _evaluation(made), (verdict,))
    doubts = tuple(f"! {doubt}" for doubt in made.doubts)
    return Link(f"run {made.run_id}", (*_run(made), *doubts), (evaluation,))


def _run(made: Made) -> tuple[str, ...]:
    told = [f"{made.run_name}, {made.status}"]
    record = made.record
    if record is None:
        if any(key.startswith("ratchet.provenance") for key in made.tags):
            return (*told, "its provenance record cannot be read")
        return (*told, "no provenance record: it was cut off before it was judged, or ratchet did not make it")
    flow = record.get("prefect_flow_run")
    told.append(f"Prefect flow run {flow}" if flow else "no Prefect flow run: made by `dvc repro` or a stage by hand")
    commit, patched = record.get("git_commit"), record.get("git_uncommitted")
    also = ", with uncommitted changes (provenance/uncommitted.patch)" if patched else ""
    told.append(f"commit {commit}{also}" if commit else "no commit: it was made outside git")
    told.append(f"settings {record.get('settings', 'unknown')}, seed {record.get('seed', 'unknown')}")
    weights = record.get("weights")
    told.append(f"weights SHA-256 {weights}" if weights else "weights: none yet, the training is not over")
    told.append(f"provenance {record.get('id', 'unknown')}")
    return tuple(told)


def _evaluation(made: Made) -> tuple[str, ...]:
    found = [
        made.metrics.get(f"test{one}") for one in ("/accuracy", " interval/accuracy_low", " interval/accuracy_high")
    ]
    if found[0] is None:
        return ("none: the run was not evaluated, or not registered or refused after it",)
    if None in found:
        return (f"test accuracy {found[0]:.4f}, without an interval",)
    value, low, high = (float(one or 0.0) for one in found)
    return (f"test accuracy {value:.4f} ({low:.4f} to {high:.4f})",)


def _verdict(made: Made) -> tuple[str, ...]:
    if "ratchet.gate" not in made.tags:
        return ("none: the gate has not judged it",)
    return (made.tags.get("mlflow.note.content") or made.tags["ratchet.gate"],)


def _versions(made: Made, acts: Acts) -> Link:
    if made.releases:
        unknown = ("the ledger knows nothing of it",)
        told = ((one.words, tuple(acts.get((one.name, one.number), unknown))) for one in made.releases)
        return Link("versions", made=tuple(Link(words, lines) for words, lines in told))
    gate = made.tags.get("ratchet.gate")
    if gate == "passed":
        return Link("versions", ("none: it passed the gate, but the registry has no version of it any more",))
    return Link("versions", ("none: the gate refused it" if gate else "none: it was not judged",))
