"""A finished training run for Python and notebooks: its metrics, verdict, report, errors and predictions."""

import html
import re
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet import settings
from ratchet.errors import DataError, RegistryError
from ratchet.evaluation.intervals import Interval
from ratchet.evaluation.metrics import Metrics
from ratchet.evaluation.problems import read_metrics
from ratchet.evaluation.wording import range_text, value_text
from ratchet.gate.verdict import Verdict
from ratchet.gate.verdict_text import verdict_table
from ratchet.typed_json import parse
from ratchet.workspace import Workspace
from tasks.register import Registration

if TYPE_CHECKING:
    import polars

    from ratchet.evaluation.predictions import Predictions
    from ratchet.provenance.archive import Archive
    from ratchet.reports.inline_images import ErrorExample

__all__ = ["Report", "ShownVerdict", "TrainingRun", "WorstErrors", "last_run", "run_of_version"]

_SECTION = re.compile(r"(<section>.*?</section>)", re.DOTALL)
_HEIGHT = 640  # pixels of a page in a notebook


class ShownVerdict(Verdict):
    """The gate's verdict, which is shown as the table that `ratchet train` prints."""

    def __repr__(self) -> str:
        return verdict_table(self)


@dataclass(frozen=True)
class Report:
    """The report page of a run. A notebook shows it without the images of errors, which `TrainingRun.worst` has."""

    path: Path
    run: "TrainingRun" = field(repr=False, compare=False)  # which removes its copies of files when it is deleted

    def __fspath__(self) -> str:
        return str(self.path)

    def _repr_html_(self) -> str:
        page = self.path.read_text(encoding="utf-8")
        return _framed("".join(part for part in _SECTION.split(page) if "data:image" not in part))


@dataclass(frozen=True)
class WorstErrors:
    """The worst predictions for test samples, worst first: id, truth, answer and confidence of each.

    `examples` are their images; empty for samples that are no images, and where data/ has other data.
    """

    frame: "polars.DataFrame"
    examples: "Sequence[ErrorExample]"

    def __len__(self) -> int:
        return self.frame.height

    def _repr_html_(self) -> str:
        from ratchet.reports.inline_images import error_cards
        from ratchet.reports.problem_sections import ERROR_NOTE
        from ratchet.reports.templating import render_html

        if not self.examples:
            return self.frame._repr_html_()
        cards = error_cards(self.examples)
        return _framed(render_html("worst_errors.html.j2", errors=cards, error_note=ERROR_NOTE))


