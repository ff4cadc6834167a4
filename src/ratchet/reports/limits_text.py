"""Text of a model's limits, for its card."""

from ratchet.evaluation.limits import FEW_IMAGES, find_limits
from ratchet.evaluation.metrics import Metrics
from ratchet.reports.numbers import percent, percent_range

__all__ = ["limit_sentences"]

_LISTED = 5  # classes or slices


def limit_sentences(metrics: Metrics) -> list[str]:
    """Return one sentence for each limit of the model, the most serious first; none where there are no limits."""
    limits, sentences = find_limits(metrics), []
    for weak in limits.weak_classes[:_LISTED]:
        sentences.append(
            f"Recall of class {weak.name} is {percent(weak.recall.value)} on {weak.rows:,} test images "
            f"(CI {percent_range(weak.recall)}), significantly below the overall accuracy."
        )
    if len(limits.weak_classes) > _LISTED:
        more = len(limits.weak_classes) - _LISTED
        sentences.append(f"Recall of {more:,} more classes is significantly below the overall accuracy.")
    for part in limits.weak_slices[:_LISTED]:
        sentences.append(
            f"Where {part.column} is {part.value}, accuracy is {percent(part.accuracy.value)} on {part.rows:,} test "
            f"images (CI {percent_range(part.accuracy)}), significantly below the accuracy on the others."
        )
    if len(limits.weak_slices) > _LISTED:
        more = len(limits.weak_slices) - _LISTED
        sentences.append(f"Accuracy on {more:,} more slices is significantly below the accuracy on the others.")
    if limits.ece is not None:
        sentences.append(
            f"Calibration error (ECE) is {percent(limits.ece.value)} (CI {percent_range(limits.ece)}): do not read the "
            "probabilities as frequencies. evaluation.temperature_scaling may correct them."
        )
    if limits.untested:
        sentences.append(f"Not measured, because there are no test images: {_listed(limits.untested)}.")
    if limits.barely_tested:
        counted = [f"{row.name} ({row.support:,})" for row in limits.barely_tested]
        sentences.append(f"Barely measured, with fewer than {FEW_IMAGES} test images: {_listed(counted)}.")
    if limits.accuracy is not None:
        sentences.append(
            f"Small test set ({metrics.rows:,} images): accuracy has a CI of {percent_range(limits.accuracy)}. A "
            "smaller difference from another model may be chance."
        )
    return sentences


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 2 * _LISTED:,} more" if len(names) > 2 * _LISTED else ""
    return ", ".join(names[: 2 * _LISTED]) + more
