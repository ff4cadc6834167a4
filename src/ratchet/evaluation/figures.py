"""The figures of one evaluation, as values that can be kept as JSON and read back."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from ratchet.evaluation.calibration import Bin
from ratchet.evaluation.intervals import Interval
from ratchet.evaluation.robustness import NotMeasured, Robustness
from ratchet.evaluation.slices import Slice

__all__ = ["Averages", "ClassFigures", "Figures"]

_UNMEASURED = NotMeasured("these figures were made without it: run evaluate again")
_INTERVALS = ("accuracy", "top_k", "macro_f1", "log_loss", "ece", "roc_auc_interval")


@dataclass(frozen=True)
class ClassFigures:
    """One class. None is "not defined": recall without rows, precision without answers, F1 without either."""

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
    """Means over the classes that occur among the test rows or the answers; what is undefined counts 0."""

    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class Figures:
    """Everything measured on the test rows. None is "not defined on these rows"."""

    # What was measured
    rows: int
    classes: tuple[str, ...]
    confidence: float  # level of the intervals
    k: int  # of top-k accuracy
    # The headline
    accuracy: Interval
    top_k: Interval | None  # None where k is not below the number of classes: it would always be 1
    macro_f1: Interval
    log_loss: Interval
    ece: Interval
    roc_auc: float | None  # one class against the rest, mean over the classes that occur
    roc_auc_interval: Interval | None  # None also where it would cost too much
    pr_auc: float | None  # average precision, mean over the classes that occur
    # The rest
    macro: Averages
    weighted: Averages  # by support
    per_class: tuple[ClassFigures, ...]
    confusion: tuple[tuple[int, ...], ...]  # [actual][predicted]
    reliability: tuple[Bin, ...]
    slices: tuple[Slice, ...]  # the same on parts of the test rows
    robustness: Robustness | NotMeasured = _UNMEASURED

    def numbers(self) -> dict[str, float]:
        """The defined single numbers, flat, for DVC's metrics and MLflow; intervals as NAME_low and NAME_high."""
        flat: dict[str, float] = {}
        for field in _INTERVALS:
            name = field.removesuffix("_interval")
            interval: Interval | None = getattr(self, field)
            if interval is not None:
                flat |= {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
        undefined_or = {"roc_auc": self.roc_auc, "pr_auc": self.pr_auc}
        flat |= {name: value for name, value in undefined_or.items() if value is not None}
        flat |= {"macro_precision": self.macro.precision, "macro_recall": self.macro.recall}
        if isinstance(self.robustness, Robustness):
            flat |= self.robustness.numbers()
        return flat | {"weighted_f1": self.weighted.f1, "rows": float(self.rows)}

    def to_json(self) -> dict[str, Any]:
        """Plain data, equal for equal figures; `from_json` reads it."""
        return asdict(self) | {
            "classes": list(self.classes),
            "per_class": [asdict(one) for one in self.per_class],
            "confusion": [list(row) for row in self.confusion],
            "reliability": [asdict(one) for one in self.reliability],
            "slices": [one.to_json() for one in self.slices],
            "robustness": asdict(self.robustness),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Figures":
        """The figures that `to_json` wrote; those of an earlier version lack what it did not measure."""
        values = {field.name: content[field.name] for field in fields(cls) if field.name != "robustness"}
        for name in _INTERVALS:
            values[name] = None if content[name] is None else Interval.from_json(content[name])
        values |= {
            "classes": tuple(content["classes"]),
            "macro": Averages(**content["macro"]),
            "weighted": Averages(**content["weighted"]),
            "per_class": tuple(ClassFigures(**one) for one in content["per_class"]),
            "confusion": tuple(tuple(row) for row in content["confusion"]),
            "reliability": tuple(Bin(**one) for one in content["reliability"]),
            "slices": tuple(Slice.from_json(one) for one in content["slices"]),
            "robustness": _robustness(content.get("robustness")),
        }
        return cls(**values)


def _robustness(content: Mapping[str, Any] | None) -> Robustness | NotMeasured:
    if content is None:
        return _UNMEASURED
    return NotMeasured(content["why"]) if "why" in content else Robustness.from_json(content)
