"""The user's own metrics (evaluation.metrics): functions in model.code, imported from the project."""

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.settings.model import Params
from ratchet.training.custom_code import CustomCode
from ratchet.workspace import Workspace

if TYPE_CHECKING:
    from ratchet.evaluation.answers import Answers
    from ratchet.evaluation.metrics import Metrics, NamedMetric
    from ratchet.evaluation.own_metrics import MetricFunction

__all__ = ["OwnMetrics"]

NO_RESULT = {"train": "training imports them early, so that a fault is found before it"}
_WRITTEN = ("temperature", "flip_average")  # also in metrics.json


@dataclass(frozen=True)
class OwnMetrics:
    """The functions by their names in evaluation.metrics, and the code that has them."""

    functions: "Mapping[str, MetricFunction]"
    code: CustomCode

    @classmethod
    def load(cls, params: Params, workspace: Workspace) -> "OwnMetrics":
        """Import the functions.

        Raises:
            TrainingError: there is no such function, or its module does not import.
        """
        code = CustomCode(workspace.root, params.model.code, "evaluation.metrics")
        return cls({name: code.load(name) for name in params.evaluation.metrics}, code)

    def measure(
        self, answers: "Answers", metrics: "Metrics", *, report: Callable[[int, int, str], None]
    ) -> "tuple[NamedMetric, ...]":
        """Return the metrics on the test rows.

        Raises:
            TrainingError: a function fails, or returns no finite number.
        """
        from ratchet.evaluation.own_metrics import own_metrics

        taken = (*metrics.keys(), *metrics.numbers(), *_WRITTEN)
        return own_metrics(
            self.functions, answers, confidence=metrics.confidence, taken=taken, line_of=self._line_of, report=report
        )

    def _line_of(self, error: BaseException) -> str:
        """Return the last line of the user's code in the traceback; empty: there is none."""
        own = {(self.code.root / path).resolve(): path for path in self.code.files()}
        frames = traceback.extract_tb(error.__traceback__)
        lines = [(own.get(Path(frame.filename).resolve()), frame.lineno) for frame in frames]
        return next((f"{path}, line {number}" for path, number in reversed(lines) if path is not None), "")
