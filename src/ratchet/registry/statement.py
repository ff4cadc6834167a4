"""MLflow's values of a registered run, as a file that the ledger's evidence covers.

Anyone who can write to MLflow's database can edit metrics, tags, settings and descriptions there. The statement is a
copy from the time of registration. `ratchet audit` compares MLflow with it, and compare and trace read it.
"""

import json
import math
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from ratchet import files
from ratchet.registry.mlflow_store import reachable, run_file
from ratchet.typed_json import STRICT, parse, to_plain

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from pydantic import ConfigDict

    from ratchet.registry.models import ModelRegistry
    from ratchet.registry.versions import Version

__all__ = [
    "STATEMENT",
    "SealedDataset",
    "SealedValues",
    "edits",
    "evaluation_metrics",
    "write_statement",
]

STATEMENT = "report/statement.json"
"""Path of the statement among a run's artifacts, and in the ledger's evidence."""

_TAGS = ("mlflow.note.content", "mlflow.runName", "mlflow.source.name", "mlflow.source.type", "mlflow.user")
_VERDICT = "ratchet.verdict"  # a tag of the version; the evidence has its digest


@dataclass(frozen=True)
class SealedDataset:
    """The run's data set; `profile` is JSON."""

    __pydantic_config__: ClassVar["ConfigDict"] = STRICT

    name: str | None
    digest: str | None
    profile: str | None


@dataclass(frozen=True)
class SealedValues:
    """MLflow's values of a run and its version; `description` is the version's."""

    __pydantic_config__: ClassVar["ConfigDict"] = STRICT

    metrics: dict[str, float]
    params: dict[str, str]
    tags: dict[str, str]
    dataset: SealedDataset | None
    version_tags: dict[str, str]
    description: str
    status: str

    def values(self) -> dict[tuple[str, str], object]:
        """Return every value by its kind and name."""
        groups: dict[str, Mapping[str, object]] = {
            "metric": self.metrics,
            "setting": self.params,
            "tag": self.tags,
            "data set": vars(self.dataset) if self.dataset else {},
            "tag of the version": self.version_tags,
            "text": {"description of the version": self.description, "status": self.status},
        }
        return {(kind, name): group[name] for kind, group in groups.items() for name in sorted(group)}


def evaluation_metrics(numbers: Mapping[str, float]) -> dict[str, float]:
    """Return the numbers that evaluation measured by the names of MLflow's metrics.

    The bounds of confidence intervals have a group of their own, so that they do not triple the charts.
    """
    bounds = {name for name in numbers if name.endswith(("_low", "_high"))}
    return {f"{'test interval' if name in bounds else 'test'}/{name}": value for name, value in numbers.items()}


def write_statement(registry: "ModelRegistry", version: "Version", numbers: Mapping[str, float]) -> None:
    """Store the statement among the run's artifacts, before the ledger takes its evidence.

    `numbers` are what evaluation measured. These are sealed even if MLflow has other values.

    Raises:
        TrackingUnavailable: MLflow does not answer.
    """
    with reachable(registry.uri):
        current = _current(registry.client, version)
    measured = {name: float(value) for name, value in evaluation_metrics(numbers).items()}
    statement = replace(current, metrics=current.metrics | measured)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, Path(STATEMENT).name)
        text = json.dumps(to_plain(statement), indent=1, sort_keys=True, ensure_ascii=False)
        files.write_text(path, f"{text}\n")
        registry.log_files(version.run_id, {path: str(Path(STATEMENT).parent)})


def edits(registry: "ModelRegistry", version: "Version") -> Iterator[str]:
    """Yield each value of a version that MLflow changed since registration, as a message.

    The caller has compared the statement with the ledger's evidence. A version without a statement yields nothing.

    Raises:
        TrackingUnavailable: MLflow does not answer.
    """
    with reachable(registry.uri), tempfile.TemporaryDirectory() as folder:
        path = run_file(registry.client, version.run_id, STATEMENT, Path(folder))
        if path is None:
            return
        try:
            sealed = parse(SealedValues, path.read_bytes())
        except ValueError as error:
            # A recovery can seal a damaged file: the person who confirms a version does not see its content.
            yield (
                f"{STATEMENT} is damaged ({error}), and was when the ledger took its digest: MLflow's values were not "
                "compared"
            )
            return
        current = _current(registry.client, version)
    before, after = sealed.values(), current.values()
    for kind, name in dict.fromkeys((*before, *after)):
        expected, value = before.get((kind, name)), after.get((kind, name))
        if not _same(expected, value):
            yield f"MLflow has {kind} {name} = {_shown(value)}, and the sealed value is {_shown(expected)}"


def _current(client: "MlflowClient", version: "Version") -> SealedValues:
    run, stored = client.get_run(version.run_id), client.get_model_version(version.name, version.number)
    inputs = run.inputs.dataset_inputs if run.inputs else []
    dataset = inputs[-1].dataset if inputs else None
    return SealedValues(
        metrics=dict(run.data.metrics),
        params=dict(run.data.params),
        tags={name: value for name, value in run.data.tags.items() if name.startswith("ratchet.") or name in _TAGS},
        dataset=SealedDataset(dataset.name, dataset.digest, dataset.profile) if dataset else None,
        version_tags={name: value for name, value in stored.tags.items() if name != _VERDICT},
        description=stored.description or "",
        status=run.info.status,
    )


def _same(a: object, b: object) -> bool:
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b):
        return True
    return a == b


def _shown(value: object) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
