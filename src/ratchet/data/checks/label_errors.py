"""Labels that are likely wrong, by models that never saw the samples that they judge.

Samples are ranked by self-confidence, the probability that such a model gives to the label (Northcutt, Jiang and Chuang
2021, JAIR 70, who compare scores). How many of the first are wrong is estimated, not assumed: a low probability alone
says nothing where the model is weak.

The estimate is a likelihood of the given labels with two unknowns: a temperature that corrects the model's confidence
(Guo et al. 2017), and a share of labels that were replaced by another class at random (symmetric noise, as in Patrini
et al. 2017). Labels that a calibrated model would get wrong anyway need no replaced ones to explain them. Where the
lower 99.9 % limit of the share is zero, no label is called wrong. Real mistakes prefer classes that look alike: the
estimate finds fewer of these.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

__all__ = ["Judgement", "fold_of", "judge"]

Floats = NDArray[np.float64]

_LIKELY = 0.5  # probability of being wrong from which a label is called likely wrong
_SHARES = np.concatenate([[0.0], np.geomspace(5e-4, 0.8, 80)])  # of wrong labels, that are tried
_TEMPERATURES = np.geomspace(0.2, 8.0, 60)
_LEAST = 1e-8  # a probability, so that its logarithm is finite
_DROP = 4.775  # in log likelihood: the one-sided 99.9 % limit
_Z = 1.96  # standard errors: the 95 % interval of the accuracy


@dataclass(frozen=True)
class Judgement:
    """What out-of-fold predictions say of labels.

    Attributes:
        accuracy: share of the samples whose label the models predict.
        chance: the same of always predicting the commonest label.
        useful: the lower 95 % limit of the accuracy is above chance.
        classes: per class `class`, `samples` and `accuracy`.
        wrong: estimated share of wrong labels; 0 where its lower 99.9 % limit is.
        samples: all samples, the most suspicious first: `row`, `label`, `likely` (the other class that is most
            probable), `given` (the label's probability), `doubt` (estimated probability that the label is wrong) and
            `flagged` (it is likely wrong).
    """

    accuracy: float
    chance: float
    useful: bool
    classes: pl.DataFrame
    wrong: float
    samples: pl.DataFrame

    @property
    def flagged(self) -> int:
        """How many labels are likely wrong."""
        return int(self.samples["flagged"].sum())

    @property
    def precision(self) -> float:
        """Expected share of wrong labels among those that are called likely wrong; 0 where none is."""
        return float(self.samples.filter("flagged")["doubt"].mean() or 0.0)  # type: ignore[arg-type]


def judge(probabilities: NDArray[np.float32], labels: NDArray[np.int64], *, classes: Sequence[str]) -> Judgement:
    """Rank labels by how suspicious they are, and estimate which are wrong.

    Args:
        probabilities: float32 (rows, classes), each row by a model that was not trained on it.
        labels: int64 (rows,), as given.
        classes: names, by label.
    """
    rows, count = probabilities.shape
    every = np.arange(rows)
    right = probabilities.argmax(axis=1) == labels
    accuracy, chance = float(right.mean()), float(np.bincount(labels, minlength=count).max() / rows)
    useful = _lower_limit(accuracy, rows) > chance
    given = probabilities[every, labels].astype(np.float64)
    others = probabilities.astype(np.float64)
    others[every, labels] = -1.0
    calibrated, share = _calibrated(probabilities, labels)
    share = share if useful else 0.0
    doubt = _doubt(calibrated, share, count)
    samples = pl.DataFrame(
        {
            "row": every, "label": labels, "likely": others.argmax(axis=1), "given": given, "doubt": doubt,
            "flagged": doubt >= _LIKELY, "calibrated": calibrated,
        }
    ).sort("calibrated", "row").drop("calibrated")  # fmt: skip
    known = (
        pl.DataFrame({"label": labels, "right": right})
        .group_by("label")
        .agg(samples=pl.len(), accuracy=pl.col("right").mean())
    )
    names = pl.DataFrame({"label": np.arange(count), "class": list(classes)})
    per_class = names.join(known, on="label", how="left", maintain_order="left")
    per_class = per_class.select("class", pl.col("samples").fill_null(0), "accuracy")
    return Judgement(accuracy, chance, useful, per_class, share, samples)


def fold_of(keys: Sequence[str], folds: int) -> NDArray[np.int64]:
    """In which of so many parts each sample is held out. Samples with the same key share a part."""
    digests = b"".join(hashlib.blake2b(key.encode(), digest_size=8).digest() for key in keys)
    parts: NDArray[np.int64] = (np.frombuffer(digests, "<u8") % np.uint64(folds)).astype(np.int64)
    return parts


def _calibrated(probabilities: NDArray[np.float32], labels: NDArray[np.int64]) -> tuple[Floats, float]:
    """The calibrated probability of each given label, and the share of wrong labels, 0 where its lower limit is."""
    logits = np.log(np.maximum(probabilities, _LEAST).astype(np.float64))
    logits -= logits.max(axis=1, keepdims=True)
    given, others = logits[np.arange(len(labels)), labels], probabilities.shape[1] - 1
    best = np.full(len(_SHARES), -np.inf)
    for temperature in _TEMPERATURES:
        right = np.exp(given / temperature) / np.exp(logits / temperature).sum(axis=1)
        likelihood = [np.log(_mixed(right, share, others) + 1e-300).sum() for share in _SHARES]
        best = np.maximum(best, likelihood)
        if max(likelihood) >= best.max():
            calibrated = right
    limit = _SHARES[np.flatnonzero(best >= best.max() - _DROP)[0]]
    return calibrated, float(_SHARES[best.argmax()]) if limit > 0.0 else 0.0


def _mixed(right: Floats, share: float, others: int) -> Floats:
    """The probability of a given label: it is right, or another class was and it was drawn in its place."""
    return (1.0 - share) * right + share * (1.0 - right) / others


def _doubt(right: Floats, share: float, classes: int) -> Floats:
    """The probability that each given label is wrong, from its calibrated probability of being right."""
    wrong = share * (1.0 - right) / (classes - 1)
    doubt: Floats = wrong / np.maximum(_mixed(right, share, classes - 1), _LEAST**2)
    return doubt


def _lower_limit(share: float, count: int) -> float:
    """Lower end of the 95 % interval of a share (Wilson 1927)."""
    middle = share + _Z**2 / (2 * count)
    spread = _Z * (share * (1 - share) / count + _Z**2 / (4 * count**2)) ** 0.5
    return float((middle - spread) / (1 + _Z**2 / count))
