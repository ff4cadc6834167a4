"""Coverage of the confidence intervals, with known true values.

A population of 200,000 predictions has known metrics. Test sets are drawn from it, and the share of intervals that
contain the population's value is counted. The same is done for the difference of two models on the same images.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ratchet.evaluation.calibration import CALIBRATION_BINS, calibration_error, reliability
from ratchet.evaluation.classification import ClassAnswers
from ratchet.evaluation.headline import intervals
from ratchet.evaluation.intervals import paired_difference
from ratchet.settings.model import EvaluationSettings
from tests.measured import class_answers
from tests.simulations.gate import Pair

__all__ = ["POPULATIONS", "Population", "few_errors_coverage", "headline_metrics", "metric_coverage", "paired_coverage"]

_SIZE = 200_000  # predictions in a population


@dataclass(frozen=True)
class Population:
    """A population of predictions with known metrics.

    Attributes:
        name: description.
        classes: number of classes.
        margin: added to the logit of the right class; the logits are standard normal before.
        sharpness: factor of all logits. Above some value the model is overconfident.
        rarer: how many times as rare each class is as the one before it.
    """

    name: str
    classes: int
    margin: float
    sharpness: float
    rarer: float = 1.0

    def answers(self, *, seed: int = 0) -> ClassAnswers:
        """Draw the whole population."""
        generator = np.random.default_rng(seed)
        shares = self.rarer ** -np.arange(self.classes, dtype=float)
        labels = generator.choice(self.classes, size=_SIZE, p=shares / shares.sum())
        logits = generator.normal(size=(_SIZE, self.classes))
        logits[np.arange(_SIZE), labels] += self.margin
        return class_answers((logits * self.sharpness).astype(np.float32), labels)


POPULATIONS = (
    Population("4 classes, accuracy .95", 4, 2.95, 4.5),
    Population("10 classes, accuracy .90", 10, 3.0, 3.0),
    Population("10 classes, the rarest 1 in 33, accuracy .95", 10, 3.45, 3.5, rarer=1.25),
    Population("2 classes, accuracy .82", 2, 1.3, 1.3),
)


def headline_metrics(answers: ClassAnswers, *, bins: int, k: int) -> dict[str, float]:
    """Return each headline metric, by name and from its plain definition."""
    labels = np.bincount(answers.labels, minlength=answers.width)
    predicted = np.bincount(answers.predicted, minlength=answers.width)
    hits = np.bincount(answers.labels, weights=answers.score, minlength=answers.width)
    occurs = labels + predicted > 0
    areas = [_area(answers.probabilities[:, number], answers.labels == number) for number in np.flatnonzero(labels)]
    top_k = {"top_k": float((answers.rank < k).mean())} if k < answers.width else {}
    return {
        "accuracy": float(answers.score.mean()),
        **top_k,
        "macro_f1": float((2 * hits[occurs] / (labels + predicted)[occurs]).mean()),
        "log_loss": float(answers.losses.mean()),
        "roc_auc": float(np.mean(areas)),
        "ece": calibration_error(reliability(answers.confidence, answers.score, bins=bins)),
    }


def _area(score: NDArray[np.float64], truth: NDArray[np.bool_]) -> float:
    """Return ROC-AUC by ranks (Mann & Whitney 1947)."""
    from scipy.stats import rankdata

    positive = int(truth.sum())
    ranks = float(rankdata(score)[truth].sum())
    return (ranks - positive * (positive + 1) / 2) / (positive * (len(truth) - positive))


def metric_coverage(population: Population, *, rows: int, sets: int, resamples: int) -> dict[str, float]:
    """Return, for each metric, the share of intervals of test sets that contain the population's value.

    Args:
        population: from which the test sets are drawn.
        rows: images of a test set.
        sets: number of test sets.
        resamples: of the bootstrap.
    """
    settings = EvaluationSettings(resamples=resamples, top_k=max(2, min(3, population.classes - 1)))
    how = {"bins": CALIBRATION_BINS, "k": settings.top_k}
    whole = population.answers()
    truth = headline_metrics(whole, **how)
    generator = np.random.default_rng(1)
    held, measured = dict.fromkeys(truth, 0), dict.fromkeys(truth, 0)
    for number in range(sets):
        drawn = generator.integers(_SIZE, size=rows)
        answers = class_answers(whole.logits[drawn], whole.labels[drawn])
        values = headline_metrics(answers, **how)
        bounds = intervals(
            answers, macro_f1=values["macro_f1"], roc_auc=values["roc_auc"], settings=settings, seed=number
        )
        for name, interval in bounds.items():
            held[name] += interval.low <= truth[name] <= interval.high
            measured[name] += 1
    return {name: count / measured[name] for name, count in held.items()}


def paired_coverage(pair: Pair, *, rows: int, sets: int, resamples: int) -> float:
    """Return the share of test sets on which the interval of the difference contains the true difference."""
    generator = np.random.default_rng(2)
    held = 0
    for number in range(sets):
        new, old = (right.astype(np.float64) for right in pair.draw(generator, rows))
        difference = paired_difference(new, old, resamples=resamples, confidence=0.95, seed=number)
        held += difference.low <= pair.better <= difference.high
    return held / sets


def few_errors_coverage(errors: float, *, rows: int, sets: int, classes: int = 10) -> tuple[float, NDArray[np.float64]]:
    """Return the coverage of macro F1's interval, and the lower bounds, where so many errors are expected.

    Every class is as frequent, and an error is equally often each other class.
    """
    generator, settings = np.random.default_rng(3), EvaluationSettings(resamples=100)
    truth, held, lows = 1 - errors / rows, 0, []
    for number in range(sets):
        labels = generator.integers(classes, size=rows)
        wrong = generator.random(rows) < errors / rows
        predicted = (labels + wrong * generator.integers(1, classes, size=rows)) % classes
        logits = 5 * np.eye(classes, dtype=np.float32)[predicted]
        answers = class_answers(logits, labels)
        value = headline_metrics(answers, bins=CALIBRATION_BINS, k=2)["macro_f1"]
        interval = intervals(answers, macro_f1=value, roc_auc=None, settings=settings, seed=number)["macro_f1"]
        held += interval.low <= truth <= interval.high
        lows.append(interval.low)
    return held / sets, np.array(lows)
