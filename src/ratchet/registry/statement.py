"""What MLflow says of a registered run, as a file that the ledger's evidence covers.

Metrics, tags, settings and descriptions in MLflow can be edited by anyone who can write to its database. The statement
is a copy from the time of registering: audit compares MLflow with it, and compare and trace read it.
"""

import json
import math
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet import files
from ratchet.registry.mlflow_store import reachable
from ratchet.registry.provenance_tags import parse_object

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from ratchet.registry.models import ModelRegistry
    from ratchet.registry.versions import Version

__all__ = ["SEALED", "edits", "figure_metrics", "parse_statement", "write_statement"]

SEALED = "report/statement.json"
"""Path of the statement among a run's artifacts, and in the ledger's evidence."""

_TAGS = ("mlflow.note.content", "mlflow.runName", "mlflow.source.name", "mlflow.source.type", "mlflow.user")
_VERDICT = "ratchet.verdict"  # a version's tag; the evidence has its digest


def figure_metrics(numbers: Mapping[str, float]) -> dict[str, float]:
    """Return the measured numbers by the names of MLflow's metrics.

    The bounds of intervals have a group of their own: among the figures they would triple the charts.
    """
    bounds = {name for name in numbers if name.endswith(("_low", "_high"))}
    return {f"{'test interval' if name in bounds else 'test'}/{name}": value for name, value in numbers.items()}


def write_statement(registry: "ModelRegistry", version: "Version", numbers: Mapping[str, float]) -> None:
    """Store the statement with the run of a version, before the ledger takes its evidence.

    `numbers` are what evaluation measured: these are sealed whatever MLflow has.

    Raises:
        TrackingAway: MLflow does not answer.
    """
    with reachable(registry.uri):
        content = _current(registry.client, version)
    content["metrics"] |= {name: float(value) for name, value in figure_metrics(numbers).items()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, Path(SEALED).name)
        files.write_text(path, json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
        registry.log_files(version.run_id, {path: str(Path(SEALED).parent)})


def edits(registry: "ModelRegistry", version: "Version") -> Iterator[str]:
    """Yield what MLflow says of a version now and did not say when it was registered.

    The caller has compared the statement with the ledger's evidence. A version without a statement yields nothing.

    Raises:
        TrackingAway: MLflow does not answer.
    """
    with reachable(registry.uri), tempfile.TemporaryDirectory() as folder:
        there = {one.path for one in registry.client.list_artifacts(version.run_id, str(Path(SEALED).parent))}
        if SEALED not in there:
            return
        content = Path(registry.client.download_artifacts(version.run_id, SEALED, folder)).read_bytes()
        sealed = parse_statement(content)
        if sealed is None:
            yield f"{SEALED} is damaged, and was when the ledger took its digest: MLflow's values were not compared"
            return
        now = _current(registry.client, version)
        for name, point in _last_points(registry.client, version.run_id, sealed["metrics"]).items():
            if _same(now["metrics"].get(name), sealed["metrics"][name]):
                now["metrics"][name] = point  # the chart draws the points, not the metric's last value
    for kind, caption in _CAPTIONS.items():
        for name in sorted({*sealed[kind], *now[kind]}):
            before, after = sealed[kind].get(name), now[kind].get(name)
            if not _same(before, after):
                yield f"MLflow has {caption} {name} = {_shown(after)}, and the sealed value is {_shown(before)}"


_CAPTIONS = {
    "metrics": "metric",
    "params": "setting",
    "tags": "tag",
    "dataset": "data set",
    "version_tags": "tag of the version",
    "about": "text",
}


def parse_statement(content: bytes) -> dict[str, Any] | None:
    """Return a statement; None where the content is none.

    A recovery can seal a damaged file: the person who confirms a version sees no content.
    """
    found = parse_object(content)
    if found is None or not all(isinstance(found.get(kind), dict) for kind in _CAPTIONS):
        return None
    dataset, metrics = found["dataset"], found["metrics"]
    texts = [*found["params"].values(), *found["tags"].values(), *found["version_tags"].values()]
    readable = (
        all(isinstance(value, int | float) for value in metrics.values())
        and all(isinstance(value, str) for value in [*texts, found["about"].get("status")])
        and (not dataset or dataset.keys() == {"name", "digest", "profile"})
        and all(isinstance(value, str | None) for value in dataset.values())
    )
    return found if readable else None


def _current(client: "MlflowClient", version: "Version") -> dict[str, Any]:
    run, stored = client.get_run(version.run_id), client.get_model_version(version.name, version.number)
    inputs = run.inputs.dataset_inputs if run.inputs else []
    dataset = inputs[-1].dataset if inputs else None
    tags = {name: value for name, value in run.data.tags.items() if name.startswith("ratchet.") or name in _TAGS}
    return {
        "metrics": dict(run.data.metrics),
        "params": dict(run.data.params),
        "tags": tags,
        "dataset": {name: getattr(dataset, name) for name in ("name", "digest", "profile")} if dataset else {},
        "version_tags": {name: value for name, value in stored.tags.items() if name != _VERDICT},
        "about": {"description of the version": stored.description or "", "status": run.info.status},
    }


def _last_points(client: "MlflowClient", run_id: str, names: Mapping[str, float]) -> dict[str, float]:
    """Return the last point of each test metric: what MLflow's chart shows."""
    found = {}
    for name in names:
        if name.startswith("test"):
            points = client.get_metric_history(run_id, name)
            if points:
                found[name] = max(points, key=lambda one: (one.step, one.timestamp)).value
    return found


def _same(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other):
        return True
    return one == other


def _shown(value: object) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
