"""Additions to the predictions of one version that a client may ask for: regions, abstention, and novelty."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ratchet.errors import RegistryError
from ratchet.kinds.protocol import InputError
from ratchet.problems import Target
from ratchet.problems.abstention import ABSTENTION, Abstention
from ratchet.problems.named_answers import named_answers
from ratchet.problems.novelty import NOVELTY, Novelty
from ratchet.problems.regions import CALIBRATION, LEVELS, REGIONS, Calibration, Regions
from ratchet.typed_json import parse

__all__ = ["PLAIN", "AnswerOptions", "NotCalibrated", "VersionAdditions"]

T = TypeVar("T")
Predictions = NDArray[np.float32]

_LEVELS = f"{LEVELS.start / 100:g} to {LEVELS[-1] / 100:g} in steps of 0.01"
_ROUNDING = 1e-9
_DIGITS = 4  # of the lowest error rate in messages


class NotCalibrated(InputError):
    """A version cannot answer an option that another one can."""


class AnswerOptions(NamedTuple):
    """Additions to the predictions for which a client asks.

    Attributes:
        interval: level of prediction intervals or sets in per cent; None: without them.
        abstain: error rate among the answered rows; None: every row is answered.
        novelty: True: the share of test rows that are less unusual; None: without it.
    """

    interval: int | None = None
    abstain: float | None = None
    novelty: bool | None = None

    @property
    def given(self) -> dict[str, Any]:
        """Those that are asked for, by name."""
        return {name: value for name, value in self._asdict().items() if value is not None}

    @property
    def content(self) -> dict[str, Any]:
        """The same as a client gives them."""
        return self.given | ({"interval": self.interval / 100} if self.interval else {})


PLAIN = AnswerOptions()
"""Nothing but the predictions."""


class VersionAdditions:
    """Calibrations of a version, by which it answers the options.

    Attributes:
        calibration: of its intervals or sets; None: the version has none.
        abstention: thresholds; None: the version has none.
        novelty: scores of test rows; None: the version has none.
    """

    def __init__(self, called: str, target: Target, folder: Path, *, full: Path) -> None:
        """Read the calibrations from the folder of a variant's verified files; `full` is that of its fp32 program.

        `called` names the version in messages.

        Raises:
            RegistryError: a newer ratchet wrote them.
        """
        self._called, self._target, self._full = called, target, full
        self.calibration = _read(Calibration, folder / CALIBRATION)
        self.abstention = _read(Abstention, folder / ABSTENTION)
        self.novelty = _read(Novelty, folder / NOVELTY)

    def read(self, given: Mapping[str, Any], prefix: str) -> AnswerOptions:
        """Return the options among those that a client gives; `prefix` precedes their names in messages.

        Raises:
            InputError: naming the field: the value is not allowed.
            NotCalibrated: the version cannot answer it.
        """
        interval, abstain, novelty = (given.get(name) for name in AnswerOptions._fields)
        return AnswerOptions(
            None if interval is None else self._percent(interval, f"{prefix}interval"),
            None if abstain is None else self._rate(abstain, f"{prefix}abstain"),
            None if novelty is None else self._wanted(novelty, f"{prefix}novelty"),
        )

    def has(self, options: AnswerOptions) -> bool:
        """Return whether the version can answer these options of a request to another one."""
        try:
            self.read(options.content, "")
        except NotCalibrated:
            return False
        return True

    def regions(self, options: AnswerOptions) -> Regions | None:
        """Return the intervals or sets that options ask for; None: they ask for none."""
        if options.interval is None:
            return None
        assert self.calibration, "`read` checks it"
        return REGIONS[self._target.problem](self._target, self.calibration.at(options.interval))

    def flags(self, options: AnswerOptions, predictions: Predictions) -> dict[str, NDArray[Any]]:
        """Return what options ask for besides regions, as arrays of n rows: abstained, bool, and novelty, float32."""
        flags = dict[str, NDArray[Any]]()
        if options.abstain is not None and self.abstention:
            flags["abstained"] = self.abstention.abstains(predictions, options.abstain)
        if options.novelty and self.novelty:
            flags["novelty"] = self.novelty.shares(predictions)
        return flags

    def tensors(self, options: AnswerOptions, predictions: Predictions) -> dict[str, NDArray[Any]]:
        """Return all that options ask for as arrays of n rows, by name."""
        regions = self.regions(options)
        return (regions.tensors(predictions) if regions else {}) | self.flags(options, predictions)

    def columns(self, options: AnswerOptions, predictions: Predictions) -> dict[str, NDArray[Any]]:
        """Return all that options ask for as columns of a file of scores."""
        regions = self.regions(options)
        return (regions.columns(predictions) if regions else {}) | self.flags(options, predictions)

    def rows(self, options: AnswerOptions, predictions: Predictions, top: int) -> list[dict[str, Any]]:
        """Return the named answer to each row, with all that options ask for. A row without an answer has no class."""
        regions, rows = self.regions(options), named_answers(self._target).rows(predictions, top)
        if regions:
            rows = [row | region for row, region in zip(rows, regions.rows(predictions), strict=True)]
        for name, values in self.flags(options, predictions).items():
            rows = [row | {name: value} for row, value in zip(rows, values.tolist(), strict=True)]
        return [row | {"class": None} if row.get("abstained") else row for row in rows]

    def _percent(self, level: Any, field: str) -> int:
        """Return a level such as 0.9 in per cent."""
        if self._target.problem not in REGIONS:
            raise self._other_problem(field, "numbers or one of several classes")
        percent = round(100 * level) if _is_share(level) else 0
        if percent not in LEVELS or abs(100 * level - percent) > _ROUNDING:
            raise InputError(f"{field}: found {level!r}; allowed: {_LEVELS}")
        calibration = self._stored(self.calibration, field, "prediction intervals", CALIBRATION)
        if percent > calibration.highest:
            allowed = f"up to {calibration.highest / 100:g}" if calibration.highest in LEVELS else "none"
            reason = f"because {calibration.rows:,} validation samples calibrate {self._called}"
            raise NotCalibrated(f"{field}: found {level!r}; allowed: {allowed}, {reason}. {_fix('lower level')}")
        return percent

    def _rate(self, rate: Any, field: str) -> float:
        if not named_answers(self._target).has_confidence:
            raise self._other_problem(field, "one of several classes")
        if not _is_share(rate):
            raise InputError(f"{field}: found {rate!r}; allowed: an error rate above 0 and below 1, 0.02 for example")
        thresholds = self._stored(self.abstention, field, "thresholds for abstention", ABSTENTION)
        if rate < thresholds.lowest:
            lowest = math.ceil(thresholds.lowest * 10**_DIGITS) / 10**_DIGITS
            allowed = f"from {lowest:g}" if lowest < 1 else "none"
            raise NotCalibrated(
                f"{field}: found {rate!r}; allowed: {allowed}, because {thresholds.rows:,} validation samples of "
                f"{self._called} show no lower error rate with {100 * thresholds.confidence:g} % confidence. "
                f"{_fix('higher rate')}"
            )
        return float(rate)

    def _wanted(self, novelty: Any, field: str) -> bool | None:
        if not isinstance(novelty, bool):
            raise InputError(f"{field}: found {novelty!r}; allowed: true, false")
        if not novelty:
            return None
        if not named_answers(self._target).has_confidence:
            raise self._other_problem(field, "one of several classes")
        return bool(self._stored(self.novelty, field, "novelty scores", NOVELTY))

    def _stored(self, value: T | None, field: str, noun: str, file: str) -> T:
        if value is None:
            fix = "train a new version, `ratchet train --set seed=1` for example"
            if (self._full / file).exists():  # registered before each variant had its own
                fix = f"serve the fp32 program, `ratchet set serving.variant=fp32`, {fix}"
            raise NotCalibrated(f"{field}: {self._called} was registered without {noun}. Fix: {fix}, or leave it out")
        return value

    def _other_problem(self, field: str, allowed: str) -> InputError:
        problem = f"{self._called} predicts {self._target.description}"
        return InputError(f"{field}: {problem}; allowed for versions that predict {allowed}. Fix: leave it out")


def _read(kind: type[T], path: Path) -> T | None:
    try:
        return parse(kind, path.read_bytes()) if path.exists() else None
    except ValueError as error:
        raise RegistryError(f"{path.name}: {error}. Fix: use the ratchet that registered it") from error


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1


def _fix(change: str) -> str:
    return f"Fix: a {change}, or a version with more validation samples (data.validation_fraction)"
