"""Labels that are likely wrong, found by models that were not trained on the samples that they judge.

Samples are ranked by self-confidence, the probability that such a model gives to the label (Northcutt, Jiang and Chuang
2021, JAIR 70, who compare scores). The number of wrong labels is estimated, because a low probability can also come
from a weak model.

The estimate is a maximum likelihood of the given labels with two unknowns: a temperature that corrects the model's
confidence (Guo et al. 2017), and the share of labels that were replaced by a random other class (symmetric noise, as in
Patrini et al. 2017). The errors of a calibrated model explain some of the contradicted labels without any wrong label.
If the lower 99.9 % limit of the share is zero, no label is called wrong. Real mistakes are mostly between similar
classes, and the estimate finds fewer of these.
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
_SHARES = np.concatenate([[0.0], np.geomspace(5e-4, 0.8, 80)])  # candidates for the share of wrong labels
_TEMPERATURES = np.geomspace(0.2, 8.0, 60)
_LEAST = 1e-8  # lowest probability, so that its logarithm is finite
_DROP = 4.775  # in log likelihood: the one-sided 99.9 % limit
_Z = 1.96  # standard errors: the 95 % interval of the accuracy


@dataclass(frozen=True)
class Judgement:
    """Result of comparing labels with out-of-fold predictions.

    Attributes:
        accuracy: share of the samples whose label the models predict.
        chance: the same for always predicting the commonest label.
        useful: the lower 95 % limit of the accuracy is above chance.
        classes: per class `class`, `samples` and `accuracy`.
        wrong: estimated share of wrong labels; 0 if its lower 99.9 % limit is 0.
        samples: all samples, the most suspicious first: `row`, `label`, `likely` (the most probable other class),
            `given` (the label's probability), `doubt` (estimated probability that the label is wrong) and `flagged`
            (whether it is likely wrong).
    """

    accuracy: float
    chance: float
    useful: bool
    classes: pl.DataFrame
    wrong: float
    samples: pl.DataFrame

    @property
    def flagged(self) -> int:
        """Number of labels that are likely wrong."""
        return int(self.samples["flagged"].sum())

    @property
    def precision(self) -> float:
        """Expected share of wrong labels among the flagged ones; 0 without any."""
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
    per_class = (
        pl.DataFrame({"label": labels, "right": right})
        .group_by("label")
        .agg(samples=pl.len(), accuracy=pl.col("right").mean())
    )
    names = pl.DataFrame({"label": np.arange(count), "class": list(classes)})
    per_class = names.join(per_class, on="label", how="left", maintain_order="left")
    per_class = per_class.select("class", pl.col("samples").fill_null(0), "accuracy")
    return Judgement(accuracy, chance, useful, per_class, share, samples)


def fold_of(keys: Sequence[str], folds: int) -> NDArray[np.int64]:
    """Return the fold in which each sample is held out, int64 (n,). Samples with the same key share a fold."""
    digests = b"".join(hashlib.blake2b(key.encode(), digest_size=8).digest() for key in keys)
    fold: NDArray[np.int64] = (np.frombuffer(digests, "<u8") % np.uint64(folds)).astype(np.int64)
    return fold


def _calibrated(probabilities: NDArray[np.float32], labels: NDArray[np.int64]) -> tuple[Floats, float]:
    """Return the calibrated probability of each label, and the share of wrong labels (0 if its lower limit is 0)."""
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
    """Return the probability of each given label: it is right, or it replaced another class at random."""
    return (1.0 - share) * right + share * (1.0 - right) / others


def _doubt(right: Floats, share: float, classes: int) -> Floats:
    """Return the probability that each given label is wrong, from its calibrated probability of being right."""
    wrong = share * (1.0 - right) / (classes - 1)
    doubt: Floats = wrong / np.maximum(_mixed(right, share, classes - 1), _LEAST**2)
    return doubt


def _lower_limit(share: float, count: int) -> float:
    """Return the lower limit of the 95 % interval of a share (Wilson 1927)."""
    middle = share + _Z**2 / (2 * count)
    spread = _Z * (share * (1 - share) / count + _Z**2 / (4 * count**2)) ** 0.5
    return float((middle - spread) / (1 + _Z**2 / count))
