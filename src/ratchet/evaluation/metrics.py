"""All metrics of one evaluation, as values that are written to JSON and read back."""

from dataclasses import dataclass
from pathlib import Path

from ratchet.evaluation.calibration import Bin
from ratchet.evaluation.intervals import Interval
from ratchet.evaluation.robustness import NotMeasured, Robustness
from ratchet.evaluation.slices import Slice
from ratchet.typed_json import parse

__all__ = ["Averages", "ClassMetrics", "Metrics", "read_metrics"]

_INTERVALS = ("accuracy", "top_k", "macro_f1", "log_loss", "ece", "roc_auc_interval")


@dataclass(frozen=True)
class ClassMetrics:
    """Metrics of one class. None: not defined; recall needs images, precision needs predictions, F1 one of both."""

    name: str
    precision: float | None
    recall: float | None
    f1: float | None
    support: int
    predicted: int
    roc_auc: float | None
    pr_auc: float | None


@dataclass(frozen=True)
class Averages:
    """Means over the classes that occur among labels or predictions; an undefined value counts as 0."""

    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class Metrics:
    """All metrics of a model on the test images. None: not defined on these images."""

    # The test images
    rows: int
    classes: tuple[str, ...]
    confidence: float  # level of the intervals
    k: int  # of top-k accuracy
    # The headline
    accuracy: Interval
    top_k: Interval | None  # None where k reaches the number of classes: it would be 1
    macro_f1: Interval
    log_loss: Interval
    ece: Interval
    roc_auc: float | None  # one class against the rest, mean over the classes that occur
    roc_auc_interval: Interval | None  # None also where it costs too much time
    pr_auc: float | None  # average precision, mean over the classes that occur
    # The rest
    macro: Averages
    weighted: Averages  # by support
    per_class: tuple[ClassMetrics, ...]
    confusion: tuple[tuple[int, ...], ...]  # [actual][predicted]
    reliability: tuple[Bin, ...]
    slices: tuple[Slice, ...]
    robustness: Robustness | NotMeasured

    def numbers(self) -> dict[str, float]:
        """Return the defined metrics by name, for DVC and MLflow; the bounds of intervals as NAME_low and NAME_high."""
        flat: dict[str, float] = {}
        for field in _INTERVALS:
            name = field.removesuffix("_interval")
            interval: Interval | None = getattr(self, field)
            if interval is not None:
                flat |= {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
        areas = {"roc_auc": self.roc_auc, "pr_auc": self.pr_auc}
        flat |= {name: value for name, value in areas.items() if value is not None}
        flat |= {"macro_precision": self.macro.precision, "macro_recall": self.macro.recall}
        if isinstance(self.robustness, Robustness):
            flat |= self.robustness.numbers()
        return flat | {"weighted_f1": self.weighted.f1, "rows": float(self.rows)}


def read_metrics(reports: Path) -> Metrics:
    """Read the metrics of the last evaluation from the folder data/reports."""
    return parse(Metrics, (reports / "evaluation.json").read_bytes())
