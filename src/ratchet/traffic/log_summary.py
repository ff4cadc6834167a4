"""Summary of the request log: requests by hour and version, and how right the labelled answers were."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ratchet.evaluation.intervals import Interval, mean_of, share_interval
from ratchet.problems.named_answers import NAMED_ANSWERS
from ratchet.traffic.label_store import LabelStore
from ratchet.traffic.log_reader import read

__all__ = ["HourOfVersion", "summary"]

_CONFIDENCE = 0.95


@dataclass(frozen=True)
class HourOfVersion:
    """The logged requests that a version answered in an hour.

    Attributes:
        hour: UTC, as 2026-01-31T12.
        seconds: median time to an answer.
        labels: labelled rows.
        metric: accuracy or mean absolute error; empty without labels.
        quality: the metric with its 95 % interval; None: too few labels.
    """

    hour: str
    version: str
    requests: int
    rows: int
    seconds: float
    labels: int
    metric: str
    quality: Interval | None


def summary(requests: Path) -> list[HourOfVersion]:
    """Return the hours of each version, in the order of time. `requests`: the folder of the log."""
    import polars as pl

    rows = read(requests, columns=("seconds", "prediction"))
    if rows.is_empty():
        return []
    rows = rows.join(LabelStore(requests).newest(), on=("answer", "row"), how="left")
    rows = rows.with_columns(
        hour=pl.col("time").dt.strftime("%Y-%m-%dT%H"), served=pl.format("{}/{}", "model", "version")
    )
    parts = []
    for (hour, version), group in rows.sort("hour", "served").group_by(("hour", "served"), maintain_order=True):
        labelled = group.filter(pl.col("label").is_not_null())
        answers = group.unique("answer")
        seconds = np.asarray(answers["seconds"].to_numpy(), np.float64)
        metric = quality = None
        if len(labelled):
            predicted, labels = (np.array(labelled[name].to_list(), np.float64) for name in ("prediction", "label"))
            right = NAMED_ANSWERS[labelled["problem"][0]].right_rows(predicted, labels)
            if right is not None:
                metric, quality = "accuracy", share_interval(int(right.sum()), len(right), confidence=_CONFIDENCE)
            else:
                errors = np.abs(predicted - labels).mean(axis=1)
                metric = "mean absolute error"
                quality = mean_of(errors, confidence=_CONFIDENCE) if len(errors) > 1 else None
        parts.append(
            HourOfVersion(
                str(hour),
                str(version),
                len(answers),
                len(group),
                float(np.median(seconds)),
                len(labelled),
                metric or "",
                quality,
            )
        )
    return parts
