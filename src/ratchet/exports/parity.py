"""Measurement of a variant: accuracy against the model, speed and size against the fp32 program."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratchet.evaluation.answers import Answers
from ratchet.evaluation.intervals import Interval, paired_difference
from ratchet.evaluation.latency import side_by_side
from ratchet.evaluation.predictions import Predictions
from ratchet.evaluation.selective import abstention_of
from ratchet.evaluation.slices import rows_by_slice
from ratchet.exports.program import Program
from ratchet.exports.variant_text import amount, difference_text, speed_text
from ratchet.exports.variants import Measured, SlicePart, Times
from ratchet.problems import Target
from ratchet.problems.abstention import ABSTENTION
from ratchet.problems.named_answers import named_answers
from ratchet.problems.novelty import NOVELTY, Novelty
from ratchet.problems.regions import CALIBRATION, REGIONS, Calibration
from ratchet.settings.model import EvaluationSettings, ExportSettings

__all__ = ["BATCH", "batches", "calibrations", "judge", "measure"]

Arrays = tuple[NDArray[Any], ...]
Samples = Callable[[NDArray[np.int64]], Arrays]

BATCH = 32  # samples: the largest batch of the model server
_MIXED = 8  # batches in which the neighbours of samples are exchanged


def measure(
    variant: Program,
    full: Program,
    samples: Samples,
    predictions: Predictions,
    columns: Mapping[str, Sequence[str | None]],
    settings: EvaluationSettings,
) -> Measured:
    """Run the variant on the test samples and compare it.

    Args:
        samples: returns the arrays of some test samples, as `Program.predict` takes them.
        columns: by name, the value of each sample to slice by.

    Raises:
        Exception: of onnxruntime, or a TrainingError: an answer is not a finite number.
    """
    variant, full = (replace(program, threads=1) for program in (variant, full))
    rows, target = len(predictions.ids), predictions.target
    computed = _answers(variant, samples, rows)
    ours, theirs = replace(predictions, outputs=target.outputs_of(computed)).checked(), predictions.checked()
    batch = samples(np.arange(min(rows, BATCH)))
    times, full_times = _times(variant, full, batch)
    return Measured(
        rows=rows,
        metric=ours.unit.name,
        unit=ours.unit.factor,
        share=ours.unit.share,
        value=ours.headline("", settings.confidence).interval,
        difference=_difference(ours, theirs, settings),
        slices=_slices(ours, theirs, columns, settings),
        largest_difference=target.largest_difference(computed, target.predictions(predictions.outputs)),
        independent=_is_independent(variant, samples(np.arange(min(rows, _MIXED * BATCH)))),
        batch=len(batch[0]),
        times=times,
        full_times=full_times,
        size=_size(variant),
        full_size=_size(full),
    )


def calibrations(
    variant: Program,
    samples: Samples,
    targets: NDArray[Any],
    target: Target,
    test: tuple[Samples, int],
    confidence: float,
) -> dict[str, object]:
    """Return the calibrations of what a served variant may add to its predictions, by the names of their files.

    Args:
        variant: program.
        samples: returns the arrays of some validation samples.
        targets: of all validation samples, at least one.
        target: of the model.
        test: the same of test samples, and their number.
        confidence: of the bounds of abstention.
    """
    regions, has_confidence = REGIONS.get(target.problem), named_answers(target).has_confidence
    stored = dict[str, object]()
    if not regions and not has_confidence:
        return stored
    predictions = _answers(variant, samples, len(targets))
    if regions:
        stored[CALIBRATION] = Calibration.of(regions.scores(predictions, targets))
    if has_confidence:
        stored[ABSTENTION] = abstention_of(target, predictions, targets, confidence)
        stored[NOVELTY] = Novelty.of(_answers(variant, *test))
    return stored


def _answers(program: Program, samples: Samples, rows: int) -> NDArray[np.float32]:
    """Return the predictions of all samples, (rows, outputs)."""
    return np.concatenate([program.predict(samples(part)) for part in batches(np.arange(rows))])


def _times(variant: Program, full: Program, batch: Arrays) -> tuple[Times, Times]:
    """Return the seconds of both programs for one sample and for a batch."""
    pairs = [side_by_side(*(_call(program, batch, count) for program in (variant, full))) for count in (1, BATCH)]
    ours, theirs = (Times(*seconds) for seconds in zip(*pairs, strict=True))
    return ours, theirs


def judge(measured: Measured, settings: ExportSettings) -> tuple[str, ...]:
    """Return the reasons for which a variant is refused; empty: it passed."""
    reasons, limit = [], settings.tolerance
    if min(measured.speedup.single, measured.speedup.batch) < settings.speedup:
        reasons.append(f"{speed_text(measured)}, required {settings.speedup:g} times (export.speedup)")
    if measured.difference.value < -limit:
        difference = difference_text(measured, measured.difference)
        reasons.append(f"{difference}, limit {amount(measured, -limit)} (export.tolerance)")
    reasons += [
        f"{difference_text(measured, part.difference)} where {part.column} is {part.value}, significantly worse than "
        f"{amount(measured, -limit)} (export.tolerance)"
        for part in measured.slices
        if part.difference.high < -limit
    ]
    if not measured.independent:
        reasons.append("an answer depends on the other samples of its batch")
    return tuple(reasons)


def batches(rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Yield the row numbers in batches of `BATCH`."""
    for start in range(0, len(rows), BATCH):
        yield rows[start : start + BATCH]


def _difference(ours: Answers, theirs: Answers, settings: EvaluationSettings, *, tests: int = 1) -> Interval:
    """Return the mean score of `ours` minus that of `theirs`; the level is corrected for the number of tests."""
    level = 1 - (1 - settings.confidence) / tests
    return paired_difference(ours.score, theirs.score, resamples=settings.resamples, confidence=level, seed=0)


def _slices(
    ours: Answers, theirs: Answers, columns: Mapping[str, Sequence[str | None]], settings: EvaluationSettings
) -> tuple[SlicePart, ...]:
    chosen = rows_by_slice(columns, least=settings.slice_rows)
    return tuple(
        SlicePart(column, value, len(rows), _difference(ours.at(rows), theirs.at(rows), settings, tests=len(chosen)))
        for column, value, rows in chosen
    )


def _is_independent(program: Program, arrays: Arrays) -> bool:
    """Return whether samples have the same bits beside other samples, in batches of one size."""
    for part in batches(np.arange(len(arrays[0]))):
        half = len(part) // 2
        alone = np.concatenate([part[:half], part[:half]])
        beside, without = (
            program.predict(tuple(array[rows] for array in arrays)) for rows in (part[: 2 * half], alone)
        )
        if beside[:half].tobytes() != without[:half].tobytes():
            return False
    return True


def _call(program: Program, arrays: Arrays, rows: int) -> Any:
    batch = tuple(array[:rows] for array in arrays)
    return lambda: program.predict(batch)


def _size(program: Program) -> int:
    """Return the bytes of the program on disk; large weights are in a second file."""
    return sum(path.stat().st_size for path in program.path.parent.glob(f"{program.path.name}*"))