@dataclass(frozen=True)
class TrainingRun:
    """A training run whose model was evaluated and judged. It stays the same when the project trains again.

    Attributes:
        run_id: of the MLflow run.
        model: name of the registered model.
        version: its number; None if the gate refused it.
    """

    workspace: Workspace
    run_id: str
    model: str
    version: str | None
    verdict: ShownVerdict

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics on the test samples."""
        metrics = self._metrics
        others = {name: value for name, value in metrics.values.items() if value is not None}
        return {name: interval.value for name, interval in self.intervals.items()} | others

    @property
    def intervals(self) -> dict[str, Interval]:
        """Confidence intervals of the metrics that have one: low, value and high."""
        return {name: metric.interval for name, metric in self._metrics.named().items()}

    @property
    def report(self) -> Report:
        """The report page."""
        return Report(self._file("report.html"), self)

    @property
    def predictions(self) -> "polars.DataFrame":
        """One row for each test sample: id, target, prediction and the model's outputs."""
        import polars

        return polars.read_parquet(self._file("predictions.parquet"))

    def worst(self, count: int = 12) -> WorstErrors:
        """Return the worst predictions, the most confident first."""
        import polars

        predictions = self._predictions
        rows = [int(row) for row in predictions.worst_errors(count)]
        frame = polars.DataFrame(
            {
                "id": [predictions.ids[row] for row in rows],
                "truth": [predictions.truth(row) for row in rows],
                "answer": [predictions.answer(row) for row in rows],
                "confidence": [predictions.sureness(row) for row in rows],
            },
            schema_overrides={"confidence": polars.Float64},
        )
        return WorstErrors(frame, self._examples(count))

    def confusion(self) -> "polars.DataFrame":
        """Return the confusion matrix: one row per actual class, one column per predicted class.

        Raises:
            DataError: the model does not predict classes.
        """
        import polars

        matrix = getattr(self._metrics, "confusion", None)
        if matrix is None:
            raise DataError(
                f"confusion: the model predicts {self._predictions.target.description}. Allowed: a model that predicts "
                "one of several classes. Fix: use `run.metrics` and `run.worst()`"
            )
        names = [row.name for row in self._metrics.by_output]
        counts = {f"predicted {name}": [row[place] for row in matrix] for place, name in enumerate(names)}
        return polars.DataFrame({"actual": names, **counts})

    @cached_property
    def _metrics(self) -> Metrics:
        return read_metrics(self._file("evaluation.json").parent)

    @cached_property
    def _predictions(self) -> "Predictions":
        from ratchet.evaluation.predictions import read_predictions

        return read_predictions(self._file("predictions.parquet"))

    @cached_property
    def _copies(self) -> Path:
        """A folder that is removed with the run."""
        folder = tempfile.mkdtemp(prefix="ratchet-run-")
        weakref.finalize(self, shutil.rmtree, folder)
        return Path(folder)

    @cached_property
    def _archive(self) -> "Archive":
        from ratchet.provenance.archive import Archive

        return Archive(self.workspace, settings.load(self.workspace.params))

    def _file(self, name: str) -> Path:
        """Return a copy of a file of the run's report in MLflow: data/reports may have those of a later training."""
        copy = self._archive.file(self.run_id, f"report/{name}", self._copies)
        if copy is None:
            raise RegistryError(
                f"run {self.run_id}: MLflow has no report/{name} of it. Fix: `ratchet sync`, if it waits to be sent; "
                "else restore the run's artifacts"
            )
        return copy

    def _examples(self, count: int) -> "Sequence[ErrorExample]":
        from ratchet.data.manifest import Manifest
        from ratchet.evaluation.explanations import Explanations, read_explanations
        from ratchet.kinds.registry import kind_of
        from tasks.report import error_examples

        workspace, run = self.workspace, self._archive.run(self.run_id)
        if run is None or run.record is None or not (workspace.packed / "manifest.json").exists():
            return ()
        manifest = Manifest.read(workspace.packed)
        if (run.record.inputs or {}).get("data") != manifest.digest or not kind_of(manifest.input).has_pixels:
            return ()
        last = workspace.reports / "predictions.parquet"
        if last.exists() and last.read_bytes() == self._file("predictions.parquet").read_bytes():
            explanations = read_explanations(workspace.reports / "explanations.safetensors")
        else:
            explanations = Explanations.none("MLflow has none")
        params = settings.load(workspace.params)
        return error_examples(self._predictions, explanations, params, workspace, count=count)

    def __repr__(self) -> str:
        name = f"{self.model}/{self.version}" if self.version else f"{self.model}, not registered"
        metrics = (f"  {each.name} {value_text(each)} ({range_text(each)})" for each in self._metrics.named().values())
        return "\n".join([f"{name}, MLflow run {self.run_id}", *metrics, repr(self.verdict)])

    def _repr_html_(self) -> str:
        return self.report._repr_html_()


def last_run(workspace: Workspace) -> TrainingRun:
    """Return the project's last run.

    Raises:
        DataError: there is none.
    """
    if not workspace.registration.exists():
        raise DataError(f"{workspace.root}: has no finished run. Fix: `project.train()`")
    result = Registration.load(workspace)
    verdict = ShownVerdict(**vars(result.verdict))
    return TrainingRun(workspace, result.run_id, result.model, result.version, verdict)


def run_of_version(workspace: Workspace, reference: str) -> TrainingRun:
    """Return the run of a registered version, NAME/VERSION or NAME@ALIAS.

    Raises:
        RegistryError: there is no such version.
    """
    from ratchet.registry.models import ModelRegistry

    version = ModelRegistry(workspace, settings.load(workspace.params)).find(reference)
    if "ratchet.verdict" not in version.tags:
        raise RegistryError(f"{reference}: has no verdict, so ratchet did not register it")
    verdict = ShownVerdict(**vars(parse(Verdict, version.tags["ratchet.verdict"])))
    return TrainingRun(workspace, version.run_id, version.name, version.number, verdict)


def _framed(page: str) -> str:
    """Return a page as a frame of its own, so that its styles do not reach the notebook."""
    return f'<iframe srcdoc="{html.escape(page)}" style="width:100%;height:{_HEIGHT}px;border:0"></iframe>'
